"""A second count of a cell's sink, by a plain consumer and without Spark: the verdict must agree
with it.

The scenario `squares` makes the square of each input, and no two are equal. So at read_committed,
equal values are duplicates, and missing squares are gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.reading import as_bytes, open_consumer, read_range
from topicproof.backend.matrix.promises import Damage
from topicproof.validators.finding import Bounds

COUNTED = (Damage.DUPLICATES, Damage.GAPS)


def recount(cluster: Cluster, source: Bounds, sink: Bounds) -> dict[Damage, int]:
    """Count duplicates and gaps of a sink. `source` are the bounds of the judged inputs: a run that
    was refused has not processed all. Raises ClusterError, TopicError."""
    expected = {int(value or b"") ** 2 for value in _values(cluster, source)}
    outputs = [int(value or b"") for value in _values(cluster, sink)]
    return {
        Damage.DUPLICATES: len(outputs) - len(set(outputs)),
        Damage.GAPS: len(expected - set(outputs)),
    }


def disagreements(
    damage_counts: Mapping[Damage, int], recounted: Mapping[Damage, int]
) -> list[str]:
    """Describe where the verdict's damage is not what was counted, one sentence each. Behind a
    hanging transaction a reader sees nothing, so nothing can be compared."""
    if damage_counts.get(Damage.HANGING):
        return []
    return [
        f"a plain consumer counts {recounted[damage]:,} {damage}, the verdict"
        f" {damage_counts.get(damage, 0):,}"
        for damage in COUNTED
        if recounted[damage] != damage_counts.get(damage, 0)
    ]


def _values(cluster: Cluster, bounds: Bounds) -> Iterator[bytes | None]:
    spans = {p.partition: (p.start, p.lso) for p in bounds.partitions}
    with open_consumer(cluster.address, bounds.topic, READ_COMMITTED) as consumer:
        for message in read_range(consumer, bounds.topic, spans):
            if message is not None:
                yield as_bytes(message.value())
