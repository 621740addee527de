"""Number and order of outputs per input in a sample, for a first contract.

Whoever drafts from a topic that has lost or repeated records must not make that the rule. So
nothing weaker than one output per input follows from the data alone:

- An input without an output is looked up in all of the sink. It may still be lost, so a filter is
  only a question. Few of many such inputs are taken for lost, and `one_to_one` is proposed.
- An input with several outputs may have been processed several times. A count is proposed only if
  the length of an array in the input explains many different counts and each output has a key of
  its own. Otherwise it is a question, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from topicproof.backend.contracts.contract import PLACEHOLDER
from topicproof.backend.contracts.identity_candidates import nodes
from topicproof.backend.formats.fields import Number
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.decoded import spell_field
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Order
from topicproof.validators.json_path import parse_path, spell_path

EDGE = 0.1
"""Share of the oldest matched inputs to ignore: some of their outputs are older than the sample."""
FEW = 0.1
"""Up to this share of inputs without outputs, these are taken for lost; with several, for
repetitions. More may be what the pipeline does, and are a question."""
MANY_MIN = 30
"""Fewer inputs do not prove that a field gives their counts, nor that few lack an output."""
ONE_OUTPUT = "expect: one_to_one without a count"
"""How a contract's file asks for exactly one output."""
NUMBERS = {2: "two", 3: "three", 4: "four"}

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Side:
    """The sampled records of one topic, with what matches each."""

    rows: Sequence[Row]
    texts: Sequence[Hashable | None]
    """The matching key of each row; None if it has none."""
    documents: Sequence[Any] = ()
    """Each row's value, decoded."""
    fields: bool = False
    """Whether documents are decoded values, not JSON."""
    whole: bool = True
    """Whether these are all records of the topic."""

    def without(self, places: Collection[tuple[int, int]]) -> Side:
        """Return the side without the records at these partitions and offsets."""
        remaining = [
            number
            for number, row in enumerate(self.rows)
            if (row.partition, row.offset) not in places
        ]
        return replace(
            self,
            rows=[self.rows[number] for number in remaining],
            texts=[self.texts[number] for number in remaining],
            documents=[self.documents[number] for number in remaining if self.documents],
        )


@dataclass(frozen=True)
class OpenQuestion:
    """What a person must fill in, because the samples cannot tell."""

    ask: str
    """On one line, without a full stop."""
    one_output: str | None = None
    """When exactly one output is the answer, as the end of a clause; empty: wherever one is
    promised. None: it is no answer."""

    def text(self, one_output: str) -> str:
        """Return the whole question. `one_output`: how exactly one output is asked for, where the
        reader is."""
        return (
            self.ask if self.one_output is None else f"{self.ask}; or {one_output}{self.one_output}"
        )


@dataclass(frozen=True)
class Observation:
    """What the matched records show."""

    expect: Expect
    count: str | None
    """Spark SQL over the source record, or the placeholder; None if `expect` needs none."""
    outputs: str
    """Outputs per input, in words."""
    order: Order
    ordered: str
    """The order, in words."""
    question: OpenQuestion | None = None
    """What a person must answer where `count` is the placeholder."""
    repeated: tuple[Row, ...] = ()
    """Two outputs of one input, if some input has several."""


def observe(inputs: Side, outputs: Side, older: Iterable[Side] = ()) -> Observation:
    """Observe the matched records. `older` are the sink's other records, read only if needed; the
    last part is `whole` if nothing is left."""
    occurs = Counter(text for text in inputs.texts if text is not None)
    single = {
        text: row
        for text, row in zip(inputs.texts, inputs.rows, strict=True)
        if text is not None and occurs[text] == 1
    }
    matched = {text: (row.partition, row.offset) for text, row in single.items()}
    counts = Counter(text for text in outputs.texts if text in matched)
    in_range = _old_enough({place: counts[text] for text, place in matched.items()}, outputs.whole)
    judged = {text: counts[text] for text, place in matched.items() if place in in_range}
    is_whole = outputs.whole
    if not is_whole and any(count != 1 for count in judged.values()):
        is_whole = _add_older(judged, older)
    # Without all of the sink, an input without an output is no input without an output.
    unknown = 0 if is_whole else sum(not count for count in judged.values())
    if unknown:
        judged = {text: count for text, count in judged.items() if count}
    documents = {
        (row.partition, row.offset): document
        for row, document in zip(inputs.rows, inputs.documents, strict=True)
    }
    repeated = _repeated(judged, outputs)
    places = {matched[text]: count for text, count in judged.items()}
    expect, count, words, question = _expectation(
        places, documents, inputs.fields, has_own_keys=_has_own_keys(judged, outputs)
    )
    if unknown:
        words += f"; {unknown:,} more have no output in the sample, which tells nothing of them"
    if repeated:
        words += f". {_both(repeated)}"
    order, ordered = _order(matched, outputs.rows, outputs.texts)
    return Observation(expect, count, words, order, ordered, question, repeated)


def _add_older(judged: dict[Hashable, int], older: Iterable[Side]) -> bool:
    """Add the older outputs of the judged inputs to their counts. Returns whether all of the sink
    was looked at."""
    is_whole = False
    for part in older:
        for text in part.texts:
            if text in judged:
                judged[text] += 1
        is_whole = part.whole
    return is_whole


def _repeated(judged: Mapping[Hashable, int], outputs: Side) -> tuple[Row, ...]:
    """Return the first two outputs in the sample of an input that has several."""
    first: dict[Hashable, Row] = {}
    pairs = zip(outputs.rows, outputs.texts, strict=True)
    for row, text in sorted(pairs, key=lambda pair: (pair[0].partition, pair[0].offset)):
        if text is not None and judged.get(text, 0) > 1:
            if text in first:
                return first[text], row
            first[text] = row
    return ()


def _has_own_keys(judged: Mapping[Hashable, int], outputs: Side) -> bool:
    """Return whether all outputs of an input have different keys."""
    keys: set[tuple[Hashable, bytes]] = set()
    count = 0
    for row, text in zip(outputs.rows, outputs.texts, strict=True):
        if text is not None and judged.get(text, 0) > 1:
            if row.key is None:
                return False
            keys.add((text, row.key))
            count += 1
    return len(keys) == count


def _both(rows: Sequence[Row]) -> str:
    """Say of two outputs of one input where they are, and in what they are alike."""
    first, second = rows
    alike = [
        part
        for part, is_same in (
            ("key", first.key == second.key),
            ("value", first.value == second.value),
        )
        if is_same
    ]
    verb = f"share their {' and '.join(alike)}" if alike else "differ in key and value"
    at = " and ".join(f"partition {row.partition} offset {row.offset}" for row in rows)
    return f"The outputs at {at} are of one input and {verb}"


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
    judged: Mapping[Place, int],
    documents: Mapping[Place, Any],
    fields: bool,
    *,
    has_own_keys: bool,
) -> tuple[Expect, str | None, str, OpenQuestion | None]:
    """Return what to expect, the count, the figures in words, and the question to a person."""
    if not judged:
        words = "they could not be counted in these samples, so one_to_one is a guess"
        return Expect.ONE_TO_ONE, None, words, None
    kinds = Counter(judged.values())
    table = ", ".join(
        f"{kinds[count]:,} {'has' if kinds[count] == 1 else 'have'} {count:,}"
        for count in sorted(kinds)[:5]
    )
    rest = ", and others have other counts" if len(kinds) > 5 else ""
    words = f"of {len(judged):,} inputs, {table}{rest}"
    if len(kinds) == 1:
        words = f"all {len(judged):,} inputs have {next(iter(kinds)):,}"
    none = kinds[0] / len(judged)
    several = sum(inputs for count, inputs in kinds.items() if count > 1) / len(judged)
    if several <= FEW and (not none or (none <= FEW and len(judged) >= MANY_MIN)):
        if none:
            words += ". Without an output an input is lost, unless the pipeline filters it"
        if several:
            words += ". A second output is a repetition, unless the pipeline promises it"
        return Expect.ONE_TO_ONE, None, words, None
    if several <= FEW:
        which = OpenQuestion(
            "which inputs have an output? Write 1 for these and 0 for the others, in Spark SQL over"
            " the input",
            one_output=", if none may be missing",
        )
        return Expect.ZERO_OR_ONE, PLACEHOLDER, words, which
    explained = list(_counts(judged, documents, fields))
    sure = [expression for expression, is_length in explained if is_length]
    if sure and has_own_keys and len(judged) >= MANY_MIN:
        return Expect.ONE_TO_MANY, sure[0], f"{words}, which is {sure[0]}", None
    if len(kinds) == 1:
        number = next(iter(kinds))
        many = NUMBERS.get(number, f"{number:,}")
        question = f"is {many} what the pipeline promises, or do {many} instances run?"
    else:
        question = "does the pipeline promise several outputs, or do several instances run?"
    hint = ""
    if explained:
        hint = f", such as {explained[0][0]}, which fits the sample"
    ask = f"{question} Write the count in Spark SQL over the input{hint}"
    return Expect.ONE_TO_MANY, PLACEHOLDER, words, OpenQuestion(ask, one_output="")


def _counts(
    judged: Mapping[Place, int], documents: Mapping[Place, Any], fields: bool
) -> Iterator[tuple[str, bool]]:
    """Yield expressions for each input's number of outputs, and whether each is the length of an
    array. One number for all inputs explains nothing, and neither does one or none."""
    if len({count for count in judged.values() if count}) < 2:
        return
    nodes_of = {place: dict(nodes(documents[place])) for place in judged}
    of_all = set.intersection(*(set(by_path) for by_path in nodes_of.values()))
    kinds: tuple[tuple[Callable[[Any], int | None], str], ...] = (
        (_length, "json_array_length({})"),
        (_integer, "try_cast({} as int)"),
    )
    for number_of, spelled in kinds:
        for path in sorted(of_all, key=lambda path: (len(path), spell_path(path))):
            if _plain(path) and all(
                number_of(nodes_of[place][path]) == count for place, count in judged.items()
            ):
                text = (
                    f"field('{spell_field(path)}')"
                    if fields
                    else f"get_json_object(value, '{spell_path(path)}')"
                )
                yield spelled.format(text), number_of is _length


def _plain(path: tuple[str | int, ...]) -> bool:
    """Return whether Spark spells the path the same way, without quotes, on one line."""
    text = spell_path(path)
    return text.isprintable() and not {"'", '"', "\\"} & set(text) and parse_path(text) == path


def _length(node: Any) -> int | None:
    return len(node) if isinstance(node, list) else None


def _integer(node: Any) -> int | None:
    if type(node) is int:
        return node if 0 <= node < 10**9 else None
    return int(node) if isinstance(node, Number) and node.isdigit() and len(node) <= 9 else None


def _order(
    matched: Mapping[Hashable, Place], outputs: Sequence[Row], texts: Sequence[Hashable | None]
) -> tuple[Order, str]:
    """Return whether the first outputs of the inputs are in input order."""
    rows = sorted(
        zip(outputs, texts, strict=True), key=lambda pair: (pair[0].partition, pair[0].offset)
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
    summary = (
        f"{falls:,} of {pairs:,} adjacent pairs of a source and a sink partition are out of order"
    )
    key_pairs = sum(len(offsets) - 1 for offsets in by_key.values())
    key_falls = sum(map(_falls, by_key.values()))
    if key_pairs and not key_falls:
        return Order.PER_KEY, f"{summary}; all {key_pairs:,} pairs of one key are in order"
    return Order.NONE, f"{summary}; of one key {key_falls:,} of {key_pairs:,}"


def _falls(offsets: Sequence[int]) -> int:
    return sum(later < earlier for earlier, later in pairwise(offsets))
