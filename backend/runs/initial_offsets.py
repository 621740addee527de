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
    committed = cluster.committed(group, topic)
    if committed:
        positions = ", ".join(
            f"{topic}-{p} at {offset:,}" for p, offset in sorted(committed.items())
        )
        raise ClusterError(
            f"Group {group} has already begun ({positions}); its initial offsets are committed only"
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
        stage: {source: dict(positions) for source, positions in of_stage.items()}
        for stage, of_stage in offsets.items()
    }
    for _, names in context.stages:
        for source in names.sources:
            positions = initial[names.stage].setdefault(source, {})
            new = {
                p.partition: p.start
                for p in context.cluster.bounds(source).partitions
                if str(p.partition) not in positions
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
                positions |= {str(p): offset for p, offset in new.items()}
                context.remember(initial_offsets=initial)
