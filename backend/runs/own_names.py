"""The Kafka names of a run, as its own data confirm them.

The history may be a database of several people, and `resume` fences the producers of transactional
ids and writes to topics. So it takes a name from the history only if the name begins with the run's
own id, or if the run itself wrote it down: in a file of its folder at its creation, or for a source
in the first entry of its journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from topicproof.backend.address import Address
from topicproof.backend.characters import visible
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.read_limits import read_bytes
from topicproof.backend.history.run_state import Facts, Names
from topicproof.backend.history.store import Run
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.creations import is_named_by, read_creations
from topicproof.backend.runs.recorded_ids import JOURNAL_SUFFIX, first_entry

FILE = "names.json"
"""File in a run's folder."""
NAMES_SHOWN, NAME_CHARACTERS_MAX = 3, 80


@dataclass(frozen=True)
class OwnNames:
    """What a run reads, writes and fences."""

    stages: tuple[Names, ...]
    topics: Mapping[str, str] = field(default_factory=dict)
    journal: str = ""
    group: str = ""


_OWN_NAMES = TypeAdapter(OwnNames)


def keep_names(folder: Path, facts: Facts) -> None:
    """Write down the names of a new run. Raises EvidenceError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_bytes(_OWN_NAMES.dump_json(_names_of(facts)))
    except OSError as error:
        raise EvidenceError(f"{folder} cannot be written: {error.strerror}.") from error


def require_own_names(address: Address, run: Run, folder: Path) -> None:
    """Raises UsageError if the history has a name for a run that nothing else shows to be its own;
    EvidenceError for a damaged file. `folder`: that of the run in the home."""
    names = _names_of(run.facts)
    if _read_names(folder) == names:
        return
    foreign = list(dict.fromkeys(_foreign(address, run, names, folder)))
    if not foreign:
        return
    examples = ", ".join(visible(name)[:NAME_CHARACTERS_MAX] for name in foreign[:NAMES_SHOWN])
    more = f" and {len(foreign) - NAMES_SHOWN} more" if len(foreign) > NAMES_SHOWN else ""
    raise UsageError(
        f"Run {run.id} is not continued: that {examples}{more} belong to it is known from the"
        " history alone, which others may have written. If they do, continue with"
        " --names-from-history."
    )


def _foreign(address: Address, run: Run, names: OwnNames, folder: Path) -> Iterator[str]:
    """Yield the names that nothing of the run confirms."""
    journal = f"{run.id}{JOURNAL_SUFFIX}"
    creations = read_creations(folder)
    sources = [topic for stage in names.stages for topic in stage.sources]
    sinks = [topic for stage in names.stages if stage.database is None for topic in stage.sinks]
    tables = [stage for stage in names.stages if stage.database is not None]
    yield from (name for name in (names.journal, *_journals(names)) if name != journal)
    prefixes = [name for stage in names.stages for name in (stage.group, stage.prefix)]
    yield from (name for name in (names.group, *prefixes) if not is_named_by(run.id, name))
    yield from (
        topic for topic in sinks if not is_named_by(run.id, topic) and topic not in creations.topics
    )
    for stage in tables:
        place = (stage.database or "", stage.sink)
        if not is_named_by(run.id, stage.sink) and place not in creations.tables:
            yield stage.sink
    others = [topic for topic in sources if not is_named_by(run.id, topic)]
    recorded = first_entry(Cluster(address), journal) if others else {}
    yield from (topic for topic in others if topic not in recorded)
    # What a scenario names by itself is a source or a sink of a stage.
    stated = {*sources, *(topic for stage in names.stages for topic in stage.sinks)}
    yield from (
        topic
        for topic in names.topics.values()
        if topic not in stated and not is_named_by(run.id, topic)
    )


def _journals(names: OwnNames) -> list[str]:
    return [stage.journal for stage in names.stages]


def _names_of(facts: Facts) -> OwnNames:
    return OwnNames(facts.stages, facts.topics, facts.journal, facts.group)


def _read_names(folder: Path) -> OwnNames | None:
    """Return the names in a run's folder; None for a run of an earlier version, or of another
    home. Raises EvidenceError."""
    try:
        return _OWN_NAMES.validate_json(read_bytes(folder / FILE))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise EvidenceError(f"{folder / FILE} cannot be read.") from error
