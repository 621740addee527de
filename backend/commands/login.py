"""Sign in, sign out, who am I, and what everybody did: the audit log."""

from __future__ import annotations

from typing import Annotated

import typer

from topicproof.backend.commands.options import Json, settings_of
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

    def tell(asked: device.DeviceCode) -> None:
        say(f"Open {asked.address} and confirm the code {asked.user_code}")

    found = device.sign_in(settings_of(), tell)
    _tell(found, json_)


def logout(json_: Json = None) -> None:
    """Sign out. What you sign from now on is unauthenticated.

    Example: `topicproof logout`
    """
    gone = device.sign_out(settings_of(), say)
    emit(json_, {"signed_out": gone})
    out.line("You have signed out." if gone else "Nobody had signed in.")


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
    shown = entries[-limit:]
    emit(
        json_,
        {
            "entries": len(entries),
            "broken": damaged,
            "shown": [
                {
                    "number": one.number,
                    "at": f"{one.made_at.isoformat()}Z",
                    "by": one.by.as_json(),
                    "action": one.action,
                    "what": one.what,
                    "allowed": one.allowed,
                }
                for one in shown
            ],
        },
    )
    for one in shown:
        out.line(f"{one.number} {one.said}")
    if damaged is not None:
        out.line(Styled("broken", "bold red"), f" {changed_entry(damaged)}")
        raise typer.Exit(FORGED)
    out.line(f"{len(entries)} entries. None was changed or removed.")


def _tell(by: Identity, json_: str | None) -> None:
    emit(json_, by.as_json())
    out.line(by.shown)
    if by.authenticated:
        out.line(f"roles: {by.roles_shown}")
