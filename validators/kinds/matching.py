"""Premises behind a row of the ledger that is not certain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import Column, functions as F

from topicproof.validators.expectation import MOVEMENT, PENDING, UNTOLD
from topicproof.validators.finding import PartitionBounds
from topicproof.validators.kinds import (
    identity_disjoint,
    identity_missing,
    sink_removed,
    source_removed,
)
from topicproof.validators.ledger.ledger import Ledger, ReadingsNeeded
from topicproof.validators.offsets import by_partition


def is_pending(ledger: Ledger) -> Column:
    """Whether the input of a sink row is pending in the source."""
    stable = ledger.circumstances.source_lso
    if not stable:
        return F.lit(False)
    return F.coalesce(
        F.col("source_offset") >= by_partition("source_partition", stable), F.lit(False)
    )


def among(column: str, partitions: Collection[int]) -> Column:
    """Whether the row's partition is one of these."""
    return F.col(column).isin(*partitions) if partitions else F.lit(False)


def why_uncertain(ledger: Ledger) -> str | None:
    """Returns why a missing output may exist or may have existed; None if it is missing for
    certain."""
    if ledger.sink_incomplete:
        return sink_removed.NAME
    return why_missing(ledger)


def why_missing(ledger: Ledger) -> str | None:
    """The same, beside what the sink has lost."""
    if ledger.disjoint:
        return identity_disjoint.NAME
    if ledger.unidentified_outputs and not is_more_than_explained(ledger):
        # Each may be a record without an identity, unless more outputs are missing than there are
        # such records.
        return identity_missing.NAME
    if ledger.circumstances.moving and not ledger.circumstances.due_told:
        return MOVEMENT
    return None


def is_more_than_explained(ledger: Ledger) -> bool:
    """Whether more outputs are missing than the sink has lost offsets and records without an
    identity: then some are lost for certain, although nothing tells which."""
    removed = sum(removal.offsets for removal in ledger.circumstances.sink_removed.values())
    return ledger.counts.missing > removed + ledger.unidentified_outputs


def of_another(ledger: Ledger, is_judged: Column | None = None) -> Column | None:
    """Returns why the true input of a sink row may be another source record; None by lineage, which
    names the input. `is_judged`: whether the row is certainly not the output of a removed input;
    None: by its own place."""
    if not ledger.by_key:
        return None
    nameless = ledger.counts.identities.missing or ledger.counts.identities.missing_elsewhere
    cause = F.lit(identity_missing.NAME if nameless else None)
    if ledger.source_incomplete:
        judged = (_is_judged(ledger) if is_judged is None else is_judged) & ~F.col("ambiguous")
        cause = F.when(~judged, source_removed.NAME).otherwise(cause)
    return F.when(F.col("waiting"), PENDING).otherwise(cause)


def _is_judged(ledger: Ledger) -> Column:
    return is_judged(ledger.retained.judged_from, "partition", "offset")


def is_judged(judged_from: Mapping[int, int], partition: str, offset: str) -> Column:
    """Whether a place in the sink lies where no output of a removed input can be."""
    if not judged_from:
        return F.lit(False)
    return F.coalesce(F.col(offset) >= by_partition(partition, judged_from), F.lit(False))


def of_group(ledger: Ledger) -> str:
    """Returns the subject of a sentence about the consumer group of the contract."""
    return f"Group {ledger.question.agreed.group}" if ledger.question.agreed.group else "The group"


def untold(ledger: Ledger) -> list[tuple[object, ...]]:
    """Returns a row of evidence for each source partition without a committed offset of the
    group. A partition from which no read_committed consumer ever received a record, such as one of
    aborted records alone, has no offset of a healthy group either. Raises ReadingsNeeded if only
    the readings show that."""
    offsets, topic = ledger.question.agreed.offsets or {}, ledger.question.source.topic
    why = (
        f"{of_group(ledger)} has committed no offset of this partition, so it is unknown where it"
        " continues."
    )
    without = [
        bounds
        for bounds in ledger.question.source.partitions
        if bounds.partition not in offsets and bounds.hw > bounds.start
    ]
    readable = _readable(ledger, without) if without else set()
    return [
        (None, None, topic, bounds.partition, None, None, None, UNTOLD, 0, why)
        for bounds in without
        if bounds.partition in readable
    ]


def _readable(ledger: Ledger, partitions: Sequence[PartitionBounds]) -> set[int]:
    """Returns the source partitions, of these, that had something for a read_committed consumer: a
    record is committed, is pending, or was removed."""
    if ledger.readings is None:
        raise ReadingsNeeded
    stable, removed = ledger.circumstances.source_lso, ledger.circumstances.source_removed
    numbers = [bounds.partition for bounds in partitions]
    inputs = ledger.readings.inputs.where(F.col("partition").isin(*numbers))
    rows = inputs.select("partition").distinct()
    return {
        *(row["partition"] for row in rows.collect()),
        *(
            bounds.partition
            for bounds in partitions
            if bounds.partition in removed or stable.get(bounds.partition, bounds.hw) < bounds.hw
        ),
    }
