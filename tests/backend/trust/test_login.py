"""The file of the login, and whom the claims and headers name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

from tests.backend.trust.people import ISSUER
from topicproof.backend.errors import NotPermitted, UsageError
from topicproof.backend.trust.device import verified_claims
from topicproof.backend.trust.identity import How, Role
from topicproof.backend.trust.login import (
    Login,
    dashboard_provider,
    identity_of_claims,
    identity_of_headers,
    read_login,
)

OPENID = f"openid: {{issuer: '{ISSUER}', client_id: t"
NOW_S = 1_800_000_000.0
CLAIMS = {
    "iss": ISSUER,
    "sub": "42",
    "iat": NOW_S - 60,
    "name": "Grace Hopper",
    "realm_access": {"roles": ["kafka", "offline_access"]},
    "https://team.example/groups": ["/qa"],
}


def login(tmp_path: Path, text: str) -> Login:
    path = tmp_path / "login.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return read_login(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hours: 3", "either openid or proxy"),
        (f"{OPENID}}}\nproxy: {{user: X-User}}", "either openid or proxy"),
        ("openid: {issuer: 'http://sso.example', client_id: t}", "openid.issuer: it must begin"),
        (f"{OPENID}, address: 'ftp://x'}}", "openid.address: it must begin"),
        (f"{OPENID}, address: 'https://u:p@x'}}", "openid.address: the address has a password"),
        (f"{OPENID}}}\nrole: {{}}", r"line 2: role: there is no such field"),
        (f"{OPENID}}}\nhours: 0", "line 2: hours: Input should be greater than 0"),
        ("proxy: {user: X-User, from: [here]}", "proxy.from: 'here' does not appear"),
        ("proxy: {user: X-User, from: []}", "proxy.from: "),
        (f"{OPENID}, client_secret_file: none.txt}}", "none.txt cannot be read"),
        ("openid: [", "login.yaml, line 1: not YAML"),
    ],
)
def test_a_wrong_file_says_where(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        login(tmp_path, text)


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Story: the client secret is in the file, or beside it, and others can read it. It is in no
    error and in no repr."""
    secret = tmp_path / "secret.txt"
    secret.write_text("hush-hush\n")
    secret.chmod(0o600)
    whole = f"{OPENID}, address: 'https://proof.example/', client_secret_file: secret.txt}}"
    found = login(tmp_path, whole)
    told = dashboard_provider(found)
    assert (told.client_secret, told.address) == ("hush-hush", "https://proof.example")
    assert "hush" not in repr(found)
    secret.chmod(0o644)
    with pytest.raises(UsageError, match=r"Other users can read the secret.*chmod 600"):
        login(tmp_path, whole)
    inside = tmp_path / "login.yaml"
    inside.write_text(f"{OPENID}, client_secret: hush-hush, unknown: 1}}")
    with pytest.raises(UsageError, match="no such field") as wrong:
        read_login(inside)
    assert "hush" not in str(wrong.value)
    inside.write_text(f"{OPENID}, client_secret: hush-hush}}")
    inside.chmod(0o640)
    with pytest.raises(UsageError, match="Other users can read"):
        read_login(inside)
    with pytest.raises(UsageError, match=r"openid\.address.*client secret"):
        dashboard_provider(login(tmp_path, f"{OPENID}}}"))


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("{claim: realm_access.roles, operator: [kafka]}", {Role.OPERATOR}),
        (
            "{claim: 'https://team.example/groups', signer: [/qa], admin: [/qa]}",
            {Role.SIGNER, Role.ADMIN},
        ),
        ("{claim: name, viewer: [Grace Hopper]}", {Role.VIEWER}),
        ("{claim: realm_access.roles}", set()),
        ("{claim: sub.roles, viewer: ['42']}", set()),
        ("{claim: nowhere.at.all}", set()),
    ],
)
def test_groups_become_roles(roles: str, expected: set[Role], tmp_path: Path) -> None:
    """Story: providers name groups in different claims. Who has none that counts does not come
    in."""
    found = login(tmp_path, f"{OPENID}}}\nroles: {roles}")
    if not expected:
        with pytest.raises(NotPermitted, match="Grace Hopper is known, but has no role here"):
            identity_of_claims(found, CLAIMS, How.OPENID, NOW_S)
        return
    by = identity_of_claims(found, CLAIMS, How.OPENID, NOW_S)
    assert by.roles == expected and (by.issuer, by.subject) == (ISSUER, "42")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"iss": "https://evil.example"}, "another provider"),
        ({"sub": ""}, "names nobody"),
        ({"iat": "yesterday"}, "names nobody"),
        ({"iat": NOW_S - 3 * 3600 - 1}, "has ended"),
        ({"iat": NOW_S + 3600}, "has ended"),
    ],
)
def test_claims_that_do_not_count(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    found = login(tmp_path, f"{OPENID}}}\nroles: {{claim: name, viewer: [Grace Hopper]}}\nhours: 3")
    assert identity_of_claims(found, CLAIMS, How.OPENID, NOW_S).name == "Grace Hopper"
    with pytest.raises(NotPermitted, match=says):
        identity_of_claims(found, {**CLAIMS, **changed}, How.OPENID, NOW_S)


def test_a_claim_that_names_people_is_there_and_verified(tmp_path: Path) -> None:
    roles = "roles: {claim: name, viewer: [Grace Hopper]}"
    for claim, claims, says in (
        ("oid", {}, "no claim oid"),
        ("email", {"email": "g@a.example"}, "has not verified"),
    ):
        by_claim = login(tmp_path, f"{OPENID}, person: {claim}}}\n{roles}")
        with pytest.raises(NotPermitted, match=says):
            identity_of_claims(by_claim, {**CLAIMS, **claims}, How.OPENID, NOW_S)
    verified = {**CLAIMS, "email": "g@a.example", "email_verified": True}
    assert identity_of_claims(by_claim, verified, How.OPENID, NOW_S).person == "g@a.example"


def test_a_proxy_names_people_and_groups(tmp_path: Path) -> None:
    text = "proxy: {user: X-User, groups: X-Groups, from: [127.0.0.1, 10.1.0.0/16]}"
    found = login(tmp_path, f"{text}\nroles: {{operator: [kafka]}}")
    assert found.proxy is not None
    trusted = ("127.0.0.1", "10.1.2.3"), ("10.2.0.1", "::1", "", "unix", "127.0.0.1, 10.1.2.3")
    assert [all(map(found.proxy.trusts, trusted[0])), *map(found.proxy.trusts, trusted[1])] == [
        True,
        *([False] * 5),
    ]
    by = identity_of_headers(found, {"x-user": "grace", "x-groups": "signer, kafka,other"})
    assert by.roles == {Role.SIGNER, Role.OPERATOR} and by.how is How.PROXY
    for headers in ({}, {"x-user": "  "}, {"x-groups": "admin"}):
        with pytest.raises(NotPermitted, match="did not say who you are"):
            identity_of_headers(found, headers)
    with pytest.raises(NotPermitted, match="no role here"):
        identity_of_headers(found, {"x-user": "grace", "x-groups": "kafka-not"})


def test_an_id_token_is_checked() -> None:
    """Story: somebody hands the command line a token that is forged, of another client, too old, or
    signed with the public key as if it were a password."""
    key = RSAKey.generate_key(2048, {"kid": "ours"})
    public = KeySet([key]).as_dict(private=False)
    good = {**CLAIMS, "aud": "cli", "exp": NOW_S + 300}

    def token(claims: dict[str, Any], by: Any = key, alg: str = "RS256") -> str:
        return jwt.encode({"alg": alg, "kid": "ours"}, claims, by, algorithms=[alg])

    def checked(given: str) -> dict[str, Any]:
        return verified_claims(given, public, ISSUER, "cli", NOW_S)

    assert checked(token(good))["sub"] == "42"
    assert checked(token({**good, "aud": ["cli", "other"], "azp": "cli"}))["sub"] == "42"
    password = OctKey.import_key(json.dumps(public))
    for wrong, says in (
        (token(good, RSAKey.generate_key(2048, {"kid": "ours"})), "not signed by its keys"),
        (token(good, password, "HS256"), "not signed by its keys"),
        (token(good).rpartition(".")[0] + ".", "not signed by its keys"),
        ("no token", "not signed by its keys"),
        (token({**good, "iss": "https://evil.example"}), "for somebody else"),
        (token({**good, "aud": "dashboard"}), "for somebody else"),
        (token({**good, "aud": ["cli", "other"]}), "for somebody else"),
        (token({**good, "exp": NOW_S - 3600}), "has expired"),
    ):
        with pytest.raises(NotPermitted, match=says):
            checked(wrong)
