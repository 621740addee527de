"""The login of the dashboard and of the command line, from a file in YAML.

    openid:
      issuer: https://sso.example/realms/team
      client_id: topicproof
      client_secret_file: client-secret.txt
      address: https://proof.example
      device_client_id: topicproof-cli
    roles:
      claim: realm_access.roles
      operator: [kafka-operators]
      signer: [qa]
    hours: 12

Instead of `openid`, `proxy` trusts the headers of a proxy that has a login of its own:

    proxy: {user: X-Forwarded-User, groups: X-Forwarded-Groups, from: [127.0.0.1]}

`masks` are explained in masking.py. TOPICPROOF_LOGIN names the file.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field as FieldInfo, ValidationError

from topicproof.backend.address import require_no_secret
from topicproof.backend.errors import NotPermitted, UsageError
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import PROXY_ISSUER, How, Identity, Role, cleaned
from topicproof.backend.trust.keys import read_secret, require_own
from topicproof.backend.trust.masking import (
    Field,
    Mask,
    masked_anywhere,
    masked_fields,
    parse_field,
)
from topicproof.backend.yaml_fields import Subject, YamlFields, read_yaml, why_refused

HOURS = 12.0
LOGIN_FIELDS = Subject(
    "login", "fields, for example `openid: {issuer: https://login.example}`", is_settings=True
)
"""How long a login lasts, unless the file says otherwise."""
CLOCKS_DIFFER_S = 60
"""How far a provider's clock may be ahead of ours."""
LOOPBACK = ("127.0.0.1", "::1")
_Text = Annotated[str, FieldInfo(min_length=1)]
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class _OpenId(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    issuer: _Text
    client_id: _Text
    client_secret: _Text | None = None
    client_secret_file: Path | None = None
    address: _Text | None = None
    device_client_id: _Text | None = None
    person: _Text | None = None
    scope: _Text = "openid profile email"


class _Proxy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    user: _Text
    groups: _Text | None = None
    from_: Annotated[tuple[str, ...], FieldInfo(alias="from", min_length=1)] = LOOPBACK


class _Roles(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    claim: _Text = "roles"
    viewer: tuple[str, ...] = (Role.VIEWER,)
    operator: tuple[str, ...] = (Role.OPERATOR,)
    signer: tuple[str, ...] = (Role.SIGNER,)
    admin: tuple[str, ...] = (Role.ADMIN,)


def _field(text: object) -> Field:
    return parse_field(str(text))


class _Mask(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    topics: _Text
    fields_: Annotated[
        tuple[Annotated[Field, BeforeValidator(_field)], ...],
        FieldInfo(alias="fields", min_length=1),
    ]
    shown_to: tuple[Role, ...] = (Role.ADMIN,)


class _LoginFields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    openid: _OpenId | None = None
    proxy: _Proxy | None = None
    roles: _Roles = _Roles()
    masks: tuple[_Mask, ...] = ()
    hours: Annotated[float, FieldInfo(gt=0, le=720)] = HOURS


@dataclass(frozen=True)
class Provider:
    """An OpenID Connect provider."""

    issuer: str
    client_id: str
    client_secret: str | None = field(repr=False)
    """Of the dashboard's client; the command line needs none."""
    address: str | None
    """URL of the dashboard, as browsers open it."""
    device_client_id: str
    """The public client of the command line."""
    person: str | None = None
    """The claim that names a person alike in all clients; None: nobody said. The subject may differ
    from client to client."""
    scope: str = "openid"
    """What to ask the provider for: some give groups only for a scope of their own."""

    @property
    def knows_people(self) -> bool:
        """Whether one person cannot seem to be two."""
        return self.person is not None or self.client_id == self.device_client_id

    @property
    def metadata_url(self) -> str:
        return f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"


@dataclass(frozen=True)
class Proxy:
    """A proxy in front of the dashboard that knows who its user is."""

    user: str
    """The header that names the person."""
    groups: str | None
    """The header with the person's groups, separated by commas."""
    peers: tuple[_Network, ...]
    """Whose headers are believed. All other peers are refused."""

    def trusts(self, peer: str) -> bool:
        try:
            peer_address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(peer_address in network for network in self.peers)


@dataclass(frozen=True)
class Login:
    """Who may come in, and as what: by exactly one of provider and proxy."""

    provider: Provider | None
    proxy: Proxy | None
    claim: str
    """The claim with the groups of a person: a name, or a path such as realm_access.roles."""
    groups: Mapping[Role, frozenset[str]]
    """The groups that give each role."""
    hours: float
    """How long a login by the provider lasts."""
    masks: tuple[Mask, ...] = ()
    """What some roles do not see."""

    def roles(self, groups: Sequence[str]) -> frozenset[Role]:
        return frozenset(
            role for role, role_groups in self.groups.items() if role_groups & set(groups)
        )

    def hidden(self, by: Identity, *topics: str | None) -> tuple[Field, ...]:
        """Return what a person does not see of these topics; of unknown topics, what any rule
        masks."""
        if not any(topics):
            return masked_anywhere(self.masks, by)
        return tuple(
            each for topic in topics if topic for each in masked_fields(self.masks, topic, by)
        )


def configured_login(settings: Settings) -> Login | None:
    """Return the configured login; None if there is none. Read once by each process. Raises
    UsageError naming the line and the field."""
    return None if settings.login is None else _read_once(settings.login)


@cache
def _read_once(path: Path) -> Login:
    return read_login(path)


def dashboard_provider(login: Login) -> Provider:
    """Return the provider for a dashboard, which needs more of it than the command line. Raises
    UsageError."""
    provider = login.provider
    if provider is None or not provider.client_secret or not provider.address:
        raise UsageError(
            "The dashboard's login needs openid.address, its own URL, and a client secret:"
            " openid.client_secret_file."
        )
    return provider


def read_login(path: Path) -> Login:
    """Read a login from its file. Raises UsageError as `configured_login`."""
    fields = read_yaml(path, LOGIN_FIELDS)
    try:
        model = _LoginFields.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        why = "there is no such field" if first["type"] == "extra_forbidden" else why_refused(first)
        raise _wrong(fields, first["loc"], why) from error
    if (model.openid is None) == (model.proxy is None):
        raise UsageError(f"The login {path} needs either openid or proxy.")
    return Login(
        None if model.openid is None else _provider(fields, model.openid),
        None if model.proxy is None else _proxy(fields, model.proxy),
        model.roles.claim,
        {role: frozenset(getattr(model.roles, role)) for role in Role},
        model.hours,
        tuple(Mask(mask.topics, mask.fields_, frozenset(mask.shown_to)) for mask in model.masks),
    )


def _provider(fields: YamlFields, openid: _OpenId) -> Provider:
    for name in ("issuer", "address"):
        url = getattr(openid, name)
        if url is not None and not _is_private(url):
            raise _wrong(fields, ("openid", name), "it must begin with https://, or be on loopback")
        try:
            require_no_secret(url or "")
        except ValueError as error:
            raise _wrong(fields, ("openid", name), str(error)) from error
    secret = openid.client_secret
    if secret is not None:
        require_own(fields.path)
    if openid.client_secret_file is not None:
        secret = read_secret(fields.path.parent / openid.client_secret_file.expanduser())
    address = openid.address and openid.address.rstrip("/")
    device = openid.device_client_id or openid.client_id
    return Provider(
        openid.issuer, openid.client_id, secret, address, device, openid.person, openid.scope
    )


def _proxy(fields: YamlFields, proxy: _Proxy) -> Proxy:
    try:
        peers = tuple(ipaddress.ip_network(network) for network in proxy.from_)
    except ValueError as error:
        raise _wrong(fields, ("proxy", "from"), str(error)) from error
    return Proxy(proxy.user.lower(), proxy.groups and proxy.groups.lower(), peers)


def _wrong(fields: YamlFields, place: tuple[str | int, ...], why: str) -> UsageError:
    return UsageError(f"{fields.where(place)}: {'.'.join(map(str, place))}: {why}.")


def _is_private(url: str) -> bool:
    """Return whether nobody on the way can read or change what goes to this URL."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    near = parts.scheme == "http" and host in (*LOOPBACK, "localhost")
    return bool(host) and (parts.scheme == "https" or near)


def identity_of_claims(login: Login, claims: Mapping[str, Any], how: How, now_s: float) -> Identity:
    """Return the person whom the provider's claims name. `now_s`: seconds since 1970.

    The caller has checked the claims' signature. Raises NotPermitted with the reason if the login
    is too old, is of another provider, or gives no role here.
    """
    provider = login.provider
    if provider is None or claims.get("iss") != provider.issuer:
        raise NotPermitted("This login is by another provider. Sign in again.")
    subject, issued = claims.get("sub"), claims.get("iat")
    if not isinstance(subject, str) or not subject or not isinstance(issued, int | float):
        raise NotPermitted("This login names nobody. Sign in again.")
    if not -CLOCKS_DIFFER_S <= now_s - issued <= login.hours * 3600:
        raise NotPermitted("This login has ended. Sign in again.")
    names = (claims.get(key) for key in ("name", "preferred_username", "email", "sub"))
    name = cleaned(str(next(filter(None, names))))
    roles = login.roles(_groups(claims, login.claim))
    person = _person(claims, provider.person)
    return _with_role(Identity(name, provider.issuer, subject, roles, how, person))


def _person(claims: Mapping[str, Any], claim: str | None) -> str:
    """Return the value of the claim that names a person; empty without one. Raises NotPermitted."""
    if claim is None:
        return ""
    value = claims.get(claim)
    if not isinstance(value, str) or not value:
        raise NotPermitted(
            f"The provider gives no claim {claim}, which openid.person of the login names."
        )
    if claim == "email" and claims.get("email_verified") is not True:
        raise NotPermitted(
            "The provider has not verified the address of this login, and openid.person names it."
        )
    return value


def identity_of_headers(login: Login, headers: Mapping[str, str]) -> Identity:
    """Return the person whom a proxy's headers name. The caller has checked that the peer is the
    proxy. Raises NotPermitted."""
    proxy = login.proxy
    user = "" if proxy is None else headers.get(proxy.user, "").strip()
    if proxy is None or not user:
        raise NotPermitted("The proxy did not say who you are.")
    groups = headers.get(proxy.groups, "") if proxy.groups else ""
    roles = login.roles([group.strip() for group in groups.split(",")])
    issuer = f"{PROXY_ISSUER}{proxy.user}"
    return _with_role(Identity(cleaned(user), issuer, user, roles, How.PROXY))


def _with_role(identity: Identity) -> Identity:
    if not identity.roles:
        raise NotPermitted(
            f"{identity.name} is known, but has no role here. Ask who runs this dashboard for one."
        )
    return identity


def _groups(claims: Mapping[str, Any], path: str) -> list[str]:
    """Return the strings of a claim, which is named or, with dots, inside of others."""
    value: Any = claims
    if path in claims:
        value = claims[path]
    else:
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return [value]
    return [group for group in value if isinstance(group, str)] if isinstance(value, list) else []
