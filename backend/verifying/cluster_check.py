"""Comparison of evidence with the cluster that it names. Only this detects readings of other
topics.

It compares the cluster's id, each topic's id, and the batches that the topics still hold within the
judged bounds. Batches do not name their topic, but two topics hardly ever hold the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


Sentences = tuple[tuple[str, ...], tuple[str, ...]]
"""Sentences about contradictions, and about what cannot be compared."""
Log = tuple[str, Bounds, pa.Table | None]
"""A raw log's file, its bounds and its batches, if they were kept."""


def compare_with_clusters(
    capture: Capture, address: Address | None, source: Address | None
) -> Sentences:
    """Compare evidence with its cluster, or with the clusters of its sink and its source. A cluster
    without an address is not asked. Raises ClusterError."""
    log: Log = (SOURCE_BATCHES, capture.question.source, capture.source_batches)
    of_sink: list[Log] = [(BATCHES, capture.sink, capture.batches)]
    if not capture.question.across:
        of_sink.append(log)
    comparisons: list[Sentences] = []
    if address is not None:
        comparisons.append(_compare(address, capture.origin, of_sink))
    if source is not None and capture.question.across:
        comparisons.append(_compare(source, capture.source_origin, [log]))
    elif source is not None:
        comparisons.append(
            ((), ("The evidence is about one cluster. The source's was not asked.",))
        )
    wrong = dict.fromkeys(sentence for each, _ in comparisons for sentence in each)
    unsettled = dict.fromkeys(sentence for _, each in comparisons for sentence in each)
    return tuple(wrong), tuple(unsettled)


def _compare(address: Address, origin_kept: Origin | None, logs: Sequence[Log]) -> Sentences:
    contradicted: list[str] = []
    unsettled: list[str] = []
    if origin_kept is None:
        unsettled.append(f"{TAKEN}: it names no cluster and no topic ids.")
    origin = origin_kept or Origin(None, {})
    for topic, topic_id in origin.topics.items():
        try:
            now = fetch_origin(address, [topic])
        except TopicError as error:
            unsettled.append(str(error))
            continue
        ids = ("the cluster's id", origin.cluster, now.cluster)
        for what, in_evidence, in_cluster in (
            ids,
            (f"the id of topic {topic}", topic_id, now.topics[topic]),
        ):
            if in_evidence is None or in_cluster is None:
                unsettled.append(f"{TAKEN}: {what} is not known on both sides.")
            elif in_evidence != in_cluster:
                contradicted.append(
                    f"{TAKEN}: {what} is {in_evidence}; at {address} it is {in_cluster}."
                )
    for name, bounds, batches in logs:
        if batches is not None:
            for wrong, sentence in _logs(address, bounds, batches, origin_kept):
                (contradicted if wrong else unsettled).append(f"{name}: {sentence}")
    return tuple(contradicted), tuple(unsettled)


def _logs(
    address: Address, bounds: Bounds, batches: pa.Table, origin: Origin | None
) -> Iterator[tuple[bool, str]]:
    """Yield a sentence for each topic, and whether the cluster contradicts its raw log. If it does
    not, the log cannot be compared."""
    for topic_bounds, first in split(bounds):
        if origin is not None and topic_bounds.topic not in origin.topics:
            yield True, f"the topic {topic_bounds.topic} is not among those of {TAKEN}."
        try:
            now = {
                p.partition: p for p in rawlog.fetch_bounds(address, topic_bounds.topic).partitions
            }
        except TopicError as error:
            yield False, str(error)
            continue
        shorter = [
            p.partition
            for p in topic_bounds.partitions
            if p.partition not in now or now[p.partition].hw < p.hw
        ]
        if shorter:
            yield True, f"partition {shorter[0]} of {topic_bounds.topic} ends earlier at {address}."
            continue
        left = replace(
            topic_bounds,
            partitions=tuple(
                replace(p, start=max(p.start, now[p.partition].start))
                for p in topic_bounds.partitions
            ),
        )
        remaining = tuple(p for p in left.partitions if p.start < p.hw)
        if not remaining:
            yield False, f"nothing of {topic_bounds.topic} is left at {address} to compare with."
            continue
        batches_now = rawlog.scan(address, topic_bounds.topic, replace(left, partitions=remaining))
        for partition in remaining:
            # If the log start moved, it may cut a batch that is whole in the evidence.
            moved = partition not in topic_bounds.partitions
            rows_now, rows = (
                _rows(table, number, partition.start + moved)
                for table, number in (
                    (batches_now, partition.partition),
                    (batches, first + partition.partition),
                )
            )
            other = sorted(rows_now - rows, key=lambda row: row[0])
            if other:
                place = f"{topic_bounds.topic}-{partition.partition}@{other[0][0]}"
                yield True, f"the batch of {place} at {address} is not in the evidence."


def _rows(batches: pa.Table, partition: int, start: int) -> set[tuple[Any, ...]]:
    """Return the lasting fields of a partition's batches that begin at `start` or later."""
    is_wanted = pc.and_(
        pc.equal(batches["partition"], partition), pc.greater_equal(batches["base_offset"], start)
    )
    rows = batches.filter(is_wanted).select(LASTING)
    return set(zip(*(rows[name].to_pylist() for name in LASTING), strict=True))
