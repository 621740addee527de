"""How a sink's records name their inputs: in headers of each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from topicproof.backend.kafka.transaction import Record
from topicproof.backend.sink.options import OFF
from topicproof.backend.sink.outputs import Output
from topicproof.backend.sink.task import SinkTask
from topicproof.validators.lineage.headers import LINEAGE_HEADER

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
