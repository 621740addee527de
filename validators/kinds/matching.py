"""Premises behind a row of the ledger that is not certain."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from topicproof.validators.expectation import MOVEMENT, PENDING, UNTOLD
from topicproof.validators.kinds import (
    identity_disjoint,
    identity_missing,
    sink_removed,
    source_removed,
)
from topicproof.validators.ledger.ledger import Ledger
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
    group."""
    offsets, topic = ledger.agreed.offsets or {}, ledger.source_bounds.topic
    why = (
        "The group has committed no offset of this partition, so it is unknown where it continues."
    )
    return [
        (None, None, topic, one.partition, one.start, None, None, UNTOLD, 0, why)
        for one in ledger.source_bounds.partitions
        if one.partition not in offsets and one.hw > one.start
    ]
