"""Every topic of a cluster at a glance: its size, what is withheld, who is behind.

The number of requests does not depend on the number of topics, and no record is read. Only two
figures need batch headers, and these are read where they decide something: the worst lag, and what
a topic's newest offsets hold (`newest_records`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import pandas as pd
import pyarrow.compute as pc
from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetSpec

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.cluster import INTERNAL_TOPICS
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.transactions import topics_with_open
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
from topicproof.backend.kafka.log.fates import DATA_FATES, RANGE_COLUMNS, fate_ranges
from topicproof.backend.kafka.log.rawlog import (
    COMMITTED,
    EARLIEST,
    FAILOVER_TIMEOUT_S,
    LATEST,
    RETRY_PAUSE_S,
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
        topics = _topics(kafka)
        bounds = topics.bounds
        not_heard.extend(without_leader(topics.names, bounds))
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
        topics.cluster,
        topics.brokers,
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


@dataclass(frozen=True)
class _Topics:
    """The topics of a cluster, without Kafka's own."""

    cluster: str
    brokers: int
    names: frozenset[str]
    bounds: Mapping[str, Bounds]
    """Those with a leader for each partition."""


def _topics(kafka: Connection) -> _Topics:
    """Return the topics of a cluster with their bounds. Three requests to each broker, in the order
    that keeps start <= LSO <= HW.

    Topics come and go meanwhile: the leader of a deleted one knows nothing of it. So metadata is
    asked for again until each topic of the first response has bounds, or is gone. Later ones wait
    for the next look: whoever makes topics all the time must not keep this one from its end.
    """
    bounds: dict[str, Bounds] = {}
    names: frozenset[str] | None = None
    until = time.monotonic() + FAILOVER_TIMEOUT_S
    while True:
        answer, leaders, of_round = kafka.with_retries(
            partial(_bounds_of, kafka, names, bounds.keys())
        )
        present = frozenset(topic.name for topic in answer.topics) - INTERNAL_TOPICS
        names = present if names is None else names & present
        bounds = {topic: each for topic, each in {**bounds, **of_round}.items() if topic in names}
        unanswered = {place.topic for place in leaders} - bounds.keys()
        if not unanswered or time.monotonic() > until:
            return _Topics(answer.cluster_id, len(answer.brokers), names, bounds)
        time.sleep(RETRY_PAUSE_S)


def _bounds_of(
    kafka: Connection, names: Collection[str] | None, known: Collection[str]
) -> tuple[Any, dict[TopicPartition, int], dict[str, Bounds]]:
    """Return the Metadata response, the leaders of these topics' partitions, and the bounds of
    those for which all leaders answered. `names`: None for all topics; `known` ones are not asked
    about."""
    answer = kafka.metadata_of_all()
    leaders = {
        TopicPartition(topic.name, partition.partition_index): partition.leader_id
        for topic in answer.topics
        if topic.name not in INTERNAL_TOPICS and topic.name not in known
        if (names is None or topic.name in names) and not topic.error_code
        if all(partition.leader_id >= 0 for partition in topic.partitions)
        for partition in topic.partitions
    }
    starts, stable, ends = (
        _offsets(kafka, leaders, at, level)
        for at, level in ((EARLIEST, UNCOMMITTED), (LATEST, COMMITTED), (LATEST, UNCOMMITTED))
    )
    unanswered = {
        place.topic
        for place in leaders
        # The answers about a topic that was made again in between are about two topics.
        if not 0 <= starts.get(place, -1) <= stable.get(place, -1) <= ends.get(place, -1)
    }
    partitions: dict[str, list[PartitionBounds]] = {}
    for place in sorted(leaders):
        if place.topic not in unanswered:
            partitions.setdefault(place.topic, []).append(
                PartitionBounds(place.partition, starts[place], stable[place], ends[place])
            )
    bounds = {topic: Bounds(topic, tuple(of_topic)) for topic, of_topic in partitions.items()}
    return answer, leaders, bounds


def _offsets(
    kafka: Connection,
    leaders: Mapping[TopicPartition, int],
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
    requests = {
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
    if not waiting:
        return {}
    opened = {}
    for topic in sorted(kafka.with_retries(lambda: topics_with_open(kafka, waiting))):
        withheld = sum(p.hw - p.lso for p in bounds[topic].partitions)
        ranges = None if withheld <= COUNTED_OFFSETS_MAX else pd.DataFrame(columns=RANGE_COLUMNS)
        opened[topic] = open_transactions(kafka, topic, bounds[topic], ranges, budget=budget)
    return opened
