"""Several topics judged as one: their partitions are numbered consecutively, in the order of the
topics.

A stage may write to several sinks, including dead letters, and read several sources. Checking all
outputs then becomes one question over all topics: no validator needs to know that there are
several.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from topicproof.validators.finding import JOINED_BY, Bounds, Part, PartitionBounds


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
    firsts = [part.first for part in bounds.parts]
    partitions: list[list[PartitionBounds]] = [[] for _ in firsts]
    for p in bounds.partitions:
        # By a search: evidence may name as many topics as partitions.
        number = bisect_right(firsts, p.partition) - 1
        if number >= 0:
            partitions[number].append(replace(p, partition=p.partition - firsts[number]))
    return [
        (Bounds(part.topic, tuple(of_part)), part.first)
        for part, of_part in zip(bounds.parts, partitions, strict=True)
    ]
