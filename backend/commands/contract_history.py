"""`topicproof contract keep`, `list` and `export`, which need the history."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from topicproof.backend.commands.shared_options import settings_of
from topicproof.backend.commands.terminal import emit, out
from topicproof.backend.contracts.contract import read_contract
from topicproof.backend.history.kept_contracts import KeptContract, contracts, find, keep
from topicproof.backend.history.store import History
from topicproof.validators.shell_words import shell_word


def keep_file(file: Path, name: str | None, json_: str | None) -> None:
    read_contract(file)
    text = file.read_text(encoding="utf-8")
    kept_contract = keep(History(settings_of()), name or file.stem, text)
    emit(json_, _json(kept_contract))
    if json_ is None:
        out.line(
            f"Kept as {kept_contract.label}. Check by it: topicproof check --contract"
            f" {shell_word(kept_contract.name)}"
        )


def list_kept(json_: str | None) -> None:
    kept_contracts = contracts(History(settings_of()))
    emit(json_, [_json(kept_contract) for kept_contract in kept_contracts])
    for kept_contract in kept_contracts if json_ is None else ():
        out.line(f"{kept_contract.label}  {kept_contract.kept_at:%Y-%m-%d %H:%M:%S} UTC")
    if not kept_contracts and json_ is None:
        out.line("No contract has been kept. Keep one: topicproof contract keep FILE")


def export(label: str, json_: str | None) -> None:
    kept_contract = find(History(settings_of()), label)
    emit(json_, _json(kept_contract))
    if json_ is None:
        out.document(kept_contract.text)


def _json(kept_contract: KeptContract) -> dict[str, object]:
    return {**asdict(kept_contract), "kept_at": kept_contract.kept_at.isoformat() + "Z"}
