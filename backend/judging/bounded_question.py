"""From a question to the offsets that answer it: ids and bounds of its topics, asked for once.

Everything that is captured lies within these bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from topicproof.backend.address import Address, Sides
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.unstable import committed_offsets
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.origin import fetch_origins
from topicproof.backend.waiting import ask_until
from topicproof.validators.finding import Bounds, Origins
from topicproof.validators.merged_topics import join
from topicproof.validators.question import Question

SETTLE_S = 3.0


@dataclass(frozen=True)
class BoundedQuestion:
    """A question, and the bounds of its topics at the moment of its capture."""

    question: Question
    """Its source has the bounds of this moment, if the topics are not of our own runs."""
    sides: Sides
    sink: Bounds
    first_look: Bounds
    """The source's bounds when the question was put."""
    group_offsets: Mapping[int, int] | None = None
    """The committed offsets of the question's group, taken last; None if they may not move."""

    @property
    def source(self) -> Bounds:
        return self.question.source

    @property
    def origins(self) -> Origins:
        return origins_of(self.question)

    @property
    def offsets(self) -> int:
        """Number of offsets in source and sink together."""
        return self.sink.offsets + self.source.offsets


def identify(sides: Sides, question: Question) -> Question:
    """Return the question with the ids of its topics. Raises TopicError, ClusterError."""
    if question.origins is not None:
        return question
    sources = () if question.agreed.unique else question.source.topics
    sinks = (question.sink, *question.also)
    return replace(question, origins=fetch_origins(sides.sink, sides.other, sources, sinks))


def origins_of(question: Question) -> Origins:
    """Return the ids of the topics of a question that `identify` has returned."""
    assert question.origins is not None
    return question.origins


def bound(sides: Sides, question: Question) -> BoundedQuestion:
    """Ask for the bounds of this moment. Raises TopicError, ClusterError.

    The source's bounds are taken after the sink's, so that each output finds its input.
    """
    first_look = question.source
    whole = join([settled_bounds(sides.sink, topic) for topic in (question.sink, *question.also)])
    starts = {p.partition: p.start for p in whole.partitions} | dict(question.sink_from)
    partitions = (replace(p, start=max(p.start, starts[p.partition])) for p in whole.partitions)
    sink = replace(whole, partitions=tuple(partitions))
    if question.agreed.unique:
        # The sink alone is judged: whatever it holds is below the same bounds on both sides.
        return BoundedQuestion(replace(question, source=sink), sides, sink, first_look)
    if not question.foreign:
        return BoundedQuestion(question, sides, sink, first_look)
    source = join([rawlog.fetch_bounds(sides.source, topic) for topic in first_look.topics])
    offsets = None
    if question.group is not None:
        offsets = committed_offsets(Cluster(sides.source), question.group, source)
    return BoundedQuestion(replace(question, source=source), sides, sink, first_look, offsets)


def settled_bounds(address: Address, topic: str) -> Bounds:
    """Return the topic's bounds once everything from the first look has settled.

    A commit is acknowledged before its markers are written. Bounds taken right after it may show
    offsets above the LSO that are about to settle. A transaction that is still open after
    `SETTLE_S` counts as open. Records after the first look are not awaited: a busy topic always has
    open transactions.
    """
    first: dict[int, int] = {}

    def ask() -> Bounds:
        bounds = rawlog.fetch_bounds(address, topic)
        for p in bounds.partitions:
            first.setdefault(p.partition, p.hw)
        return bounds

    def settled(bounds: Bounds) -> bool:
        return all(p.lso >= first[p.partition] for p in bounds.partitions)

    return ask_until(ask, settled, SETTLE_S)
