"""What client properties say of a schema registry, kept apart from what they say of Kafka.

The names are those of Confluent's clients. A name may begin with `schema.registry.`, as in older
Java clients, and then concerns the registry alone. A registry over https without authorities of its
own is checked with Kafka's (`ssl.ca.location`, `ssl.truststore.*`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from topicproof.backend.errors import UsageError
from topicproof.backend.properties.reading import Properties, place_of
from topicproof.backend.properties.stores import authorities

URL = "schema.registry.url"
PREFIX = "schema.registry."
REQUEST_TIMEOUT_S = 5.0

_USER, _TOKEN = "basic.auth.user.info", "bearer.auth.token"
_CLUSTER, _POOL = "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_USER_SOURCE, _TOKEN_SOURCE = "basic.auth.credentials.source", "bearer.auth.credentials.source"
_STORE, _STORE_PASSWORD = "ssl.truststore.location", "ssl.truststore.password"
_CA = "ssl.ca.location"
_OWN = (_USER, _TOKEN, _CLUSTER, _POOL, _USER_SOURCE, _TOKEN_SOURCE)
_SHARED = (_CA, _STORE, _STORE_PASSWORD, "ssl.truststore.type")
_OF_SERIALISERS = (
    *("auto.register.schemas", "use.latest.version", "specific.avro.reader"),
    *("key.subject.name.strategy", "value.subject.name.strategy", "max.schemas.per.subject"),
    *("json.fail.invalid.schema", "normalize.schemas", "avro.use.logical.type.converters"),
    *("specific.protobuf.value.type", "specific.protobuf.key.type", "json.value.type"),
)
"""Accepted, because people share one file among programs, and without effect."""
_SOURCES = {_USER_SOURCE: ("USER_INFO", "URL"), _TOKEN_SOURCE: ("STATIC_TOKEN",)}


@dataclass(frozen=True)
class RegistryFacts:
    """How to reach a schema registry. No secret is in its repr."""

    url: str
    """One address, or several separated by commas, without user and password."""
    user_info: str | None = field(default=None, repr=False)
    """`user:password` for basic authentication."""
    token: str | None = field(default=None, repr=False)
    cluster: str = ""
    """Confluent Cloud's logical cluster, for tokens."""
    pool: str | None = None
    """Confluent Cloud's identity pool, for tokens."""
    ca: str | None = field(default=None, repr=False)
    """Who may sign the registry's certificate, PEM; None: the authorities of `certifi`."""


def take_registry(given: Properties, url: str | None = None) -> RegistryFacts | None:
    """Remove the registry's properties from `given` and return what they say; None without an
    address. `url` overrides the address.

    Raises UsageError, one sentence with the line, for a wrong address, an unsupported source of
    credentials, or unreadable authorities.
    """
    names = [name for name in given if name.startswith(PREFIX) or name in _OWN]
    for name in names:
        if name != URL and name.removeprefix(PREFIX) not in (*_OWN, *_SHARED):
            raise UsageError(
                f"{place_of(given, name)} is not supported for a schema registry. Remove the line,"
                " or correct the name."
            )
    places = {name: given.places[name] for name in names if name in given.places}
    said = Properties({name: given.pop(name) for name in names}, places)
    for name in _OF_SERIALISERS:
        given.pop(name, None)
    address = url or said.get(URL, "").strip()
    if not address:
        return None
    place = "TOPICPROOF_SCHEMA_REGISTRY" if url else place_of(said, URL)
    plain, in_url = _without_login(address, place)
    for source, supported in _SOURCES.items():
        value = _value(said, source)
        if value and value.upper() not in supported:
            name = _name(said, source)
            raise UsageError(
                f"{place_of(said, name)}: it must be {' or '.join(supported)}. Give the user and"
                f" the password as {_USER}, or a token as {_TOKEN}."
            )
    user_info, token = _value(said, _USER) or in_url, _value(said, _TOKEN)
    if user_info and ":" not in user_info:
        raise UsageError(f"{place_of(said, _name(said, _USER))}: it must be user:password.")
    if user_info and token:
        raise UsageError(
            f"{place_of(said, _name(said, _TOKEN))}: {_USER} is given too. Keep one of them."
        )
    ca = _authorities(said, given) if plain.startswith("https") else None
    return RegistryFacts(
        plain, user_info, token, _value(said, _CLUSTER) or "", _value(said, _POOL), ca
    )


@contextmanager
def registry_config(facts: RegistryFacts) -> Iterator[dict[str, Any]]:
    """Give the configuration of confluent-kafka's SchemaRegistryClient. It reads authorities from
    a file only: one in a folder of this user's, until this context ends."""
    told: dict[str, Any] = {
        "url": facts.url,
        "timeout": REQUEST_TIMEOUT_S,
        "max.retries": 0,
    }
    if facts.user_info is not None:
        told[_USER] = facts.user_info
    if facts.token is not None:
        told |= {_TOKEN_SOURCE: "STATIC_TOKEN", _TOKEN: facts.token, _CLUSTER: facts.cluster}
        if facts.pool is not None:
            told[_POOL] = facts.pool
    with TemporaryDirectory(prefix="topicproof-") as folder:
        if facts.ca is not None:
            path = Path(folder) / "ca.pem"
            path.write_text(facts.ca, encoding="ascii")
            told[_CA] = str(path)
        yield told


def _without_login(address: str, place: str) -> tuple[str, str | None]:
    """Return the addresses without user and password, and `user:password` of the first."""
    plain, login = [], None
    for one in filter(None, map(str.strip, address.split(","))):
        try:
            parts = urlsplit(one)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{place}: it must be an http(s) address.")
        user, at, host = parts.netloc.rpartition("@")
        if at and login is None:
            login = user
        plain.append(urlunsplit(parts._replace(netloc=host)))
    return ",".join(plain), login


def _authorities(said: Properties, shared: Mapping[str, str]) -> str | None:
    """Return the registry's own authorities, or else Kafka's."""
    own = {name: said[PREFIX + name] for name in _SHARED if PREFIX + name in said}
    found: Mapping[str, str] = own if own.keys() & {_CA, _STORE} else shared
    for name in (_CA, _STORE):
        path = found.get(name)
        if path and path != "probe":
            place = place_of(said, PREFIX + name) if found is own else place_of(shared, name)
            return authorities(path, found.get(_STORE_PASSWORD), place)
    return None


def _name(said: Mapping[str, str], name: str) -> str:
    return PREFIX + name if PREFIX + name in said else name


def _value(said: Mapping[str, str], name: str) -> str | None:
    return said.get(_name(said, name), "").strip() or None
