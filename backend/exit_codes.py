"""Exit codes that several commands share, and their precedence."""

from __future__ import annotations

from collections.abc import Iterable

from topicproof.validators.report import Report

WARNED = 2
"""The verdict holds, but a threshold of its contract is exceeded, or its terms cannot tell lost
inputs from filtered ones."""
UNJUDGED = 3
FORGED = 4
PRECEDENCE = (FORGED, 1, UNJUDGED, WARNED, 0)


def worst(codes: Iterable[int]) -> int:
    """Return the code that takes precedence; 0 without any."""
    present = set(codes)
    return next((code for code in PRECEDENCE if code in present), 0)


def code_of(report: Report) -> int:
    """Return the verdict's code, or `WARNED` if the verdict holds with warnings."""
    return worst([report.exit_code, WARNED if report.warnings else 0])
