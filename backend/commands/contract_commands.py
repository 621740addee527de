"""Contracts: write a first one from the data, explain the errors in one, preview it, keep it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from topicproof.backend.commands.run_options import require_sides
from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    SAME_CLUSTER,
    Json,
    SourceTarget,
    Target,
    kafka_settings,
    settings_of,
    source_settings,
)
from topicproof.backend.commands.terminal import emit, err, out, say, write_file
from topicproof.backend.contracts.contract import make_contract, read_contract, read_fields
from topicproof.backend.contracts.draft import draft
from topicproof.backend.contracts.draft_expectation import ONE_OUTPUT
from topicproof.backend.contracts.lint import lint
from topicproof.backend.contracts.preview import preview
from topicproof.backend.contracts.sample import samples
from topicproof.backend.errors import ContractError, UsageError
from topicproof.backend.history.kept_contracts import KeptContract, contracts, find, keep
from topicproof.backend.history.store import History
from topicproof.backend.kafka.browse.records import as_text
from topicproof.backend.runs.sides import SideSettings, settings_of_sides
from topicproof.backend.services.keeper import require_topics, services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings

PREVIEWED_CHARACTERS = 80


class Action(StrEnum):
    INIT = "init"
    LINT = "lint"
    PREVIEW = "preview"
    KEEP = "keep"
    LIST = "list"
    EXPORT = "export"


WRONG = {
    Action.LINT: "Name the contract: topicproof contract lint FILE.",
    Action.PREVIEW: "Name the contract: topicproof contract preview FILE.",
    Action.KEEP: "Name the contract: topicproof contract keep FILE --name NAME.",
    Action.EXPORT: "Name the kept contract: topicproof contract export NAME.",
}
"""What is missing where an action lacks its argument."""
PAIRS_SHOWN = 20


def contract(
    action: Annotated[
        Action,
        typer.Argument(
            help=(
                "Write a first contract, explain the errors in one, show what it would match; keep"
                " one by name, list the kept ones, print one."
            )
        ),
    ],
    file: Annotated[
        str | None,
        typer.Argument(help="The contract's file, or the name of a kept one.", metavar="[FILE]"),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="The topic that was read (init).", metavar="T")
    ] = None,
    sink: Annotated[
        str | None, typer.Option(help="The topic that was written (init).", metavar="T")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The name to keep it by. Default: the file's (keep).", metavar="NAME"),
    ] = None,
    target: Target = EMBEDDED,
    source_target: SourceTarget = SAME_CLUSTER,
    json_: Json = None,
) -> None:
    """`init` looks at two topics and writes a first contract. `lint` explains all errors, by line.
    `preview` shows which newest records a contract matches. `keep`, `list` and `export` are for
    contracts that the dashboard and `check --contract NAME` find by name. `init` and `preview` also
    take a source on another cluster.

    Example: `topicproof contract init --source orders --sink invoices orders.yaml`
    """
    path = None if file is None else Path(file)
    match action:
        case Action.INIT:
            source_side = source_settings(source_target)
            settings = kafka_settings(target)
            _init(path, source, sink, SideSettings(settings, source_side), json_)
        case Action.LIST:
            _list(json_)
        case Action.EXPORT:
            _export(_required(action, file), json_)
        case Action.LINT:
            _lint(Path(_required(action, file)), json_)
        case Action.KEEP:
            _keep(Path(_required(action, file)), name, json_)
        case Action.PREVIEW:
            source_side = source_settings(source_target)
            settings = settings_of(target)
            require_topics(settings)
            _preview(Path(_required(action, file)), settings, source_side, json_)


def _required(action: Action, file: str | None) -> str:
    if file is None:
        raise UsageError(WRONG[action])
    return file


def _init(
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


def _preview(file: Path, settings: Settings, source: Settings | None, json_: str | None) -> None:
    terms = read_contract(file, across=source is not None)
    previews = []
    for sink_contract in terms.each():
        if sink_contract.unique is not None:
            raise UsageError(
                "A preview matches two topics, and this contract is about one. Check it: topicproof"
                f" check --contract {file}."
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
        previews.append((sink_contract.of.names[0], preview(*pair, sink_contract)))
    emit(json_, [{"sink": sink, **asdict(result), "pairs": None} for sink, result in previews])
    for sink, result in previews if json_ is None else ():
        out.line(f"{sink}: {result.why}")
        for pair_ in result.pairs[:PAIRS_SHOWN]:
            text = as_text(pair_.identity, PREVIEWED_CHARACTERS)
            out.line(f"  {text}: {pair_.match}")


def _keep(file: Path, name: str | None, json_: str | None) -> None:
    read_contract(file)
    text = file.read_text(encoding="utf-8")
    kept_contract = keep(History(settings_of()), name or file.stem, text)
    emit(json_, _json(kept_contract))
    if json_ is None:
        out.line(
            f"Kept as {kept_contract.label}. Check by it: topicproof check --contract"
            f" {kept_contract.name}"
        )


def _list(json_: str | None) -> None:
    kept_contracts = contracts(History(settings_of()))
    emit(json_, [_json(kept_contract) for kept_contract in kept_contracts])
    for kept_contract in kept_contracts if json_ is None else ():
        out.line(f"{kept_contract.label}  {kept_contract.kept_at:%Y-%m-%d %H:%M:%S} UTC")
    if not kept_contracts and json_ is None:
        out.line("No contract has been kept. Keep one: topicproof contract keep FILE")


def _export(label: str, json_: str | None) -> None:
    kept_contract = find(History(settings_of()), label)
    emit(json_, _json(kept_contract))
    if json_ is None:
        out.document(kept_contract.text)


def _json(kept_contract: KeptContract) -> dict[str, object]:
    return {**asdict(kept_contract), "kept_at": kept_contract.kept_at.isoformat() + "Z"}


def _lint(file: Path, json_: str | None) -> None:
    try:
        fields = read_fields(file)
        mistakes = lint(fields, _spark)
    except ContractError as error:
        mistakes = error.mistakes
    if mistakes:
        emit(
            json_,
            {
                "errors": [
                    {"line": mistake.line, "field": mistake.field, "why": mistake.why}
                    for mistake in mistakes
                ]
            },
        )
        for mistake in mistakes:
            err.line(str(mistake))
        raise typer.Exit(UsageError.exit_code)
    terms = make_contract(fields)
    emit(json_, {"contract": terms.model_dump(mode="json"), "kinds": terms.kinds, "errors": []})
    if json_ is None:
        out.line(f"{file} is a contract. It requires {', '.join(terms.kinds)}.")


@contextmanager
def _spark() -> Iterator[SparkSession]:
    with (
        services(settings_of(), kafka=False, say=say) as up,
        spark_session(up.spark_remote) as session,
    ):
        yield session
