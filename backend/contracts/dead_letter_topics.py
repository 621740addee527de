"""The topic of dead letters beside two topics, for a draft of a contract: by its name, and by what
the headers of its newest records name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.sample import Sample, newest
from topicproof.backend.errors import NothingToSample
from topicproof.backend.formats.formats import Formats
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.lineage.dead_letters import ORIGINS, DeadLetters, OriginHeaders, place_in

LETTERS = 1_000
"""Number of newest dead letters that are read."""
SUFFIXES = ("dlq", "dlt", "dead-letters", "dead-letter", "deadletters", "errors")
"""Ends of the names that programs give such topics, behind a dot, a dash or an underscore. A share
group's begins with `dlq.` (KIP-1191)."""
PREFIX = "dlq."


@dataclass(frozen=True)
class DraftedLetters:
    """A topic of dead letters that belongs to the source."""

    term: DeadLetters
    named: int
    """How many of its newest records name an input of the source."""
    read: int
    inputs: frozenset[tuple[int, int]]
    """These inputs: partition and offset."""


def find_letters(
    sides: Sides, source: str, sink: str, may_read: Callable[[str], bool] = lambda _topic: True
) -> DraftedLetters | None:
    """Look for dead letters of the source beside it and the sink; None without any. Those of two
    clusters are not judged. `may_read`: whether the records of a topic may be looked at. Raises
    ClusterError, TopicError."""
    if sides.across:
        return None
    for topic in sorted(Cluster(sides.sink).topics()):
        if topic in (source, sink) or not is_named_so(topic, source, sink) or not may_read(topic):
            continue
        sample = sample_letters(sides.sink, topic)
        letters = None if sample is None else letters_of(sample, source)
        if letters is not None:
            return letters
    return None


def sample_letters(address: Address, topic: str, formats: Formats | None = None) -> Sample | None:
    """Read the newest dead letters; None without any. `formats` decodes what is not JSON; None:
    without a registry. Raises ClusterError, TopicError."""
    try:
        return newest(address, topic, LETTERS, formats or Formats())
    except NothingToSample:
        return None


def letters_of(sample: Sample, source: str) -> DraftedLetters | None:
    """Return the dead letters of a source by the headers that most name it with; None if none
    names it."""
    drafted = []
    for origin, headers in ORIGINS.items():
        places = [place for row in sample.rows if (place := named_place(row, headers, source))]
        term = DeadLetters(sample.topic, origin)
        drafted.append(DraftedLetters(term, len(places), len(sample.rows), frozenset(places)))
    best = max(drafted, key=lambda letters: letters.named)
    return best if best.named else None


def is_named_so(topic: str, source: str, sink: str) -> bool:
    """Whether a topic has a name of dead letters of one of the two."""
    name = topic.lower()
    return any(
        name == f"{PREFIX}{base.lower()}"
        or any(name == f"{base.lower()}{mark}{suffix}" for mark in ".-_" for suffix in SUFFIXES)
        for base in (source, sink)
    )


def named_place(row: Row, headers: OriginHeaders, source: str) -> tuple[int, int] | None:
    """Return partition and offset of the input of the source that a dead letter names; None if it
    names none."""
    values = {name: value for name, value in row.headers or () if value is not None}
    place = place_in(values, headers)
    return place[1:] if place is not None and place[0] == source else None
