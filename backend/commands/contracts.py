"""Contracts: write a first one from the data, and explain what is wrong with one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from backend.commands.options import Bootstrap, Config, Json, settings_of
from backend.commands.terminal import emit, out, say
from backend.contract import read_contract
from backend.contract_draft import draft
from backend.errors import EvidenceError, UsageError
from backend.services import services


class Action(StrEnum):
    INIT = "init"
    LINT = "lint"


def contract(
    action: Annotated[Action, typer.Argument(help="Write a first contract, or explain what is wrong with one.")],
    file: Annotated[Path | None, typer.Argument(help="The contract.", metavar="[FILE]")] = None,
    source: Annotated[str | None, typer.Option(help="The topic that was read (init).", metavar="T")] = None,
    sink: Annotated[str | None, typer.Option(help="The topic that was written (init).", metavar="T")] = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
    json_: Json = None,
) -> None:
    """`init` looks at two topics and writes a contract to begin with; `lint` explains errors by line.

    Example: `topicproof contract init --source orders --sink invoices orders.yaml`
    """
    if action is Action.LINT:
        if file is None:
            raise UsageError("Which contract? Say topicproof contract lint FILE.")
        found, _ = read_contract(file)
        emit(json_, {"contract": found.model_dump(mode="json"), "kinds": found.kinds})
        if json_ is None:
            out.print(f"{file} is a contract. It requires {', '.join(found.kinds)}.")
        return
    if source is None or sink is None:
        raise UsageError("Between which topics? Say --source T --sink T.")
    if file is not None and file.exists():
        raise UsageError(f"{file} is there already. Choose another name, or remove it.")
    settings = settings_of(bootstrap, config)
    with services(settings, spark=False, say=say) as running:
        text, why = draft(running.bootstrap, settings.client, source, sink)
    if file is not None:
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise EvidenceError(f"{file} cannot be written: {error.strerror}.") from error
    emit(json_, {"contract": text, "why": why, "file": None if file is None else str(file)})
    if json_ is None:
        out.print(text if file is None else f"{file}: {why}", highlight=False, markup=False)
