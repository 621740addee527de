"""What a run created, as the home knows it.

The history may be a database of several people. So `clean` does not believe a row of it about what
may be deleted: a name must begin with the run's own id, or be in a file that the run wrote into its
folder when it created them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.read_limits import read_bytes
from topicproof.backend.history.store import ID_LETTERS

CREATIONS = "creations.json"
_UNIQUE = re.compile(rf".+-[{ID_LETTERS}]{{6}}")
"""An id with its random part, so that nothing of somebody else begins with it."""


@dataclass(frozen=True)
class Creations:
    """What a run created under names that its plan chose."""

    topics: Mapping[str, str | None] = field(default_factory=dict)
    """By name; Kafka's id of each, or None if it is not known."""
    tables: tuple[tuple[str, str], ...] = ()
    """The URL of the database and the name of each."""


_CREATIONS = TypeAdapter(Creations)


def is_named_by(run_id: str, name: str) -> bool:
    """Return whether something can only be that run's, by its name."""
    return bool(_UNIQUE.fullmatch(run_id)) and name.startswith(f"{run_id}-")


def keep_creations(folder: Path, creations: Creations) -> None:
    """Write what the run of this folder created. Raises EvidenceError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CREATIONS).write_bytes(_CREATIONS.dump_json(creations))
    except OSError as error:
        raise EvidenceError(f"{folder} cannot be written: {error.strerror}.") from error


def read_creations(folder: Path) -> Creations:
    """Read what the run of this folder created; nothing without a file. Raises EvidenceError."""
    try:
        return _CREATIONS.validate_json(read_bytes(folder / CREATIONS))
    except FileNotFoundError:
        return Creations()
    except (OSError, ValidationError) as error:
        raise EvidenceError(f"{folder / CREATIONS} cannot be read.") from error
