"""A cluster and a topic: brokers, topics, leaders, settings. Reads no records."""

from __future__ import annotations

from dataclasses import dataclass

from kafka.admin import ConfigResource
from kafka.errors import KafkaError

from topicproof.backend.address import Address
from topicproof.backend.kafka.cluster import INTERNAL_TOPICS
from topicproof.backend.kafka.log.rawlog import Connection, connect

VERDICT_SETTINGS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "unclean.leader.election.enable",
)
"""Settings that affect a verdict: what a topic still holds, and how safe it is."""


@dataclass(frozen=True)
class Broker:
    """One broker as clients reach it."""

    broker: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True)
class TopicShape:
    """A topic's name, partitions and replicas."""

    topic: str
    partitions: int
    replicas: int
    """The smallest number of any partition."""
    out_of_sync: int
    """Partitions that lack an in-sync replica."""


@dataclass(frozen=True)
class ClusterView:
    """The cluster, without Kafka's own topics."""

    cluster: str
    brokers: tuple[Broker, ...]
    controller: int | None
    """The leader of the metadata quorum; None if unknown, which it is before KRaft."""
    topics: tuple[TopicShape, ...]


@dataclass(frozen=True)
class Placement:
    """A partition's brokers."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """One configuration of a topic."""

    name: str
    value: str
    """Empty if it is secret."""
    source: str
    """Kafka's name for the source: DYNAMIC_TOPIC_CONFIG, DEFAULT_CONFIG and so on."""

    @property
    def default(self) -> bool:
        return self.source == "DEFAULT_CONFIG"


def describe_cluster(address: Address) -> ClusterView:
    """Raises ClusterError."""
    # The admin client cannot read DescribeCluster of brokers before Kafka 3.7 (version 0).
    with connect(address) as kafka:
        metadata = kafka.with_retries(kafka.metadata_of_all)
        controller = _controller(kafka)
    return ClusterView(
        cluster=metadata.cluster_id,
        brokers=tuple(
            Broker(each.node_id, each.host, each.port, each.rack)
            for each in sorted(metadata.brokers, key=lambda each: each.node_id)
        ),
        controller=controller,
        topics=tuple(
            TopicShape(
                each.name,
                len(each.partitions),
                min((len(p.replica_nodes) for p in each.partitions), default=0),
                sum(len(p.isr_nodes) < len(p.replica_nodes) for p in each.partitions),
            )
            for each in sorted(metadata.topics, key=lambda each: each.name)
            if each.name not in INTERNAL_TOPICS
        ),
    )


def describe_topic(
    address: Address, topic: str
) -> tuple[tuple[Placement, ...], tuple[Setting, ...]]:
    """Return the topic's placements and settings; changed settings come first.

    Raises TopicError for a missing topic, ClusterError.
    """
    with connect(address) as kafka:
        kafka.leaders(topic)
        (description,) = kafka.with_retries(lambda: kafka.admin.describe_topics([topic]))
        answer = kafka.with_retries(
            lambda: kafka.admin.describe_configs(
                [ConfigResource("TOPIC", topic)], config_filter="all"
            )
        )
    placements = tuple(
        Placement(
            p["partition_index"], p["leader_id"], tuple(p["replica_nodes"]), tuple(p["isr_nodes"])
        )
        for p in sorted(description["partitions"], key=lambda p: p["partition_index"])
    )
    settings = [
        Setting(
            name, "" if each["is_sensitive"] else str(each["value"] or ""), each["config_source"]
        )
        for name, each in answer["topic"][topic].items()
    ]
    return placements, tuple(sorted(settings, key=lambda each: (each.default, each.name)))


def cleanup_policy(kafka: Connection, topic: str) -> str:
    """Describe what Kafka removes from a topic, such as `delete after 7 days`; empty without the
    right to ask."""
    try:
        answer = kafka.with_retries(
            lambda: kafka.admin.describe_configs(
                [ConfigResource("TOPIC", topic)], config_filter="all"
            )
        )
    except KafkaError:
        return ""
    configs = {name: str(each["value"]) for name, each in answer["topic"][topic].items()}
    words = [configs.get("cleanup.policy", "")]
    for name, unit, noun in (
        ("retention.ms", 86_400_000, "days"),
        ("retention.bytes", 1_000_000, "MB"),
    ):
        if "delete" in words[0] and int(configs.get(name, -1)) >= 0:
            words.append(f"after {int(configs[name]) / unit:,.4g} {noun}")
    return " ".join(words)


def _controller(kafka: Connection) -> int | None:
    """Return the quorum's leader. Since KRaft, brokers name any broker as the controller."""
    try:
        quorum = kafka.with_retries(kafka.admin.describe_metadata_quorum)
        leader: int = quorum["topics"][0]["partitions"][0]["leader_id"]
    except (KafkaError, LookupError):
        return None
    return leader
