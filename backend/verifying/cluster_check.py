"""Comparison of evidence with the cluster that it names. Only this detects readings of other
topics.

It compares the cluster's id, each topic's id, and the batches that the topics still hold within the
judged bounds. Batches do not name their topic, but two topics hardly ever hold the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.judging.capture_store import BATCHES, SOURCE_BATCHES, TAKEN, Capture
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.origin import fetch_origin
from topicproof.validators.finding import Bounds, Origin
from topicproof.validators.merged_topics import split

LASTING = (
    "base_offset",
    "last_offset",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "transactional",
    "control",
)
"""The fields of a batch that compaction does not change."""


def compare_with_cluster(
    address: Address, capture: Capture
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return sentences about contradictions, and about what cannot be compared. Raises
    ClusterError."""
    contradicted: list[str] = []
    unsettled: list[str] = []
    if capture.origin is None:
        unsettled.append(f"{TAKEN}: it names no cluster and no topic ids.")
    origin = capture.origin or Origin(None, {})
    for topic, topic_id in origin.topics.items():
        try:
            now = fetch_origin(address, [topic])
        except TopicError as error:
            unsettled.append(str(error))
            continue
        ids = ("the cluster's id", origin.cluster, now.cluster)
        for what, kept, there in (ids, (f"the id of topic {topic}", topic_id, now.topics[topic])):
            if kept is None or there is None:
                unsettled.append(f"{TAKEN}: {what} is not known on both sides.")
            elif kept != there:
                contradicted.append(f"{TAKEN}: {what} is {kept}; at {address} it is {there}.")
    for name, bounds, batches in (
        (BATCHES, capture.sink, capture.batches),
        (SOURCE_BATCHES, capture.question.source, capture.source_batches),
    ):
        if batches is not None:
            for wrong, sentence in _logs(address, bounds, batches, capture.origin):
                (contradicted if wrong else unsettled).append(f"{name}: {sentence}")
    return tuple(dict.fromkeys(contradicted)), tuple(dict.fromkeys(unsettled))


def _logs(
    address: Address, bounds: Bounds, batches: pa.Table, origin: Origin | None
) -> Iterator[tuple[bool, str]]:
    """Yield a sentence for each topic, and whether the cluster contradicts its raw log. If it does
    not, the log cannot be compared."""
    for own, first in split(bounds):
        if origin is not None and own.topic not in origin.topics:
            yield True, f"the topic {own.topic} is not among those of {TAKEN}."
        try:
            now = {p.partition: p for p in rawlog.fetch_bounds(address, own.topic).partitions}
        except TopicError as error:
            yield False, str(error)
            continue
        shorter = [
            p.partition
            for p in own.partitions
            if p.partition not in now or now[p.partition].hw < p.hw
        ]
        if shorter:
            yield True, f"partition {shorter[0]} of {own.topic} ends earlier at {address}."
            continue
        left = replace(
            own,
            partitions=tuple(
                replace(p, start=max(p.start, now[p.partition].start)) for p in own.partitions
            ),
        )
        there = tuple(p for p in left.partitions if p.start < p.hw)
        if not there:
            yield False, f"nothing of {own.topic} is left at {address} to compare with."
            continue
        found = rawlog.scan(address, own.topic, replace(left, partitions=there))
        for partition in there:
            # If the log start moved, it may cut a batch that is whole in the evidence.
            moved = partition not in own.partitions
            held, kept = (
                _rows(table, number, partition.start + moved)
                for table, number in (
                    (found, partition.partition),
                    (batches, first + partition.partition),
                )
            )
            other = sorted(held - kept, key=lambda row: row[0])
            if other:
                place = f"{own.topic}-{partition.partition}@{other[0][0]}"
                yield True, f"the batch of {place} at {address} is not in the evidence."


def _rows(batches: pa.Table, partition: int, start: int) -> set[tuple[Any, ...]]:
    """Return the lasting fields of a partition's batches that begin at `start` or later."""
    here = pc.and_(
        pc.equal(batches["partition"], partition), pc.greater_equal(batches["base_offset"], start)
    )
    rows = batches.filter(here).select(LASTING)
    return set(zip(*(rows[name].to_pylist() for name in LASTING), strict=True))
