"""A preview of a contract: which outputs of a sample belong to which inputs. Pure; it proves
nothing, but shows a wrong identity before a check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topicproof.backend.contracts.contract import Contract, make_contract
from topicproof.backend.contracts.dead_letter_topics import named_place
from topicproof.backend.contracts.draft_expectation import EDGE
from topicproof.backend.contracts.sample import Sample, outputs_of_lineage, texts_at
from topicproof.backend.contracts.sink_table import is_table
from topicproof.backend.errors import ContractError
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.expected import Expect
from topicproof.validators.lineage.dead_letters import DeadLetters
from topicproof.validators.lineage.identity import Identity

PAIRS_MAX = 1_000
"""Maximum number of identities in a preview; the worst come first."""

Place = tuple[int, int]
"""Partition and offset."""


class Match(StrEnum):
    """What became of an identity in the samples, worst first."""

    SHARED = "several inputs"
    """Several inputs share it, so outputs cannot be told apart."""
    EXTRA = "more outputs than expected"
    NO_INPUT = "no input in the sample"
    BOTH = "output and dead letter"
    """An input must have only one of the two."""
    NO_OUTPUT = "no output in the sample"
    PUT_ASIDE = "dead letter"
    MATCHED = "matched"


@dataclass(frozen=True)
class LetterMatches:
    """What the dead letters of a sample name."""

    words: str
    """What names an input."""
    count: int
    named: int
    """Those that name an input, in the sample of inputs or older."""
    matched: int
    """Those whose input is in the sample."""


@dataclass(frozen=True)
class Pair:
    """An identity, and where it occurs."""

    identity: bytes
    match: Match
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


@dataclass(frozen=True)
class Preview:
    """A contract's identity on samples of both topics."""

    pairs: tuple[Pair, ...]
    """At most `PAIRS_MAX`, worst first."""
    counts: Mapping[Match, int]
    """Number of identities, cut or not."""
    outputs: int
    outputs_matched: int
    """Outputs whose input is in the sample."""
    inputs: int
    """Inputs that can be expected to have an output in the sample: those between the first and the
    last matched one of their partition."""
    inputs_matched: int
    nameless: tuple[int, int]
    """Number of inputs and of outputs without an identity."""
    letters: LetterMatches | None = None
    """None without dead letters."""

    @property
    def good(self) -> bool:
        """Whether everything in the samples fits the contract."""
        letters = self.letters
        are_named = letters is None or letters.named == letters.count
        fits = self.counts.keys() <= {Match.MATCHED, Match.PUT_ASIDE} and self.outputs_matched > 0
        return not any(self.nameless) and fits and are_named

    @property
    def why(self) -> str:
        """One or more sentences on what fits, and what does not."""
        if not self.outputs_matched:
            return (
                f"None of the {self.outputs:,} newest outputs has an input among the newest"
                " inputs. Choose another identity, unless the outputs belong to older inputs."
            )
        sentences = [
            f"{self.outputs_matched:,} of the {self.outputs:,} newest outputs have their input in"
            f" the sample, and {self.inputs_matched:,} of the {self.inputs:,} inputs between them"
            f" have {'an output' if self.letters is None else 'an output or a dead letter'}."
        ]
        if self.letters is not None:
            sentences.append(_letters_sentence(self.letters))
        if both := self.counts.get(Match.BOTH, 0):
            sentences.append(f"{_count(both, 'input')} with both an output and a dead letter.")
        for count, where in zip(self.nameless, ("source", "sink"), strict=True):
            if count:
                sentences.append(
                    f"{_count(count, 'record')} of the {where} without this identity cannot be"
                    " matched."
                )
        if shared := self.counts.get(Match.SHARED, 0):
            sentences.append(
                f"{_count(shared, 'identity', 'identities')} shared by several inputs: the check"
                " can only count their outputs."
            )
        if extra := self.counts.get(Match.EXTRA, 0):
            sentences.append(
                f"{_count(extra, 'input')} with more outputs than the contract expects."
            )
        return " ".join(sentences)


def identity_only(fields: Mapping[str, Any]) -> Contract | None:
    """Return a contract with the identity and the expectation of fields whose other terms may be
    wrong. None if the identity is wrong, if it is of several topics, of aggregates, or of a
    table."""
    if fields.get("aggregate") is not None or is_table(fields):
        return None
    identity_fields = {
        name: fields[name] for name in ("source", "sink", "identity") if name in fields
    }
    letters = {"dead_letters": fields["dead_letters"]} if fields.get("dead_letters") else {}
    expects: dict[str, Any] = {}
    if fields.get("expect") == Expect.ONE_TO_MANY:
        expects = {"expect": Expect.ONE_TO_MANY, "count": 1}
    elif fields.get("expect") in list(Expect):
        expects = {"expect": fields["expect"]}
    contract = _valid(identity_fields | expects | letters) or _valid(identity_fields | expects)
    if contract is None:
        return None
    several = contract.sink is None or max(len(contract.source.names), len(contract.sink.names)) > 1
    return None if several else contract


def _valid(fields: Mapping[str, Any]) -> Contract | None:
    try:
        return make_contract(fields)
    except ContractError:
        return None


def preview(
    inputs: Sample, outputs: Sample, contract: Contract, letters: Sample | None = None
) -> Preview:
    """Match samples by a contract's identity. `letters`: those of the dead letters that the
    contract names, if there are any."""
    if contract.by is Identity.LINEAGE:
        input_texts: list[bytes | None] = [_place(row.partition, row.offset) for row in inputs.rows]
        rows, named = outputs_of_lineage(outputs, inputs.topic)
        output_texts = [None if place is None else _place(*place) for place in named]
    else:
        match = contract.terms(None).match
        input_texts, rows = texts_at(inputs, match.source), list(outputs.rows)
        output_texts = texts_at(outputs, match.sink)
    sources, sinks = _places(inputs.rows, input_texts), _places(rows, output_texts)
    terms = contract.terms(None).letters
    matches, put_aside = None, frozenset[Place]()
    if letters is not None and terms is not None:
        matches, put_aside = _match_letters(letters, terms, inputs, input_texts)
    due = _due(sources, sinks, outputs.whole)
    pairs = []
    for text in sources.keys() | sinks.keys():
        places = sources.get(text, ()), sinks.get(text, ())
        has_letter = not put_aside.isdisjoint(places[0])
        if text in sinks or has_letter or any(place in due for place in places[0]):
            pairs.append(Pair(text, _match(*places, contract.expect, has_letter), *places))
    pairs.sort(key=lambda pair: (list(Match).index(pair.match), *_first(pair)))
    counts: dict[Match, int] = defaultdict(int)
    for pair in pairs:
        counts[pair.match] += 1
    return Preview(
        tuple(pairs[:PAIRS_MAX]),
        dict(counts),
        outputs=len(rows),
        outputs_matched=sum(text in sources for text in output_texts if text is not None),
        inputs=len(due),
        inputs_matched=sum(
            place in due and (text in sinks or place in put_aside)
            for text, places_of in sources.items()
            for place in places_of
        ),
        nameless=(
            sum(text is None for text in input_texts),
            sum(text is None for text in output_texts),
        ),
        letters=matches,
    )


def _match_letters(
    letters: Sample,
    terms: DeadLetters,
    inputs: Sample,
    input_texts: Sequence[bytes | None],
) -> tuple[LetterMatches, frozenset[Place]]:
    """Return what dead letters name, and the inputs of the sample among that."""
    if terms.headers is not None:
        places = [named_place(row, terms.headers, inputs.topic) for row in letters.rows]
        sampled = {(row.partition, row.offset) for row in inputs.rows}
        matched = [place for place in places if place in sampled]
        named = sum(place is not None for place in places)
    else:
        texts = [text for text in texts_at(letters, terms.origin) if text is not None]
        by_text = _places(inputs.rows, input_texts)
        matched = [by_text[text][0] for text in texts if text in by_text]
        named = len(texts)
    put_aside = frozenset(place for place in matched if place is not None)
    return LetterMatches(terms.words, len(letters.rows), named, len(matched)), put_aside


def _letters_sentence(letters: LetterMatches) -> str:
    if not letters.named:
        return (
            f"None of the {letters.count:,} newest dead letters names an input by"
            f" {letters.words}. Choose another origin."
        )
    nameless = letters.count - letters.named
    sentence = (
        f"{letters.matched:,} of the {letters.count:,} newest dead letters have their input in the"
        " sample."
    )
    if nameless:
        verb = "names" if nameless == 1 else "name"
        sentence += f" {_count(nameless, 'dead letter')} {verb} no input by {letters.words}."
    return sentence


def _match(
    inputs: Sequence[Place], outputs: Sequence[Place], expect: Expect, has_letter: bool
) -> Match:
    if len(inputs) > 1:
        return Match.SHARED
    if not inputs:
        return Match.NO_INPUT
    if has_letter:
        return Match.BOTH if outputs else Match.PUT_ASIDE
    if not outputs:
        return Match.MATCHED if expect is Expect.ZERO_OR_ONE else Match.NO_OUTPUT
    several = len(outputs) > 1 and expect is not Expect.ONE_TO_MANY
    return Match.EXTRA if several else Match.MATCHED


def _due(
    sources: Mapping[bytes, Sequence[Place]], sinks: Mapping[bytes, Sequence[Place]], whole: bool
) -> set[Place]:
    """Return the inputs between the first and the last matched one of each partition. The outputs
    of earlier ones may be older than the sample; later ones may still wait. Some of the oldest
    matched inputs are ignored, because a late duplicate matches a very old one."""
    ends: dict[int, list[int]] = defaultdict(list)
    for text in sources.keys() & sinks.keys():
        for partition, offset in sources[text]:
            ends[partition].append(offset)
    spans = {}
    for partition, offsets in ends.items():
        offsets.sort()
        spans[partition] = 0 if whole else offsets[int(len(offsets) * EDGE)], offsets[-1]
    return {
        (partition, offset)
        for places in sources.values()
        for partition, offset in places
        if partition in spans and spans[partition][0] <= offset <= spans[partition][1]
    }


def _places(rows: Sequence[Row], texts: Sequence[bytes | None]) -> dict[bytes, tuple[Place, ...]]:
    by_text: dict[bytes, list[Place]] = defaultdict(list)
    for row, text in zip(rows, texts, strict=True):
        if text is not None:
            by_text[text].append((row.partition, row.offset))
    return {text: tuple(sorted(places)) for text, places in by_text.items()}


def _first(pair: Pair) -> Place:
    return (pair.inputs or pair.outputs)[0]


def _place(partition: int, offset: int) -> bytes:
    return f"{partition}/{offset}".encode()


def _count(value: int, noun: str, plural: str | None = None) -> str:
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"
