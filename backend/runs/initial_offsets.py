"""Initial offsets: a consumer group's first offsets, committed once before the first start.

From then on a missing offset is an error and never a fresh start. Kafka removes a group's offsets
7 days after its last commit.
"""

from __future__ import annotations

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.context import Context
from topicproof.backend.sink.table import begin


def commit_initial_offsets(
    cluster: Cluster, group: str, topic: str, latest: bool = False
) -> dict[int, int]:
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
            f"Group {group} has already begun ({told}); its initial offsets are committed only"
            " once. Nothing was changed. Start the program to continue from there, or choose"
            " another group and an empty sink topic to start over."
        )
    offsets = {p.partition: p.lso if latest else p.start for p in bounds.partitions}
    cluster.commit_offsets(group, topic, offsets)
    return offsets


def extend(context: Context) -> None:
    """Commit an initial offset, the partition's start, for each source partition added since the
    run began."""
    offsets = context.run.facts.initial_offsets or {}
    initial = {
        stage: {of: dict(known) for of, known in one.items()} for stage, one in offsets.items()
    }
    for _, names in context.stages:
        for source in names.sources:
            known = initial[names.stage].setdefault(source, {})
            new = {
                p.partition: p.start
                for p in context.cluster.bounds(source).partitions
                if str(p.partition) not in known
            }
            if new:
                if names.database is not None:
                    begin(
                        names.database,
                        names.group,
                        {(source, p): offset for p, offset in new.items()},
                    )
                else:
                    context.cluster.commit_offsets(names.group, source, new)
                known |= {str(p): offset for p, offset in new.items()}
                context.remember(initial_offsets=initial)
