"""A login for the command line by a device code (RFC 8628): a person confirms a code in a browser.

The home keeps only a refresh token, readable by its owner alone. Each use asks the provider for a
fresh ID token and checks its signature. So a person whom the provider no longer knows cannot act,
and roles are those of the moment.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from topicproof.backend.errors import EvidenceError, NotPermitted, SetupError, UsageError
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import How, Identity
from topicproof.backend.trust.keys import trust_folder
from topicproof.backend.trust.login import (
    CLOCKS_DIFFER_S,
    Login,
    Provider,
    configured_login,
    identity_of_claims,
)
from topicproof.backend.waiting import ask_until

KEPT = "login.json"
"""In the home's folder `trust`: the refresh token, and whose provider gave it."""
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""Signatures with a public key. A symmetric one would prove nothing."""
GRANT = "urn:ietf:params:oauth:grant-type:device_code"
TIMEOUT_S = 10.0
INTERVAL_S = 5.0
"""How often to ask, unless the provider says otherwise."""
KEYS_KEPT_S = 300.0
SLOWER_S = 5.0
"""How much longer to wait after each "slow_down" (RFC 8628, 3.5)."""


@dataclass(frozen=True)
class DeviceCode:
    """A code that waits for its confirmation."""

    code: str
    user_code: str
    address: str
    """Where the person enters the code, or where it is filled in already."""
    interval_s: float
    expires_s: float


def sign_in(settings: Settings, tell: Callable[[DeviceCode], None]) -> Identity:
    """Sign in by a device code. `tell` shows the person the code. Raises UsageError if no login is
    configured, SetupError if the provider cannot be asked, NotPermitted if it refuses."""
    login, provider = _configured(settings)
    about = _metadata(provider)
    endpoint = about.get("device_authorization_endpoint")
    if not isinstance(endpoint, str):
        raise SetupError(f"{provider.issuer} offers no login by device code.")
    client = {"client_id": provider.device_client_id}
    device = _asked(_post(provider, endpoint, {**client, "scope": provider.scope}))
    tell(device)
    form = {**client, "grant_type": GRANT, "device_code": device.code}

    slower = 0

    def poll() -> Mapping[str, Any]:
        nonlocal slower
        time.sleep(SLOWER_S * slower)
        answer = _post(provider, about["token_endpoint"], form)
        slower += answer.get("error") == "slow_down"
        return answer

    def is_settled(answer: Mapping[str, Any]) -> bool:
        return answer.get("error") not in ("authorization_pending", "slow_down")

    answer = ask_until(poll, is_settled, device.expires_s, device.interval_s)
    return _accepted(settings, login, provider, about, answer)


def renewed(settings: Settings) -> Identity:
    """Return who is signed in, as the provider says at this moment. Raises as `sign_in`."""
    login, provider = _configured(settings)
    login_file = _read(settings)
    if login_file["issuer"] != provider.issuer:
        raise NotPermitted(_again("You are signed in at another provider"))
    about = _metadata(provider)
    form = {
        "client_id": provider.device_client_id,
        "grant_type": "refresh_token",
        "refresh_token": login_file["refresh_token"],
    }
    answer = _post(provider, about["token_endpoint"], form)
    return _accepted(settings, login, provider, about, answer)


def is_signed_in(settings: Settings) -> bool:
    """Return whether somebody has signed in. Whether that still counts is for `renewed`."""
    return settings.login is not None and _path(settings).exists()


def sign_out(settings: Settings, say: Callable[[str], None]) -> bool:
    """Forget the login here and at the provider; `say` is told if the provider cannot be reached.
    Returns whether there was a login. Raises EvidenceError, UsageError."""
    path = _path(settings)
    if not path.exists():
        return False
    _, provider = _configured(settings)
    try:
        endpoint = _metadata(provider).get("revocation_endpoint")
        token = {"client_id": provider.device_client_id, "token": _read(settings)["refresh_token"]}
        if isinstance(endpoint, str):
            httpx.post(endpoint, data=token, timeout=TIMEOUT_S)
    except (SetupError, UsageError, httpx.HTTPError) as error:
        # The login must not stay here because the provider is away, where it ends by itself.
        say(f"The provider was not told: {error}")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise EvidenceError(f"{path} cannot be deleted: {error.strerror}.") from error
    return True


class TokenKeys:
    """Checks the ID tokens that requests bear, with the provider's keys. Those are asked for again
    after `KEYS_KEPT_S`: a provider that changes them goes on signing with the old ones for
    longer."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError if no OpenID Connect login is configured."""
        self._login, self._provider = _configured(settings)
        self._turn = threading.Lock()
        self._keys: Mapping[str, Any] = {}
        self._until = 0.0

    @property
    def issuer(self) -> str:
        return self._provider.issuer

    def identity_of(self, token: str) -> Identity:
        """Return whom an ID token for the command line's client names. Raises NotPermitted,
        SetupError if the provider cannot be asked."""
        with self._turn:
            if time.monotonic() > self._until or not self._keys:
                about = _metadata(self._provider)
                self._keys = _get(self._provider, str(about.get("jwks_uri")))
                self._until = time.monotonic() + KEYS_KEPT_S
            keys = self._keys
        now = time.time()
        client = self._provider.device_client_id
        claims = verified_claims(token, keys, self._provider.issuer, client, now)
        return identity_of_claims(self._login, claims, How.OPENID, now)


def verified_claims(
    token: str, keys: Mapping[str, Any], issuer: str, client_id: str, now_s: float
) -> dict[str, Any]:
    """Return the claims of an ID token, checked by OpenID Connect Core, 3.1.3.7: signature, issuer,
    audience and times. `keys`: the provider's JWK set. Raises NotPermitted."""
    try:
        token_parts = jwt.decode(token, KeySet.import_key_set(dict(keys)), algorithms=ALGORITHMS)  # type: ignore[arg-type]
        claims = dict(token_parts.claims)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise NotPermitted(f"The ID token of {issuer} is not signed by its keys.") from error
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != issuer or client_id not in audiences:
        raise NotPermitted(f"The ID token of {issuer} is for somebody else.")
    if len(audiences) > 1 and claims.get("azp") != client_id:
        raise NotPermitted(f"The ID token of {issuer} is for somebody else.")
    until = claims.get("exp")
    if not isinstance(until, int | float) or until + CLOCKS_DIFFER_S < now_s:
        raise NotPermitted(_again(f"The ID token of {issuer} has expired"))
    return claims


def _accepted(
    settings: Settings,
    login: Login,
    provider: Provider,
    about: Mapping[str, Any],
    answer: Mapping[str, Any],
) -> Identity:
    """Check the provider's answer, and keep the refresh token in it."""
    if "id_token" not in answer or "refresh_token" not in answer:
        why = answer.get("error_description") or answer.get("error") or "there is no ID token"
        raise NotPermitted(_again(f"{provider.issuer} does not confirm your login ({why})"))
    keys = _get(provider, str(about.get("jwks_uri")))
    now = time.time()
    claims = verified_claims(
        str(answer["id_token"]), keys, provider.issuer, provider.device_client_id, now
    )
    identity = identity_of_claims(login, claims, How.DEVICE, now)
    _keep(settings, {"issuer": provider.issuer, "refresh_token": answer["refresh_token"]})
    return identity


def _asked(answer: Mapping[str, Any]) -> DeviceCode:
    try:
        return DeviceCode(
            str(answer["device_code"]),
            str(answer["user_code"]),
            str(answer.get("verification_uri_complete") or answer["verification_uri"]),
            float(answer.get("interval", INTERVAL_S)),
            float(answer["expires_in"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        why = answer.get("error_description") or answer.get("error") or "its answer is not a code"
        raise NotPermitted(f"The provider gives no device code: {why}.") from error


def _configured(settings: Settings) -> tuple[Login, Provider]:
    login = configured_login(settings)
    if login is None or login.provider is None:
        raise UsageError("No OpenID Connect login is configured. Name its file: TOPICPROOF_LOGIN.")
    return login, login.provider


def _metadata(provider: Provider) -> Mapping[str, Any]:
    about = _get(provider, provider.metadata_url)
    if about.get("issuer") != provider.issuer or not isinstance(about.get("token_endpoint"), str):
        raise SetupError(f"{provider.metadata_url} describes another issuer.")
    return about


def _get(provider: Provider, url: str) -> Mapping[str, Any]:
    return _answer(provider, lambda: httpx.get(url, timeout=TIMEOUT_S))


def _post(provider: Provider, url: str, fields: Mapping[str, str]) -> Mapping[str, Any]:
    return _answer(provider, lambda: httpx.post(url, data=dict(fields), timeout=TIMEOUT_S))


def _answer(provider: Provider, ask: Callable[[], httpx.Response]) -> Mapping[str, Any]:
    try:
        document = ask().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise SetupError(
            f"The login at {provider.issuer} cannot be asked ({type(error).__name__})."
            " `topicproof logout` forgets it here; what you then sign is unauthenticated."
        ) from error
    if not isinstance(document, dict):
        raise SetupError(f"The login at {provider.issuer} gives an answer of another kind.")
    return document


def _again(why: str) -> str:
    return f"{why}. Sign in again: topicproof login."


def _path(settings: Settings) -> Path:
    return trust_folder(settings) / KEPT


def _read(settings: Settings) -> dict[str, str]:
    path = _path(settings)
    try:
        if path.stat().st_mode & 0o077:
            raise UsageError(f"Other users can read the login {path}. Allow only you: chmod 600.")
        document = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(document[name]) for name in ("issuer", "refresh_token")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(_again(f"The login {path} cannot be read")) from error


def _keep(settings: Settings, fields: Mapping[str, Any]) -> None:
    path = _path(settings)
    fresh = path.with_name(f".{KEPT}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(fields, file)
        fresh.replace(path)
    except OSError as error:
        raise EvidenceError(f"The login {path} cannot be kept: {error.strerror}.") from error
