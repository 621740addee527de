"""Outputs that are older than the topic that they name.

Lineage names an input by topic, partition and offset. If the source is deleted and made again, old
outputs name offsets of the new topic, and every new input looks processed. The header of our sink
also names the topic's id, if the sink may ask for it: another id than the present one is certain
(`names_namesake`). Headers of earlier versions and of other programs have none, and Kafka tells no
client when it made a topic. There, times tell the difference:

- An output is never older than its input. So no output of a source is older than the earliest
  record of the judged range, whatever the time of the others. Replayed and mirrored records keep
  times of the past. These make the bound earlier, and it stays true.
- A transaction's output is as old as its marker, and later markers of its partition bound it too.
  Brokers give markers their own time, so an event time that a pipeline writes into its outputs
  does not count. An output outside transactions has only its own time: append time, or that of our
  sink, which writes at once.
- Clocks differ. `SKEW_MS` is allowed between the source's producers and the sink's brokers.

A healthy sink would have to be written more than `SKEW_MS` before every record of its source.
What remains is a source whose records all have times of the future. It becomes UNKNOWN.
Removed inputs do not count: an older output of a retained source lies before the judged range.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, functions as F

from topicproof.validators.circumstances import Circumstances, Incarnation
from topicproof.validators.finding import Bounds
from topicproof.validators.merged_topics import split
from topicproof.validators.offsets import by_partition

SKEW_MS = 1_000
"""How far clocks of a cluster and its clients may differ. NTP keeps them within tens of ms."""
MARKERS = pa.array(["ABORT", "COMMIT"])
NEVER = np.iinfo(np.int64).max


def find_incarnations(
    batches: pa.Table, source_batches: pa.Table, source: Bounds
) -> tuple[Incarnation, ...]:
    """Returns the source topics that outputs may precede, from both raw logs (`BATCH_COLUMNS`).

    Only headers are compared, so the cost is per batch. An output may still name another topic or
    an input outside the judged range: the ledger decides that (`is_older`)."""
    incarnations = []
    data = pc.and_(pc.is_null(source_batches["control"]), pc.greater(source_batches["count"], 0))
    inputs = source_batches.filter(data)
    for topic_bounds, first in split(source):
        numbers = pa.array([first + p.partition for p in topic_bounds.partitions], pa.int32())
        times = inputs.filter(pc.is_in(inputs["partition"], numbers))["first_timestamp"]
        earliest = pc.min(times).as_py()
        # A record without a time has -1.
        if earliest is None or earliest < 0:
            continue
        began = earliest - SKEW_MS
        ends, plain = _older(batches, began)
        if ends or plain:
            incarnations.append(Incarnation(topic_bounds.topic, began, ends))
    return tuple(incarnations)


def _older(batches: pa.Table, began: int) -> tuple[Mapping[int, int], bool]:
    """Returns the ends of transactional records that were committed before `began`, by sink
    partition, and whether a batch outside transactions may hold older records."""
    data = pc.and_(pc.is_null(batches["control"]), pc.greater(batches["count"], 0))
    plain = pc.and_(data, pc.invert(batches["transactional"]))
    early = pc.and_(plain, pc.less(batches["first_timestamp"], began))
    is_marker = pc.and_(
        pc.is_in(batches["control"], MARKERS), pc.greater_equal(batches["max_timestamp"], 0)
    )
    if not pc.any(pc.and_(is_marker, pc.less(batches["max_timestamp"], began))).as_py():
        return {}, bool(pc.any(early).as_py())
    marker = is_marker.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
    times = np.where(marker, batches["max_timestamp"].to_numpy(), NEVER)
    partitions, offsets = batches["partition"].to_numpy(), batches["last_offset"].to_numpy()
    ends = {}
    for partition in np.unique(partitions[marker]).tolist():
        rows = np.flatnonzero(partitions == partition)
        # The log is in the order of appending: each later marker is an upper bound too.
        bounds = np.minimum.accumulate(times[rows][::-1])[::-1]
        older = rows[bounds < began]
        if older.size:
            ends[partition] = int(offsets[older].max()) + 1
    return ends, bool(pc.any(early).as_py())


def names_namesake(source_ids: Mapping[str, str]) -> Column:
    """Whether a record names one of these topics, and another id than this one. For records with
    source_topic and source_id (validators/lineage/identity.py)."""
    present = F.lit(None).cast("string")
    for topic, topic_id in source_ids.items():
        present = F.when(F.col("source_topic") == topic, F.lit(topic_id)).otherwise(present)
    return F.coalesce(F.col("source_id") != present, F.lit(False))


def is_older(circumstances: Circumstances) -> Column | None:
    """Whether a row of the ledger's sink is older than the topic of its input. None if no row
    is."""
    older: Column | None = None
    for incarnation in circumstances.incarnations:
        committed = (
            F.coalesce(F.col("offset") < by_partition("partition", incarnation.ends), F.lit(False))
            if incarnation.ends
            else F.lit(False)
        )
        plain = F.coalesce(F.unix_millis("timestamp") < F.lit(incarnation.began_ms), F.lit(False))
        of_topic = (F.col("source_topic") == incarnation.topic) & F.when(
            F.coalesce("transactional", F.lit(True)), committed
        ).otherwise(plain)
        older = of_topic if older is None else older | of_topic
    return None if older is None else F.coalesce(older, F.lit(False))
