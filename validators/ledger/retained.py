"""What can be judged of topics that have lost their oldest records (`range: retained`).

Retention removes a prefix of each partition. What is left proves this, where a source partition's
outputs are promised in the order of its inputs:

- An output of a removed input lies, in its sink partition, before each output of a retained input
  of the same source partition. So a sink partition is judged from the offset where each source
  partition that has lost records shows an output of a retained input (`judged_from`). From there
  on, no record is an output of a removed input: a copy is a duplicate, and an inversion is one.
- If the output of an input was removed from a sink partition, so were those of all earlier inputs
  of its source partition there. So a missing output is lost if, in each sink partition that has
  lost records, an earlier input of the source partition still has an output (`inputs_from`).

An alternative breaks the promised order, so it violates the contract too.

A removed input may have had the identity of a retained one. So only an output without a copy shows
where the retained inputs begin, and only if the output of that input cannot be among those that the
sink has lost (`is_certain`). Nothing is assumed of where a source partition has its
outputs, with one exception: if all of at least `OUTPUTS_MIN` lie elsewhere, it has none in a sink
partition. This exception makes no record a phantom.

Compaction removes records anywhere, so it leaves nothing certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.circumstances import Removed
from topicproof.validators.ledger.rows import LINEAGE, REAL, countable, real

OUTPUTS_MIN = 20
"""So many outputs show which sink partitions a source partition has outputs in. If keys spread them
over two partitions, all of these lie in one by a chance of 1 to 500,000."""


class Outputs(NamedTuple):
    """The outputs of one source partition in one sink partition that have no copy."""

    partition: int
    source_partition: int
    offset: int
    """The first one."""
    source_offset: int
    """The earliest input of any of them."""
    outputs: int


@dataclass(frozen=True)
class RetainedRange:
    """Where judging begins. Empty: nothing beyond the removed records is certain."""

    judged_from: Mapping[int, int] = field(default_factory=dict)
    """By sink partition: no record at or after this offset is the output of a removed input."""
    phantoms_from: Mapping[int, int] = field(default_factory=dict)
    """The same, without the assumption about partitions without an output."""
    matched_from: Mapping[int, int] = field(default_factory=dict)
    """By sink partition: a record without an input that lies before this offset is taken for the
    output of a removed input. A sink partition without an output of a retained input has none."""
    inputs_from: Mapping[int, int] = field(default_factory=dict)
    """By source partition: outputs of inputs up to this one may be removed from the sink, although
    the input is still there."""
    complete: frozenset[int] = frozenset()
    """Source partitions whose later inputs certainly have lost an output that is missing."""


def count_outputs(sink: DataFrame) -> list[Outputs]:
    """Counts the committed outputs without a copy, committed or pending, in the rows of a ledger's
    sink."""
    is_certain = ~F.col("ambiguous") & ~F.col("waiting")
    rows = sink.where(countable() & is_certain & F.col("place").isin(*REAL))
    alone = (
        rows.groupBy(*LINEAGE)
        .agg(
            F.count("*").alias("copies"),
            F.count_if(real()).alias("committed"),
            F.min("partition").alias("partition"),
            F.min("offset").alias("offset"),
        )
        .where((F.col("copies") == 1) & (F.col("committed") == 1))
    )
    cells = alone.groupBy("partition", "source_partition").agg(
        F.min("offset").alias("offset"),
        F.min("source_offset").alias("source_offset"),
        F.count("*").alias("outputs"),
    )
    return [Outputs(**row.asDict()) for row in cells.collect()]


def retained_range(
    outputs: Sequence[Outputs],
    partitions: Mapping[int, int],
    source_removed: Mapping[int, Removed],
    sink_removed: Mapping[int, Removed],
    by_key: bool,
    in_order: bool,
    outputs_min: int = OUTPUTS_MIN,
) -> RetainedRange:
    """Derives where judging begins. `partitions`: the start of each sink partition. `in_order`:
    whether the contract promises that each input has its outputs once, in the order of its source
    partition. Otherwise nothing is certain."""
    cells = {(cell.source_partition, cell.partition): cell for cell in outputs}
    totals: Counter[int] = Counter()
    for cell in outputs:
        totals[cell.source_partition] += cell.outputs

    def may_feed(source: int, sink: int) -> bool:
        return (source, sink) in cells or totals[source] < outputs_min

    removals = {
        source: {sink for sink in sink_removed if may_feed(source, sink)}
        for source in {*totals, *source_removed}
    }
    """By source partition, the sink partitions that may have lost outputs of it."""
    origins = {
        sink: {source for source in source_removed if may_feed(source, sink)} for sink in partitions
    }
    """By sink partition, the source partitions whose removed inputs may have outputs there."""

    def is_certain(source: int, sink: int) -> bool:
        """Whether an output without a copy is that of the retained input with its identity.
        Otherwise it is that of a removed input, and the retained one has lost its own output: to
        the removal from another sink partition, or from this one if the removed input is of another
        source partition. If it is of the same one, the two are out of order."""
        of_others = sink in sink_removed and origins[sink] - {source}
        return not by_key or not (removals[source] - {sink} or of_others)

    compacted = any(removal.inside for removal in source_removed.values())
    sink_compacted = any(removal.inside for removal in sink_removed.values())
    judged_from, phantoms_from, matched_from = {}, {}, {}
    for sink, start in partitions.items():
        firsts = {
            source: cells[source, sink].offset
            for source in source_removed
            if (source, sink) in cells
        }
        if firsts and not compacted:
            matched_from[sink] = max(firsts.values())
        unclear = not in_order or compacted or sink_compacted
        if unclear or not all(is_certain(source, sink) for source in firsts):
            continue
        first = max(firsts.values(), default=start)
        if len(firsts) == len(source_removed):
            phantoms_from[sink] = first
        if origins[sink] <= firsts.keys():
            judged_from[sink] = first
    inputs_from, complete = {}, set()
    for source in () if sink_compacted else totals:
        earliest = [
            cells[source, sink].source_offset
            for sink in removals[source]
            if (source, sink) in cells
        ]
        if earliest:
            inputs_from[source] = max(earliest)
        fed = [(source, sink) in cells and is_certain(source, sink) for sink in removals[source]]
        if in_order and all(fed):
            complete.add(source)
    return RetainedRange(judged_from, phantoms_from, matched_from, inputs_from, frozenset(complete))
