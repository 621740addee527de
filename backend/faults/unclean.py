"""Unclean election: a replica that missed the last records becomes the leader of a sink partition.

Kafka then loses what the old leader had acknowledged: records, and COMMIT and ABORT markers
(KAFKA-20716). No producer can prevent it, so every guarantee may break. A verdict must name the
damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from kafka import TopicPartition

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.bounded import TIMEOUT_S
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import cluster_error
from topicproof.backend.kafka.log.client import open_client
from topicproof.backend.waiting import ask_until

ELECTED_WITHIN_S = 90.0
"""A controller misses a broker after 9 s (broker.session.timeout.ms). It may have to be replaced
first, if it ran on that broker."""
_ALLOWED = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}

Handle = Callable[[int, str], str]
"""Hurts or heals a broker: (node, `kill` or `heal`), returns a description."""


def lose_the_follower(cluster: Cluster, topic: str, handle: Handle) -> Callable[[], str]:
    """Leave partition 0 of `topic` with one leader and one follower, kill the follower, and wait
    until the leader commits without it.

    Returns a function that kills the leader too, brings the follower back, waits until it is
    elected, and heals both. What the leader committed meanwhile is lost.

    Raises ClusterError if there is no follower or the brokers do not reach these states, SetupError
    if one does not come back.
    """
    before = _partition(cluster, topic)
    leader, others = before.leader, [node for node in before.replicas if node != before.leader]
    if not others:
        raise ClusterError(f"{topic}-0 has one replica, so no follower. Use three brokers.")
    follower = others[0]
    _allow(cluster, topic)
    _assign(cluster, topic, [leader, follower])
    _await(cluster, topic, lambda state: sorted(state.isrs) == sorted([leader, follower]))
    handle(follower, "kill")
    _await(cluster, topic, lambda state: state.isrs == [leader])

    def elect() -> str:
        handle(leader, "kill")
        handle(follower, "heal")
        _await(cluster, topic, lambda state: state.leader == follower)
        handle(leader, "heal")
        _await(cluster, topic, lambda state: len(state.isrs) == 2)
        return f"broker {follower} was elected, which lacked what broker {leader} had acknowledged"

    return elect


def _allow(cluster: Cluster, topic: str) -> None:
    set_it = AlterConfigOpType.SET
    entries = [
        ConfigEntry(name, value, incremental_operation=set_it) for name, value in _ALLOWED.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    try:
        changed = cluster.admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)
        changed[resource].result()
    except KafkaException as error:
        raise cluster_error(error, cluster.address, f"changing the config of {topic}") from error


def _assign(cluster: Cluster, topic: str, replicas: list[int]) -> None:
    """Set the replicas of partition 0. confluent-kafka has no call for it."""
    partition = TopicPartition(topic, 0)
    with open_client(cluster.address) as (admin, _client):
        refused = admin.alter_partition_reassignments({partition: replicas})[partition]
    if refused is not None:
        raise ClusterError(f"The replicas of {topic}-0 cannot be changed: {refused.__name__}.")


def _partition(cluster: Cluster, topic: str) -> Any:
    """Return confluent-kafka's metadata of partition 0."""
    try:
        return cluster.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0]
    except KafkaException as error:
        raise cluster_error(error, cluster.address, f"asking who leads {topic}") from error


def _await(cluster: Cluster, topic: str, done: Callable[[Any], bool]) -> None:
    state = ask_until(lambda: _partition(cluster, topic), done, ELECTED_WITHIN_S)
    if not done(state):
        raise ClusterError(
            f"{topic}-0 is led by {state.leader}, with {state.isrs} in sync of {state.replicas},"
            f" after {ELECTED_WITHIN_S:.0f} s."
        )
