"""Several topics judged as one: their partitions are numbered consecutively, in the order of the
topics.

A stage may write to several sinks, including dead letters, and read several sources. Checking all
outputs then becomes one question over all topics: no validator needs to know that there are
several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
