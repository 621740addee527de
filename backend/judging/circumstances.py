"""Changes to the topics during the reading, and what Kafka has removed from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from topicproof.backend.address import Address, Sides
from topicproof.backend.judging.bounded_question import BoundedQuestion
from topicproof.backend.judging.capture_store import Capture
from topicproof.backend.kafka.browse.describe import cleanup_policy
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.backend.kafka.origin import fetch_replaced
from topicproof.validators.circumstances import Circumstances, Growth, Incarnation, Removed
from topicproof.validators.finding import Bounds, Fate, Origins
from topicproof.validators.incarnations import find_incarnations
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.merged_topics import join

SINCE_RECORDED = (
    "since its outputs were written, as the history or the first entry of their run's journal says"
)
SINCE_CAPTURED = "while it was read"


def with_circumstances(capture: Capture, bounded: BoundedQuestion) -> Capture:
    """Return the capture with observations on the topics beside their records. A run knows its
    range, so only what compaction removed from that range counts."""
    question, sink, sides = bounded.question, bounded.sink, bounded.sides
    replaced = replaced_topics(sides, question.topic_ids, bounded.origins)
    vanished = any(SINCE_CAPTURED in clause for clause in replaced)
    assert capture.batches is not None and capture.source_batches is not None
    if not question.foreign:
        removed = gone_inside(capture.source_batches, question.source)
        sink_removed = gone_inside(capture.batches, sink)
        circumstances = Circumstances(
            looked=True,
            source_removed={p: Removed(inside=count) for p, count in removed.items()},
            sink_removed={p: Removed(inside=count) for p, count in sink_removed.items()},
            incarnations=_incarnations(capture),
            replaced=replaced,
            vanished=vanished,
        )
        return replace(capture, circumstances=circumstances)
    source_end, source_policies = _now(sides.source, question.source)
    sink_end, policies = _now(sides.sink, sink)
    growth = [*_growth("source", bounded.first_look, source_end), *_growth("sink", sink, sink_end)]
    circumstances = Circumstances(
        looked=True,
        source_removed=_removed(capture.source_batches, question.source, source_end),
        sink_removed=_removed(capture.batches, sink, sink_end),
        growth=tuple(growth),
        watched=True,
        source_lso={p.partition: p.lso for p in question.source.partitions},
        offsets_after=bounded.group_offsets,
        policies=policies if sides.across else source_policies | policies,
        source_policies=source_policies if sides.across else {},
        incarnations=_incarnations(capture),
        replaced=replaced,
        vanished=vanished,
    )
    return replace(capture, circumstances=circumstances)


def with_circumstances_of_source(
    capture: Capture,
    sides: Sides,
    first_look: Bounds,
    *,
    changed_rows: int | None,
    group_offsets: Mapping[int, int] | None,
) -> Capture:
    """Return the capture of a table with observations on its source. `first_look`: the source's
    bounds before. `changed_rows`: the rows of a table that has changed meanwhile; None: it has
    not."""
    question = capture.question
    assert capture.source_batches is not None and question.origins is not None
    end, policies = _now(sides.source, question.source)
    growth = _growth("source", first_look, end)
    if changed_rows is not None:
        growth.append(Growth("sink", 0, changed_rows, changed_rows))
    replaced = replaced_topics(sides, question.topic_ids, question.origins)
    circumstances = Circumstances(
        looked=True,
        source_removed=_removed(capture.source_batches, question.source, end),
        growth=tuple(growth),
        watched=True,
        source_lso={p.partition: p.lso for p in question.source.partitions},
        offsets_after=group_offsets,
        policies=policies,
        replaced=replaced,
        vanished=any(SINCE_CAPTURED in clause for clause in replaced),
    )
    return replace(capture, circumstances=circumstances)


def _incarnations(capture: Capture) -> tuple[Incarnation, ...]:
    """Return the source topics that outputs precede. Recorded ids decide where there are some."""
    question = capture.question
    if question.identity is not Identity.LINEAGE or all(
        question.topic_ids.get(topic) for topic in question.source.topics
    ):
        return ()
    assert capture.batches is not None and capture.source_batches is not None
    return find_incarnations(capture.batches, capture.source_batches, question.source)


def replaced_topics(
    sides: Sides, recorded: Mapping[str, str | None], origins: Origins
) -> tuple[str, ...]:
    """Return a clause for each topic that was deleted, or deleted and made again: since the outputs
    were written, or since the first look. `recorded` are the ids that a run recorded. Raises
    ClusterError."""
    return fetch_replaced(sides.sink, recorded, SINCE_RECORDED) or vanished_topics(sides, origins)


def vanished_topics(sides: Sides, origins: Origins) -> tuple[str, ...]:
    """Return a clause for each topic that was deleted since the first look. Raises ClusterError."""
    clauses = fetch_replaced(sides.sink, origins.sink.topics, SINCE_CAPTURED)
    if origins.source is not None:
        clauses += fetch_replaced(sides.source, origins.source.topics, SINCE_CAPTURED)
    return clauses


def _now(address: Address, bounds: Bounds) -> tuple[Bounds, dict[str, str]]:
    """Return the topics' bounds of this moment, and each topic's policy."""
    topics = bounds.topics
    with rawlog.connect(address) as kafka:
        return (
            join([kafka.bounds(topic) for topic in topics]),
            {topic: cleanup_policy(kafka, topic) for topic in topics},
        )


def _growth(side: str, before: Bounds, after: Bounds) -> list[Growth]:
    ends = {p.partition: p.hw for p in after.partitions}
    pairs = [(p.partition, p.hw, ends.get(p.partition, p.hw)) for p in before.partitions]
    return [
        Growth(side, partition, first, last) for partition, first, last in pairs if last != first
    ]


def _removed(batches: pa.Table, bounds: Bounds, now: Bounds) -> dict[int, Removed]:
    """Return what the whole topic has lost. `now` are its bounds after the readings: retention may
    have removed more meanwhile."""
    inside = gone_inside(batches, bounds)
    starts = {p.partition: p.start for p in now.partitions}
    removed = {
        p.partition: Removed(
            max(p.start, min(starts.get(p.partition, p.start), p.hw)), inside.get(p.partition, 0)
        )
        for p in bounds.partitions
    }
    return {partition: loss for partition, loss in removed.items() if loss.offsets}


def gone_inside(batches: pa.Table, bounds: Bounds) -> dict[int, int]:
    """Count the empty offsets within the bounds, by partition with any."""
    counts = fates.balance(fates.fate_ranges(batches, bounds), bounds)[Fate.GONE]
    pairs = zip(counts.index.tolist(), counts.tolist(), strict=True)
    return {partition: offsets for partition, offsets in pairs if offsets}
