"""Contracts: write a first one from the data, explain the errors in one, preview it, keep it.

What an action needs is loaded for that action alone: `lint` needs neither Kafka nor the history.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from topicproof.backend.commands.terminal import emit, err, out, say
from topicproof.backend.contracts.contract import make_contract, read_fields
from topicproof.backend.contracts.lint import lint
from topicproof.backend.errors import ContractError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    if action is Action.LINT:
        _lint(Path(_required(action, file)), json_)
    elif action in (Action.INIT, Action.PREVIEW):
        _of_topics(action, file, (source, sink), target, source_target, json_)
    else:
        _of_history(action, file, name, json_)


def _required(action: Action, file: str | None) -> str:
    if file is None:
        raise UsageError(WRONG[action])
    return file


def _of_topics(
    action: Action,
    file: str | None,
    topics: tuple[str | None, str | None],
    target: Target,
    source_target: SourceTarget,
    json_: str | None,
) -> None:
    from topicproof.backend.commands.contract_topics import init, show_preview
    from topicproof.backend.runs.sides import SideSettings
    from topicproof.backend.services.keeper import require_topics

    source_side = source_settings(source_target)
    if action is Action.INIT:
        sides = SideSettings(kafka_settings(target), source_side)
        init(None if file is None else Path(file), *topics, sides, json_)
    else:
        settings = settings_of(target)
        require_topics(settings)
        show_preview(Path(_required(action, file)), settings, source_side, json_)


def _of_history(action: Action, file: str | None, name: str | None, json_: str | None) -> None:
    from topicproof.backend.commands.contract_history import export, keep_file, list_kept

    if action is Action.LIST:
        list_kept(json_)
    elif action is Action.KEEP:
        keep_file(Path(_required(action, file)), name, json_)
    else:
        export(_required(action, file), json_)


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
    from topicproof.backend.services.keeper import services
    from topicproof.backend.services.spark_session import spark_session

    with (
        services(settings_of(), kafka=False, say=say) as up,
        spark_session(up.spark_remote) as session,
    ):
        yield session
