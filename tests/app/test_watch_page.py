"""The page Watch: nothing watched, contracts of several clusters, many of them, names as strangers
choose them, and hours of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import OpenPage, texts
from tests.backend.trust.people import ADA
from topicproof.app.session import access
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.store import History
from topicproof.backend.services.keeper import embedded_kafka
from topicproof.backend.settings import read_settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.watch.pair_store import pair_store
from topicproof.backend.watch.standings import SLOT_S, SLOTS, Standing, State
from topicproof.backend.watch.state_file import FOLDER, state_name
from topicproof.backend.watch.watch_list import ListedContract, list_contract, read_list

BOOTSTRAP = "127.0.0.1:1"
HOLDS = Standing(
    name="orders",
    source="orders",
    sink="invoices",
    bootstrap=BOOTSTRAP,
    cluster="",
    state=State.HOLDS,
    why="7 inputs committed exactly once so far.",
    next_step="",
    due=7,
    late=0,
    withheld=2,
    behind=0,
    delay_s=1.5,
    every_s=10,
)
VIOLATED = replace(
    HOLDS,
    name="<b>bill</b> [x](http://y)",
    state=State.VIOLATED,
    why="Violated: duplicate: 1 of 8 records.",
    next_step="Look for two programs.",
    place=("invoices", 3, 1_500),
    waived=("gap",),
)
Note = Callable[[Sequence[Standing], int, str], None]


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Note:
    """Writes standings as the watch of a cluster does."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", BOOTSTRAP)
    folder = tmp_path / FOLDER
    folder.mkdir()

    def write(standings: Sequence[Standing], at_s: int, cluster: str) -> None:
        with pair_store(folder / f"{cluster}.pairs") as store:
            store.note(standings, at_s)

    return write


def strips(app: AppTest) -> list[str]:
    return [each.proto.body for each in app.get("html") if "Last day" in each.proto.body]


@pytest.mark.usefixtures("note")
def test_without_a_watch_it_says_how_to_begin(open_page: OpenPage) -> None:
    """Story: somebody opens the page first. It has the command, with the options of this cluster,
    and the way to a contract."""
    app = open_page("watch")
    assert not app.exception and "No contract is watched from this home" in texts(app)
    (command,) = [each.value for each in app.code]
    assert command == f"topicproof watch contract.yaml --bootstrap {BOOTSTRAP}"
    assert [link.value for link in app.page_link] == ["Draft a contract"]
    assert "Switch on *Watch this* beside a contract or a verdict" in texts(app)


def test_each_contract_is_a_row_with_its_day_and_what_to_do(
    open_page: OpenPage, note: Note
) -> None:
    """Story: an operator looks at two contracts of this cluster, one of another, and one that
    nobody watches any more. The worst is first. A click leads to Compare at the offset. What
    strangers call things stays text. Each redraw shows what is new, and no more of it."""
    now = int(time.time())
    note([replace(HOLDS, state=State.UNKNOWN)], now - 2 * SLOT_S, "here")
    note([HOLDS, VIOLATED], now, "here")
    note([replace(HOLDS, name="far", bootstrap="far:9092")], now, "far")
    note([replace(HOLDS, name="gone")], now - 3_600, "gone")
    app = open_page("watch")
    assert not app.exception
    words = texts(app)
    order = [words.index(name) for name in ("**<b>bill</b>", "**gone**", "**far**", "**orders**")]
    assert order == sorted(order)
    assert "1 VIOLATED" in words and "2 HOLDS" in words and "1 NOT WATCHED" in words
    assert "7 inputs due, 0 inputs late. 2 offsets withheld." in words
    assert "**Now:** Look for two programs." in words and "Waived: Gaps" in words
    assert "on another cluster: far:9092" in words and "nothing newer is known" in words
    labels = [link.value.replace("\\", "").replace("\u00a0", " ") for link in app.page_link]
    assert labels == ["Compare invoices 3 at 1,500", "Compare invoices", "Compare invoices"]
    (query,) = [link.proto.query_string for link in app.page_link if "offset" in str(link.proto)]
    assert query == "topic=invoices&partition=3&offset=1500"
    own = strips(app)[-1]
    assert 'aria-label="Last day: holds 50 %, unknown 50 %"' in own
    drawn = len(app.get("html")), len(app.markdown), len(app.caption)
    for later in range(1, 4):
        note([HOLDS, replace(VIOLATED, due=7 + later)], now + later, "here")
        app.run()
        assert (len(app.get("html")), len(app.markdown), len(app.caption)) == drawn
    assert "10 inputs due" in texts(app)


def test_a_watch_by_another_address_is_of_the_same_cluster(
    open_page: OpenPage, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody has given the embedded Kafka by its address to a watch. The page, which calls
    it otherwise, leads to its topics. Another cluster at such an address is another one."""
    monkeypatch.delenv("TOPICPROOF_BOOTSTRAP")
    folder = embedded_kafka(read_settings(), 1)
    folder.mkdir(parents=True)
    (folder / "cluster.id").write_text("embedded")
    now = int(time.time())
    note([HOLDS], now, state_name("embedded"))
    note([replace(HOLDS, name="far")], now, state_name("far"))
    app = open_page("watch")
    assert not app.exception
    assert [link.value for link in app.page_link] == ["Compare invoices"]
    assert texts(app).count(f"on another cluster: {BOOTSTRAP}") == 1


def test_what_the_dashboard_watches_is_stopped_here(
    open_page: OpenPage, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: of three contracts on the list one is looked at, the watch of one has ended, and one
    was not looked at yet; a fourth one is watched from a terminal. An operator stops one. A viewer
    may press nothing."""
    settings = read_settings()
    text = "source: {topic: %s}\nsink: {topic: invoices}\n"
    history = History(settings)
    for name in ("orders", "ended", "new"):
        list_contract(history, ListedContract.at(settings, "here", name, text % name))
    now = int(time.time())
    note([replace(HOLDS, name="ended", listed="ended")], now - 3_600, state_name("here"))
    terminal = replace(HOLDS, name="terminal")
    note([replace(HOLDS, listed="orders"), terminal], now, state_name("here"))
    app = open_page("watch")
    assert not app.exception and "**new** Nobody watches its cluster." in texts(app)
    buttons = {str(button.key): button for button in app.button if button.key != "jump"}
    assert sorted(buttons) == [
        *(f"again here {name}" for name in ("ended", "new")),
        *(f"stop here {name}" for name in ("ended", "new", "orders")),
    ]
    buttons["stop here new"].click().run()
    assert [each.name for each in read_list(settings)] == ["orders", "ended"]
    assert "**new**" not in texts(app)
    assert audit_entries(history)[-1].action is Action.UNWATCH
    monkeypatch.setattr(access, "page_identity", lambda _settings: ADA)
    app.run()
    assert {button.disabled for button in app.button if button.key != "jump"} == {True}
    history.engine.dispose()


def test_a_contract_that_is_refused_or_has_another_name_says_so(
    open_page: OpenPage, note: Note
) -> None:
    """Story: a terminal watches a contract orders, and the list has another one of that name. A
    third one cannot be watched any more. Each button belongs to its own row, and nobody is told
    that a first look goes on."""
    settings = read_settings()
    history = History(settings)
    for name in ("orders", "old"):
        text = f"source: {{topic: {name}}}\nsink: {{topic: invoices}}\n"
        list_contract(history, ListedContract.at(settings, "here", name, text))
    refused = replace(
        HOLDS, name="old", source="", sink="", state=State.REFUSED, why="It is torn.", listed="old"
    )
    other = replace(HOLDS, name="orders (listed)", listed="orders")
    note([HOLDS, other, refused], int(time.time()), state_name("here"))
    app = open_page("watch")
    words = texts(app)
    assert not app.exception and "first look" not in words
    assert "1 REFUSED" in words and words.index("**old**") < words.index("**orders**")
    assert "It is torn." in words and words.count("inputs due") == 2
    assert words.count("*Watch this* calls it orders.") == 1
    assert sorted(str(button.key) for button in app.button if button.key != "jump") == [
        "stop here old",
        "stop here orders",
    ]
    history.engine.dispose()


def test_many_contracts_are_drawn_in_parts(open_page: OpenPage, note: Note) -> None:
    """Story: 120 contracts have changed at each of a day's five minutes. The page draws 50, and no
    strip has more parts than a day has."""
    now = int(time.time())
    many = [replace(HOLDS, name=f"contract {number:03}") for number in range(120)]
    states = (State.HOLDS, State.BEHIND, State.UNKNOWN)
    for slot in range(0, SLOTS, 16):
        state = states[slot // 16 % 3]
        note([replace(each, state=state) for each in many], now - slot * SLOT_S, "here")
    note(many, now, "here")
    app = open_page("watch")
    assert not app.exception and len(strips(app)) == 50
    assert max(each.count("flex:") for each in strips(app)) <= SLOTS
    app.selectbox(key="watch_rows").set_value(100).run()
    assert len(strips(app)) == 20 and "contract 119" in texts(app)
