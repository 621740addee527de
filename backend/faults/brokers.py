"""Broker: finds the embedded broker that a fault strikes.

It leads partition 0 of the source or the sink, or the partition of Kafka's own topic that holds the
transactional id or the group. The cluster's metadata determines it at the moment of the strike.
"""

from __future__ import annotations

from confluent_kafka import KafkaException

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.bounded import TIMEOUT_S
from topicproof.backend.kafka.cluster import Cluster, cluster_error

OWN_TOPICS = {"transactions": "__transaction_state", "offsets": "__consumer_offsets"}


def leader(cluster: Cluster, role: str, topic: str, key: str) -> int:
    """Return the node that leads `topic`, or `key`'s partition of the role's own topic.

    Raises ClusterError without a leader or an answer.
    """
    name = OWN_TOPICS.get(role, topic)
    try:
        partitions = cluster.admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions
    except KafkaException as error:
        raise cluster_error(error, cluster.address, f"asking who leads {name}") from error
    if not partitions:
        raise ClusterError(f"There is no topic {name} yet, so no broker leads it.")
    partition = own_partition(key, len(partitions)) if role in OWN_TOPICS else 0
    if partitions[partition].leader < 0:
        raise ClusterError(f"No broker leads {name}-{partition} at this moment.")
    return int(partitions[partition].leader)


def how_many(cluster: Cluster) -> int:
    """Count the brokers that are up. Raises ClusterError."""
    try:
        return len(cluster.admin.list_topics(timeout=TIMEOUT_S).brokers)
    except KafkaException as error:
        raise cluster_error(error, cluster.address, "counting its brokers") from error


def own_partition(key: str, partitions: int) -> int:
    """Return the partition of Kafka's own topic for a transactional id or group (Java's
    hashCode)."""
    code = 0
    for character in key:
        code = (31 * code + ord(character)) % 2**32
    return abs(code - 2**32 if code >= 2**31 else code) % partitions
