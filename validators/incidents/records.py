"""Which records of the sink its consumers must drop, since Kafka removes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.finding import Bounds

RANGES_MAX = 8
"""A sentence names at most this many ranges."""


class OffsetRange(NamedTuple):
    """Consecutive records of one sink partition. `last` is inclusive."""

    partition: int
    first: int
    last: int


def ranges_of(rows: DataFrame) -> list[OffsetRange]:
    """Returns the places of rows of evidence as ranges, at most one more than `RANGES_MAX`."""
    places = rows.select("partition", "offset").where(F.col("offset").isNotNull()).distinct()
    turn = F.row_number().over(Window.partitionBy("partition").orderBy("offset"))
    # Of consecutive offsets, each is as far from its turn as the one before.
    ranges = places.withColumn("run", F.col("offset") - turn).groupBy("partition", "run")
    first_and_last = ranges.agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    ordered = first_and_last.orderBy("partition", "first").limit(RANGES_MAX + 1)
    return [OffsetRange(row["partition"], row["first"], row["last"]) for row in ordered.collect()]


def drop_step(sink: Bounds, records: str, ranges: Sequence[OffsetRange]) -> str:
    """Tells consumers what to drop. `records`: what they are, such as `the later copies`."""
    places = []
    for each in ranges:
        topic, partition = sink.place(each.partition)
        last = "" if each.first == each.last else f"-{each.last}"
        places.append(f"{topic}-{partition}@{each.first}{last}")
    listed = ", ".join(places)
    if len(ranges) > RANGES_MAX:
        listed = "each row of findings.csv in the evidence"
    where = f" ({listed})" if listed else ""
    return (
        f"Consumers of {' and '.join(sink.topics)} must drop {records}{where}: Kafka removes none."
    )
