"""Several topics judged as one: their partitions are numbered consecutively, in the order of the
topics.

A stage may write to several sinks, including dead letters, and read several sources. Checking all
outputs then becomes one question over all topics: no validator needs to know that there are
several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.finding import JOINED_BY, Bounds, Part


def join(bounds: Sequence[Bounds]) -> Bounds:
    """Joins the bounds of several topics into one; returns those of a single topic unchanged."""
    if len(bounds) == 1:
        return bounds[0]
    parts: list[Part] = []
    first = 0
    for topic_bounds in bounds:
        parts.append(Part(topic_bounds.topic, first))
        first += max(p.partition for p in topic_bounds.partitions) + 1
    numbered = (
        replace(p, partition=part.first + p.partition)
        for part, topic_bounds in zip(parts, bounds, strict=True)
        for p in topic_bounds.partitions
    )
    return Bounds(
        JOINED_BY.join(topic_bounds.topic for topic_bounds in bounds), tuple(numbered), tuple(parts)
    )


def split(bounds: Bounds) -> list[tuple[Bounds, int]]:
    """Returns each topic's own bounds, with the number of its first partition."""
    if not bounds.parts:
        return [(bounds, 0)]
    topics = []
    for part, end in zip(
        bounds.parts, [*(later.first for later in bounds.parts[1:]), None], strict=True
    ):
        partitions = (
            replace(p, partition=p.partition - part.first)
            for p in bounds.partitions
            if p.partition >= part.first and (end is None or p.partition < end)
        )
        topics.append((Bounds(part.topic, tuple(partitions)), part.first))
    return topics


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


def place_text(bounds: Bounds, partition: str | Column, offset: str | Column) -> Column:
    """Formats a place as `squares-0@17`. `partition`: its number in `bounds`."""
    if isinstance(partition, str):
        partition = F.col(partition)
    topic, number = own_place(bounds, partition)
    return F.concat(topic, F.lit("-"), number.cast("string"), F.lit("@"), offset)


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
