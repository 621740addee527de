"""What MirrorMaker's offset syncs and checkpoints add to a check across clusters: sentences for
readers of the report.

At each pair of offsets, both records must have the same identity. Otherwise a consumer group that
MirrorMaker moves continues at the wrong record. This is never part of the verdict: the pairs are a
sample, and another program may have written the sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import ClusterError
from topicproof.backend.judging.capture_store import Capture
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.mirror_offsets import (
    Checkpoint,
    Checkpoints,
    Sync,
    Syncs,
    checkpoints,
    offset_syncs,
)
from topicproof.validators.finding import Bounds
from topicproof.validators.lineage.identity import Match
from topicproof.validators.merged_topics import split
from topicproof.validators.readings import frame_of

_COLUMNS = "partition int, offset long, sink_partition int, sink_offset long"


SHOWN = 5
"""Groups that are named, and partitions of each: whoever may make a topic of this kind decides how
many there are."""


def mirror_notes(sides: Sides, capture: Capture) -> tuple[str, ...]:
    """Return a sentence for each topic of offset syncs and of checkpoints about the judged topics.
    Raises PySparkException."""
    return (*_sync_notes(sides, capture), *_group_notes(sides.sink, capture.sink))


def _sync_notes(sides: Sides, capture: Capture) -> Iterator[str]:
    try:
        budget = LookBudget()
        sync_topics = list(offset_syncs((sides.source, sides.sink), budget=budget))
    except ClusterError as error:
        yield f"MirrorMaker's offset syncs were not read. {error}"
        return
    if budget.note:
        yield f"MirrorMaker's offset syncs. {budget.note}"
    for syncs in sync_topics:
        yield from _notes(syncs, capture)


def _group_notes(address: Address, sink: Bounds) -> Iterator[str]:
    """Yield where groups would continue on the sink's cluster."""
    try:
        budget, topics = LookBudget(), [topic_bounds.topic for topic_bounds, _first in split(sink)]
        checkpoint_topics = list(checkpoints(address, topics, budget=budget))
    except ClusterError as error:
        yield f"MirrorMaker's checkpoints were not read. {error}"
        return
    if budget.note:
        yield f"MirrorMaker's checkpoints. {budget.note}"
    for checkpoint_topic in checkpoint_topics:
        yield _group_note(address, checkpoint_topic)


def _group_note(address: Address, translated: Checkpoints) -> str:
    groups: dict[str, list[Checkpoint]] = {}
    for checkpoint in translated.found:
        groups.setdefault(checkpoint.group, []).append(checkpoint)
    examples = "; ".join(
        f"{group}: {_places(of_group)}" for group, of_group in islice(groups.items(), SHOWN)
    )
    rest = len(groups) - SHOWN
    more = f"; and {rest:,} more groups" if rest > 0 else ""
    return (
        f"MirrorMaker's {translated.topic} at {address} translates the offsets of {len(groups):,}"
        f" {'group' if len(groups) == 1 else 'groups'} on {translated.found[0].topic}."
        f" {examples}{more}."
    )


def _places(checkpoints_of_group: Sequence[Checkpoint]) -> str:
    places = ", ".join(
        f"partition {checkpoint.partition}, {checkpoint.source_offset:,} to"
        f" {checkpoint.sink_offset:,}"
        for checkpoint in checkpoints_of_group[:SHOWN]
    )
    rest = len(checkpoints_of_group) - SHOWN
    return f"{places}, and {rest:,} more partitions" if rest > 0 else places


def _notes(syncs: Syncs, capture: Capture) -> Iterator[str]:
    pairs = _pairs(syncs.pairs, capture.question.source, capture.sink)
    if not pairs.num_rows:
        return
    both, alike, first = _compared(capture, pairs)
    note = f"MirrorMaker's {syncs.topic} at {syncs.address} pairs {pairs.num_rows:,} offsets"
    if not both:
        yield f"{note}; none of them lies in both readings, so they were not compared."
    elif first is None:
        yield (
            f"{note}; {both:,} lie in both readings, and there both records have the same identity."
        )
    else:
        yield (
            f"{note}; {both:,} lie in both readings, and {both - alike:,} of these pair different"
            f" records, first partition {first[0]}, offset {first[1]} of the source with offset"
            f" {first[2]} of the sink. A group that MirrorMaker moves continues at the wrong"
            " record."
        )


def _pairs(syncs: tuple[Sync, ...], source: Bounds, sink: Bounds) -> pa.Table:
    """Return the pairs of partitions that the judged topics have, with consecutive numbers."""
    firsts = {topic_bounds.topic: first for topic_bounds, first in split(source)}
    copies = {
        topic: first
        for topic in firsts
        for topic_bounds, first in split(sink)
        if _is_copy(topic_bounds.topic, topic)
    }
    inputs = {p.partition for p in source.partitions}
    outputs = {p.partition for p in sink.partitions}
    rows = [
        (
            firsts[sync.topic] + sync.partition,
            sync.source_offset,
            copies[sync.topic] + sync.partition,
            sync.sink_offset,
        )
        for sync in dict.fromkeys(syncs)
        if sync.topic in copies
        and firsts[sync.topic] + sync.partition in inputs
        and copies[sync.topic] + sync.partition in outputs
    ]
    names = [column.split()[0] for column in _COLUMNS.split(", ")]
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})


def _is_copy(sink: str, source: str) -> bool:
    """Return whether the sink has the name of a mirror: the source's own, or with an alias and a
    separator in front."""
    return sink == source or (sink.endswith(source) and sink[-len(source) - 1] in "._-")


def _compared(capture: Capture, pairs: pa.Table) -> tuple[int, int, tuple[int, int, int] | None]:
    """Count the pairs in both readings, and those with the same identity. The third value is the
    first pair with different ones: partition and offset of the source, offset of the sink."""
    match = capture.question.agreed.match
    offset_pairs = F.broadcast(frame_of(capture.inputs.sparkSession, pairs, _COLUMNS))
    inputs = _held(capture.inputs, match, of_source=True).join(
        offset_pairs, ["partition", "offset"]
    )
    copies = _held(capture.uncommitted, match, of_source=False).select(
        F.col("partition").alias("sink_partition"), F.col("offset").alias("sink_offset"), "copy"
    )
    both = copies.join(F.broadcast(inputs), ["sink_partition", "sink_offset"])
    place = F.struct("partition", "offset", "sink_offset")
    same = F.col("held").eqNullSafe(F.col("copy"))
    row = both.agg(
        F.count("*").alias("both"),
        F.count_if(same).alias("alike"),
        F.min(F.when(~same, place)).alias("first"),
    ).collect()[0]
    return row["both"], row["alike"], None if row["first"] is None else tuple(row["first"])


def _held(reading: DataFrame, match: Match, of_source: bool) -> DataFrame:
    identity = match.of_source().alias("held") if of_source else match.of_sink().alias("copy")
    return reading.select("partition", "offset", identity)
