"""Facts from the source's own log, besides its read_committed reading."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SourceLog:
    """Facts from the source's own log."""

    aborted: DataFrame | None = None
    """The aborted records of the source, as a reading, including those beyond the judged range;
    None if there are none."""
    pending: DataFrame | None = None
    """The records at and above its last stable offset, as a reading; None if there are none."""
    markers: DataFrame | None = None
    """The offsets of its markers: partition, offset. Only if records were removed: then an offset
    with neither a record nor a marker is gone."""


NOTHING_LOGGED = SourceLog()
