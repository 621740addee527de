"""A first contract, drafted from the data of two topics. A person must review it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from topicproof.backend.address import Sides
from topicproof.backend.contracts.contract import PLACEHOLDER
from topicproof.backend.contracts.dead_letter_topics import DraftedLetters, find_letters
from topicproof.backend.contracts.draft_expectation import (
    ONE_OUTPUT,
    Observation,
    OpenQuestion,
    Side,
    observe,
)
from topicproof.backend.contracts.identity_candidates import SCORE_MIN, Fit, contradiction, fits
from topicproof.backend.contracts.sample import (
    Sample,
    named_input,
    older_outputs,
    outputs_of_lineage,
    part_of,
    samples,
    texts_at,
)
from topicproof.backend.formats.formats import Formats
from topicproof.backend.kafka.browse.records import as_text
from topicproof.validators.expected import Expect
from topicproof.validators.lineage.compact import lineage_value

TRIED_SHOWN = 5
SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Draft:
    """A proposal of `contract init`."""

    text: str
    """The contract as YAML; only comments if no identity was found."""
    why: str
    """One sentence: the reason for its identity, or what to do if none was found."""
    found: bool
    notes: tuple[str, ...] = ()
    """What was seen of identity, outputs and order: a sentence each."""
    question: OpenQuestion | None = None
    """What a person must fill in before a check: the identity, else the count."""
    repeated: tuple[str, ...] = ()
    """Two outputs of one input with key and value, a line each. For eyes that may see payloads; the
    contract names their places alone."""


def draft(
    sides: Sides,
    source: str,
    sink: str,
    formats: Formats | None = None,
    source_formats: Formats | None = None,
    *,
    may_read: Callable[[str], bool] = lambda _topic: True,
) -> Draft:
    """Draft a contract. `formats` decodes what is not JSON; None: without a registry.
    `source_formats`: those of the source, if they are not the sink's. `may_read`: whether the
    records of a topic of dead letters may be looked at. Raises ClusterError, TopicError."""
    formats = formats or Formats()
    inputs, outputs = samples(sides, source, sink, formats, source_formats)
    older = older_outputs(sides.sink, outputs, formats)
    return draft_from(inputs, outputs, sides, older, find_letters(sides, source, sink, may_read))


def draft_from(
    inputs: Sample,
    outputs: Sample,
    sides: Sides | None = None,
    older: Iterable[Sample] = (),
    letters: DraftedLetters | None = None,
) -> Draft:
    """Draft a contract from samples of the two topics. `sides`: their clusters; None: the same.
    Offsets of another cluster identify nothing, and clusters with names are named. `older`: the
    sink's other records (sample.py, `older_outputs`), read only where the sample leaves open
    whether an input has an output. `letters`: the dead letters of the source; their inputs owe no
    output."""
    source, sink = inputs.topic, outputs.topic
    input_candidates, output_candidates = inputs.candidates, outputs.candidates
    tried = fits(input_candidates, output_candidates)
    across = sides is not None and sides.across
    lineage = None if across else _lineage(inputs, outputs)
    best = (
        lineage
        if lineage is not None and lineage.score >= SCORE_MIN
        else tried[0]
        if tried
        else None
    )
    if best is None or best.score < SCORE_MIN:
        return _nothing(source, sink, tried if lineage is None else [lineage, *tried])
    if best is lineage:
        places = [(row.partition, row.offset) for row in inputs.rows]
        rows, named = outputs_of_lineage(outputs, source)
        left = Side(inputs.rows, places, inputs.documents, inputs.fields)
        right = Side(rows, named, whole=outputs.whole)
    else:
        left = Side(inputs.rows, input_candidates[best.source], inputs.documents, inputs.fields)
        right = Side(outputs.rows, output_candidates[best.sink], whole=outputs.whole)
    rival = (
        None if best is lineage else contradiction(best, tried, input_candidates, output_candidates)
    )
    if letters is not None:
        left = left.without(letters.inputs)
    observation = observe(
        left, right, _sides_of(older, None if best is lineage else best.sink, source)
    )
    names = ("", "")
    if sides is not None and sides.across and sides.source.name and sides.sink.name:
        names = sides.source.name, sides.sink.name
    return _contract(
        _topic(source, names[0]), _topic(sink, names[1]), best, observation, rival, letters
    )


def _sides_of(older: Iterable[Sample], spelled: str | None, source: str) -> Iterator[Side]:
    """Yield further outputs with what matches each. `spelled`: the candidate; None: lineage."""
    for sample in older:
        if spelled is None:
            rows, places = outputs_of_lineage(sample, source)
            yield Side(rows, places, whole=sample.whole)
        else:
            yield Side(sample.rows, texts_at(sample, part_of(spelled)), whole=sample.whole)


def _lineage(inputs: Sample, outputs: Sample) -> Fit | None:
    """Return how well our sink's headers identify inputs; None if no output has one."""
    named = sum(lineage_value(row.headers) is not None for row in outputs.rows)
    if not named:
        return None
    places = [
        place
        for place in (named_input(row, inputs.topic) for row in outputs.rows)
        if place is not None
    ]
    return Fit(
        "lineage",
        "lineage",
        len(inputs.rows),
        len(outputs.rows),
        in_inputs=1.0,
        in_outputs=named / len(outputs.rows),
        unique=1.0,
        overlap=len(places) / named,
        shared=len(set(places)),
    )


def _contract(
    source: str,
    sink: str,
    best: Fit,
    observation: Observation,
    rival: Fit | None,
    letters: DraftedLetters | None,
) -> Draft:
    why = f"{best}: {best.certainty}"
    notes = (
        f"Identity: {why}.",
        f"Outputs: {observation.outputs}.",
        f"Order: {observation.ordered}.",
    )
    comments = [
        (
            f"# A first contract, from the newest {best.inputs:,} inputs and {best.outputs:,}"
            " outputs. Review it before you rely on it."
        ),
        *(f"# {note}" for note in notes),
    ]
    choice = None
    if rival is not None:
        choice = OpenQuestion(
            f"which one identifies an input? {best.spelled} and {rival.spelled} both fit, and"
            " match the outputs with other inputs"
        )
    fields = [
        "guarantee: exactly_once",
        f"source: {source}",
        f"sink: {sink}",
        *_letters_lines(letters),
        f"identity: {best.spelled}"
        if choice is None
        else f"identity: {PLACEHOLDER} # {choice.ask}",
        (
            f"expect: {observation.expect} # one_to_one, zero_or_one, or one_to_many with a count"
            " in Spark SQL over the input"
        ),
        *_count_lines(observation),
        *(
            []
            if observation.expect is Expect.ONE_TO_MANY
            else [
                "# value: upper(value) # what an output's value must be, in Spark SQL over the"
                " input"
            ]
        ),
        f"order: {observation.order} # per_source_partition, per_key or none",
        "# group: my-app # a consumer group whose committed offsets must agree with the output",
        "warn: {pending: 0}",
    ]
    text = "\n".join([*comments, *fields]) + "\n"
    repeated = tuple(
        f"partition {row.partition} offset {row.offset}:"
        f" key {_excerpt(row.key)}, value {_excerpt(row.value)}"
        for row in observation.repeated
    )
    return Draft(
        text,
        why,
        found=True,
        notes=notes,
        question=choice or observation.question,
        repeated=repeated,
    )


def _letters_lines(letters: DraftedLetters | None) -> list[str]:
    """Return the line of the dead letters, if there are any."""
    if letters is None:
        return []
    term = {"topic": letters.term.topic, "origin": letters.term.origin}
    spelled = yaml.safe_dump(term, sort_keys=False, default_flow_style=True, width=10_000).strip()
    return [
        f"dead_letters: {spelled} # {letters.named:,} of its newest {letters.read:,} records name"
        " an input; each input is due in the sink or there"
    ]


def _count_lines(observation: Observation) -> list[str]:
    """Return the line of the count, with the question if it is to be filled in."""
    if observation.count is None:
        return []
    line = f"count: {_text(observation.count)}"
    question = observation.question
    return [line if question is None else f"{line} # {question.text(ONE_OUTPUT)}"]


def _excerpt(content: bytes | None) -> str:
    """Return the beginning of a key or value on one line."""
    return "none" if content is None else " ".join(as_text(content, SHOWN_CHARACTERS).split())


def _nothing(source: str, sink: str, tried: Sequence[Fit]) -> Draft:
    lines = [
        f"# {source} and {sink} share nothing that shows which input an output belongs to. The best"
        " candidates:"
    ]
    lines += [f"#   identity: {fit.spelled} # {fit}" for fit in tried[:TRIED_SHOWN]]
    if not tried:
        lines.append("#   none: no field is in half of the records on both sides")
    why = (
        f"No identity was found between {source} and {sink}. Let the program"
        " copy a unique id of each input to its outputs, as key, header or JSON field."
    )
    return Draft("\n".join(lines) + "\n", why, found=False)


def _topic(name: str, cluster: str) -> str:
    side = {"topic": name, **({"cluster": cluster} if cluster else {})}
    return yaml.safe_dump(side, sort_keys=False, default_flow_style=True, width=10_000).strip()


def _text(expression: str) -> str:
    """Spell an expression as a plain or quoted YAML scalar on one line."""
    return yaml.safe_dump(expression, width=100_000).splitlines()[0]
