"""Offsets: the consumer group's committed offset is moved behind the sink's back, as a reset by
hand would."""

from __future__ import annotations

from topicproof.backend.faults.fault import Fault
from topicproof.backend.kafka.cluster import Cluster


def move(
    fault: Fault, cluster: Cluster, group: str, source: tuple[str, int], first: int, following: int
) -> None:
    """Move the offset that follows a transaction of the inputs from `first` to below `following`:
    back to `first`, or as far forward again, or delete the whole group. Raises ClusterError."""
    topic, partition = source
    how = fault.word("how")
    if how == "deleted":
        cluster.delete_group(group)
    else:
        to = first if how == "rewound" else 2 * following - first
        cluster.commit_offsets(group, topic, {partition: to})
