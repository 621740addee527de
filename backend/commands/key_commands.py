"""Keys: whose signatures on evidence and sign-offs count."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from topicproof.backend.commands.shared_options import Json, settings_of
from topicproof.backend.commands.terminal import Styled, changed_entry, emit, out, write_file
from topicproof.backend.errors import UsageError
from topicproof.backend.exit_codes import FORGED
from topicproof.backend.settings import Settings
from topicproof.backend.trust.keyring import (
    KnownKey,
    import_key,
    own_key,
    read_keyring,
    revoke,
    signing_key,
)
from topicproof.backend.trust.keys import key_path, public_pem


class Action(StrEnum):
    SHOW = "show"
    EXPORT = "export"
    IMPORT = "import"
    REVOKE = "revoke"
    CHAIN = "chain"


def keys(
    action: Annotated[
        Action,
        typer.Argument(
            help="Show all keys, export our public key, trust or revoke one, or check the chain of"
            " sign-offs.",
        ),
    ] = Action.SHOW,
    what: Annotated[
        str | None,
        typer.Argument(help="A file (export, import), or a key's name or id (revoke)."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Who holds the imported key.", metavar="NAME")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Why the key is revoked. Required.", metavar="TEXT")
    ] = "",
    json_: Json = None,
) -> None:
    """Show, export, import and revoke the keys whose signatures count. Evidence and sign-offs are
    signed with this installation's own key, which is made at its first use.

    `chain` checks every sign-off: its hash, its signature, and that none was removed. It ends with
    4 if one is not intact.

    Example: `topicproof keys import grace.pem --name "Grace Hopper"`
    """
    settings = settings_of()
    match action:
        case Action.SHOW:
            _show(settings, json_)
        case Action.EXPORT:
            _export(settings, what, json_)
        case Action.IMPORT:
            file = Path(_named(what, "the file: topicproof keys import FILE.pem"))
            _tell(import_key(settings, file, name or file.stem), "is trusted now", json_)
        case Action.REVOKE:
            which = _named(what, "the key: topicproof keys revoke KEY --reason TEXT")
            _tell(revoke(settings, which, reason), "is revoked", json_)
        case Action.CHAIN:
            _chain(settings, json_)


def _named(value: str | None, description: str) -> str:
    if value is None:
        raise UsageError(f"Name {description}.")
    return value


def _show(settings: Settings, json_: str | None) -> None:
    signing_key(settings)
    home_key = own_key(settings)
    keyring = list(read_keyring(settings).values())
    emit(
        json_,
        {
            "own": home_key.id if home_key else None,
            "file": str(key_path(settings)),
            "keys": list(map(_json, keyring)),
        },
    )
    for key in keyring:
        revoked = Styled("revoked", "bold red")
        word = Styled("trusted", "green") if key.revoked is None else revoked
        out.line(word, f" {key.id[:16]} {key.name}")
        if key.revoked is not None:
            out.line(f"        {key.revoked.at}: {key.revoked.reason}")
    out.line(f"Signed with {key_path(settings)}")


def _export(settings: Settings, file: str | None, json_: str | None) -> None:
    text = public_pem(signing_key(settings).public)
    if file is None:
        emit(json_, {"pem": text})
        out.document(text)
        return
    write_file(Path(file), text)
    emit(json_, {"pem": text, "file": file})
    out.line(f"{file}: give it to those who verify your evidence.")


def _tell(key: KnownKey, says: str, json_: str | None) -> None:
    emit(json_, _json(key))
    out.line(f"The key {key.id[:16]} ({key.name}) {says}.")


def _chain(settings: Settings, json_: str | None) -> None:
    # Late: the other actions need no history.
    from topicproof.backend.history.signoff import read_chain
    from topicproof.backend.history.store import History

    chain = read_chain(History(settings))
    damaged, doubted = chain.broken, chain.unanchored
    emit(
        json_,
        {
            "entries": len(chain.entries),
            "broken": damaged,
            "not_vouched": [{"number": entry.number, "why": entry.says} for entry in doubted],
        },
    )
    out.line(f"{len(chain.entries)} sign-offs")
    if damaged is not None:
        out.line(Styled("broken", "bold red"), f" {changed_entry(damaged)}")
    for entry in doubted:
        out.line(Styled("not trusted", "yellow"), f" entry {entry.number}: {entry.says}")
    if damaged is not None or doubted:
        raise typer.Exit(FORGED)
    out.line("No entry was changed or removed, and a trusted key vouches for each.")


def _json(key: KnownKey) -> dict[str, Any]:
    revocation = key.revoked
    return {
        "id": key.id,
        "name": key.name,
        "pem": public_pem(key.public),
        "revoked_at": revocation.at if revocation else None,
        "reason": revocation.reason if revocation else None,
    }
