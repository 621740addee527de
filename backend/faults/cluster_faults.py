"""What a fault does to a cluster, by its own API.

- Broker: finds the embedded broker that a fault strikes. It leads partition 0 of the source or the
  sink, or the partition of Kafka's own topic that holds the transactional id or the group. The
  cluster's metadata determines it at the moment of the strike.
- Offsets: moves the consumer group's committed offset, as an operator's reset would.
- Rights: an ACL denies the run's client the sink, its transactional ids, or its group. It names
  every principal, because a cluster without logins knows only one (`User:ANONYMOUS`). A resource
  with an ACL is closed to all whom no ACL allows, so a second ACL allows everything else.
- Attempts: fills a source in which every transaction was aborted once before it committed. A
  read_uncommitted consumer of it processes inputs that were never committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from topicproof.backend.errors import ClusterError
from topicproof.backend.faults.fault import Fault
from topicproof.backend.kafka.bounded import TIMEOUT_S
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import cluster_error
from topicproof.backend.kafka.transaction import TransactionalProducer

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


def move_offset(
    fault: Fault, cluster: Cluster, group: str, source: tuple[str, int], first: int, following: int
) -> None:
    """After a transaction of the inputs [first, following), move the offset back to `first`, or as
    far forward, or delete the group. Raises ClusterError."""
    topic, partition = source
    how = fault.word("how")
    if how == "deleted":
        cluster.delete_group(group)
    else:
        to = first if how == "rewound" else 2 * following - first
        cluster.commit_offsets(group, topic, {partition: to})


_EVERYBODY = "User:*"


def deny(cluster: Cluster, to: str, name: str) -> Callable[[], str]:
    """Take a right away. Returns a function that gives it back. `name` is the name of the `sink`
    or the `group`, or the prefix of the transactional ids (`id`).

    Raises ClusterError if the cluster keeps no ACLs, or does not let this client change them.
    """
    allowed, denied = _fields(to, name)
    bindings = [AclBinding(*allowed), AclBinding(*denied)]
    options = {"request_timeout": TIMEOUT_S}
    _done(cluster, "adding ACLs", cluster.admin.create_acls(bindings, **options).values())
    right = f"{denied[5].name.capitalize()} on {denied[0].name.lower()} {denied[1]}"

    def allow() -> str:
        allow_again(cluster, to, name)
        return f"{right} is allowed again"

    return allow


def allow_again(cluster: Cluster, to: str, name: str) -> None:
    """Remove the ACLs of `deny`, if they are there. Raises ClusterError."""
    for fields in reversed(_fields(to, name)):
        # One request each: the ACL that allows the rest must be removed last.
        removed = cluster.admin.delete_acls([AclBindingFilter(*fields)], request_timeout=TIMEOUT_S)
        _done(cluster, "removing ACLs", removed.values())


def _fields(to: str, name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the ACL that allows everything, and the one that denies."""
    kind, pattern, operation = {
        "sink": (ResourceType.TOPIC, ResourcePatternType.LITERAL, AclOperation.WRITE),
        "id": (ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED, AclOperation.WRITE),
        "group": (ResourceType.GROUP, ResourcePatternType.LITERAL, AclOperation.READ),
    }[to]
    return (
        (kind, name, pattern, _EVERYBODY, "*", AclOperation.ALL, AclPermissionType.ALLOW),
        (kind, name, pattern, _EVERYBODY, "*", operation, AclPermissionType.DENY),
    )


def _done(cluster: Cluster, doing: str, futures: Iterable[Future[Any]]) -> None:
    try:
        for future in futures:
            future.result()
    except KafkaException as error:
        raise cluster_error(error, cluster.address, doing, "Alter on the cluster") from error


def fill_with_attempts(cluster: Cluster, topic: str, records: int, per_transaction: int) -> None:
    """Append the integers below `records`, as text in key and value. Raises ClusterError,
    SinkError."""
    try:
        with TransactionalProducer(cluster.address, f"{topic}-fill") as producer:
            for first in range(0, records, per_transaction):
                numbers = range(first, min(first + per_transaction, records))
                producer.producer.begin_transaction()
                _produce(producer, topic, numbers)
                producer.flush()
                producer.abort()
                with producer.transaction():
                    _produce(producer, topic, numbers)
    except KafkaException as error:
        raise cluster_error(error, cluster.address, f"filling {topic}") from error


def _produce(producer: TransactionalProducer, topic: str, numbers: range) -> None:
    for number in numbers:
        text = str(number).encode()
        producer.produce([(topic, text, text, [])])
