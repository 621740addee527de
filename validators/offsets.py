"""Offsets in columns: a partition's bounds without a join, places in several topics judged as one,
and sets of offsets as words of 64 bits.

A set holds one row per 64 offsets. So topics of millions of records are compared, counted and
looked up in tables of thousands of rows. This is exact: a word's bits are its offsets, and a word
with more records than bits has a repeated one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.finding import Bounds

WORD = 64

BROADCAST_OFFSETS_MAX = 64_000_000
"""A set over up to this many offsets (a million words) is broadcast to every task, which avoids
shuffling the records."""

PARTITIONS_FREE = 200_000
"""Up to this number a partition may always be numbered: as many as a topic has at most."""


def bound(partition: str, bounds: Bounds, name: str) -> Column:
    """Returns the `start`, `lso` or `hw` of the row's partition; null if the bounds lack the
    partition."""
    return by_partition(
        partition,
        {
            partition_bounds.partition: getattr(partition_bounds, name)
            for partition_bounds in bounds.partitions
        },
    )


def by_partition(partition: str, values: Mapping[int, int]) -> Column:
    """Looks up a number by the row's partition in an array, without a join; null if none is
    known. Raises ValueError as `require_dense`."""
    require_dense(values)
    # One literal text instead of one per partition keeps plans small on wide topics. Offsets are
    # never negative.
    numbers = ",".join(str(values.get(number, -1)) for number in range(max(values, default=0) + 1))
    return F.nullif(
        F.get(F.split(F.lit(numbers), ",").cast("array<bigint>"), F.col(partition)), F.lit(-1)
    )


def require_dense(partitions: Collection[int]) -> None:
    """Checks that numbers of partitions are those of whole topics, which Kafka numbers one after
    the other: an array has a place for each number up to the largest. Raises ValueError."""
    largest = max(partitions, default=0)
    if largest > 2 * len(partitions) + PARTITIONS_FREE:
        raise ValueError(
            f"a partition has the number {largest:,}, and there are {len(partitions):,}. Kafka"
            " numbers them one after the other"
        )


def between(partition: str, offset: str, bounds: Bounds, end: str) -> Column:
    """Whether the offset lies from the partition's `start` to below its `end` (`lso` or `hw`)."""
    inside = (F.col(offset) >= bound(partition, bounds, "start")) & (
        F.col(offset) < bound(partition, bounds, end)
    )
    return F.coalesce(inside, F.lit(False))


def own_place(bounds: Bounds, column: str | Column = "partition") -> tuple[Column, Column]:
    """Returns a record's own topic, and its partition's number there. `column`: its partition's
    number in `bounds`."""
    joined = F.col(column) if isinstance(column, str) else column
    topic, partition = F.lit(bounds.topic), joined
    for part in bounds.parts:
        in_part = joined >= part.first
        topic = F.when(in_part, F.lit(part.topic)).otherwise(topic)
        partition = F.when(in_part, joined - part.first).otherwise(partition)
    return topic, partition


def partition_text(bounds: Bounds, partition: str | Column) -> Column:
    """Formats a partition as `squares-0`. `partition`: its number in `bounds`."""
    if isinstance(partition, str):
        partition = F.col(partition)
    topic, number = own_place(bounds, partition)
    return F.concat(topic, F.lit("-"), number.cast("string"))


def place_text(bounds: Bounds, partition: str | Column, offset: str | Column) -> Column:
    """Formats a place as `squares-0@17`. `partition`: its number in `bounds`."""
    return F.concat(partition_text(bounds, partition), F.lit("@"), offset)


def with_numbered_input(records: DataFrame, bounds: Bounds) -> DataFrame:
    """Replaces source_topic and source_partition by those of the joined source."""
    for part in bounds.parts:
        of_topic = F.col("source_topic") == part.topic
        records = records.withColumn(
            "source_partition",
            F.when(of_topic, F.col("source_partition") + part.first).otherwise(
                F.col("source_partition")
            ),
        ).withColumn(
            "source_topic", F.when(of_topic, bounds.topic).otherwise(F.col("source_topic"))
        )
    return records


def word(offset: str) -> Column:
    """Returns the row of a set that an offset belongs to."""
    return F.shiftright(offset, 6)


def bit(offset: str) -> Column:
    """Returns the offset's own bit in its word."""
    return F.call_function("shiftleft", F.lit(1).cast("long"), (F.col(offset) % WORD).cast("int"))


def bits(offset: str, condition: Column | None = None) -> Column:
    """Aggregates one word's set of the offsets for which `condition` holds; 0 for none."""
    return F.coalesce(
        F.bit_or(bit(offset) if condition is None else F.when(condition, bit(offset))), F.lit(0)
    )


def holds(word_bits: str, offset: str) -> Column:
    """Whether the set holds the offset; False if there is no such word."""
    return F.coalesce(F.col(word_bits).bitwiseAND(bit(offset)) != 0, F.lit(False))


def minus(left: Column, right: Column) -> Column:
    """Returns the bits of `left` that `right` lacks; a missing word is empty."""
    return F.coalesce(left, F.lit(0)).bitwiseAND(F.bitwise_not(F.coalesce(right, F.lit(0))))


def members(word_column: str, word_bits: Column) -> Column:
    """Returns the offsets of a word, one row each."""
    places = F.sequence(F.lit(0), F.lit(WORD - 1))
    set_places = F.filter(places, lambda place: F.getbit(word_bits, place) == 1)
    return F.explode(F.transform(set_places, lambda place: F.col(word_column) * WORD + place))


def look_up(frame: DataFrame, words: DataFrame, keys: list[str], offsets: int) -> DataFrame:
    """Left-joins `frame` with a set on `keys`. `offsets`: the most offsets that the set can span,
    which bounds its size."""
    return frame.join(
        F.broadcast(words) if offsets <= BROADCAST_OFFSETS_MAX else words, keys, "left"
    )
