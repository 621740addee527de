"""Every topic of a cluster at a glance: its size, what is withheld, who is behind.

The number of requests does not depend on the number of topics, and no record is read. Only two
figures need batch headers, and these are read where they decide something: the worst lag, and what
a topic's newest offsets hold (`newest_records`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pandas as pd
import pyarrow.compute as pc
from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetSpec

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.cluster import INTERNAL_TOPICS
from topicproof.backend.kafka.coordination.coordinator import open_producers, transactions_of
from topicproof.backend.kafka.coordination.worst_lag import (
    COUNTED_OFFSETS_MAX,
    READ_OFFSETS_MAX,
    Behind,
    Lag,
    StuckGroup,
    bounds_from,
    offsets_behind,
    stuck_groups,
    worst_lag,
)
from topicproof.backend.kafka.log.client import cluster_error
from topicproof.backend.kafka.log.every_leader import LeaderAnswers, Leaders, ask_every_leader
from topicproof.backend.kafka.log.fates import DATA_FATES, RANGE_COLUMNS, fate_ranges
from topicproof.backend.kafka.log.rawlog import (
    COMMITTED,
    EARLIEST,
    LATEST,
    UNCOMMITTED,
    Connection,
    connect,
)
from topicproof.backend.kafka.look import LookBudget, LookLimits
from topicproof.validators.coordinator import OpenTransaction, WholeTransaction, whole_transactions
from topicproof.validators.finding import Bounds, Fate, PartitionBounds
from topicproof.validators.sentences import first_of

NEWEST_OFFSETS = 2_000
"""How many of a topic's newest offsets `newest_records` looks at, spread over its partitions."""
PARTITION_OFFSETS_MIN = 100
NAMED_MAX = 3
"""Topics and groups that a sentence names; it counts the others."""
LIST_OFFSETS_VERSION_MIN = 2
"""The first version with an isolation level."""
OVERVIEW_LIMITS = LookLimits(entries=20_000)
"""Pages look at a whole cluster again every few seconds."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class TopicOverview:
    """One topic at a glance. Counts are over all its partitions."""

    bounds: Bounds
    size: int | None
    """Bytes on disk of one replica of each partition; None if the brokers did not say."""
    opened: tuple[OpenTransaction, ...]
    behind: Lag | None
    """The group that is most behind, by offsets below the last stable offset; None without a
    committed offset."""
    stuck: tuple[StuckGroup, ...] = ()
    """Groups that have read all they can, and wait for open transactions."""
    lags: tuple[Lag, ...] = ()
    """The groups with more than `READ_OFFSETS_MAX` offsets below the LSO to read."""

    @property
    def topic(self) -> str:
        return self.bounds.topic

    @property
    def withheld(self) -> int:
        """Offsets at or above the last stable offset."""
        return sum(p.hw - p.lso for p in self.bounds.partitions)

    @property
    def is_counted(self) -> bool:
        """Whether the records that its open transactions withhold were counted one by one."""
        return self.withheld <= COUNTED_OFFSETS_MAX

    @property
    def transactions(self) -> int:
        """Open transactions; one that is open on several partitions counts once."""
        return len({each.producer_id for each in self.opened})


@dataclass(frozen=True)
class NewestRecords:
    """The records of a topic's newest offsets."""

    fates: Mapping[Fate, int]
    """How many there are of each of `DATA_FATES`."""
    written_ms: int | None
    """The largest of their timestamps, in ms since 1970; None without records."""


@dataclass(frozen=True)
class Overview:
    """A cluster at one moment, without Kafka's own topics."""

    taken_at: datetime
    """UTC."""
    cluster: str
    brokers: int
    topics: tuple[TopicOverview, ...]
    """By name."""
    worst: Lag | None
    """The largest lag of any group on any topic."""
    not_heard: tuple[str, ...]
    """What could not be asked, and why. The figures that need it are missing above."""
    not_sized: tuple[str, ...] = ()
    """Why sizes are missing: they need a right of their own, and no cause of trouble needs them."""

    @property
    def opened(self) -> tuple[WholeTransaction, ...]:
        """Open transactions, each on all its topics: hanging ones first, then the oldest."""
        return whole_transactions(
            (topic.topic, part) for topic in self.topics for part in topic.opened
        )

    @property
    def stuck(self) -> tuple[StuckGroup, ...]:
        """Groups that have read all they can of a topic, and wait for open transactions."""
        return tuple(group for topic in self.topics for group in topic.stuck)

    @property
    def withheld(self) -> int:
        """Offsets that read_committed consumers do not get yet."""
        return sum(topic.withheld for topic in self.topics)


def overview(address: Address) -> Overview:
    """Ask the brokers once about all topics and groups.

    A question that a broker refuses or does not know is named in `not_heard`. Raises ClusterError
    if the topics themselves cannot be listed.
    """
    not_heard: list[str] = []
    not_sized: list[str] = []
    with connect(address) as kafka:

        def ask(
            question: Callable[[LookBudget], Answer], instead: Answer, notes: list[str] = not_heard
        ) -> Answer:
            """Ask; on refusal, note why, and note what was left out."""
            budget = LookBudget(OVERVIEW_LIMITS)
            try:
                answer = question(budget)
            except KafkaError as error:
                notes.append(str(cluster_error(address, error)))
            except ClusterError as error:
                notes.append(str(error))
            else:
                notes.extend(filter(None, [budget.note]))
                return answer
            return instead

        taken_at = datetime.now(UTC)
        partitions = _all_bounds(kafka)
        metadata = partitions.metadata
        bounds = {
            topic.name: Bounds(topic.name, tuple(parts[number] for number in sorted(parts)))
            for topic in metadata.topics
            if (parts := partitions.of_whole_topic(topic))
        }
        not_heard.extend(without_leader(partitions.names - INTERNAL_TOPICS, bounds))
        sizes: dict[str, int] = ask(lambda _: _sizes(kafka), {}, not_sized)
        waiting = {topic for topic in bounds if any(p.lso < p.hw for p in bounds[topic].partitions)}
        opened: dict[str, tuple[OpenTransaction, ...]] = ask(
            lambda budget: _opened(kafka, bounds, waiting, budget), {}
        )
        behind: Behind = ask(lambda budget: offsets_behind(kafka, bounds, budget=budget), {})
        stuck: tuple[StuckGroup, ...] = ask(lambda _: stuck_groups(kafka, bounds, behind), ())
        worst = ask(lambda _: worst_lag(kafka, behind), None)
    stuck_by_topic: dict[str, list[StuckGroup]] = {}
    for group in stuck:
        stuck_by_topic.setdefault(group.topic, []).append(group)
    return Overview(
        taken_at,
        metadata.cluster_id,
        len(metadata.brokers),
        tuple(
            TopicOverview(
                bounds[topic],
                sizes.get(topic),
                opened.get(topic, ()),
                max(
                    (each for each, _part in behind.get(topic, ())),
                    key=lambda each: each.records,
                    default=None,
                ),
                tuple(stuck_by_topic.get(topic, ())),
                tuple(
                    each for each, _part in behind.get(topic, ()) if each.records > READ_OFFSETS_MAX
                ),
            )
            for topic in sorted(bounds)
        ),
        worst,
        tuple(not_heard),
        tuple(not_sized),
    )


def newest_records(kafka: Connection, bounds: Bounds) -> NewestRecords:
    """Describe the records of a topic's newest offsets by their batch headers.

    Raises ClusterError, and kafka-python's errors.
    """
    width = max(PARTITION_OFFSETS_MIN, NEWEST_OFFSETS // max(1, len(bounds.partitions)))
    part = bounds_from(bounds, {p.partition: p.hw - width for p in bounds.partitions})
    batches = kafka.scan(bounds.topic, part)
    records = fate_ranges(batches, part).groupby("fate")["records"].sum()
    written = pc.max(batches.filter(pc.field("control").is_null())["max_timestamp"]).as_py()
    return NewestRecords({fate: int(records.get(fate, 0)) for fate in DATA_FATES}, written)


def _all_bounds(kafka: Connection) -> LeaderAnswers[PartitionBounds]:
    """Return the bounds of every partition that has a leader, without Kafka's own topics. Three
    requests to each broker, in the order that keeps start <= LSO <= HW."""

    def ask(leaders: Leaders) -> dict[TopicPartition, PartitionBounds]:
        starts, stable, ends = (
            _offsets(kafka, leaders, at, level)
            for at, level in ((EARLIEST, UNCOMMITTED), (LATEST, COMMITTED), (LATEST, UNCOMMITTED))
        )
        return {
            place: PartitionBounds(place.partition, starts[place], stable[place], ends[place])
            for place in leaders
            # The answers about a topic that was made again in between are about two topics.
            if 0 <= starts.get(place, -1) <= stable.get(place, -1) <= ends.get(place, -1)
        }

    return ask_every_leader(kafka, lambda place: place.topic not in INTERNAL_TOPICS, ask)


def _offsets(
    kafka: Connection,
    leaders: Leaders,
    at: OffsetSpec,
    level: IsolationLevel,
) -> dict[TopicPartition, int]:
    """Return an offset of each partition, without those that its leader refuses: kafka-python's
    admin client fails for all if one of them is gone."""
    topic_of = ListOffsetsRequest.ListOffsetsTopic
    places: dict[int, dict[str, list[Any]]] = {}
    for place, leader in leaders.items():
        partition = topic_of.ListOffsetsPartition(
            partition_index=place.partition, timestamp=int(at)
        )
        places.setdefault(leader, {}).setdefault(place.topic, []).append(partition)
    requests: dict[int | None, ListOffsetsRequest] = {
        leader: ListOffsetsRequest(
            isolation_level=level.value,
            topics=[topic_of(name=name, partitions=parts) for name, parts in of_leader.items()],
            min_version=LIST_OFFSETS_VERSION_MIN,
        )
        for leader, of_leader in places.items()
    }
    return {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for response in kafka.send(requests).values()
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    }


def without_leader(names: Collection[str], bounds: Collection[str]) -> Iterator[str]:
    """Name the topics that have no bounds, because a partition has no leader now."""
    left_out = sorted(set(names) - set(bounds))
    if left_out:
        yield f"Left out, because a partition has no leader now: {first_of(left_out, NAMED_MAX)}."


def _sizes(kafka: Connection) -> dict[str, int]:
    """Return the bytes of each topic; a replica that lags behind is smaller than its leader."""
    largest: Counter[tuple[str, int]] = Counter()
    for broker in kafka.with_retries(kafka.admin.describe_log_dirs):
        for folder in broker["log_dirs"]:
            for topic in folder["topics"]:
                for each in topic["partitions"]:
                    place = topic["name"], each["partition_index"]
                    largest[place] = max(largest[place], each["partition_size"])
    sizes: Counter[str] = Counter()
    for (topic, _partition), size in largest.items():
        sizes[topic] += size
    return dict(sizes)


def _opened(
    kafka: Connection,
    bounds: Mapping[str, Bounds],
    waiting: Collection[str],
    budget: LookBudget,
) -> dict[str, tuple[OpenTransaction, ...]]:
    """Return the open transactions of each topic on which something is withheld."""
    withheld = {
        TopicPartition(topic, p.partition)
        for topic in waiting
        for p in bounds[topic].partitions
        if p.lso < p.hw
    }
    if not withheld:
        return {}
    ranges = {
        topic: None if each <= COUNTED_OFFSETS_MAX else pd.DataFrame(columns=RANGE_COLUMNS)
        for topic in waiting
        for each in [sum(p.hw - p.lso for p in bounds[topic].partitions)]
    }
    producers = open_producers(kafka, withheld.__contains__)
    return transactions_of(kafka, producers, bounds, ranges, budget=budget)
