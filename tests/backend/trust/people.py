"""People who have signed in, for tests that need no provider."""

from __future__ import annotations

from topicproof.backend.trust.identity import How, Identity, Role

ISSUER = "https://sso.example/realms/team"


def person(name: str, *roles: Role, how: How = How.OPENID, issuer: str = ISSUER) -> Identity:
    """Somebody whom the provider calls by their first name."""
    return Identity(name, issuer, name.split()[0].lower(), frozenset(roles), how)


ADA = person("Ada Lovelace", Role.VIEWER)
GRACE = person("Grace Hopper", Role.OPERATOR)
KURT = person("Kurt Gödel", Role.SIGNER)
EMMY = person("Emmy Noether", Role.ADMIN)
