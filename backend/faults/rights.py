"""Rights: an ACL denies the run's client the sink, its transactional ids, or its group.

The ACL names every principal, because a cluster without logins knows only one (`User:ANONYMOUS`).
A resource with an ACL is closed to all whom no ACL allows. So a second ACL allows everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from topicproof.backend.kafka.bounded import TIMEOUT_S
from topicproof.backend.kafka.cluster import Cluster, cluster_error

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
