"""The sink's writer at work on a real Kafka, task by task, without Spark around it: refused
records, moved offsets, and transactional ids that two hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from tests.runs import Message, read_all
from topicproof.backend.address import Address
from topicproof.backend.errors import (
    Fenced,
    InjectedError,
    OffsetMissing,
    OffsetsMoved,
    RecordRefused,
    SinkError,
    SourceGap,
)
from topicproof.backend.faults.cluster_faults import fill_with_attempts
from topicproof.backend.faults.injecting import OPTIONS, Faults
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.transaction import enqueue
from topicproof.backend.sink.entries import Declared, FaultFired, TransactionEnded
from topicproof.backend.sink.hooks import NoHooks
from topicproof.backend.sink.journal import read_journal
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.position import next_generation
from topicproof.backend.sink.writer import PartitionWriter, Receipt, partition_writer
from topicproof.validators.lineage.compact import lineage_of
from topicproof.validators.lineage.headers import REASON_HEADER

RECORDS, PER_TRANSACTION = 60, 10
MANY = 4_000


@dataclass(frozen=True)
class Pipeline:
    """A source of numbers, a sink, and what a sink's writer needs to know of them."""

    bootstrap: str
    source: str
    sink: str
    journal: str
    dead_letters: str

    def task(
        self, first: int, end: int, value: Callable[[int], bytes] = lambda n: b"%d" % n, **more: str
    ) -> Receipt:
        """One Spark task with the inputs from `first` to below `end`."""
        with self.writer(**more) as writer:
            writer.accept(rows(self.source, first, end, value))
            return writer.finish()

    def writer(self, **more: str) -> PartitionWriter:
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.sink,
            "group": self.source,
            "transactionalIdPrefix": self.source,
            "journal": self.journal,
            "recordsPerTransaction": str(PER_TRANSACTION),
            **more,
        }
        own = {name: value for name, value in options.items() if name.lower() not in OPTIONS}
        return partition_writer(SinkOptions.parse(own), Faults.parse(options), self.source, 0)

    def sunk(self) -> Counter[bytes | None]:
        return Counter(message.value for message in read_all(self.bootstrap, self.sink))

    def buried(self) -> list[Message]:
        return read_all(self.bootstrap, self.dead_letters)

    def ended(self, outcome: Declared) -> list[tuple[int, str]]:
        """Sequence and reason of the transactions that the journal says ended so."""
        entries = read_journal(Address(self.bootstrap), self.journal)
        return [
            (one.sequence, one.reason)
            for one in entries
            if isinstance(one, TransactionEnded) and one.outcome is outcome
        ]

    def fired(self) -> int:
        return sum(
            isinstance(one, FaultFired)
            for one in read_journal(Address(self.bootstrap), self.journal)
        )


def rows(topic: str, first: int, end: int, value: Callable[[int], bytes]) -> pa.RecordBatch:
    offsets = list(range(first, end))
    return pa.RecordBatch.from_pydict(
        {
            "topic": [topic] * len(offsets),
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"%d" % n for n in offsets], pa.binary()),
            "value": pa.array([value(n) for n in offsets], pa.binary()),
        }
    )


def _as_structs(headers: object) -> list[dict[str, object]] | None:
    return (
        [{"key": key, "value": value} for key, value in headers]
        if isinstance(headers, list)
        else None
    )


def numbers(first: int, end: int) -> Counter[bytes | None]:
    return Counter(b"%d" % n for n in range(first, end))


@pytest.fixture
def pipeline(bootstrap: str, new_topic: Callable[..., str]) -> Pipeline:
    made = Pipeline(bootstrap, new_topic(), new_topic(), new_topic(), new_topic())
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for n in range(RECORDS):
        producer.produce(made.source, b"%d" % n, b"%d" % n)
    producer.flush(10)
    producer.close()
    Cluster(Address(bootstrap)).commit_offsets(made.source, made.source, {0: 0})
    return made


def test_a_record_refused_for_a_while_is_tried_again(pipeline: Pipeline) -> None:
    """Story: the broker refuses a record of the second transaction in two tries. The third commits,
    and nobody is missing."""
    done = pipeline.task(0, RECORDS, faults="refused@transaction=2,times=2")
    assert (done.committed, done.aborted, pipeline.fired()) == (6, 2, 1)
    assert pipeline.sunk() == numbers(0, RECORDS)
    assert [(n, "MSG_SIZE_TOO_LARGE" in why) for n, why in pipeline.ended(Declared.ABORTED)] == [
        (2, True)
    ] * 2


def test_an_input_whose_record_is_always_refused_is_a_dead_letter(pipeline: Pipeline) -> None:
    """Story: the broker refuses a record of the second transaction's first input however often it
    is sent. After three tries the input is a dead letter, in the transaction that takes its offset;
    the others are in the sink."""
    done = pipeline.task(
        0, RECORDS, faults="refused@transaction=2,times=99", deadLetters=pipeline.dead_letters
    )
    assert (done.committed, done.aborted) == (6, 3)
    assert pipeline.sunk() == numbers(0, RECORDS) - numbers(10, 11)
    (letter,) = pipeline.buried()
    place = f"{pipeline.source}/0/10".encode()
    assert letter.value == place
    assert lineage_of(letter.headers) == (pipeline.source, 0, 10, 0)
    assert b"MSG_SIZE_TOO_LARGE" in dict(letter.headers)[REASON_HEADER]


def test_without_dead_letters_a_refused_record_stops_the_task(pipeline: Pipeline) -> None:
    """Story: as before, but there is no topic for dead letters. The task ends with a sentence that
    names the input, and nothing of its transaction is committed."""
    with pytest.raises(
        RecordRefused, match=rf"The input is {pipeline.source}/0/10\. Set deadLetters to a topic"
    ):
        pipeline.task(0, RECORDS, faults="refused@transaction=2,times=99")
    assert pipeline.sunk() == numbers(0, 10)
    assert len(pipeline.ended(Declared.ABORTED)) == 3


def test_an_output_too_large_for_the_client_is_a_dead_letter_too(pipeline: Pipeline) -> None:
    """Story: nobody injects anything, but input 25 makes an output of 2 MB. The client itself
    refuses it."""
    pipeline.task(
        0,
        RECORDS,
        lambda n: b"x" * 2_000_000 if n == 25 else b"%d" % n,
        deadLetters=pipeline.dead_letters,
    )
    assert pipeline.sunk() == numbers(0, RECORDS) - numbers(25, 26)
    assert [letter.value for letter in pipeline.buried()] == [f"{pipeline.source}/0/25".encode()]


def test_an_input_that_passed_in_the_end_is_no_dead_letter_later(pipeline: Pipeline) -> None:
    """Story: the broker refuses a record of input 10 in two tries, and the third commits. Later
    input 35 is refused for good. Only this one is a dead letter: the other is in the sink."""
    pipeline.task(
        0,
        RECORDS,
        lambda n: b"x" * 2_000_000 if n == 35 else b"%d" % n,
        faults="refused@transaction=2,times=2",
        deadLetters=pipeline.dead_letters,
    )
    assert pipeline.sunk() == numbers(0, RECORDS) - numbers(35, 36)
    assert [letter.value for letter in pipeline.buried()] == [f"{pipeline.source}/0/35".encode()]


def test_an_input_is_no_dead_letter_for_one_that_was_refused_before_it(
    pipeline: Pipeline, new_topic: Callable[..., str]
) -> None:
    """Story: of a large transaction the broker refuses the first record while the sink is still
    sending the others, so that one of these hears of it first. Only the input of the refused one is
    a dead letter."""
    narrow = replace(pipeline, sink=new_topic(max_message_bytes="2000"))
    narrow.task(
        0,
        MANY,
        lambda n: b"x" * 5_000 if n == 0 else b"%d" % n,
        deadLetters=narrow.dead_letters,
        recordsPerTransaction=str(MANY),
    )
    assert [letter.value for letter in narrow.buried()] == [f"{narrow.source}/0/0".encode()]
    assert narrow.sunk() == numbers(1, MANY)


def test_small_records_that_are_too_large_together_pass_one_by_one(
    pipeline: Pipeline, new_topic: Callable[..., str]
) -> None:
    """Story: the topic allows batches of 2 kB, and a transaction of ten records of 500 bytes goes
    as one batch. Each record alone is small enough, so nothing is a dead letter."""
    narrow = new_topic(max_message_bytes="2000")
    done = pipeline.task(
        0, 20, lambda n: b"%0500d" % n, topic=narrow, deadLetters=pipeline.dead_letters
    )
    assert done.committed == 2
    assert [int(one.value or b"") for one in read_all(pipeline.bootstrap, narrow)] == list(
        range(20)
    )
    assert pipeline.buried() == []


def test_without_lineage_records_are_as_they_were_made(
    pipeline: Pipeline, new_topic: Callable[..., str]
) -> None:
    """Story: lineage is off, inputs make none, one or two outputs for two topics, and some have
    headers of their own. All arrive in their order, and carry nothing but what is theirs."""
    other = new_topic()
    own = [("colour", b"red"), ("colour", b"")]

    def made(n: int) -> list[dict[str, object]]:
        one: dict[str, object] = {
            "key": b"%d" % n,
            "value": None if n == 7 else b"%d" % n,
            "headers": own if n % 5 == 0 else None,
        }
        return [{**one, "topic": None}, {**one, "topic": other}][: n % 3]

    numbered = rows(pipeline.source, 0, RECORDS, lambda n: b"%d" % n)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    fields = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(header),
        "topic": pa.string(),
    }
    outputs = pa.array(
        [
            [{**one, "headers": _as_structs(one["headers"])} for one in made(n)]
            for n in range(RECORDS)
        ],
        pa.list_(pa.struct(list(fields.items()))),
    )
    with pipeline.writer(lineage="off") as writer:
        writer.accept(
            numbered.select(["topic", "partition", "offset"]).append_column("outputs", outputs)
        )
        assert writer.finish().inputs == RECORDS
    for topic, index in ((pipeline.sink, 0), (other, 1)):
        expected = [made(n)[index] for n in range(RECORDS) if n % 3 > index]
        got = [
            (one.key, one.value, list(one.headers)) for one in read_all(pipeline.bootstrap, topic)
        ]
        assert got == [(one["key"], one["value"], one["headers"] or []) for one in expected]


@pytest.mark.parametrize("headers", [[], [("colour", b"red")]], ids=["plain", "with headers"])
def test_records_wait_in_order_for_room_in_the_queue(
    pipeline: Pipeline, headers: list[tuple[str, bytes]]
) -> None:
    """Story: a transaction holds more records than the client's queue does. None is left out, and
    none overtakes."""
    config = idempotent_producer_config(Address(pipeline.bootstrap))
    producer = Producer({**config, "queue.buffering.max.messages": 10, "linger.ms": 1})
    enqueue(producer, [(pipeline.sink, None, b"%d" % n, headers) for n in range(1_000)])
    assert producer.flush(10) == 0
    assert [int(one.value or b"") for one in read_all(pipeline.bootstrap, pipeline.sink)] == list(
        range(1_000)
    )


def test_without_lineage_a_refused_record_is_tried_again(pipeline: Pipeline) -> None:
    """Story: lineage is off, and the broker refuses a record of the second transaction twice, which
    then passes."""
    done = pipeline.task(0, RECORDS, faults="refused@transaction=2,times=2", lineage="off")
    assert (done.committed, done.aborted, pipeline.fired()) == (6, 2, 1)
    assert pipeline.sunk() == numbers(0, RECORDS)


def test_of_two_that_share_a_transactional_id_one_is_fenced(pipeline: Pipeline) -> None:
    """Story: two runs were given one prefix by mistake. The first one is fenced by the second,
    commits nothing from then on, and says why; together they are exact."""
    with pipeline.writer() as first:
        first.accept(rows(pipeline.source, 0, 25, lambda n: b"%d" % n))
        assert pipeline.task(0, 40) == Receipt((pipeline.source, 0), 20, 20, 2, 0)
        with pytest.raises(
            Fenced,
            match=rf"{pipeline.source}-{pipeline.source}-0 was taken over by another producer",
        ):
            first.finish()
    assert pipeline.sunk() == numbers(0, 40)
    assert [n for n, _ in pipeline.ended(Declared.FENCED)] == [3]


MOVED = [
    # how, the first input of the next task, what it says when it refuses, inputs that are twice
    # there and never
    (
        "rewound",
        10,
        "left it at 20: somebody moved it back, and continuing would repeat offsets 10 to 19",
        (10, 20),
        (),
    ),
    (
        "rewound",
        20,
        "left it at 20: somebody moved it back, and continuing would repeat offsets 10 to 19",
        (),
        (),
    ),
    (
        "forwarded",
        10,
        "left it at 20: somebody moved it forward, and continuing would leave out offsets 20",
        (),
        (20, 30),
    ),
    (
        "forwarded",
        20,
        "left it at 20: somebody moved it forward, and continuing would leave out offsets 20",
        (),
        (20, 30),
    ),
    ("deleted", 10, "has no committed offset for", (), ()),
    ("deleted", 20, "has no committed offset for", (), ()),
]


@pytest.mark.parametrize(("how", "first", "says", "twice", "never"), MOVED)
def test_a_moved_offset_is_refused_or_does_its_damage(
    pipeline: Pipeline,
    how: str,
    first: int,
    says: str,
    twice: tuple[int, ...],
    never: tuple[int, ...],
) -> None:
    """Story: somebody moves the group's offset after the second transaction. The next task, whether
    it replays a batch or not, compares it with the journal and refuses. Forced to continue, it does
    the damage that it announced."""
    with pytest.raises(InjectedError, match="raised on purpose"):
        pipeline.task(0, RECORDS, faults=f"offsets@transaction=2,how={how}")
    with pytest.raises((OffsetsMoved, OffsetMissing), match=says):
        pipeline.task(first, RECORDS)
    assert pipeline.sunk() == numbers(0, 20)

    pipeline.task(first, RECORDS, offsetsForced="true")
    damage = pipeline.sunk()
    assert damage - numbers(0, RECORDS) == (numbers(*twice) if twice else Counter())
    assert numbers(0, RECORDS) - damage == (numbers(*never) if never else Counter())
    assert pipeline.task(RECORDS - 10, RECORDS).skipped == 10, (
        "the journal agrees with the group again"
    )


def test_an_offset_is_where_an_undeclared_transaction_left_it(pipeline: Pipeline) -> None:
    """Story: a worker dies before the journal has its last outcomes. The group's offset lies beyond
    what the journal knows, by a transaction of ours: nobody moved it."""
    pipeline.task(0, 20)
    pipeline.task(20, 40, journal=pipeline.dead_letters)
    assert pipeline.task(30, RECORDS).skipped == 10
    assert pipeline.sunk() == numbers(0, RECORDS)


def test_without_a_journal_nobody_can_tell(pipeline: Pipeline) -> None:
    """Story: the sink has no journal, and the group's offset is moved. Moved back, the hole in the
    rows is still detected; moved forward, it is not, and the option's description says so."""
    options = {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        "topic": pipeline.sink,
        "group": pipeline.source,
    }

    def task(first: int, end: int) -> None:
        given = SinkOptions.parse({**options, "transactionalIdPrefix": pipeline.source})
        with partition_writer(given, NoHooks, pipeline.source, 0) as writer:
            writer.accept(rows(pipeline.source, first, end, lambda n: b"%d" % n))
            writer.finish()

    task(0, 20)
    cluster = Cluster(Address(pipeline.bootstrap))
    cluster.commit_offsets(pipeline.source, pipeline.source, {0: 10})
    with pytest.raises(SourceGap) as refused:
        task(20, 40)
    assert isinstance(refused.value, SinkError)
    cluster.commit_offsets(pipeline.source, pipeline.source, {0: 30})
    task(20, 40)
    assert pipeline.sunk() == numbers(0, 20) + numbers(30, 40)


def test_a_worker_of_an_earlier_generation_ends_before_it_writes(pipeline: Pipeline) -> None:
    """Story: a query was stopped and restarted while one of its workers slept. The worker takes its
    transactional id late, from its current holder, and must not continue; the holder takes it back
    and does."""
    cluster = Cluster(Address(pipeline.bootstrap))
    first, second = (
        next_generation(cluster, pipeline.source, pipeline.journal) for _start in range(2)
    )
    pipeline.task(0, 20, generation=str(second))
    with pytest.raises(Fenced, match="stopped or restarted"):
        pipeline.task(20, 40, generation=str(first))
    assert pipeline.sunk() == numbers(0, 20)
    pipeline.task(20, RECORDS, generation=str(second))
    assert pipeline.sunk() == numbers(0, RECORDS)


def test_holes_are_looked_for_at_the_level_of_the_rows(
    pipeline: Pipeline, new_topic: Callable[..., str]
) -> None:
    """Story: rows are read read_uncommitted, where markers alone leave holes and aborted records
    none. With that option the writer takes them; without it, it refuses rows that a read_committed
    consumer would never get."""
    source = new_topic()
    fill_with_attempts(Cluster(Address(pipeline.bootstrap)), source, 20, 10)
    there = [message.offset for message in read_all(pipeline.bootstrap, source, "read_uncommitted")]
    assert there == [*range(10), *range(11, 21), *range(22, 32), *range(33, 43)]
    pipeline = replace(pipeline, source=source)
    options = {"group": pipeline.sink}
    Cluster(Address(pipeline.bootstrap)).commit_offsets(pipeline.sink, source, {0: 0})
    taken = rows(source, 0, 43, lambda n: b"%d" % n).take(there)
    with (
        pipeline.writer(**options) as writer,
        pytest.raises(SourceGap, match="a read_committed consumer finds"),
    ):
        writer.accept(taken)
    with pipeline.writer(**options, sourceIsolation="read_uncommitted") as writer:
        writer.accept(taken)
        assert writer.finish().inputs == 40
    with (
        pipeline.writer(**options, sourceIsolation="read_uncommitted") as writer,
        pytest.raises(SourceGap, match="a read_uncommitted consumer finds"),
    ):
        writer.accept(rows(source, 45, 46, lambda n: b"%d" % n))
