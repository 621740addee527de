"""Who acts through this process."""

from __future__ import annotations

import getpass
import json
import os
import socket
from dataclasses import replace

from topicproof.backend.errors import UsageError
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import How, Identity, read_identity, unauthenticated

ACTING = "TOPICPROOF_ACTING"
"""A variable of processes that the dashboard starts: for whom. Anyone who can set it for a process
of this user has this user's keys too, so it is for the records alone, and never signs."""
DETACHED = "TOPICPROOF_DETACHED"
"""A variable of processes that the dashboard starts. Pages show their output, so it quotes no
record, whoever looks."""


def acting(settings: Settings) -> Identity:
    """Return who acts: for whom the dashboard started this process, who has signed in by
    `topicproof login`, or the unauthenticated user of the machine. Raises UsageError,
    NotPermitted, SetupError if a login no longer counts."""
    passed = os.environ.get(ACTING)
    if passed:
        try:
            return replace(read_identity(json.loads(passed)), how=How.PASSED_ON)
        except ValueError as error:
            raise UsageError(f"{ACTING} is for the dashboard alone. Unset it.") from error
    if settings.login is None:
        return machine_user(settings)
    # Imported late: most processes have no login, and must start fast.
    from topicproof.backend.trust.device import is_signed_in, renewed

    return renewed(settings) if is_signed_in(settings) else machine_user(settings)


def environment_for(by: Identity) -> dict[str, str]:
    """Return the variables that tell a child process for whom it acts, and that its output is
    kept."""
    acts = {ACTING: json.dumps(by.as_json())} if by.authenticated else {}
    return {DETACHED: "yes", **acts}


def machine_user(settings: Settings) -> Identity:
    return unauthenticated(settings.signer or f"{user_name()}@{socket.gethostname()}")


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"  # a container's user without a name
