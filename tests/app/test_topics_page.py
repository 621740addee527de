"""The page Topics: the record browser with its conditions, the tail, groups and lag, an empty
topic, no broker."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given, strategies as st

from tests.app.conftest import OpenPage, boxes, texts
from tests.backend.kafka.members import member
from tests.backend.kafka.test_share import configure, received, share_member
from tests.backend.kafka.topics import Writer
from tests.conftest import wait_until
from tests.runs import Finished
from tests.test_cli import call
from topicproof.app.shell.url_state import (
    COMMITTED,
    FURTHER_MAX,
    OLDEST,
    UNCOMMITTED,
    VIEWS,
    TopicsState,
    needle_bytes,
    read_topics,
    write_topics,
)
from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.browse.search import FOUND_MAX
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    consumer_config,
    idempotent_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.fates import DATA_FATES
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

BOUNDS = Bounds("squares", (PartitionBounds(0, 0, 20, 20), PartitionBounds(1, 5, 8, 12)))
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


@given(
    view=st.sampled_from(VIEWS),
    partition=st.sampled_from([None, 0, 1]),
    begin=st.one_of(st.none(), st.integers(5, 12), st.just("2026-01-31 12:00:00")),
    words=st.tuples(WORDS, WORDS, WORDS),
    fates=st.lists(st.sampled_from(DATA_FATES), unique=True),
    record=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 99)),
    newest=st.booleans(),
    level=st.sampled_from([COMMITTED, UNCOMMITTED]),
    until=st.none() | st.just("2026-01-31T13:00:00+01:00"),
    where=st.sampled_from(["", "$.id = 4242 and headers['a b'] != 'x, y'"]),
    further=st.integers(0, FURTHER_MAX),
)
def test_an_address_reopens_the_same_search(
    view: str,
    partition: int | None,
    begin: int | str | None,
    words: tuple[str, str, str],
    fates: list[Fate],
    record: tuple[int, int] | None,
    newest: bool,
    level: str,
    until: str | None,
    where: str,
    further: int,
) -> None:
    """Story: any search that the page can show is written to the address and read back without a
    notice."""
    offset, time = (begin, None) if not isinstance(begin, str) else (None, begin)
    if partition is None:
        offset = None
    look = TopicsState(
        "squares",
        view,
        partition,
        offset,
        time,
        *words,
        fates=tuple(fates),
        newest=newest,
        record=record,
        level=level,
        until=until,
        where=where,
        further=further,
    )
    assert read_topics(write_topics(look), BOUNDS) == (look, [])


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("view", "partition", "offset", "time", "until", "key", "fate", "order", "record"),
                *("level", "where", "further"),
            ]
        ),
        WORDS,
    )
)
def test_any_address_is_some_search(params: dict[str, str]) -> None:
    """Story: an address is garbage. There is always something to show, and its search can begin."""
    look, _notices = read_topics(params, BOUNDS)
    assert look.view in VIEWS and look.partition in (None, 0, 1)
    assert look.time is None or look.time_ms is not None
    assert look.until is None or look.until_ms is not None
    assert set(look.wanted.fates) <= set(DATA_FATES)


def test_what_is_looked_for_may_be_hexadecimal() -> None:
    """Story: somebody looks for bytes that nobody can type, or for a text that only begins like
    them."""
    assert (
        needle_bytes("0xff00") == b"\xff\x00"
        and needle_bytes("0xyz") == b"0xyz"
        and needle_bytes("Ä") == "Ä".encode()
    )
    assert TopicsState("squares", time="2023-11-14 22:13:20").time_ms == 1_700_000_000_000
    assert TopicsState("squares", time="2023-11-14T23:13:20+01:00").time_ms == 1_700_000_000_000


def test_the_records_of_a_run(open_page: OpenPage, at_home: Settings, finished: Finished) -> None:
    """Story: somebody browses a run's sink, asks for aborted records, and continues where the
    search stopped."""
    assert at_home.home
    app = open_page("topics", topic=finished.sink)
    assert not app.exception
    assert f"**{finished.report.sink.offsets:,}** offsets" in texts(app)
    partitions = len(finished.report.sink.partitions)
    shown = app.dataframe[1].value
    assert shown.groupby("partition").size().tolist() == [FOUND_MAX // partitions] * partitions
    assert f"0 of {partitions} partitions were searched to their end" in texts(app)
    app.selectbox(key="partition").set_value(0).run()
    assert app.query_params["partition"] == "0"
    assert f"**{FOUND_MAX} records** in" in texts(app) and "it stopped because" in texts(app)
    first = app.dataframe[1].value
    assert first["open"].iloc[0].startswith(f"./compare?topic={finished.sink}&partition=0&offset=")
    app.button(key="more").click().run()
    assert not app.exception and app.query_params["further"] == "1"
    both = app.dataframe[1].value
    assert both.iloc[:FOUND_MAX].equals(first)
    assert 0 < len(both) - FOUND_MAX <= FOUND_MAX
    offsets = both["offset"].tolist()
    assert offsets == sorted(set(offsets), reverse=True)

    app.pills(key="fate").set_value([Fate.ABORTED]).run()
    assert app.query_params["fate"] == "aborted"
    assert set(app.dataframe[1].value["fate"]) == {"✕ aborted"}


def test_a_key_is_found_in_whatever_partition_it_is(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: somebody looks for a key, and the page shows another partition. It offers to search
    them all, and begins where the partitioner puts the key. The newest come first if asked."""
    assert at_home.home
    last = len(finished.report.sink.partitions) - 1
    app = open_page("topics", topic=finished.sink, partition=str(last), order="newest")
    newest = app.dataframe[1].value["offset"].tolist()
    assert not app.exception and newest == sorted(newest, reverse=True)
    key = app.dataframe[1].value["key"].iloc[0]
    app = open_page("topics", topic=finished.sink, partition="0", key=key, value=f"0x{'00' * 40}")
    assert "No record matches there" in texts(app)
    (button,) = [one for one in app.button if one.label == "Search all partitions"]
    button.click().run()
    app.text_input(key="value").set_value("").run()
    assert not app.exception and "partition" not in app.query_params
    found = app.dataframe[1].value
    times = found["timestamp (UTC)"].tolist()
    assert key in found[found["partition"] == last]["key"].tolist()
    assert times == sorted(times, reverse=True)
    app.segmented_control(key="order").set_value(OLDEST).run()
    assert app.dataframe[1].value["timestamp (UTC)"].tolist() == sorted(times)
    found = app.dataframe[1].value
    app.text_input(key="time").set_value("2020-01-01").run()
    assert app.dataframe[1].value.equals(found)
    app.text_input(key="until").set_value("2020-01-02").run()
    assert app.query_params["until"] == "2020-01-02" and len(app.dataframe) == 1
    assert "No record in this topic lies between these times" in texts(app)


@pytest.mark.parametrize("view", ["partitions", "groups", "settings", "cluster", "tail"])
def test_every_view_of_a_run(
    open_page: OpenPage, at_home: Settings, finished: Finished, view: str
) -> None:
    """Story: somebody clicks through what there is to know about a run's sink."""
    assert at_home.home
    app = open_page("topics", topic=finished.sink, view=view)
    assert not app.exception and not app.error
    said = {
        "partitions": "Offsets by fate between log start and HW",
        "groups": "No consumer group owns a partition of this topic",
        "settings": "are not the default; they come first",
        "cluster": "1 broker",
        "tail": "The newest 50 records that a read_committed consumer gets",
    }
    assert said[view] in texts(app)
    assert len(app.dataframe) > 1 or view == "groups"


def test_the_list_of_topics_is_filtered(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: an operator looks for topics of one name that withhold records, and finds one of two,
    with the share that was aborted lately."""
    assert at_home.home
    topic, sound = new_topic(partitions=2), new_topic()
    Writer(bootstrap, topic).write("B6 B- n2 A4")
    Writer(bootstrap, sound).write("B1 B+")
    app = open_page("topics", view="cluster", named="the-list-of-topics")
    assert not app.exception and "Newest records: 0 of 2 topics read" in texts(app)

    def is_read() -> bool:
        # A browser draws the fragment again by itself, until the logs of all topics are read.
        app.run()
        return bool(app.dataframe[0].value["aborted"].notna().all())

    wait_until(is_read, 20, "reading the logs of both topics")
    assert not app.exception and not app.error
    found = {row["topic"]: row for row in app.dataframe[0].value.to_dict("records")}
    assert found.keys() == {topic, sound}
    row = found[topic]
    assert (row["partitions"], row["offsets"], row["withheld"], row["open"]) == (2, 13, 4, 1)
    assert row["aborted"] == 0.5 and found[sound]["aborted"] == 0
    app.button_group(key="only").set_value(["withheld"]).run()
    assert app.dataframe[0].value["topic"].tolist() == [topic]


def test_a_topic_stays_from_page_to_page(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: somebody looks at a source, and goes on to another page by the navigation, which names
    no topic. It shows the same topic. Another topic is chosen there: the view stays."""
    assert at_home.home
    app = open_page("topics", topic=finished.source, view="partitions")
    assert app.selectbox(key="topic_chosen").value == finished.source
    app.query_params.clear()
    app.switch_page("views/transactions.py").run()
    assert not app.exception and app.selectbox(key="topic_chosen").value == finished.source
    app.query_params.clear()
    app.switch_page("views/topics.py")
    app.query_params["view"] = "partitions"
    app.run()
    app.selectbox(key="topic_chosen").set_value(finished.sink).run()
    assert (app.query_params["topic"], app.query_params["view"]) == (finished.sink, "partitions")


def test_a_share_group_without_protection_is_warned_of(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a topic is read by a share group alone, configured by default. The page shows it with
    its members, and warns that transactions do not protect them."""
    assert at_home.home
    topic = new_topic()
    group = f"{topic}-queue"
    Writer(bootstrap, topic).write("A2 A- B1 B+")
    configure(bootstrap, group, **{"auto.offset.reset": "earliest"})
    with share_member(bootstrap, group, topic) as consumer:
        assert received(consumer, 3) == [0, 1, 3]

        def done() -> bool:
            consumer.poll(0.2)
            view = inspect_topic(Address(bootstrap), topic)
            return any(each.left == 0 for each in view.shares if each.group == group)

        wait_until(done, 60, "the acknowledgements")
        app = open_page("topics", topic=topic, view="groups")
    assert not app.exception
    assert "also receives records of open and aborted transactions" in texts(app)
    shares, members = (app.dataframe[n].value for n in range(1, 3))
    (row,) = shares[shares["share group"] == group].to_dict("records")
    assert (row["isolation"], row["left at most"], row["lag in offsets"]) == (
        "read_uncommitted",
        0,
        0,
    )
    assert list(members["client id"]) == ["sharer"]


def checkpoint(
    group: str, topic: str, partition: int, source_offset: int, sink_offset: int
) -> tuple[bytes, bytes]:
    """Returns a value and a key as MirrorMaker writes them."""
    names = b"".join(struct.pack(">h", len(one)) + one.encode() for one in (group, topic))
    value = struct.pack(">hqqh", 0, source_offset, sink_offset, 0)
    return value, names + struct.pack(">i", partition)


def test_a_stuck_group_is_named(
    open_page: OpenPage,
    at_home: Settings,
    bootstrap: str,
    new_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a group has read all that is stable, and the rest waits behind an open transaction.
    Other tools show a lag of 5; the page names the transaction that holds it back, and the tail at
    either level shows what that level gets. Another group has a member and no offset yet. A third
    one would come from another cluster, where MirrorMaker has written its checkpoint twice."""
    assert at_home.home
    topic = new_topic()
    checkpoints = f"{topic}.checkpoints.internal"
    Cluster(Address(bootstrap)).create_topic(checkpoints, 1)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for offset in (1, 2):
        producer.produce(checkpoints, *checkpoint("movers", topic, 0, 1_000 + offset, offset))
    assert producer.flush(30) == 0
    writer = Writer(bootstrap, topic)
    writer.write("A2 A+ B3 n2")
    consumer = Consumer(consumer_config(Address(bootstrap), f"{topic}-readers", READ_COMMITTED))
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    with member(bootstrap, f"{topic}-new", [topic], "consumer", "new-reader"):
        app = open_page("topics", topic=topic, view="groups")
    assert not app.exception
    table = app.dataframe[1].value
    own = table[table["group"] == f"{topic}-readers"].iloc[0]
    assert (own["read_committed lag"], own["read_uncommitted lag"], own["HW − committed"]) == (
        0,
        5,
        5,
    )
    assert (
        f"{topic}-readers has read all it can. {topic}-B holds back 5 records on partition 0."
    ) in texts(app)

    # The list of all groups says the same, also of the one that is opened.
    names = {"view": "all-groups", "grouped": topic, "group": f"{topic}-readers"}
    every = open_page("topics", groups="stuck behind a transaction", **names)
    assert not every.exception
    (row,) = every.dataframe[0].value.to_dict("records")
    assert (row["group"], row["read_committed lag"], row["read_uncommitted lag"]) == (
        f"{topic}-readers",
        0,
        5,
    )
    assert (row["state"], row["withheld"], row["stuck behind"]) == ("Empty", 5, f"{topic}-B")
    assert f"{topic}-B holds back 5 records on partition 0." in texts(every)
    groups, partitions, members, moved = (app.dataframe[n].value for n in range(1, 5))
    assert moved.to_numpy().tolist() == [["movers", 0, 1_002, 2]]
    assert call("inspect", topic, "--bootstrap", bootstrap) == 0
    assert re.search(r"movers +0 +1,002 +2", capsys.readouterr().out)
    new = groups[groups["group"] == f"{topic}-new"].iloc[0]
    assert (new["kind"], new["state"], new["members"]) == ("consumer", "Stable", 1)
    own = partitions[partitions["group"] == f"{topic}-new"].iloc[0]
    assert own["owner"] == "new-reader" and own["why"].startswith("No committed offset: counted")
    assert members[["client id", "host", "partitions here"]].to_numpy().tolist() == [
        ["new-reader", "127.0.0.1", "0"]
    ]

    app = open_page("topics", topic=topic, view="tail")
    assert not app.exception
    assert "5 offsets at or above the LSO: withheld from this level" in texts(app)
    assert (
        set(app.dataframe[1].value["fate"]) == {"● committed"} and len(app.dataframe[1].value) == 2
    )
    app.segmented_control(key="tail_level").set_value(UNCOMMITTED).run()
    app.toggle(key="paused").set_value(True).run()
    assert len(app.dataframe[1].value) == 7
    writer.write("n1")
    another = open_page("topics", topic=topic, view="tail", level=UNCOMMITTED)
    wait_until(lambda: len(another.run().dataframe[1].value) == 8, 20, "the new record in the tail")
    app.run()
    assert "paused" in texts(app) and len(app.dataframe[1].value) == 7
    app.toggle(key="paused").set_value(False).run()
    assert len(app.dataframe[1].value) == 8


def test_hostile_payloads_are_shown_as_what_they_are(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a topic holds script tags, bytes that are not text, nulls, and a value of more than a
    megabyte. Each is shown as text, none becomes markup, and the large one is cut but can be saved
    whole."""
    assert at_home.home
    topic = new_topic(max_message_bytes="3000000")
    producer = Producer(
        {**idempotent_producer_config(Address(bootstrap)), "message.max.bytes": 3_000_000}
    )
    hostile: list[tuple[bytes | None, bytes | None]] = [
        (
            b"<script>alert(1)</script>",
            b"<img src=x onerror=alert(2)> ![x](http://127.0.0.1:1/y) $x$",
        ),
        (None, b"\xff\xfe\x00\x80"),
        (b"\x00", None),
        (b"", b"x" * 2_000_000),
    ]
    for key, value in hostile:
        producer.produce(topic, value, key, headers=[("<b>header</b>", b"\xff"), ("null", None)])
    assert producer.flush(20) == 0
    producer.close()
    shown = {}
    for offset in range(len(hostile)):
        app = open_page("topics", topic=topic, record=str(offset), order=OLDEST)
        assert not app.exception
        assert "script" not in texts(app) and "onerror" not in texts(app)
        assert app.dataframe[1].value["size"].iloc[3] == "2.0 MB"
        shown[offset] = boxes(app)
    assert [text.encode() for text in shown[0]] == [*hostile[0]]
    assert shown[1] == ["0xfffe0080"] and shown[2] == ["0x00"]
    assert len(shown[3][1]) < 10_000 and shown[3][1].endswith("…")
    offered = [one.proto.label for one in app.get("download_button")]
    assert [label for label in offered if label.startswith("Whole")] == ["Whole value"]
    assert "Value: the first 1,000,000 bytes" in texts(app)
    app = open_page("topics", topic=topic, value="0xfffe")
    assert app.dataframe[1].value["offset"].tolist() == [1]


ORDERS: list[tuple[str, str, dict[str, bytes]]] = [
    ("o1", '{"customer": {"id": 4242}, "total": 12.5}', {"region": b"eu"}),
    ("o2", '{"customer": {"id": 42420}, "total": 99}', {"region": b"us"}),
    ("o3", "no json", {}),
]


def test_one_record_is_found_by_its_fields_and_opened(
    open_page: OpenPage,
    at_home: Settings,
    bootstrap: str,
    new_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: somebody looks for the orders of customer 4242, which a search for text would mix up
    with 42420. The record opens beside the list: aborted, why, decoded, to copy. They go to the
    next one, close it, choose a column and find it again later. The command line finds the same.
    A filter with a mistake is explained, and stays in its box."""
    assert at_home.home
    topic = new_topic(partitions=2)
    Writer(bootstrap, topic).write("B1 B-")
    plain = Producer(idempotent_producer_config(Address(bootstrap)))
    for key, value, headers in ORDERS:
        plain.produce(topic, value, key, partition=1, headers=[*headers.items()])
    assert plain.flush(30) == 0
    app = open_page("topics", topic=topic)
    assert not app.exception
    rows = app.dataframe[1].value
    assert rows["key"].tolist()[:3] == ["o3", "o2", "o1"] and len(rows) == 4
    app.text_input(key="where").set_value("$.customer.id = 4242").run()
    assert not app.exception and app.query_params["where"] == "$.customer.id = 4242"
    assert "2 records may match too" in texts(app)
    assert app.dataframe[1].value["key"].tolist() == ["o1"]
    # The only one is opened by itself.
    assert "Offset 0" in texts(app) and "Delivered: it is in no transaction." in texts(app)
    assert json.loads(app.json[0].value)["customer"] == {"id": 4242}
    (copied,) = [
        json.loads(element.proto.json)["text"]
        for element in app.get("bidi_component")
        if "Copy as JSON" in element.proto.json
    ]
    document = json.loads(copied)
    assert document["value"] == {"customer": {"id": 4242}, "total": 12.5}
    assert document["headers"] == [{"name": "region", "value": "eu"}]
    app.button(key="close").click().run()
    assert not app.json and len(app.dataframe[1].value) == 1
    wrong = "$.customer.id ~ 4242"
    app.text_input(key="where").set_value(wrong).run()
    assert app.text_input(key="where").value == wrong and len(app.dataframe[1].value) == 1
    assert "The filter is not applied: '$.customer.id' needs an operator" in texts(app)
    app.text_input(key="where").set_value("$.total > 12").run()
    assert app.dataframe[1].value["key"].tolist() == ["o2", "o1"] and not app.json
    app.query_params["record"] = "1/1"
    app.run()
    app.button(key="Next record").click().run()
    assert app.query_params["record"] == "1/0" and app.button(key="Next record").disabled
    app.multiselect(key="fields").set_value(["$.total"]).run()
    app.query_params.clear()
    for name, value in {"topic": topic, "view": "records", "fate": "aborted"}.items():
        app.query_params[name] = value
    app.run()
    assert "$.total" in app.dataframe[1].value and app.multiselect(key="fields").value == [
        "$.total"
    ]
    app.button(key="why").click().run()
    assert f"{topic}-B: its producer aborted it" in texts(app)

    options = ("--bootstrap", bootstrap, "--json")
    assert call("records", topic, "--where", "$.customer.id = 4242", *options) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["records"] == [document] and (answer["whole"], answer["unread"]) == (True, 2)
    assert call("records", topic, "--fate", "aborted", *options[:2]) == 0
    assert "1 record in" in capsys.readouterr().out
    assert call("records", topic, "--where", wrong, *options) == 64


def test_nothing_and_nonsense_are_said(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a topic is empty; an address is mistyped; a search finds nothing. The page reports
    each, and nothing crashes."""
    assert at_home.home
    app = open_page("topics", topic=new_topic())
    assert not app.exception and "This topic is empty" in texts(app)
    topic = new_topic()
    Writer(bootstrap, topic).write("n3")
    app = open_page("topics", topic=topic, key="no such key")
    assert not app.exception and "No record matches there" in texts(app)
    app = open_page("topics", topic=topic, time="2100-01-01")
    assert not app.exception
    assert "No record in partition 0 has that timestamp or a later one" in texts(app)
    app = open_page(
        "topics",
        topic=topic,
        view="x",
        partition="99",
        offset="abc",
        time="noon",
        fate="marker,y",
        level="z",
    )
    assert not app.exception
    notices = "\n".join(str(one.value).replace("\\", "") for one in app.warning)
    for part in (
        "no view x",
        "no partition 99",
        "offset abc is",
        "noon is not a time",
        "No record is marker",
        "no fate y",
    ):
        assert part in notices
    app = open_page("topics", topic="no-such-topic", offset="99999999999")
    assert not app.exception and "no topic no-such-topic" in texts(app)


@pytest.mark.usefixtures("empty_home")
def test_an_unreachable_broker_is_said(open_page: OpenPage) -> None:
    """Story: the address of Kafka is wrong. The page has its frame and says which address did
    what."""
    app = open_page("topics")
    assert not app.exception
    assert app.title[0].value == "Topics"
    assert "No Kafka broker can be reached (127.0.0.1:1: Connection refused)" in texts(app)
