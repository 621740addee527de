"""How a sink's records name their inputs: in headers of each record, or in one header for a
pack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from topicproof.backend.kafka.partitioner import partitions_of
from topicproof.backend.kafka.transaction import Placed, Record
from topicproof.backend.sink.options import OFF
from topicproof.backend.sink.outputs import Output
from topicproof.backend.sink.task import SinkTask
from topicproof.validators.lineage.headers import LINEAGE_HEADER
from topicproof.validators.lineage.packs import PACKED_HEADER, Pack, formatted

Headers = list[tuple[str, bytes]]
Place = Callable[[int], bytes]
"""Returns `topic/partition/offset` of an input, from its number in an Output."""


def offset_in(source: tuple[str, int]) -> Place:
    """Return the place of an input whose number is its offset."""
    beginning = "{}/{}/".format(*source).encode()
    return lambda offset: b"%b%d" % (beginning, offset)


def records_of(
    task: SinkTask, place: Place, outputs: Iterable[Output], more: Headers
) -> Iterator[Record]:
    """Return the records of outputs lazily."""
    if task.sink.lineage == OFF:
        return ((topic, key, value, headers) for _, _, topic, key, value, headers in outputs)
    return (
        (topic, key, value, [*headers, (LINEAGE_HEADER, b"%b/%d" % (place(number), index)), *more])
        for number, index, topic, key, value, headers in outputs
    )


class Packer:
    """Puts the lineage of each pack on its first record."""

    def __init__(self, source: tuple[str, int]) -> None:
        self.source = source
        self.packed = 0
        """Number of calls. Records without a key rotate through the partitions by it."""

    def pack(
        self, topic: str, count: int, outputs: Sequence[Output], more: Headers
    ) -> Iterable[Placed]:
        """Return the records of outputs to one topic of `count` partitions."""
        self.packed += 1
        # Column by column: zip(*outputs) takes twice as long.
        keys = [output[3] for output in outputs]
        values = [output[4] for output in outputs]
        headers = [output[5] for output in outputs]
        offsets, indices = [output[0] for output in outputs], [output[1] for output in outputs]
        partitions = partitions_of(keys, count, self.packed % count)
        for position, packed in packs_of(*self.source, offsets, indices, partitions):
            headers[position] = [*headers[position], (PACKED_HEADER, packed), *more]
        return zip(repeat(topic), keys, values, headers, partitions.tolist())


def by_topic(outputs: Sequence[Output]) -> Iterable[tuple[str, Sequence[Output]]]:
    """Group the outputs by topic, in their order."""
    topics = [output[2] for output in outputs]
    if topics and topics.count(topics[0]) == len(topics):
        return [(topics[0], outputs)]
    grouped: dict[str, list[Output]] = {}
    for output in outputs:
        grouped.setdefault(output[2], []).append(output)
    return grouped.items()


def packs_of(
    topic: str,
    partition: int,
    offsets: Sequence[int],
    indices: Sequence[int],
    sink_partitions: np.ndarray[Any, np.dtype[np.int64]],
) -> Iterator[tuple[int, bytes]]:
    """Yield the packs of records for these partitions of one topic: the position of each pack's
    first record, and its header's value."""
    order = np.argsort(sink_partitions, kind="stable")
    places, outputs = np.asarray(offsets, np.int64)[order], np.asarray(indices, np.int64)[order]
    borders = np.flatnonzero(np.diff(sink_partitions[order])) + 1
    for first, end in pairwise([0, *borders.tolist(), order.size]):
        for position, packed in formatted(
            Pack(topic, partition, places[first:end], outputs[first:end])
        ):
            yield int(order[first + position]), packed
