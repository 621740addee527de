"""Several topics judged as one: their partitions are numbered consecutively, in the order of the
topics.

A stage may write to several sinks, including dead letters, and read several sources. Checking all
outputs then becomes one question over all topics: no validator needs to know that there are
several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from topicproof.validators.finding import JOINED_BY, Bounds, Part


def join(bounds: Sequence[Bounds]) -> Bounds:
    """Joins the bounds of several topics into one; returns those of a single topic unchanged."""
    if len(bounds) == 1:
        return bounds[0]
    parts: list[Part] = []
    first = 0
    for one in bounds:
        parts.append(Part(one.topic, first))
        first += max(p.partition for p in one.partitions) + 1
    numbered = (
        replace(p, partition=part.first + p.partition)
        for part, one in zip(parts, bounds, strict=True)
        for p in one.partitions
    )
    return Bounds(JOINED_BY.join(one.topic for one in bounds), tuple(numbered), tuple(parts))


def split(bounds: Bounds) -> list[tuple[Bounds, int]]:
    """Returns each topic's own bounds, with the number of its first partition."""
    if not bounds.parts:
        return [(bounds, 0)]
    found = []
    for part, end in zip(
        bounds.parts, [*(one.first for one in bounds.parts[1:]), None], strict=True
    ):
        own = (
            replace(p, partition=p.partition - part.first)
            for p in bounds.partitions
            if p.partition >= part.first and (end is None or p.partition < end)
        )
        found.append((Bounds(part.topic, tuple(own)), part.first))
    return found


def own_place(bounds: Bounds, column: str = "partition") -> tuple[Column, Column]:
    """Returns a record's own topic, and its partition's number there. `column`: its partition's
    number in `bounds`."""
    topic, partition = F.lit(bounds.topic), F.col(column)
    for part in bounds.parts:
        here = F.col(column) >= part.first
        topic = F.when(here, F.lit(part.topic)).otherwise(topic)
        partition = F.when(here, F.col(column) - part.first).otherwise(partition)
    return topic, partition


def with_numbered_input(records: DataFrame, bounds: Bounds) -> DataFrame:
    """Replaces source_topic and source_partition by those of the joined source."""
    for part in bounds.parts:
        ours = F.col("source_topic") == part.topic
        records = records.withColumn(
            "source_partition",
            F.when(ours, F.col("source_partition") + part.first).otherwise(
                F.col("source_partition")
            ),
        ).withColumn("source_topic", F.when(ours, bounds.topic).otherwise(F.col("source_topic")))
    return records
