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

from topicproof.backend.history.run_state import Names
from topicproof.backend.kafka.bounded import TIMEOUT_S
from topicproof.backend.kafka.cluster import Cluster, cluster_error

_EVERYBODY = "User:*"
_LITERAL, _PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


def deny(cluster: Cluster, names: Names, to: str) -> Callable[[], str]:
    """Take a right away: to the `sink`, the `id` or the `group`. Returns a function that gives it
    back.

    Raises ClusterError if the cluster keeps no ACLs, or does not let this client change them.
    """
    allowed, denied = _fields(names, to)
    wanted = [AclBinding(*allowed), AclBinding(*denied)]
    options = {"request_timeout": TIMEOUT_S}
    _done(cluster, "adding ACLs", cluster.admin.create_acls(wanted, **options).values())
    what = f"{denied[5].name.capitalize()} on {denied[0].name.lower()} {denied[1]}"

    def allow() -> str:
        allow_again(cluster, names, to)
        return f"{what} is allowed again"

    return allow


def allow_again(cluster: Cluster, names: Names, to: str) -> None:
    """Remove the ACLs of `deny`, if they are there. Raises ClusterError."""
    for fields in reversed(_fields(names, to)):
        # One request each: the ACL that allows the rest must be removed last.
        removed = cluster.admin.delete_acls([AclBindingFilter(*fields)], request_timeout=TIMEOUT_S)
        _done(cluster, "removing ACLs", removed.values())


def _fields(names: Names, to: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the ACL that allows everything, and the one that denies."""
    kind, name, pattern, operation = {
        "sink": (ResourceType.TOPIC, names.sink, _LITERAL, AclOperation.WRITE),
        "id": (ResourceType.TRANSACTIONAL_ID, names.prefix, _PREFIXED, AclOperation.WRITE),
        "group": (ResourceType.GROUP, names.group, _LITERAL, AclOperation.READ),
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
