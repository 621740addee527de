"""`topicproof contract init` and `preview`, which look at topics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from topicproof.backend.commands.run_options import require_sides
from topicproof.backend.commands.terminal import emit, out, say, write_file
from topicproof.backend.contracts.contract import read_contract
from topicproof.backend.contracts.dead_letter_topics import sample_letters
from topicproof.backend.contracts.draft import draft
from topicproof.backend.contracts.draft_expectation import ONE_OUTPUT
from topicproof.backend.contracts.preview import preview
from topicproof.backend.contracts.sample import samples
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.browse.records import as_text
from topicproof.backend.runs.sides import SideSettings, settings_of_sides
from topicproof.backend.services.keeper import require_topics, services
from topicproof.backend.settings import Settings
from topicproof.validators.shell_words import shell_word

PREVIEWED_CHARACTERS = 80
PAIRS_SHOWN = 20


def init(
    file: Path | None,
    source: str | None,
    sink: str | None,
    sides: SideSettings,
    json_: str | None,
) -> None:
    if source is None or sink is None:
        raise UsageError("Name both topics: --source T --sink T.")
    if file is not None and file.exists():
        raise UsageError(f"{file} already exists. Choose another name, or remove it.")
    require_topics(sides.sink)
    with (
        services(sides.sink, spark=False, say=say) as running,
        sides.formats() as formats,
    ):
        first_draft = draft(sides.at(running.address), source, sink, *formats)
    if not first_draft.found:
        emit(
            json_,
            {"contract": None, "why": first_draft.why, "tried": first_draft.text, "file": None},
        )
        out.document(first_draft.text)
        raise UsageError(f"{first_draft.why} No contract was written.")
    if file is not None:
        write_file(file, first_draft.text)
    emit(
        json_,
        {
            "contract": first_draft.text,
            "why": first_draft.why,
            "file": None if file is None else str(file),
        },
    )
    if json_ is None:
        if file is None:
            out.document(first_draft.text)
        else:
            out.line(f"{file}: {first_draft.why}.")
        if first_draft.repeated:
            say("Two outputs of one input:")
            for line in first_draft.repeated:
                say(f"  {line}")
        if first_draft.question is not None:
            where = "the contract" if file is None else str(file)
            question = first_draft.question.text(ONE_OUTPUT)
            say(f"Fill in FILL_IN in {where} before a check: {question}.")


def show_preview(
    file: Path, settings: Settings, source: Settings | None, json_: str | None
) -> None:
    terms = read_contract(file, across=source is not None)
    previews = []
    for sink_contract in terms.each():
        if sink_contract.unique is not None:
            raise UsageError(
                "A preview matches two topics, and this contract is about one. Check it: topicproof"
                f" check --contract {shell_word(str(file))}."
            )
        if sink_contract.aggregate is not None:
            raise UsageError(
                "A preview matches single outputs with their inputs, and this contract is about"
                f" aggregates. Check it: topicproof check --contract {shell_word(str(file))}."
            )
        if sink_contract.table is not None:
            raise UsageError(
                "A preview matches records of two topics, and this contract is about a table."
                f" Check it: topicproof check --contract {shell_word(str(file))}."
            )
        if len(sink_contract.source.names) > 1 or len(sink_contract.of.names) > 1:
            raise UsageError("A preview is of one source and one sink, not of several topics.")
        sides = require_sides(settings_of_sides(sink_contract, settings, source))
        with (
            services(sides.sink, spark=False, say=say) as running,
            sides.formats() as formats,
        ):
            at = sides.at(running.address)
            pair = samples(at, sink_contract.source.names[0], sink_contract.of.names[0], *formats)
            term = sink_contract.dead_letters
            letters = None if term is None else sample_letters(at.sink, term.topic, formats[0])
        previews.append((sink_contract.of.names[0], preview(*pair, sink_contract, letters)))
    emit(json_, [{"sink": sink, **asdict(result), "pairs": None} for sink, result in previews])
    for sink, result in previews if json_ is None else ():
        out.line(f"{sink}: {result.why}")
        for pair_ in result.pairs[:PAIRS_SHOWN]:
            text = as_text(pair_.identity, PREVIEWED_CHARACTERS)
            out.line(f"  {text}: {pair_.match}")
