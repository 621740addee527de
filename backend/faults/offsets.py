"""Offsets: moves the consumer group's committed offset, as an operator's reset would."""

from __future__ import annotations

from topicproof.backend.faults.fault import Fault
from topicproof.backend.kafka.cluster import Cluster


def move(
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
