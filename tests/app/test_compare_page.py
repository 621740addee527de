"""The page Compare: a run's sink, hostile payloads, an open transaction, an empty topic, no
broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.app.conftest import OpenPage, boxes, texts
from tests.backend.kafka.topics import Writer
from tests.runs import Finished
from topicproof.app.shell.url_state import WINDOW
from topicproof.app.topic.tables import FATE, OFFSET, READ_COMMITTED_GETS, READ_UNCOMMITTED_GETS
from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.records import WINDOW_BYTES_MAX
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Fate


def test_the_sink_of_a_run_at_both_levels(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: somebody compares a run's sink. The balance is the report's, the first aborted record
    is on the screen, and the page says why a read_committed consumer does not get it."""
    assert at_home.home
    app = open_page("compare", topic=finished.sink)
    assert not app.exception
    fates = finished.report.fates
    said = texts(app)
    assert f"**{finished.report.sink.offsets:,}** offsets" in said
    assert (
        f"✕ **{fates['aborted']:,}** aborted" in said
        and f"■ **{fates['markers']:,}** markers" in said
    )
    assert "Not delivered: its transaction was aborted (marker at" in said
    assert any("Its input was committed at" in button.label for button in app.button)

    headers = dict(app.dataframe[-1].value.to_numpy())
    assert headers["topicproof: input"].startswith(f"{finished.source}/")
    assert "topicproof: topic id" in headers and "topicproof: transaction" in headers

    table = app.dataframe[-2].value
    assert len(table) <= WINDOW
    aborted = table[table[FATE] == "✕ aborted"]
    assert (
        len(aborted)
        and (aborted[(READ_COMMITTED_GETS, "value")] == "— not delivered: aborted").all()
    )
    assert aborted[(READ_UNCOMMITTED_GETS, "value")].str.fullmatch(r"\d+").all()
    committed = table[table[FATE] == "● committed"]
    assert (
        committed[(READ_COMMITTED_GETS, "value")] == committed[(READ_UNCOMMITTED_GETS, "value")]
    ).all()


def test_next_and_filters_are_in_the_url(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: somebody jumps to the next marker, asks for one level and one fate, and copies the
    address. It reopens the same view."""
    assert at_home.home
    app = open_page("compare", topic=finished.sink, partition="1", offset="0")
    app.button(key="next_marker").click().run()
    app.pills(key="fate").set_value([Fate.MARKER]).run()
    app.segmented_control(key="level").set_value("committed").run()
    assert not app.exception
    address = {
        name: app.query_params[name] for name in ("topic", "partition", "offset", "level", "fate")
    }
    assert address["level"] == "committed" and address["fate"] == "marker"

    again = open_page("compare", **address)
    table = again.dataframe[-1].value
    assert set(table[FATE]) == {"■ marker"}
    assert int(address["offset"]) in table[OFFSET].tolist()
    assert (READ_UNCOMMITTED_GETS, "value") not in table.columns
    assert "marker" in texts(again) and "no consumer ever gets one" in texts(again)


def test_bad_values_in_the_url_fall_back_with_a_notice(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: an address was cut off and mistyped. The page shows the nearest thing and says what
    did not fit."""
    assert at_home.home
    app = open_page(
        "compare",
        topic=finished.sink,
        partition="99",
        offset="abc",
        record="999999999",
        level="x",
        fate="aborted,y",
    )
    assert not app.exception
    notices = "\n".join(str(one.value).replace("\\", "") for one in app.warning)
    for part in (
        "no partition 99",
        "offset abc is not a number",
        "Record 999,999,999",
        "no level x",
        "no fate y",
    ):
        assert part in notices
    app = open_page("compare", topic="no-such-topic")
    assert not app.exception and "no topic no-such-topic" in texts(app)


def test_hostile_payloads_are_shown_as_what_they_are(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a topic holds script tags, bytes that are not text, null keys and values, and a large
    one. Each is shown as text, none crashes the page, and none becomes markup."""
    assert at_home.home
    topic = new_topic()
    hostile: list[tuple[bytes | None, bytes | None]] = [
        (
            b"<script>alert(1)</script>",
            b"<img src=x onerror=alert(2)> ![x](http://127.0.0.1:1/y) $x$ :red[z]",
        ),
        (None, b"\xff\xfe\x00\x80"),
        (b"\x00", None),
        (b"", b"x" * 900_000),
    ]
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key, value in hostile:
        producer.produce(topic, value, key, headers=[("<b>header</b>", b"\xff"), ("null", None)])
    assert producer.flush(20) == 0
    producer.close()
    shown = {}
    for offset in range(len(hostile)):
        app = open_page("compare", topic=topic, partition="0", offset=str(offset))
        assert not app.exception
        assert "Delivered: it is in no transaction." in texts(app)
        assert "script" not in texts(app) and "onerror" not in texts(app)
        shown[offset] = boxes(app)
    assert [text.encode() for text in shown[0]] == [*hostile[0]]
    assert shown[1] == ["0xfffe0080"]
    assert shown[2] == ["0x00"]
    assert len(shown[3][1]) < 10_000 and shown[3][1].endswith("…")


def test_a_window_of_large_records_says_what_is_not_shown(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: somebody opens a record among a hundred of which each takes megabytes. The page shows
    as many as a window may hold, that record among them, and says how many it does not show and
    why."""
    assert at_home.home
    topic, count, shown = new_topic(**{"max.message.bytes": "12000000"}), 20, 3
    size = WINDOW_BYTES_MAX // 2 // shown - 10_000
    config = {"message.max.bytes": 12_000_000, "compression.type": "none"}
    producer = Producer({**idempotent_producer_config(Address(bootstrap)), **config})
    for _ in range(count):
        producer.produce(topic, bytes(size), partition=0)
        assert producer.flush(60) == 0
    producer.close()
    app = open_page("compare", topic=topic, partition="0", offset="10")
    assert not app.exception
    assert app.dataframe[-1].value[OFFSET].tolist() == [10, 11, 12]
    sentence = f"Not shown: {count - 13} offsets of this window, from 13 on."
    assert sentence in texts(app) and "may take 64.0 MB of memory" in texts(app)
    app = open_page("compare", topic=topic, partition="0", offset="17")
    assert app.dataframe[-1].value[OFFSET].tolist() == [17, 18, 19]
    assert "Not shown" not in texts(app)


def test_an_open_transaction_is_withheld_until_it_ends(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a transaction is open, so what it wrote and what came after it is withheld. It
    commits; the page stays at its bounds until new ones are taken."""
    assert at_home.home
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A2 A+ B3")
    app = open_page("compare", topic=topic, partition="0", offset="3")
    assert not app.exception
    assert "◔ **3** pending" in texts(app) and "Not yet: its transaction is open" in texts(app)
    writer.write("B+")
    app.run()
    assert "◔ **3** pending" in texts(app)
    app.button(key="refresh").click().run()
    assert not app.exception
    assert "◔ **0** pending" in texts(app) and "● **5** committed" in texts(app)
    assert "Delivered: its transaction committed" in texts(app)


def test_an_empty_topic_is_said(
    open_page: OpenPage, at_home: Settings, new_topic: Callable[..., str]
) -> None:
    """Story: a topic was made a moment ago, after the page had asked for all, and is still empty.
    The page finds it, and says what to do."""
    assert at_home.home
    open_page("compare")
    app = open_page("compare", topic=new_topic())
    assert not app.exception
    assert "This topic is empty" in texts(app) and "**0** offsets" in texts(app)


@pytest.mark.usefixtures("empty_home")
def test_an_unreachable_broker_is_said(open_page: OpenPage) -> None:
    """Story: the address of Kafka is wrong. The page has its frame and says which address did
    what."""
    app = open_page("compare")
    assert not app.exception
    assert app.title[0].value == "Topics"
    assert "No Kafka broker can be reached (127.0.0.1:1: Connection refused)" in texts(app)
