"""One kill, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kill:
    """One kill, and what came of it."""

    victim: str
    moment: str
    ended_s: float
    """From the kill to the end of the run's process."""
    told: str
    """The last line of the process, or what it went on to do."""
    surprise: str = ""
    """What should not have happened; empty if all is well."""
