"""Sign in, sign out, who am I, and what everybody did: the audit log."""

from __future__ import annotations

from typing import Annotated

import typer

from topicproof.backend.commands.shared_options import Json, settings_of
from topicproof.backend.commands.terminal import Styled, changed_entry, emit, out, say
from topicproof.backend.exit_codes import FORGED
from topicproof.backend.history.audit import audit_entries, broken_audit
from topicproof.backend.history.store import History
from topicproof.backend.trust import device
from topicproof.backend.trust.acting import acting
from topicproof.backend.trust.identity import Identity


def login(json_: Json = None) -> None:
    """Sign in at the provider of TOPICPROOF_LOGIN, with a code that you confirm in a browser. What
    you start and sign from now on carries your identity.

    Example: `topicproof login`
    """

    def tell(device_code: device.DeviceCode) -> None:
        say(f"Open {device_code.address} and confirm the code {device_code.user_code}")

    identity = device.sign_in(settings_of(), tell)
    _tell(identity, json_)


def logout(json_: Json = None) -> None:
    """Sign out. What you sign from now on is unauthenticated.

    Example: `topicproof logout`
    """
    was_signed_in = device.sign_out(settings_of(), say)
    emit(json_, {"signed_out": was_signed_in})
    out.line("You have signed out." if was_signed_in else "Nobody had signed in.")


def whoami(json_: Json = None) -> None:
    """Show who acts through the command line, and their roles.

    Example: `topicproof whoami`
    """
    _tell(acting(settings_of()), json_)


def audit(
    limit: Annotated[
        int, typer.Option(help="Show this many of the newest entries.", min=1, metavar="N")
    ] = 50,
    json_: Json = None,
) -> None:
    """Show the audit log: who launched, stopped, aborted, exported and signed, and who looked at
    payloads behind a login. The whole log is checked; the command ends with 4 if an entry was
    changed or removed.

    Example: `topicproof audit --limit 20`
    """
    entries = audit_entries(History(settings_of()))
    damaged = broken_audit(entries)
    newest = entries[-limit:]
    emit(
        json_,
        {
            "entries": len(entries),
            "broken": damaged,
            "shown": [
                {
                    "number": entry.number,
                    "at": f"{entry.made_at.isoformat()}Z",
                    "by": entry.by.as_json(),
                    "action": entry.action,
                    "what": entry.what,
                    "allowed": entry.allowed,
                }
                for entry in newest
            ],
        },
    )
    for entry in newest:
        out.line(f"{entry.number} {entry.said}")
    if damaged is not None:
        out.line(Styled("broken", "bold red"), f" {changed_entry(damaged)}")
        raise typer.Exit(FORGED)
    out.line(f"{len(entries)} entries. None was changed or removed.")


def _tell(by: Identity, json_: str | None) -> None:
    emit(json_, by.as_json())
    out.line(by.shown)
    if by.authenticated:
        out.line(f"roles: {by.roles_shown}")
