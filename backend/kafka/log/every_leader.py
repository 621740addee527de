"""Asks the leaders of a cluster's partitions about all of them at once, while topics come and go.

Whoever may make topics may make and delete them all the time. kafka-python's admin client fails for
all partitions if one of them is gone, so here each partition has its own answer, and a missing one
is asked for again for as long as its topic exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kafka import TopicPartition

from topicproof.backend.kafka.log.rawlog import FAILOVER_TIMEOUT_S, RETRY_PAUSE_S, Connection

Answer = TypeVar("Answer")
Leaders = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class LeaderAnswers(Generic[Answer]):
    """What the leaders have answered."""

    metadata: Any
    """The newest Metadata response."""
    names: frozenset[str]
    """The topics of the first Metadata response that still exist."""
    answers: Mapping[TopicPartition, Answer]
    """Of their partitions."""

    def of_whole_topic(self, topic: Any) -> dict[int, Answer] | None:
        """Return the answers about a topic of the metadata, by partition; None if one is
        missing."""
        places = [TopicPartition(topic.name, each.partition_index) for each in topic.partitions]
        if topic.error_code or topic.name not in self.names:
            return None
        if any(place not in self.answers for place in places):
            return None
        return {place.partition: self.answers[place] for place in places}


def ask_every_leader(
    kafka: Connection,
    is_asked: Callable[[TopicPartition], bool],
    ask: Callable[[Leaders], Mapping[TopicPartition, Answer]],
) -> LeaderAnswers[Answer]:
    """Ask about each partition that has a leader. `ask` gets the partitions with their leaders, and
    returns the answers that it has. Partitions without one are asked about again until they are
    gone, or for as long as a leader may take to move.

    Topics that are made meanwhile wait for the next time: they must not keep this one from its end.
    Raises kafka-python's errors.
    """
    names: frozenset[str] | None = None
    answers: dict[TopicPartition, Answer] = {}
    until = time.monotonic() + FAILOVER_TIMEOUT_S

    def ask_round() -> tuple[Any, Mapping[TopicPartition, Answer], bool]:
        metadata = kafka.metadata_of_all()
        leaders = {
            place: partition.leader_id
            for topic in metadata.topics
            if names is None or topic.name in names
            for partition in topic.partitions
            for place in [TopicPartition(topic.name, partition.partition_index)]
            if partition.leader_id >= 0 and place not in answers and is_asked(place)
        }
        of_round = ask(leaders) if leaders else {}
        return metadata, of_round, len(of_round) == len(leaders)

    while True:
        metadata, of_round, is_whole = kafka.with_retries(ask_round)
        present = frozenset(topic.name for topic in metadata.topics)
        names = present if names is None else names & present
        answers = {
            place: answer
            for place, answer in {**answers, **of_round}.items()
            if place.topic in names
        }
        if is_whole or time.monotonic() > until:
            return LeaderAnswers(metadata, names, answers)
        time.sleep(RETRY_PAUSE_S)
