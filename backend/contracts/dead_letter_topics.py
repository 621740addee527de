"""The topic of dead letters beside two topics, for a draft of a contract: by its name, and by what
the headers of its newest records name."""

from __future__ import annotations

from dataclasses import dataclass

from topicproof.backend.address import Sides
from topicproof.backend.contracts.sample import newest
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


def find_letters(sides: Sides, source: str, sink: str) -> DraftedLetters | None:
    """Look for dead letters of the source beside it and the sink; None without any. Those of two
    clusters are not judged. Raises ClusterError, TopicError."""
    if sides.across:
        return None
    for topic in sorted(Cluster(sides.sink).topics()):
        if topic in (source, sink) or not is_named_so(topic, source, sink):
            continue
        try:
            rows = newest(sides.sink, topic, LETTERS, Formats()).rows
        except NothingToSample:
            continue
        for origin, headers in ORIGINS.items():
            places = [
                place[1:] for row in rows if (place := _place(row, headers)) and place[0] == source
            ]
            if places:
                term = DeadLetters(topic, origin)
                return DraftedLetters(term, len(places), len(rows), frozenset(places))
    return None


def is_named_so(topic: str, source: str, sink: str) -> bool:
    """Whether a topic has a name of dead letters of one of the two."""
    name = topic.lower()
    return any(
        name == f"{PREFIX}{base.lower()}"
        or any(name == f"{base.lower()}{mark}{suffix}" for mark in ".-_" for suffix in SUFFIXES)
        for base in (source, sink)
    )


def _place(row: Row, headers: OriginHeaders) -> tuple[str, int, int] | None:
    values = {name: value for name, value in row.headers or () if value is not None}
    return place_in(values, headers)
