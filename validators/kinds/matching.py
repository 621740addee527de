"""Premises behind a row of the ledger that is not certain."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

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


def why_uncertain(ledger: Ledger) -> str | None:
    """Returns why a missing output may exist or may have existed; None if it is missing for
    certain."""
    if ledger.sink_incomplete:
        return sink_removed.NAME
    if ledger.disjoint:
        return identity_disjoint.NAME
    nameless = ledger.unidentified_outputs
    if nameless and ledger.missing <= nameless:
        # Each may be a record without an identity, unless more outputs are missing than there are
        # such records.
        return identity_missing.NAME
    if ledger.circumstances.moving and not ledger.circumstances.due_told:
        return MOVEMENT
    return None


def of_another(ledger: Ledger) -> Column | None:
    """Returns why the true input of a sink row may be another source record; None by lineage, which
    names the input."""
    if not ledger.by_key:
        return None
    cause = None
    if ledger.source_incomplete:
        cause = source_removed.NAME
    elif ledger.identified.missing or ledger.identified.missing_elsewhere:
        cause = identity_missing.NAME
    return F.when(F.col("waiting"), PENDING).otherwise(F.lit(cause))


def untold(ledger: Ledger) -> list[tuple[object, ...]]:
    """Returns a row of evidence for each source partition without a committed offset of the
    group. A partition from which no read_committed consumer ever received a record, such as one of
    aborted records alone, has no offset of a healthy group either. Raises ReadingsNeeded if only
    the readings show that."""
    offsets, topic = ledger.agreed.offsets or {}, ledger.source_bounds.topic
    why = (
        "The group has committed no offset of this partition, so it is unknown where it continues."
    )
    without = [
        bounds
        for bounds in ledger.source_bounds.partitions
        if bounds.partition not in offsets and bounds.hw > bounds.start
    ]
    readable = _readable(ledger, without) if without else set()
    return [
        (None, None, topic, bounds.partition, bounds.start, None, None, UNTOLD, 0, why)
        for bounds in without
        if bounds.partition in readable
    ]


def _readable(ledger: Ledger, partitions: Sequence[PartitionBounds]) -> set[int]:
    """Returns the source partitions, of these, that had something for a read_committed consumer: a
    record is committed, is pending, or was removed."""
    if ledger.source is None:
        raise ReadingsNeeded
    stable, removed = ledger.circumstances.source_lso, ledger.circumstances.source_removed
    numbers = [bounds.partition for bounds in partitions]
    rows = ledger.source.where(F.col("partition").isin(*numbers)).select("partition").distinct()
    return {
        *(row["partition"] for row in rows.collect()),
        *(
            bounds.partition
            for bounds in partitions
            if bounds.partition in removed or stable.get(bounds.partition, bounds.hw) < bounds.hw
        ),
    }
