"""Whether the coordinators of a cluster can write their logs: without that, no transaction begins.

A coordinator keeps transactions in `__transaction_state` and groups in `__consumer_offsets`. Kafka
makes both topics at their first use, with the replication of its own settings (3 by default).
A cluster with fewer brokers never makes them, and one with fewer in-sync replicas than
`min.insync.replicas` never writes to them. Clients see neither reason: librdkafka repeats "Failed
to acquire transactional PID ... Coordinator not available" until its caller gives up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.admin._resource import ResourceType

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.bounded import TIMEOUT_S, bounded
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.shell_words import shell_word


@dataclass(frozen=True)
class CoordinatorLog:
    """One of the two topics."""

    topic: str
    replicas: str
    """The broker's setting for the replication of the topic when it is made."""
    in_sync: str
    """The broker's setting for its `min.insync.replicas`."""
    needs_it: str


LOGS = (
    CoordinatorLog(
        topic="__transaction_state",
        replicas="transaction.state.log.replication.factor",
        in_sync="transaction.state.log.min.isr",
        needs_it="no transaction can begin",
    ),
    CoordinatorLog(
        topic="__consumer_offsets",
        replicas="offsets.topic.replication.factor",
        in_sync="min.insync.replicas",
        needs_it="no group can commit an offset",
    ),
)


def require_coordinator_logs(cluster: Cluster) -> None:
    """Raises ClusterError, with the setting, if a coordinator cannot make or write its log.

    Reads metadata and configurations only. A client that may not read configurations learns
    nothing, so this returns: the first transaction shows it.
    """
    metadata = cluster.admin.list_topics(timeout=TIMEOUT_S)
    for log in LOGS:
        topic = metadata.topics.get(log.topic)
        why = (
            _cannot_be_made(cluster, log, sorted(metadata.brokers))
            if topic is None or not topic.partitions
            else _cannot_be_written(cluster, log, topic)
        )
        if why is not None:
            raise ClusterError(
                f"Kafka at {cluster.address} is not ready: {log.needs_it}, because {why}."
            )


def _cannot_be_made(cluster: Cluster, log: CoordinatorLog, brokers: list[int]) -> str | None:
    settings = _configuration(cluster, ResourceType.BROKER, str(brokers[0]))
    replicas = int(settings.get(log.replicas, "0"))
    count = f"{len(brokers)} broker{'' if len(brokers) == 1 else 's'}"
    if replicas > len(brokers):
        return (
            f"{log.topic} cannot be made: {log.replicas}={replicas}, and the cluster has {count}."
            f" Set {log.replicas} and {log.in_sync} of the brokers to {len(brokers)} at most and"
            " restart them, or add brokers"
        )
    in_sync = int(settings.get(log.in_sync, "0"))
    if replicas and in_sync > replicas:
        return (
            f"{log.topic} would be made with {log.replicas}={replicas}, and {log.in_sync}="
            f"{in_sync} needs more. Set {log.in_sync} of the brokers to {replicas} at most and"
            " restart them"
        )
    return None


def _cannot_be_written(cluster: Cluster, log: CoordinatorLog, topic: TopicMetadata) -> str | None:
    partitions = topic.partitions.values()
    leaderless = sum(partition.leader < 0 for partition in partitions)
    if leaderless == len(partitions):
        return f"no partition of {log.topic} has a leader. Start the brokers that have its replicas"
    fewest = min(len(partition.isrs) for partition in partitions if partition.leader >= 0)
    replicas = max(len(partition.replicas) for partition in partitions)
    settings = _configuration(cluster, ResourceType.TOPIC, log.topic)
    needed = int(settings.get("min.insync.replicas", "0"))
    # Fewer in sync for a while is an outage, which clients survive. Fewer replicas never end.
    if needed > replicas:
        return (
            f"{log.topic} has {replicas} replica{'' if replicas == 1 else 's'}, {fewest} in sync,"
            f" and min.insync.replicas={needed} needs more. Lower it: kafka-configs.sh"
            f" --alter --topic {shell_word(log.topic)}"
            f" --add-config min.insync.replicas={replicas}"
        )
    return None


def _configuration(cluster: Cluster, kind: ResourceType, name: str) -> Mapping[str, str]:
    """Return a resource's settings; none if this client may not read them."""
    resource = ConfigResource(kind, name)
    future = cluster.admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource]
    try:
        entries = bounded(future.result)
    except (KafkaException, TimeoutError):
        return {}
    return {each.name: each.value for each in entries.values() if each.value is not None}
