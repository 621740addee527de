"""Counts and fates of the records in one sink partition whose inputs are in one source
partition."""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """Counts for one sink partition and one source partition. `source_partition` is None for
    records without an input."""

    partition: int
    source_partition: int | None
    committed: int = 0
    aborted: int = 0
    pending: int = 0
    never_transactional: int = 0
    """Committed records that were in no transaction, according to the raw log."""
    heard: int = 0
    """Committed records whose transaction's outcome is known from the raw log or the journal, and
    those that the raw log says are in none."""
    unstable: int = 0
    """Committed records whose transaction was aborted, according to the raw log."""
    last_source_offset: int | None = None
    """The highest source offset of its committed records."""
    straddling: int = 0
    """Records in a sparse batch that straddles the start of the bounds."""
    endless: int = 0
    """Committed records whose transaction has no marker."""
    of_aborted: int = 0
    """Committed records whose input was aborted."""
    at_inputs: int = 0
    """Committed records that are an expected output of an input in the judged range."""
    of_source: int = 0
    """Committed and pending records that name an input of the source, even if it does not exist.
    None of them is a dead letter."""
    unidentified: int = 0
    """Committed and pending records without an identity, if records are matched by key."""
    undecoded: int = 0
    """Committed and pending records that cannot be decoded, if a contract names their fields."""
    letters: int = 0
    """Committed and pending records, if the partition is one of the dead letters."""
    revoked: int = 0
    """Committed records whose transaction was aborted, according to the raw log or the journal."""
