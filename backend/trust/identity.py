"""Who acts, and what each role may do.

An identity comes from a login (login.py), or is that of the person at this machine (acting.py).
Without a login that person may do everything, and signs as "unauthenticated".
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topicproof.backend.errors import NotPermitted

NAME_LENGTH_MAX = 200
PROXY_ISSUER = "proxy header "
"""Begins the issuer of an identity that a proxy names, before the name of its header."""


class Role(StrEnum):
    """What somebody is here for. A person may have several roles."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    SIGNER = "signer"
    ADMIN = "admin"


class Action(StrEnum):
    """What somebody asks for. The values are words of sentences and of the audit log."""

    LOOK = "look at payloads"
    LAUNCH = "launch a run"
    RESUME = "resume a run"
    STOP = "stop a run"
    RELEASE = "release a run"
    STRIKE = "strike a run"
    CHECK = "check topics"
    WATCH = "watch a contract"
    UNWATCH = "stop watching a contract"
    FILL = "fill a topic"
    FLOOR = "set initial offsets"
    KEEP = "keep a contract"
    ABORT = "abort a transaction"
    COMMIT = "commit a transaction"
    EXPORT = "export"
    SIGN = "sign"
    WAIVE = "waive a finding"
    CLEAN = "delete a run"


class How(StrEnum):
    """How an identity was established."""

    NOBODY = "unauthenticated"
    OPENID = "OpenID Connect"
    PROXY = "proxy header"
    DEVICE = "device code"
    PASSED_ON = "passed on by the dashboard"
    """For a process that the dashboard started. It proves nothing to anybody else."""


_OPERATES = frozenset(
    {
        *(Action.LOOK, Action.LAUNCH, Action.RESUME, Action.STOP, Action.RELEASE),
        *(Action.STRIKE, Action.CHECK, Action.FILL, Action.FLOOR),
        *(Action.WATCH, Action.UNWATCH),
        *(Action.KEEP, Action.ABORT, Action.COMMIT, Action.EXPORT),
    }
)
MAY: Mapping[Role, frozenset[Action]] = {
    Role.VIEWER: frozenset({Action.LOOK}),
    Role.OPERATOR: _OPERATES,
    Role.SIGNER: frozenset({Action.LOOK, Action.EXPORT, Action.SIGN, Action.WAIVE}),
    Role.ADMIN: frozenset(Action),
}
"""What each role may do. Operators do not sign, and signers do not operate."""


@dataclass(frozen=True)
class Identity:
    """A person, as far as somebody vouches for them."""

    name: str
    """For people to read. Only the issuer, with its names below, identifies a person."""
    issuer: str
    """Who vouches: the provider's URL, or the proxy's header; empty without a login."""
    subject: str
    """The issuer's name of the person, which never changes."""
    roles: frozenset[Role]
    how: How
    person: str = ""
    """What the issuer calls the person in each of its clients (`openid.person`). The subject may
    differ from client to client (OpenID Connect Core 8.1). Empty: the login does not say."""

    @property
    def authenticated(self) -> bool:
        return self.how is not How.NOBODY

    @property
    def account(self) -> str:
        """Its subject as far as it tells people apart. A proxy passes on what somebody typed, and
        many logins take a name in any case and width; OpenID's subjects differ by case."""
        if not self.issuer.startswith(PROXY_ISSUER):
            return self.subject
        return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", self.subject).casefold())

    @property
    def shown(self) -> str:
        """`Grace Hopper (unauthenticated)`"""
        if not self.authenticated:
            return f"{self.name} ({self.how})"
        return f"{self.name} ({self.how}, {self.subject} at {self.issuer})"

    @property
    def roles_shown(self) -> str:
        """`operator, signer`"""
        return ", ".join(sorted(self.roles))

    def is_same_person(self, other: Identity) -> bool:
        """Return whether both are one person. Without a login nobody can tell."""
        if not (self.authenticated and other.authenticated) or self.issuer != other.issuer:
            return False
        has_one_name = bool(self.person) and self.person == other.person
        return has_one_name or self.account == other.account

    def as_json(self) -> dict[str, Any]:
        """Return the fields as sign-offs and the audit log keep them. An unauthenticated person has
        no roles to speak of."""
        if not self.authenticated:
            return {"name": self.name, "how": str(self.how)}
        return {
            "name": self.name,
            "issuer": self.issuer,
            "subject": self.subject,
            "roles": sorted(self.roles),
            "how": str(self.how),
            # Left out where there is none: sign-offs from before are hashed without it.
            **({"person": self.person} if self.person else {}),
        }


def unauthenticated(name: str) -> Identity:
    """Return the identity of somebody who did not sign in, where no login is configured."""
    return Identity(cleaned(name), "", "", frozenset(Role), How.NOBODY)


def read_identity(fields: Mapping[str, Any]) -> Identity:
    """Return the identity that `Identity.as_json` wrote. Raises ValueError for anything else."""
    try:
        how = How(fields["how"])
        if how is How.NOBODY:
            return unauthenticated(str(fields["name"]))
        roles = frozenset(map(Role, fields["roles"]))
        name, issuer, subject = (str(fields[key]) for key in ("name", "issuer", "subject"))
        return Identity(name, issuer, subject, roles, how, str(fields.get("person", "")))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no identity: {error}") from error


def allows(by: Identity, action: Action) -> bool:
    """Return whether one of the person's roles may do this."""
    return any(action in MAY[role] for role in by.roles)


def require(by: Identity, action: Action) -> None:
    """Raises NotPermitted if none of the person's roles may do this."""
    if allows(by, action):
        return
    able = " or ".join(role for role in Role if action in MAY[role])
    have = f"has the role {by.roles_shown}" if by.roles else "has no role here"
    raise NotPermitted(f"{by.name} {have} and may not {action}. That needs the role {able}.")


def cleaned(name: str) -> str:
    """Return a name without anything that does not print, and not longer than a line."""
    return "".join(letter for letter in name[:NAME_LENGTH_MAX] if letter.isprintable())
