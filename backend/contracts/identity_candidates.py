"""Candidates for an identity: parts of records on both sides, and how well each pair matches."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from topicproof.backend.formats.fields import Number, text_at
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.decoded import KEY_FIELD, VALUE_FIELD, spell_field
from topicproof.validators.json_path import parse_path, spell_path

DEPTH_MAX = 3
"""Maximum steps of a JSON path."""
PATHS_MAX = 100
"""Maximum paths per side; the most frequent are kept."""
HEADERS_MAX = 50
"""The same of headers. A record may have a thousand, and each is compared with each part of the
other side."""
SHARE_MIN = 0.5
"""A part must occur in this share of the records, and be distinct in this share of the inputs."""
FAN_OUT_FULL = 20
"""Mean number of outputs per shared text up to which a pair gets its full score. A constant has
more."""
SCORE_MIN = 0.5
CONTRADICTED_MAX = 0.05
"""Share of outputs about which two pairs may disagree."""

Texts = Sequence[bytes | None]
"""The part's text in each record of a sample; None if it is missing."""


@dataclass(frozen=True)
class Fit:
    """A part of source records, a part of sink records, and how well they match."""

    source: str
    """As a contract spells it: `key`, `{json: $.id}`."""
    sink: str
    inputs: int
    outputs: int
    in_inputs: float
    """Share of the inputs that have the part."""
    in_outputs: float
    unique: float
    """Distinct texts, as a share of the inputs that have the part."""
    overlap: float
    """Share of the outputs whose text occurs in an input."""
    shared: int
    """Distinct texts on both sides."""

    @property
    def score(self) -> float:
        spread = min(1.0, self.shared * FAN_OUT_FULL / max(1, self.outputs))
        return round(self.in_inputs * self.in_outputs * self.unique * self.overlap * spread, 3)

    @property
    def certainty(self) -> str:
        perfect = self.in_inputs == self.in_outputs == self.unique == 1
        if perfect and self.overlap >= 0.95 and self.shared >= 30:
            return "sure"
        return "likely" if self.score >= 0.8 and self.shared >= 5 else "a guess"

    @property
    def spelled(self) -> str:
        """The contract's `identity`."""
        return (
            self.source
            if self.source == self.sink
            else f"{{source: {self.source}, sink: {self.sink}}}"
        )

    def __str__(self) -> str:
        unique = "unique" if self.unique == 1 else f"{_percent(self.unique)} distinct"
        return (
            f"present in {_percent(self.in_inputs)} of {self.inputs:,} inputs and"
            f" {_percent(self.in_outputs)} of {self.outputs:,} outputs, {unique},"
            f" {_percent(self.overlap)} overlap"
        )


def fits(inputs: Mapping[str, Texts], outputs: Mapping[str, Texts]) -> list[Fit]:
    """Return all pairs, best first. Among equal scores, earlier parts come first."""
    pairs = []
    counted_outputs = {
        sink: Counter(text for text in texts if text is not None) for sink, texts in outputs.items()
    }
    for source, input_texts in inputs.items():
        distinct = {text for text in input_texts if text is not None}
        present = _present(input_texts)
        for sink, counts in counted_outputs.items():
            shared = counts.keys() & distinct
            size, outputs_with = len(outputs[sink]), counts.total()
            pairs.append(
                Fit(
                    source,
                    sink,
                    len(input_texts),
                    size,
                    in_inputs=_share(present, len(input_texts)),
                    in_outputs=_share(outputs_with, size),
                    unique=_share(len(distinct), present),
                    overlap=_share(sum(map(counts.__getitem__, shared)), outputs_with),
                    shared=len(shared),
                )
            )
    return sorted(pairs, key=lambda fit: -fit.score)


def contradiction(
    best: Fit,
    tried: Sequence[Fit],
    inputs: Mapping[str, Texts],
    outputs: Mapping[str, Texts],
) -> Fit | None:
    """Return a pair that fits too, and says of some outputs that they belong to other inputs. None
    without any.

    Two counters fit perfectly and match nothing, whatever was lost or repeated. So a pair of parts
    with different names must agree with every pair that fits, and a pair of the same part with
    those of one part.
    """
    numbers = {best.source: _numbers(inputs[best.source])}
    best_inputs = _inputs_of_outputs(numbers[best.source], outputs[best.sink])
    for fit in tried:
        if fit.score < SCORE_MIN:
            break
        if fit is best or (best.source == best.sink and fit.source != fit.sink):
            continue
        if fit.source not in numbers:
            numbers[fit.source] = _numbers(inputs[fit.source])
        other_inputs = _inputs_of_outputs(numbers[fit.source], outputs[fit.sink])
        both = best_inputs.keys() & other_inputs.keys()
        if sum(best_inputs[at] != other_inputs[at] for at in both) > CONTRADICTED_MAX * len(both):
            return fit
    return None


def _numbers(inputs: Texts) -> dict[bytes, int]:
    """Return the number of the input that each text belongs to, if there is exactly one."""
    counts = Counter(inputs)
    return {
        text: number for number, text in enumerate(inputs) if text is not None and counts[text] == 1
    }


def _inputs_of_outputs(numbers: Mapping[bytes, int], outputs: Texts) -> dict[int, int]:
    """Return the number of the input that each output belongs to, if there is exactly one."""
    return {
        at: numbers[text] for at, text in enumerate(outputs) if text is not None and text in numbers
    }


def candidates(
    rows: Sequence[Row],
    documents: Sequence[Any],
    fields: bool = False,
    keys: Sequence[Any] = (),
) -> dict[str, Texts]:
    """Return the parts that most records have, by their spelling: key, the most frequent headers,
    JSON paths and value. With `fields`, documents are decoded values, and their paths are those of
    fields. `keys` are the decoded keys, if any can be decoded."""
    parts: dict[str, Texts] = {"key": [row.key for row in rows]}
    headers = [dict(row.headers) for row in rows]
    counts = Counter(name for by_name in headers for name in by_name if name)
    often = sorted(counts, key=lambda name: (-counts[name], name))[:HEADERS_MAX]
    for name in sorted(often):
        parts[_spelled("header", name)] = [by_name.get(name) for by_name in headers]
    parts |= _at_paths(documents, VALUE_FIELD if fields else "json")
    parts |= _at_paths(keys, KEY_FIELD)
    parts["value"] = [row.value for row in rows]
    return {
        name: texts
        for name, texts in parts.items()
        if _share(_present(texts), len(rows)) >= SHARE_MIN
    }


def _at_paths(documents: Sequence[Any], how: str) -> dict[str, Texts]:
    """Return the most frequent paths of documents, with the text at each."""
    leaves = [dict(_leaves(document)) for document in documents]
    counts: dict[tuple[str | int, ...], int] = {}
    for by_path in leaves:
        for path in by_path:
            counts[path] = counts.get(path, 0) + 1
    often = sorted(counts, key=lambda path: (-counts[path], len(path), spell_path(path)))[
        :PATHS_MAX
    ]
    return {
        _spelled(how, spell_path(path) if how == "json" else spell_field(path)): [
            by_path.get(path) for by_path in leaves
        ]
        for path in sorted(often, key=lambda path: (len(path), spell_path(path)))
        if _readable(path)
    }


def document(row: Row) -> Any:
    """Return a record's value as JSON; None if it is not JSON by the rules of
    validators/json_path.py."""
    try:
        return json.loads(
            (row.value or b"").decode(),
            parse_int=Number,
            parse_float=Number,
            parse_constant=_no_constant,
            object_pairs_hook=_no_name_twice,
        )
    except (ValueError, RecursionError):
        return None


def nodes(
    node: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every path of a document with its node, including objects and arrays. Only the first
    element of an array is visited."""
    if path:
        yield path, node
    if len(path) == DEPTH_MAX:
        return
    if isinstance(node, dict):
        for name, child in node.items():
            if name:
                yield from nodes(child, (*path, name))
    elif isinstance(node, list) and node:
        yield from nodes(node[0], (*path, 0))


def _leaves(root: Any) -> Iterator[tuple[tuple[str | int, ...], bytes]]:
    for path, node in nodes(root):
        if isinstance(node, bool):
            yield path, str(node).lower().encode()
        elif isinstance(node, int | float):
            yield path, (text_at(node, ()) or "").encode()
        elif isinstance(node, str):
            try:
                yield path, node.encode()
            except UnicodeEncodeError:
                continue


def _readable(path: tuple[str | int, ...]) -> bool:
    try:
        return parse_path(spell_path(path)) == path
    except ValueError:
        return False


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        raise ValueError("a name appears twice")
    return by_name


def _spelled(how: str, name_or_path: str) -> str:
    return yaml.safe_dump(
        {how: name_or_path}, default_flow_style=True, allow_unicode=True, width=math.inf
    ).strip()


def _present(texts: Texts) -> int:
    return sum(text is not None for text in texts)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _percent(share: float) -> str:
    """Format a share: never 100 % for less, never 0 % for more."""
    whole = round(share * 100)
    if (whole == 100 and share < 1) or (whole == 0 and share > 0):
        return f"{'>' if whole else '<'} {99 if whole else 1} %"
    return f"{whole} %"
