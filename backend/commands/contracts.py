"""Contracts: write a first one from the data, and explain the errors in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from topicproof.backend.commands.options import (
    Bootstrap,
    ClusterName,
    Config,
    Json,
    kafka_settings,
    settings_of,
)
from topicproof.backend.commands.terminal import emit, err, out, say
from topicproof.backend.errors import ContractError, EvidenceError, UsageError
from topicproof.backend.judging.contract import make_contract, read_fields
from topicproof.backend.judging.contract_draft import draft
from topicproof.backend.judging.contract_lint import lint
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark import spark_session


class Action(StrEnum):
    INIT = "init"
    LINT = "lint"


def contract(
    action: Annotated[
        Action, typer.Argument(help="Write a first contract, or explain the errors in one.")
    ],
    file: Annotated[Path | None, typer.Argument(help="The contract.", metavar="[FILE]")] = None,
    source: Annotated[
        str | None, typer.Option(help="The topic that was read (init).", metavar="T")
    ] = None,
    sink: Annotated[
        str | None, typer.Option(help="The topic that was written (init).", metavar="T")
    ] = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
    cluster: ClusterName = None,
    json_: Json = None,
) -> None:
    """`init` looks at two topics and writes a first contract. `lint` explains all errors, by line.

    Example: `topicproof contract init --source orders --sink invoices orders.yaml`
    """
    if action is Action.LINT:
        if file is None:
            raise UsageError("Name the contract: topicproof contract lint FILE.")
        _lint(file, json_)
        return
    if source is None or sink is None:
        raise UsageError("Name both topics: --source T --sink T.")
    if file is not None and file.exists():
        raise UsageError(f"{file} already exists. Choose another name, or remove it.")
    settings = kafka_settings(bootstrap, config, cluster=cluster)
    with services(settings, spark=False, say=say) as running:
        found = draft(running.address, source, sink)
    if not found.found:
        emit(json_, {"contract": None, "why": found.why, "tried": found.text, "file": None})
        out.print(found.text, end="", highlight=False, markup=False)
        raise UsageError(found.why)
    if file is not None:
        try:
            file.write_text(found.text, encoding="utf-8")
        except OSError as error:
            raise EvidenceError(f"{file} cannot be written: {error.strerror}.") from error
    emit(
        json_,
        {"contract": found.text, "why": found.why, "file": None if file is None else str(file)},
    )
    if json_ is None:
        out.print(
            found.text if file is None else f"{file}: {found.why}.", highlight=False, markup=False
        )


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
                    {"line": one.line, "field": one.field, "why": one.why} for one in mistakes
                ]
            },
        )
        for one in mistakes:
            err.print(str(one), highlight=False, markup=False)
        raise typer.Exit(UsageError.exit_code)
    found = make_contract(fields)
    emit(json_, {"contract": found.model_dump(mode="json"), "kinds": found.kinds, "errors": []})
    if json_ is None:
        out.print(f"{file} is a contract. It requires {', '.join(found.kinds)}.")


@contextmanager
def _spark() -> Iterator[SparkSession]:
    with (
        services(settings_of(), kafka=False, say=say) as up,
        spark_session(up.spark_remote) as session,
    ):
        yield session
