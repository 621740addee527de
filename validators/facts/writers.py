"""Who wrote a record: its producer, and how and when its transaction ended, by the sink's raw log.
The coordinators' log adds the transactional id and the reason of an abort.

Records of our own runs name their transaction in a header. Records of other programs do not, but
each lies in a batch, and the batch names its producer.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, OPEN
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.offsets import word
from topicproof.validators.readings import frame_of

ABORTED_BY = {
    "declared": "aborted by its producer",
    "timeout": "aborted by time-out",
    "fenced": "aborted because another producer took over its transactional id,",
    "operator": "aborted by an operator",
}
"""Words for the reasons of `Attribution`."""
UNNAMED = "a producer without idempotence"
"""The producer of a batch without a producer id."""
NAME_MAX = 100
"""Characters shown of a transactional id."""
RECORD_WRITER_COLUMNS = (
    "writer string, writer_producer string, writer_name string, writer_id long, writer_number long,"
    " writer_epoch int, writer_began long, writer_ended long, written_ms long"
)
"""What `with_writers` adds."""
NO_TIME = "no time known"
TIME_MAX_MS = 253_402_300_799_000
"""The end of the year 9999. A producer may write any time, and Spark formats none beyond."""


def with_writers(
    rows: DataFrame,
    log: RawLog | None,
    partition: str = "partition",
    offset: str = "offset",
) -> DataFrame:
    """Adds `RECORD_WRITER_COLUMNS` for the record at each row's place; null without a place, or if
    the raw log was not read.

    `writer`: `transactional id m5-b, producer id 2, epoch 0, committed`. `writer_producer`: the
    same without the transactional id. `writer_name`: the transactional id, if a coordinator named
    it. `writer_number`, `writer_epoch`: the producer id and epoch of the batch, -1 for none.
    `writer_id`: the producer id, if its batch is in a transaction; that
    began at the offset `writer_began` of the partition and ended at the marker `writer_ended`.
    `written_ms`: the time of the marker; if there is none, or for a record outside transactions,
    the batch's own time.
    """
    if log is None:
        return rows.withColumns(
            {
                name: F.lit(None).cast(kind)
                for name, kind in map(str.split, RECORD_WRITER_COLUMNS.split(", "))
            }
        )
    places = _places(log)
    in_batch = (F.col(partition) == F.col("batch_partition")) & (
        word(offset) == F.col("batch_word")
    )
    in_batch &= F.col(offset).between(F.col("batch_first"), F.col("batch_last"))
    name = F.substring("batch_name", 1, NAME_MAX)
    producer = F.when(
        F.col("batch_producer") >= 0,
        F.format_string("producer id %d, epoch %d", "batch_producer", "batch_epoch"),
    ).otherwise(UNNAMED)
    labelled = F.concat(F.lit("transactional id "), name)
    writer = F.concat_ws(", ", labelled, producer, "batch_end")
    has_batch = F.col("batch_partition").isNotNull()
    return (
        rows.join(places, in_batch, "left")
        .withColumns(
            {
                "writer": F.when(has_batch, writer),
                "writer_producer": F.when(has_batch, F.concat_ws(", ", producer, "batch_end")),
                "writer_name": name,
                "writer_id": F.when(F.col("batch_began").isNotNull(), F.col("batch_producer")),
                "writer_number": F.col("batch_producer"),
                "writer_epoch": F.col("batch_epoch").cast("int"),
                "writer_began": F.col("batch_began"),
                "writer_ended": F.col("batch_ended"),
                "written_ms": F.col("batch_ms"),
            }
        )
        .drop(*(f"batch_{name}" for name in _BATCH))
    )


_BATCH = (
    "partition",
    "word",
    "first",
    "last",
    "producer",
    "epoch",
    "name",
    "end",
    "began",
    "ended",
    "ms",
)


def _places(log: RawLog) -> DataFrame:
    """Returns the data batches, one row for each word of offsets that they reach into."""
    aborted = F.lit("aborted")
    for reason, words in ABORTED_BY.items():
        aborted = F.when(F.col("reason") == reason, words).otherwise(aborted)
    end = (
        F.when(~F.col("transactional"), F.lit("outside transactions,"))
        .when(F.col("outcome") == COMMITTED, F.lit("committed"))
        .when(F.col("outcome") == ABORTED, aborted)
        .when(F.col("outcome") == OPEN, F.lit("open, last written"))
        .otherwise("without a marker, last written")
    )
    reached = F.explode(F.sequence(word("base_offset"), word("last_offset")))
    return log.data.select(
        F.col("partition").alias("batch_partition"),
        reached.alias("batch_word"),
        F.col("base_offset").alias("batch_first"),
        F.col("last_offset").alias("batch_last"),
        F.col("producer_id").alias("batch_producer"),
        F.col("producer_epoch").alias("batch_epoch"),
        F.col("transactional_id").alias("batch_name"),
        end.alias("batch_end"),
        F.col("began").alias("batch_began"),
        F.col("marker_offset").alias("batch_ended"),
        F.col("written_ms").alias("batch_ms"),
    )


def names(log: RawLog) -> DataFrame:
    """Returns the transactional ids that are known: producer_id, transactional_id."""
    rows = sorted(log.attribution.transactional_ids.items())
    columns = "producer_id long, transactional_id string"
    spark = log.batches.sparkSession
    return frame_of(spark, rows, columns)


def reasons(log: RawLog) -> DataFrame:
    """Returns why transactions were aborted: partition, began (the first offset of the data),
    aborted_by (in words)."""
    rows = [
        (reason.partition, reason.first_offset, ABORTED_BY[reason.reason])
        for reason in log.attribution.reasons
        if reason.reason in ABORTED_BY
    ]
    columns = "partition int, began long, aborted_by string"
    spark = log.batches.sparkSession
    return frame_of(spark, rows, columns)


def time_text(ms: str) -> Column:
    """Formats a column of ms since 1970 as `2026-11-28 14:03:12 UTC`; null beyond the year 9999,
    and without a time, for which logs have -1 or 0."""
    time = F.when(F.col(ms).between(1, TIME_MAX_MS), F.timestamp_millis(ms))
    return F.concat(F.date_format(time, "yyyy-MM-dd HH:mm:ss"), F.lit(" UTC"))


def time_of(ms: int) -> str:
    """Formats as `time_text`; empty where that is null."""
    if not 0 < ms <= TIME_MAX_MS:
        return ""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def written(writer: str = "writer") -> Column:
    """Formats a column of `with_writers` with `written_ms`, for one row."""
    time = time_text("written_ms")
    timeless = F.concat(F.regexp_replace(F.col(writer), ",$", ""), F.lit(f", {NO_TIME}"))
    return F.when(time.isNull(), timeless).otherwise(F.concat_ws(" ", writer, time))
