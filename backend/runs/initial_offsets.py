"""The floor: a consumer group's first offsets, committed once before the first start. From then on
a missing offset is an error, never a fresh start (group offsets expire 7 days after their last
commit)."""

from __future__ import annotations

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.cluster import Cluster


def commit_floor(cluster: Cluster, group: str, topic: str, latest: bool = False) -> dict[int, int]:
    """Commit the group's first offset of every partition of `topic`: its log start, or its end if
    `latest`.

    Returns offsets by partition. Raises ClusterError, and changes nothing, if the group already has
    an offset there: moving it would repeat or lose records.
    """
    bounds = cluster.bounds(topic)
    there = cluster.committed(group, topic)
    if there:
        told = ", ".join(f"{topic}-{p} at {offset:,}" for p, offset in sorted(there.items()))
        raise ClusterError(
            f"Group {group} has already begun ({told}); its floor is committed only once. Nothing"
            " was changed. Start the program to continue from there, or choose another group and an"
            " empty sink topic to start over."
        )
    floor = {p.partition: p.lso if latest else p.start for p in bounds.partitions}
    cluster.commit_offsets(group, topic, floor)
    return floor
