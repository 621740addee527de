"""What one check of the doctor found, and the exit code of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from topicproof.backend.errors import TopicproofError
from topicproof.backend.exit_codes import UNJUDGED, WARNED


class Health(StrEnum):
    """Whether commands will work."""

    OK = "ok"
    WARNING = "warning"
    """They work, but something deserves attention."""
    FAILED = "failed"


@dataclass(frozen=True)
class Diagnosis:
    """What was looked at, what was found, and what to do about it."""

    name: str
    health: Health
    found: str
    remedy: str = ""
    """Empty if there is nothing to do."""


def ok(name: str, state: str) -> Diagnosis:
    return Diagnosis(name, Health.OK, state)


def warning(name: str, state: str, remedy: str) -> Diagnosis:
    return Diagnosis(name, Health.WARNING, state, remedy)


def failed(name: str, error: TopicproofError) -> Diagnosis:
    """Every error's message says what happened, and then what to do."""
    state, _, remedy = str(error).partition(". ")
    return Diagnosis(name, Health.FAILED, f"{state.rstrip('.')}.", remedy)


def exit_code(diagnoses: Iterable[Diagnosis]) -> int:
    """Return 3 if anything failed, 2 if there is a warning, else 0."""
    healths = {diagnosis.health for diagnosis in diagnoses}
    if Health.FAILED in healths:
        return UNJUDGED
    return WARNED if Health.WARNING in healths else 0
