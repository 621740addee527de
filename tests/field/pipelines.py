"""Pipelines of public reports: what each wrote, with the fault and without it. Each has a source
partition to itself, so that all are judged at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.backend.kafka.topics import broker_setting
from tests.conftest import wait_until
from tests.field.bare import UNVERIFIED, BareProducer
from tests.field.pairs import Pipeline, chunks
from topicproof.backend.address import Address
from topicproof.backend.kafka.log.rawlog import fetch_bounds


@dataclass(frozen=True)
class Case:
    """One report. `write(pipeline, is_broken)` writes its records, or those of its healthy twin."""

    report: str
    write: Callable[[Pipeline, bool], None]
    rows: dict[str, int]
    """How many rows the broken pipeline has, by kind. Consequences of other kinds are `kind:
    cause`."""
    partitions: int = 1
    """How many it has, in source and sink."""


def head_is_aborted(pipeline: Pipeline, is_broken: bool) -> None:
    """A client asks for a new epoch in the middle of a transaction, which aborts what it has
    written. It commits the rest, with the offset of all."""
    pipeline.fill(range(10))
    producer = pipeline.begin("a")
    pipeline.produce("a", range(5))
    if not is_broken:
        producer.commit_transaction()
    pipeline.start("a")
    pipeline.deliver("a", range(5, 10))
    pipeline.move_group(10)


def epoch_is_raised_for_another_partition(pipeline: Pipeline, is_broken: bool) -> None:
    """An idempotent producer raises its epoch because of an error elsewhere, and sends the batch
    again that this partition has already stored."""
    pipeline.fill(range(10))
    producer = bare(pipeline, 900_000)
    assert producer.append(keys(pipeline, range(8)), epoch=0, sequence=0) == 0
    again = range(7 if is_broken else 8, 10)
    assert producer.append(keys(pipeline, again), epoch=1, sequence=0) == 0
    pipeline.move_group(10)


def failed_send_is_swallowed(pipeline: Pipeline, is_broken: bool) -> None:
    """Input 4 cannot be sent, and nobody looks at the error."""
    pipeline.fill(range(10))
    pipeline.deliver("a", [number for number in range(10) if number != 4 or not is_broken])
    pipeline.move_group(10)


def no_rewind_at_the_head(pipeline: Pipeline, is_broken: bool) -> None:
    """The very first transaction is aborted. The group has no offset to return to, so the program
    reads on."""
    pipeline.fill(range(20))
    pipeline.deliver("a", range(10), commits=False)
    pipeline.deliver("a", range(10 if is_broken else 0, 20))
    pipeline.move_group(20)


def only_the_failed_record_is_retried(pipeline: Pipeline, is_broken: bool) -> None:
    """A batch is rolled back, and only its failed record is processed again."""
    pipeline.fill(range(10))
    pipeline.deliver("a", range(5), commits=False)
    pipeline.deliver("a", range(1 if is_broken else 5))
    pipeline.deliver("a", range(5, 10))
    pipeline.move_group(10)


def recovery_fails(pipeline: Pipeline, is_broken: bool) -> None:
    """Input 5 fails and belongs into the dead letters. That fails too, is rolled back, and the
    offset moves on."""
    pipeline.fill(range(10))
    pipeline.deliver("a", range(5))
    producer = pipeline.begin("a")
    pipeline.produce("a", [5], topic=pipeline.pair.dead_letters)
    producer.abort_transaction() if is_broken else producer.commit_transaction()
    pipeline.deliver("a", range(6, 10))
    pipeline.move_group(10)


def offset_is_committed_by_the_consumer(pipeline: Pipeline, is_broken: bool) -> None:
    """The consumer commits its offset by itself, and the transaction of the output is aborted."""
    pipeline.fill(range(10))
    pipeline.deliver("a", range(9))
    pipeline.deliver("a", [9], commits=not is_broken)
    pipeline.move_group(10)


def smallest_offset_is_committed_last(pipeline: Pipeline, is_broken: bool) -> None:
    """Outputs go to three partitions, whose answers arrive out of order. The offset that is
    committed last is the smallest."""
    pipeline.fill(range(5))
    producer = pipeline.begin("a")
    for number in range(5):
        pipeline.produce("a", [number], number % 3)
    producer.commit_transaction()
    pipeline.move_group(1 if is_broken else 5)


def offset_of_the_last_record(pipeline: Pipeline, is_broken: bool) -> None:
    """The program commits the offset of the last record that it processed, not of the next, and
    begins there again."""
    pipeline.fill(range(10))
    for first, last in ((0, 3), (3, 6), (6, 9)):
        pipeline.deliver("a", range(first if is_broken or not first else first + 1, last + 1))
    pipeline.move_group(9 if is_broken else 10)


def epochs_are_used_up(pipeline: Pipeline, _is_broken: bool) -> None:
    """Transactions of version 2 raise the epoch with each. At its end the coordinator gives a new
    producer id, and nothing is wrong."""
    pipeline.fill(range(10))
    for producer_id, numbers, epoch in (
        (910_000, range(5), 32_766),
        (920_000, range(5, 10), 0),
    ):
        producer = bare(pipeline, producer_id)
        append_unverified(pipeline, producer, numbers, epoch)
        assert producer.commit(epoch + 1) == 0
    pipeline.move_group(10)


def commit_is_answered_as_rejected(pipeline: Pipeline, is_broken: bool) -> None:
    """A commit is done, but its answer says that it was rejected. The client sends the batch
    again."""
    pipeline.fill(range(10))
    pipeline.deliver("a", range(10))
    pipeline.start("a")
    if is_broken:
        pipeline.deliver("a", range(10))
    pipeline.move_group(10)


def older_offset_is_fetched(pipeline: Pipeline, is_broken: bool) -> None:
    """The next worker fetches an offset from before the last commit."""
    pipeline.fill(range(20))
    pipeline.deliver("a", range(10))
    pipeline.deliver("b", range(8 if is_broken else 10, 20))
    pipeline.move_group(20)


def offset_of_an_open_transaction(pipeline: Pipeline, is_broken: bool) -> None:
    """A successor with another transactional id asks for the offset while its predecessor's
    transaction is open, and both commit."""
    pipeline.fill(range(20))
    producer = pipeline.begin("a")
    pipeline.produce("a", range(10))
    pipeline.begin("b")
    pipeline.produce("b", range(0 if is_broken else 10, 20))
    producer.commit_transaction()
    pipeline.producers["b"].commit_transaction()
    pipeline.move_group(20)


def checkpoint_is_committed_again(pipeline: Pipeline, is_broken: bool) -> None:
    """A recovered job commits an old checkpoint, whose producer id and epoch hold newer data by
    now. The job then repeats that data."""
    pipeline.fill(range(10))
    pipeline.deliver("a", range(8))
    pipeline.deliver("b", range(7 if is_broken else 8, 10))
    pipeline.move_group(10)


def two_tasks_have_one_assignment(pipeline: Pipeline, is_broken: bool) -> None:
    """Two tasks run on one assignment, and both commit."""
    pipeline.fill(range(10))
    for numbers in chunks(range(10), 5):
        for who in "ab" if is_broken else "a":
            pipeline.deliver(who, numbers)
    pipeline.move_group(10)


def transaction_times_out(pipeline: Pipeline, is_broken: bool) -> None:
    """A job commits its offset with a checkpoint, and is down until the coordinator has aborted
    the transaction that it had prepared. It continues behind it."""
    pipeline.fill(range(10))
    pipeline.deliver("a", range(4))
    producer = pipeline.start("b", transaction_timeout_ms="1000" if is_broken else "60000")
    producer.begin_transaction()
    pipeline.produce("b", range(4, 7))
    pipeline.move_group(7)
    if is_broken:
        wait_until(lambda: end(pipeline) > 8, 20, "the abort by time-out")
    else:
        producer.commit_transaction()
    pipeline.deliver("a", range(7, 10))
    pipeline.move_group(10)


def record_behind_a_marker_is_repeated(pipeline: Pipeline, is_broken: bool) -> None:
    """A reader with `failOnDataLoss=false` takes the offset of a marker for a lost record, and
    reads the next one twice."""
    fill_in_transactions(pipeline)
    copies = [
        number for number in range(12) for _ in range(2 if is_broken and number in (4, 8) else 1)
    ]
    pipeline.write(pipeline.pair.sink, [(key, key) for key in keys(pipeline, copies)])
    pipeline.move_group(15)


def markers_reach_the_program(pipeline: Pipeline, is_broken: bool) -> None:
    """The client hands the markers of its source to the program as empty messages, and the program
    forwards them."""
    fill_in_transactions(pipeline)
    for numbers in chunks(range(12), 4):
        records = [(key, key) for key in keys(pipeline, numbers)]
        pipeline.write(pipeline.pair.sink, [*records, *([("", "")] if is_broken else [])])
    pipeline.move_group(15)


def fill_in_transactions(pipeline: Pipeline) -> None:
    """Write 12 inputs in three transactions."""
    producer = pipeline.start("source")
    for numbers in chunks(range(12), 4):
        producer.begin_transaction()
        pipeline.produce("source", numbers, topic=pipeline.pair.source)
        producer.commit_transaction()


def bare(pipeline: Pipeline, producer_id: int) -> BareProducer:
    """Return a producer at the pipeline's first sink partition, with an id of its own."""
    pair, partition = pipeline.pair, pipeline.partition
    address = Address(pair.bootstrap)
    return BareProducer(address, pair.sink, partition, producer_id + partition)


def append_unverified(
    pipeline: Pipeline, producer: BareProducer, numbers: Iterable[int], epoch: int
) -> None:
    """Append a batch to a transaction that no coordinator knows."""
    with broker_setting(pipeline.pair.bootstrap, UNVERIFIED, "false"):
        # The broker hears of its new setting a moment later.
        wait_until(
            lambda: producer.append(keys(pipeline, numbers), epoch, 0, pipeline.name) == 0,
            10,
            "a batch without verification",
        )


def keys(pipeline: Pipeline, numbers: Iterable[int]) -> list[str]:
    return [pipeline.key(number) for number in numbers]


def end(pipeline: Pipeline) -> int:
    """Return the end of the pipeline's first sink partition."""
    bounds = fetch_bounds(Address(pipeline.pair.bootstrap), pipeline.pair.sink)
    return bounds.partitions[pipeline.partition].lso


CASES = (
    Case("confluentinc/librdkafka#3575", head_is_aborted, {"gap": 5}),
    Case("confluentinc/librdkafka#4953", epoch_is_raised_for_another_partition, {"duplicate": 1}),
    Case("astubbs/parallel-consumer#261", failed_send_is_swallowed, {"gap": 1}),
    Case("KAFKA-9079", no_rewind_at_the_head, {"gap": 10}),
    Case("spring-projects/spring-kafka#656", only_the_failed_record_is_retried, {"gap": 4}),
    Case("spring-projects/spring-kafka#1259", recovery_fails, {"gap": 1}),
    Case(
        "spring-projects/spring-kafka#501",
        offset_is_committed_by_the_consumer,
        {"offset_ahead": 1, "gap: offset_ahead": 1},
    ),
    Case(
        "akka/alpakka-kafka#742",
        smallest_offset_is_committed_last,
        {"offset_behind": 1},
        partitions=3,
    ),
    Case("aio-libs/aiokafka#921", offset_of_the_last_record, {"duplicate": 2, "offset_behind": 1}),
    Case("KAFKA-18660", epochs_are_used_up, {}),
    Case("redpanda-data/redpanda#3616", commit_is_answered_as_rejected, {"duplicate": 10}),
    Case("redpanda-data/redpanda#9571", older_offset_is_fetched, {"duplicate": 2}),
    Case(
        "databricks/iceberg-kafka-connect#200",
        offset_of_an_open_transaction,
        {"duplicate": 10, "zombie_write": 1},
    ),
    Case("FLINK-8132", checkpoint_is_committed_again, {"duplicate": 1}),
    Case("KAFKA-13719", two_tasks_have_one_assignment, {"duplicate": 10, "zombie_write": 1}),
    Case("streamnative/kop#1333", transaction_times_out, {"gap": 3}),
    Case("SPARK-25214", record_behind_a_marker_is_repeated, {"duplicate": 2}),
    Case("segmentio/kafka-go#1446", markers_reach_the_program, {"phantom": 3}),
)
