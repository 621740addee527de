"""Offsets of the source that hold no input, next to inputs whose outputs are odd."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import functions as F

from topicproof.validators.incidents.incident import Inputs
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.readings import frame_of


def holes_among(ledger: Ledger, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns those of the source's places (partition, offset) that read_committed has nothing at.
    Only places within the source count; none are returned if the readings are folded, or if
    the source has lost records."""
    bounds = {each.partition: each for each in ledger.question.source.partitions}
    inside = [
        (partition, offset)
        for partition, offset in sorted(set(places))
        if partition in bounds and bounds[partition].start <= offset < bounds[partition].lso
    ]
    if ledger.readings is None or not inside or ledger.source_incomplete:
        return []
    spark = ledger.spark
    places_frame = frame_of(spark, inside, "partition int, offset long")
    inputs = ledger.readings.inputs.select("partition", "offset")
    records = inputs.join(F.broadcast(places_frame), ["partition", "offset"]).distinct().collect()
    present = {(row["partition"], row["offset"]) for row in records}
    return [place for place in inside if place not in present]


def holes_before(ledger: Ledger, inputs: Sequence[Inputs], at_most: int) -> list[str]:
    """Returns the place before each of these inputs, if none of those holds an input, and if there
    are at most so many inputs; else nothing."""
    if sum(each.count for each in inputs) > at_most:
        return []
    places = repeated_places(ledger, at_most)
    before = [(partition, offset - 1) for partition, offset in places]
    holes = holes_among(ledger, before)
    if not holes or len(holes) < len(before):
        return []
    return places_text(ledger, holes)


def repeated_places(ledger: Ledger, at_most: int) -> list[tuple[int, int]]:
    """Returns the places of the inputs whose outputs are repeated, `at_most` of them."""
    rows = ledger.sink.join(ledger.repeats, ["partition", "offset"])
    distinct = rows.select("source_partition", "source_offset").distinct()
    places = distinct.orderBy("source_partition", "source_offset").limit(at_most).collect()
    return [(row["source_partition"], row["source_offset"]) for row in places]


def places_text(ledger: Ledger, places: Iterable[tuple[int, int]]) -> list[str]:
    """Formats places of the source as `orders-0@4`."""
    texts = []
    for partition, offset in places:
        topic, number = ledger.question.source.place(partition)
        texts.append(f"{topic}-{number}@{offset}")
    return texts
