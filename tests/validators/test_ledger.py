"""The fate of every offset, the balance, and readings that cannot be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tests.validators.history import history, side_by_side
from topicproof.validators.finding import Balance, Transactions


def test_every_offset_has_a_fate(spark: SparkSession, tmp_path: Path) -> None:
    """Story: committed, never in a transaction, aborted, gone, compacted inside a batch, and
    pending ones behind an open transaction. The balance adds up to the high watermark."""
    ledger = history("0 1 x C 7! _ 2 3 A 2 C 3 4! b:5", inputs=8).ledger(spark, tmp_path)
    fates = {row["offset"]: row["fate"] for row in ledger.sink.collect()}
    assert fates == {
        **dict.fromkeys((0, 1, 4, 9), "COMMITTED"),
        **dict.fromkeys((6, 7), "ABORTED"),
        **dict.fromkeys((11, 12, 13), "PENDING"),
    }
    assert ledger.balance == (Balance(0, 14, 4, 2, 3, 3, 2, None, 0, 1),)
    assert ledger.transactions == Transactions(2, 1, 2, "headers")


def test_without_the_raw_log_what_has_no_record_stays_unnamed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the brokers' log could not be read. Markers and gone offsets cannot be told apart, and
    the ledger does not try."""
    ledger = history("0 1 x C _ 2 A", inputs=3).ledger(spark, tmp_path, raw_log=False)
    assert ledger.balance == (Balance(0, 7, 2, 1, 0, None, None, 4, 0, None),)


def test_a_batch_that_straddles_the_start_is_counted_inside_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: records below offset 3 were deleted, in the middle of a batch that compaction had
    thinned out before. Its header counts both sides; the reading shows how many are left inside."""
    ledger = history("0 1 2 3 x 5 C", inputs=6, start=3).ledger(spark, tmp_path)
    assert (ledger.balance, ledger.doubts) == ((Balance(0, 4, 2, 0, 0, 1, 1, None, 0, 0),), ())


def test_headers_that_are_not_ours_are_no_lineage(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a foreign producer writes nonsense into our headers. It becomes null, never an
    error."""
    made = history("0 1 2 C", inputs=3)
    nonsense = [
        b"numbers/0/1",
        b"numbers/0/-1/0",
        b"numbers/00/1/0",
        b"/0/1/0",
        b"numbers/0/99999999999999999999/0",
    ]
    rows = [
        (
            0,
            offset,
            None,
            None,
            None,
            [("topicproof-lineage", text), ("topicproof-transaction", text)],
        )
        for offset, text in enumerate([*nonsense, b"\xff\xfe/0/0/x", b"", None])
    ]
    made.uncommitted[:] = made.committed[:] = rows
    made = replace(made, sink_bounds=history("? ? ? ? ? ? ? ?".replace("?", "?!")).sink_bounds)
    ledger = made.ledger(spark, tmp_path, raw_log=False)
    columns = (
        "source_topic",
        "source_partition",
        "source_offset",
        "output_index",
        "transactional_id",
        "sequence",
    )
    assert {tuple(row) for row in ledger.sink.select(*columns).collect()} == {(None,) * 6}


def test_readings_that_cannot_be_trusted_are_doubted_one_by_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the reader, not the pipeline, did impossible things, one per partition. Each is
    reported."""
    lines = ("0 1 2 C", "0 1 2 C", "0 1 2 C", "0 1 2 C", "0 C 1*")
    twice, changed, unseen, cut, _ = made = [
        history(line, inputs=3, first=number) for number, line in enumerate(lines)
    ]
    twice.uncommitted.append(twice.uncommitted[0])
    changed.committed[0] = (*changed.committed[0][:4], b"other", changed.committed[0][5])
    del unseen.uncommitted[1]
    del cut.committed[-1], cut.uncommitted[-1]
    twice.source.append(twice.source[0])
    assert side_by_side(made).ledger(spark, tmp_path).doubts == (
        "records delivered more than once by one reading of the sink: 1.",
        (
            "blocks of 64 offsets whose content differs between read_committed and"
            " read_uncommitted: 1."
        ),
        "records visible to read_committed, but not to read_uncommitted: 1.",
        "records visible to read_committed at or above the last stable offset: 1.",
        "records delivered more than once by the reading of the source: 1.",
        "unexplained offsets in squares-0: -1 of 4.",
        "unexplained offsets in squares-2: 1 of 4.",
        "unexplained offsets in squares-3: 1 of 4.",
    )
