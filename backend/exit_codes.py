"""Exit codes that several commands share, and which of several wins."""

from __future__ import annotations

from collections.abc import Iterable

from topicproof.validators.report import Report

WARNED = 2
"""The verdict holds, and a threshold of its contract is exceeded."""
UNJUDGED = 3
FORGED = 4
PRECEDENCE = (FORGED, 1, UNJUDGED, WARNED, 0)


def worst(codes: Iterable[int]) -> int:
    """The code that wins. Without any, 0."""
    given = set(codes)
    return next((code for code in PRECEDENCE if code in given), 0)


def code_of(report: Report) -> int:
    """The verdict's code, or `WARNED` where the verdict holds beyond a threshold."""
    return worst([report.exit_code, WARNED if report.warnings else 0])
