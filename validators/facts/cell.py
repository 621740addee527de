"""How many records of a sink partition have their inputs in a source partition, and what became of
them."""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """Counts of one sink partition and one source partition. `source_partition` is None for records
    without input."""

    partition: int
    source_partition: int | None
    committed: int = 0
    aborted: int = 0
    pending: int = 0
    never_transactional: int = 0
    """Committed records that were in no transaction, by the raw log."""
    heard: int = 0
    """Committed records whose transaction's outcome the raw log or the journal tells."""
    unstable: int = 0
    """Committed records whose transaction the raw log says was aborted."""
    last_source_offset: int | None = None
    """Of its committed records, the highest."""
    straddling: int = 0
    """Records in a sparse batch that straddles the start of the bounds."""
    endless: int = 0
    """Committed records of a transaction that no marker ends."""
    of_aborted: int = 0
    """Committed records whose input was aborted."""
    at_inputs: int = 0
    """Committed records that are an expected output of an input of the judged range."""
    of_source: int = 0
    """Committed and pending records that name an input of the source, whether or not it is
    there."""
    unidentified: int = 0
    """Committed and pending records without an identity, where records are matched by key."""
    revoked: int = 0
    """Committed records of a transaction that the raw log or the journal says was aborted."""
