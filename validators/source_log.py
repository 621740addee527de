"""What the source's own log tells beside its read_committed reading."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SourceLog:
    """What the source's own log tells."""

    aborted: DataFrame | None = None
    """The aborted records of the source, as a reading, also beyond the judged range; None when it
    has none."""
    pending: DataFrame | None = None
    """The records at and above its last stable offset, as a reading; None when it has none."""
    markers: DataFrame | None = None
    """The offsets of its markers: partition, offset. Only where records were removed: then what is
    neither a record nor a marker is gone."""


NOTHING_LOGGED = SourceLog()
