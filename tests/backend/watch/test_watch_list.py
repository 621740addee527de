"""Contracts that somebody puts on the list of what is watched, and the one process that watches
them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from tests.backend.trust.people import ADA, GRACE
from tests.backend.watch.test_contracts import Pipeline
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import ContractError, NotPermitted, SetupError, UsageError
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.store import History
from topicproof.backend.runs import launch
from topicproof.backend.runs.launch import start_watch
from topicproof.backend.settings import Settings
from topicproof.backend.watch import watch_list
from topicproof.backend.watch.alarms import Notice
from topicproof.backend.watch.cluster_look import cluster_id
from topicproof.backend.watch.pair_store import pair_store
from topicproof.backend.watch.standings import State, read_standings
from topicproof.backend.watch.state_file import (
    FOLDER,
    StateFile,
    is_watched,
    state_file,
    state_name,
)
from topicproof.backend.watch.watch_list import (
    ListedContract,
    list_contract,
    read_list,
    unlist_contract,
    watched_of_list,
)
from topicproof.backend.watch.watcher import Watcher, WatchOptions

TERMS = "source: {{topic: {}}}\nsink: {{topic: {}}}\nwithin: 1s\n"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    opened = History(Settings(home=tmp_path, bootstrap="127.0.0.1:1"))
    yield opened
    opened.engine.dispose()


def contract(history: History, name: str, text: str, cluster: str = "here") -> ListedContract:
    return ListedContract.at(history.settings, cluster, name, text)


def test_a_contract_is_put_on_the_list_and_taken_off(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an operator watches two contracts and one of another cluster, changes the terms of
    one, and stops it. What no watch can judge, the same topics under another name, and more than
    there is room for are refused, and so is a viewer. Each is in the audit log."""
    settings, grace = history.settings, history.acted_on_by(GRACE)
    orders = contract(history, "orders", TERMS.format("orders", "invoices"))
    list_contract(grace, orders)
    list_contract(grace, contract(history, "bills", TERMS.format("invoices", "bills")))
    list_contract(grace, contract(history, "far", orders.text, "there"))
    changed = contract(history, "orders", orders.text.replace("1s", "5s"))
    list_contract(grace, changed)
    watched, refused = watched_of_list(settings, "here")
    assert [(each.name, each.listed) for each in watched] == [
        ("bills", "bills"),
        ("orders", "orders"),
    ]
    assert refused == ()
    with pytest.raises(UsageError, match="The contract orders already watches the same topics"):
        list_contract(grace, contract(history, "again", orders.text))
    with pytest.raises(ContractError, match="group: it cannot be watched"):
        list_contract(grace, contract(history, "group", f"{orders.text}group: readers\n"))
    with pytest.raises(UsageError, match="cannot be named"):
        list_contract(grace, contract(history, "../orders", orders.text))
    monkeypatch.setattr(watch_list, "LISTED_MAX", 3)
    with pytest.raises(UsageError, match="3 contracts are watched, which is the most"):
        list_contract(grace, contract(history, "more", TERMS.format("a", "b")))
    for ask in (list_contract, unlist_contract):
        with pytest.raises(NotPermitted, match="Ada Lovelace has the role viewer"):
            ask(history.acted_on_by(ADA), changed)
    unlist_contract(grace, changed)
    assert [each.name for each in read_list(settings)] == ["bills", "far"]
    entries = [(entry.action.value, entry.what, entry.allowed) for entry in audit_entries(history)]
    assert entries[0] == ("watch a contract", "orders", True)
    assert entries[-3:] == [
        ("watch a contract", "orders", False),
        ("stop watching a contract", "orders", False),
        ("stop watching a contract", "orders", True),
    ]


def test_a_contract_on_the_list_goes_beside_those_of_the_command(history: History) -> None:
    """Story: a command names contracts, and the list has some, too. One with the name of another
    pair's contract gets another name. One with the same terms is judged once. One of the same
    topics with other terms is refused, and so is one that no watch can judge any more: none of them
    keeps the others from being watched, or from being listed."""
    settings = history.settings
    texts = {
        "orders": TERMS.format("orders", "invoices"),
        "bills": TERMS.format("invoices", "bills"),
        "post": TERMS.format("bills", "post"),
    }
    for name, text in texts.items():
        list_contract(history, contract(history, name, text))
    path = settings.home / FOLDER / "list.json"
    listed = json.loads(path.read_text())
    for name, text in (("old", f"{texts['orders']}group: readers\n"), ("torn", "source: {")):
        listed.append({**listed[0], "name": name, "text": text})
    path.write_text(json.dumps(listed))
    of_command = [
        each
        for name, text in (
            ("orders", TERMS.format("numbers", "squares")),
            ("mine", texts["bills"]),
            ("post", TERMS.format("letters", "post")),
            ("post (listed)", TERMS.format("cards", "post")),
            ("other", texts["post"].replace("1s", "5s")),
        )
        for each in contract(history, name, text).watched()
    ]
    watched, refused = watched_of_list(settings, "here", of_command)
    assert [(each.name, each.source, each.listed) for each in watched] == [
        ("orders", "numbers", ""),
        ("mine", "invoices", "bills"),
        ("post", "letters", ""),
        ("post (listed)", "cards", ""),
        ("other", "bills", ""),
        ("orders (listed)", "orders", "orders"),
    ]
    assert [each.has_other_name for each in watched] == [False, True, False, False, False, True]
    assert [(each.name, each.listed, each.sink) for each in refused] == [
        ("post (listed2)", "post", "post"),
        ("old", "old", ""),
        ("torn", "torn", ""),
    ]
    why = "other matches the same topics by other terms, and is judged in its place."
    assert refused[0].why == why and "cannot be watched" in refused[1].why
    list_contract(history, contract(history, "more", TERMS.format("a", "b")))


def test_contracts_of_one_name_are_both_judged(
    bootstrap: str, new_topic: Callable[..., str], history: History
) -> None:
    """Story: somebody watches the contract orders in a terminal, where the list has another one of
    that name. Both are judged, and the terminal says by which name. A copy in the sink of the
    listed one is its alarm, and its row names what the list calls it."""
    settings = history.settings
    pipelines = [Pipeline(bootstrap, new_topic(), new_topic()) for _ in range(2)]
    terms = TERMS.replace("1s", "1ms")
    texts = [terms.format(pipeline.source, pipeline.sink) for pipeline in pipelines]
    for pipeline in pipelines:
        pipeline.write_inputs(1)
        pipeline.write_outputs([0])
    pipelines[1].write_outputs([0])
    of_command = contract(history, "orders", texts[0]).watched()
    list_contract(history, contract(history, "orders", texts[1]))
    lines: list[str] = []
    notices: list[Notice] = []
    with state_file(settings, "here") as file, pair_store(file.pairs) as store:
        watcher = Watcher(
            Address(bootstrap),
            file,
            WatchOptions(contracts=of_command),
            on_notice=lambda notice, _cluster: notices.append(notice),
            on_trouble=lines.append,
            store=store,
            read_contracts=partial(watched_of_list, settings, "here", of_command),
        )
        watcher.look()
        watcher.look()
        assert watcher.is_caught_up
        watched, _ = read_standings(settings.home / FOLDER, int(time.time()))
    assert lines == ["Contract orders of the list is watched as orders (listed)."]
    contracts = [each.alarm.condition.contract for each in notices]
    assert [name for name in contracts if name] == ["orders (listed)"]
    rows = [(each.standing.name, each.standing.state, each.standing.listed) for each in watched]
    assert rows == [
        ("orders", State.HOLDS, ""),
        ("orders (listed)", State.VIOLATED, "orders"),
    ]


def test_a_refused_contract_keeps_no_other_from_being_watched(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: the list has a contract that an earlier version could watch, and a new process begins.
    It judges the other one, and says of the first why it does not: in its row, its log and as an
    alarm. Once that one is off the list its row is gone, and its alarm is over."""
    settings = Settings(home=tmp_path, bootstrap=bootstrap)
    history = History(settings)
    cluster = cluster_id(Address(bootstrap))
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    pipeline.write_inputs(1)
    pipeline.write_outputs([0])
    text = TERMS.format(pipeline.source, pipeline.sink)
    good = ListedContract.at(settings, cluster, "good", text)
    old = ListedContract.at(settings, cluster, "old", f"{text}group: readers\n")
    list_contract(history, good)
    path = tmp_path / FOLDER / "list.json"
    path.write_text(json.dumps([asdict(old), asdict(good)]))

    def states() -> dict[str, State]:
        watched, unreadable = read_standings(tmp_path / FOLDER, int(time.time()))
        assert unreadable == []
        return {each.standing.name: each.standing.state for each in watched}

    def alarms() -> list[str]:
        lasting = StateFile(path.with_name(f"{state_name(cluster)}.json")).read().alarms.alarms
        conditions = [each.condition for each in lasting.values() if each.condition.contract]
        return [f"{each.contract} {each.finding}" for each in conditions]

    start_watch(history, cluster)
    both = {"good": State.HOLDS, "old": State.REFUSED}
    wait_until(lambda: states() == both, 60, "a look")
    wait_until(lambda: alarms() == ["old refused"], 60, "its alarm")
    unlist_contract(history, old)
    wait_until(lambda: states() == {"good": State.HOLDS} and alarms() == [], 60, "its end")
    unlist_contract(history, good)
    wait_until(lambda: not is_watched(settings, cluster), 60, "the end of the process")
    log = path.with_name(f"{state_name(cluster)}.log").read_text()
    assert "Contract old is refused, and not judged: " in log and "group: it cannot be" in log
    assert "Traceback" not in log
    wait_until(
        lambda: all(process.poll() is not None for process in launch._STARTED), 30, "its exit"
    )
    history.engine.dispose()


def test_a_damaged_list_is_said(history: History) -> None:
    """Story: somebody has edited the list. It is no empty list."""
    list_contract(history, contract(history, "orders", TERMS.format("orders", "invoices")))
    path = history.settings.home / FOLDER / "list.json"
    path.write_text('[{"name": 7}]')
    with pytest.raises(
        SetupError, match=r"The list of watched contracts, .* cannot be read: it is"
    ):
        read_list(history.settings)


def test_one_process_watches_all_that_is_listed(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: somebody switches on the watch of a contract on a page, and later that of a second
    one. One process takes both, and outlives who started it. A copy is an alarm while somebody
    looks. Taken off the list, a contract's alarm ends, which is no all-clear, and its row goes.
    With the last contract the process ends."""
    settings = Settings(home=tmp_path, bootstrap=bootstrap)
    history = History(settings)
    cluster = cluster_id(Address(bootstrap))
    pipelines = [Pipeline(bootstrap, new_topic(), new_topic()) for _ in range(2)]
    contracts = [
        ListedContract.at(settings, cluster, name, TERMS.format(pipeline.source, pipeline.sink))
        for name, pipeline in zip(("first", "second"), pipelines, strict=True)
    ]
    for pipeline in pipelines:
        pipeline.write_inputs(2)
        pipeline.write_outputs([0, 1])

    def states() -> dict[str, State]:
        watched, unreadable = read_standings(tmp_path / FOLDER, int(time.time()))
        assert unreadable == [] and {each.state_name for each in watched} <= {state_name(cluster)}
        return {each.standing.name: each.standing.state for each in watched}

    list_contract(history, contracts[0])
    lines: list[str] = []
    start_watch(history, cluster, lines.append)
    wait_until(lambda: states() == {"first": State.HOLDS}, 60, "a look")
    assert is_watched(settings, cluster)
    list_contract(history, contracts[1])
    start_watch(history, cluster, pytest.fail)
    pipelines[0].write_outputs([1])
    both = {"first": State.VIOLATED, "second": State.HOLDS}
    wait_until(lambda: states() == both, 60, "an alarm and a second contract")
    unlist_contract(history, contracts[0])
    wait_until(lambda: states() == {"second": State.HOLDS}, 60, "one contract less")
    assert is_watched(settings, cluster)
    unlist_contract(history, contracts[1])
    wait_until(lambda: not is_watched(settings, cluster), 60, "the end of the process")
    assert states() == {}
    file = StateFile(tmp_path / FOLDER / f"{state_name(cluster)}.json")
    alarms = file.read().alarms.alarms.values()
    assert not [each for each in alarms if each.condition.contract]
    log = (tmp_path / FOLDER / f"{state_name(cluster)}.log").read_text()
    assert "Contract first is not watched any more." in log and "Traceback" not in log
    wait_until(
        lambda: all(process.poll() is not None for process in launch._STARTED), 30, "its exit"
    )
    history.engine.dispose()
