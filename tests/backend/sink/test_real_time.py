"""The sink in real time: transactions end by time, and the threads on both sides of it agree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tests.conftest import wait_until
from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.errors import InjectedError, OffsetMissing
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.sink.hooks import NoHooks
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.real_time import BUFFER_ROWS, RowBuffer, write


def row(offset: int | None, topic: str = "source", count: int = 1) -> pa.RecordBatch:
    """As many equal rows as asked for. No offset: the empty row that follows each row."""
    given = offset is not None
    value = str(offset).encode() if given else None
    one = {
        "topic": topic if given else None,
        "partition": 0 if given else None,
        "offset": offset,
        "key": value,
        "value": value,
    }
    schema = pa.schema(
        [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
        + [(name, pa.binary()) for name in ("key", "value")]
    )
    return pa.RecordBatch.from_pylist([one] * count, schema)


def options(
    bootstrap: str, source: str, sink: str, journal: str | None = None, generation: str = "1"
) -> SinkOptions:
    known = {"journal": journal, "generation": generation} if journal is not None else {}
    return SinkOptions.parse(
        {
            "kafka.bootstrap.servers": bootstrap,
            "topic": sink,
            "group": source,
            "transactionalIdPrefix": source,
            **known,
        }
    )


def test_a_transaction_ends_without_waiting_for_the_next_row(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: two rows come, then nothing. Both are committed while Spark waits for a third, no
    transaction is open, and an empty row that comes later changes nothing."""
    source, sink = new_topic(), new_topic()
    cluster = Cluster(Address(bootstrap))
    cluster.commit_offsets(source, source, {0: 0})

    def rows() -> Iterator[pa.RecordBatch]:
        yield row(0, source)
        yield row(None)
        yield row(1, source)
        wait_until(lambda: cluster.committed(source, source) == {0: 2}, 30, "the commit by time")
        bounds = cluster.bounds(sink).partitions[0]
        assert bounds.lso == bounds.hw
        yield row(None)

    assert list(write(options(bootstrap, source, sink), NoHooks, rows())) == []
    assert [message.value for message in read_all(bootstrap, sink)] == [b"0", b"1"]


def test_the_writers_error_ends_the_task(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: the group has no offset, so the writer refuses its first row. Spark hands more rows
    over, and gets the writer's own error."""
    source, sink = new_topic(), new_topic()
    rows = (row(offset, source) for offset in range(1_000_000))
    with pytest.raises(OffsetMissing, match="no committed offset"):
        list(write(options(bootstrap, source, sink), NoHooks, rows))


def test_rows_that_wait_are_taken_together_and_limited() -> None:
    """Story: Spark hands over as many rows as may wait. The next one waits until the writer has
    taken all of them at once."""
    buffer = RowBuffer()
    buffer.put(row(0, count=BUFFER_ROWS - 1))
    buffer.put(row(1))
    done = threading.Event()

    def put() -> None:
        buffer.put(row(2))
        done.set()

    spark = threading.Thread(target=put)
    spark.start()
    assert not done.is_set()
    taken = buffer.take(None)
    assert taken is not None
    assert [batch.num_rows for batch in taken] == [BUFFER_ROWS - 1, 1]
    spark.join()
    buffer.end()
    assert [batch.num_rows for batch in buffer.take(0) or ()] == [1]
    assert buffer.take(None) is None


def test_rows_of_a_task_that_spark_gave_up_are_not_written() -> None:
    """Story: Spark's connection breaks while rows wait. The writer gets none of them."""
    buffer = RowBuffer()
    buffer.put(row(0))
    buffer.abandon()
    assert buffer.take(None) is None


def test_a_failed_writer_releases_spark() -> None:
    """Story: Spark waits because too many rows are held. The writer fails, and Spark learns why."""
    buffer = RowBuffer()
    buffer.put(row(0, count=BUFFER_ROWS))
    threading.Thread(target=buffer.fail, args=(InjectedError("on purpose"),)).start()
    with pytest.raises(InjectedError, match="on purpose"):
        buffer.put(row(1))
