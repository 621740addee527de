"""Number and order of outputs per input in a sample, for a first contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from topicproof.backend.formats.fields import Number
from topicproof.backend.judging.candidates import nodes
from topicproof.backend.judging.contract import PLACEHOLDER
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.decoded import spell_field
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Order
from topicproof.validators.json_path import parse_path, spell_path

EDGE = 0.1
"""Share of the oldest matched inputs to ignore: some of their outputs are older than the sample."""

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Seen:
    """Observations on the matched records."""

    expect: Expect
    count: str | None
    """Spark SQL over the source record, or the placeholder; None if `expect` needs none."""
    outputs: str
    """Outputs per input, in words."""
    order: Order
    ordered: str
    """The order, in words."""


def see(
    inputs: Sequence[Row],
    documents: Sequence[Any],
    outputs: Sequence[Row],
    whole: bool,
    there: Sequence[Hashable | None],
    here: Sequence[Hashable | None],
    fields: bool = False,
) -> Seen:
    """Observe the matched records. `there` and `here` are the matching keys of the inputs and
    outputs, row by row. `whole`: these are all outputs of the sink. `fields`: documents are decoded
    values, not JSON."""
    occurs = Counter(text for text in there if text is not None)
    single = {
        text: row
        for text, row in zip(there, inputs, strict=True)
        if text is not None and occurs[text] == 1
    }
    matched = {text: (row.partition, row.offset) for text, row in single.items()}
    counts = Counter(text for text in here if text in matched)
    places = {place: counts[text] for text, place in matched.items()}
    judged = _old_enough(places, whole)
    by_place = {
        (row.partition, row.offset): found for row, found in zip(inputs, documents, strict=True)
    }
    expect, count, said = _expectation(judged, by_place, fields)
    order, ordered = _order(matched, outputs, here)
    return Seen(expect, count, said, order, ordered)


def _old_enough(places: Mapping[Place, int], whole: bool) -> dict[Place, int]:
    """Return the inputs between the first and the last with outputs, in each partition. The newest
    inputs may still wait for outputs; outputs of the oldest may be older than the sample."""
    ends: dict[int, list[int]] = {}
    for (partition, offset), count in places.items():
        if count:
            ends.setdefault(partition, []).append(offset)
    first: dict[int, int] = {}
    for partition, offsets in ends.items():
        offsets.sort()
        first[partition] = 0 if whole else offsets[int(len(offsets) * EDGE)]
    return {
        (partition, offset): count
        for (partition, offset), count in places.items()
        if partition in ends and first[partition] <= offset <= ends[partition][-1]
    }


def _expectation(
    judged: Mapping[Place, int], documents: Mapping[Place, Any], fields: bool
) -> tuple[Expect, str | None, str]:
    if not judged:
        return (
            Expect.ONE_TO_ONE,
            None,
            "they could not be counted in these samples, so one_to_one is a guess",
        )
    kinds = Counter(judged.values())
    table = ", ".join(f"{kinds[count]:,} have {count:,}" for count in sorted(kinds)[:5])
    others = ", and others have other counts" if len(kinds) > 5 else ""
    said = f"of {len(judged):,} inputs, {table}{others}"
    if len(kinds) == 1:
        said = f"all {len(judged):,} inputs have {next(iter(kinds)):,}"
    if kinds.keys() <= {1}:
        return Expect.ONE_TO_ONE, None, said
    if kinds.keys() <= {0, 1}:
        return (
            Expect.ZERO_OR_ONE,
            None,
            f"{said}. A count of 0 or 1 tells a filtered input from a lost one",
        )
    for count in _counts(judged, documents, fields):
        return Expect.ONE_TO_MANY, count, said if count.isdecimal() else f"{said}, which is {count}"
    remedy = (
        f"Fill in the count, or write one_to_one if outputs above 1 are duplicates ({PLACEHOLDER}"
        " is not a count)"
    )
    return (
        Expect.ONE_TO_MANY,
        PLACEHOLDER,
        f"{said}, and no field of the inputs gives the count. {remedy}",
    )


def _counts(
    judged: Mapping[Place, int], documents: Mapping[Place, Any], fields: bool
) -> Iterator[str]:
    """Yield expressions for each input's number of outputs."""
    if len(set(judged.values())) == 1:
        yield str(next(iter(judged.values())))
        return
    found = {place: dict(nodes(documents[place])) for place in judged}
    of_all = set.intersection(*(set(own) for own in found.values()))
    kinds: tuple[tuple[Callable[[Any], int | None], str], ...] = (
        (_length, "json_array_length({})"),
        (_integer, "try_cast({} as int)"),
    )
    for number_of, spelled in kinds:
        for path in sorted(of_all, key=lambda path: (len(path), spell_path(path))):
            if _plain(path) and all(
                number_of(found[place][path]) == count for place, count in judged.items()
            ):
                text = (
                    f"field('{spell_field(path)}')"
                    if fields
                    else f"get_json_object(value, '{spell_path(path)}')"
                )
                yield spelled.format(text)


def _plain(path: tuple[str | int, ...]) -> bool:
    """Return whether Spark spells the path the same way, without quotes."""
    text = spell_path(path)
    return not {"'", '"', "\\"} & set(text) and parse_path(text) == path


def _length(found: Any) -> int | None:
    return len(found) if isinstance(found, list) else None


def _integer(found: Any) -> int | None:
    if type(found) is int:
        return found if 0 <= found < 10**9 else None
    return int(found) if isinstance(found, Number) and found.isdigit() and len(found) <= 9 else None


def _order(
    matched: Mapping[Hashable, Place], outputs: Sequence[Row], here: Sequence[Hashable | None]
) -> tuple[Order, str]:
    """Return whether the first outputs of the inputs are in input order."""
    rows = sorted(
        zip(outputs, here, strict=True), key=lambda pair: (pair[0].partition, pair[0].offset)
    )
    lines: dict[tuple[int, int], list[tuple[bytes | None, int]]] = {}
    before: set[Hashable] = set()
    for row, text in rows:
        if text is None or text not in matched or text in before:
            continue
        before.add(text)
        partition, offset = matched[text]
        lines.setdefault((partition, row.partition), []).append((row.key, offset))
    pairs = sum(len(line) - 1 for line in lines.values())
    if not pairs:
        return Order.NONE, "no two outputs are of one source partition and in one sink partition"
    falls = sum(_falls([offset for _, offset in line]) for line in lines.values())
    if not falls:
        return (
            Order.PER_SOURCE_PARTITION,
            f"all {pairs:,} adjacent pairs of a source and a sink partition are in order",
        )
    by_key: dict[tuple[tuple[int, int], bytes | None], list[int]] = {}
    for ends, line in lines.items():
        for key, offset in line:
            by_key.setdefault((ends, key), []).append(offset)
    seen = (
        f"{falls:,} of {pairs:,} adjacent pairs of a source and a sink partition are out of order"
    )
    own = sum(len(offsets) - 1 for offsets in by_key.values())
    own_falls = sum(map(_falls, by_key.values()))
    if own and not own_falls:
        return Order.PER_KEY, f"{seen}; all {own:,} pairs of one key are in order"
    return Order.NONE, f"{seen}; of one key {own_falls:,} of {own:,}"


def _falls(offsets: Sequence[int]) -> int:
    return sum(later < earlier for earlier, later in pairwise(offsets))
