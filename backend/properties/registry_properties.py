"""What client properties say of a schema registry, kept apart from what they say of Kafka.

The names are those of Confluent's clients. A name may begin with `schema.registry.`, as in older
Java clients, and then concerns the registry alone. A registry over https without authorities of
its own is checked with Kafka's (`ssl.ca.location`, `ssl.truststore.*`). As with Confluent's Java
clients, it gets a client certificate only from names that begin with `schema.registry.ssl.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from topicproof.backend.errors import UsageError
from topicproof.backend.properties.facts import ClientFacts, tls_facts
from topicproof.backend.properties.names import KNOWN
from topicproof.backend.properties.properties_file import Properties, place_of
from topicproof.backend.properties.spelling import tls_context
from topicproof.backend.properties.stores import Identity

URL = "schema.registry.url"
PREFIX = "schema.registry."
REQUEST_TIMEOUT_S = 5.0

_USER, _TOKEN = "basic.auth.user.info", "bearer.auth.token"
_CLUSTER, _POOL = "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_USER_SOURCE, _TOKEN_SOURCE = "basic.auth.credentials.source", "bearer.auth.credentials.source"
_OWN = (_USER, _TOKEN, _CLUSTER, _POOL, _USER_SOURCE, _TOKEN_SOURCE)
_TLS = frozenset(name for name in KNOWN if name.startswith("ssl."))
_AUTHORITIES = frozenset(name for name in _TLS if ".ca." in name or ".truststore." in name)
_CHECK_HOST = "ssl.endpoint.identification.algorithm"
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
    identity: Identity | None = field(default=None, repr=False)
    """The client's own certificate and its key, not encrypted, for mutual TLS."""

    @property
    def tls(self) -> ClientFacts:
        """How to speak TLS with the registry."""
        return ClientFacts("SSL", ca=self.ca, identity=self.identity)


def take_registry(properties: Properties, url: str | None = None) -> RegistryFacts | None:
    """Remove the registry's properties from `properties` and return what they say; None without an
    address. `url` overrides the address.

    Raises UsageError, one sentence with the line, for a wrong address, an unsupported source of
    credentials, or unreadable authorities.
    """
    names = [name for name in properties if name.startswith(PREFIX) or name in _OWN]
    for name in names:
        if name != URL and name.removeprefix(PREFIX) not in (*_OWN, *_TLS):
            raise UsageError(
                f"{place_of(properties, name)} is not supported for a schema registry. Remove the"
                " line, or correct the name."
            )
    places = {name: properties.places[name] for name in names if name in properties.places}
    settings = Properties({name: properties.pop(name) for name in names}, places)
    for name in _OF_SERIALISERS:
        properties.pop(name, None)
    address = url or settings.get(URL, "").strip()
    if not address:
        return None
    place = "TOPICPROOF_SCHEMA_REGISTRY" if url else place_of(settings, URL)
    plain, in_url = _without_login(address, place)
    for source, supported in _SOURCES.items():
        value = _value(settings, source)
        if value and value.upper() not in supported:
            name = _name(settings, source)
            raise UsageError(
                f"{place_of(settings, name)}: it must be {' or '.join(supported)}. Give the user"
                f" and the password as {_USER}, or a token as {_TOKEN}."
            )
    user_info, token = _value(settings, _USER) or in_url, _value(settings, _TOKEN)
    if user_info and ":" not in user_info:
        raise UsageError(f"{place_of(settings, _name(settings, _USER))}: it must be user:password.")
    if user_info and token:
        raise UsageError(
            f"{place_of(settings, _name(settings, _TOKEN))}: {_USER} is given too. Keep one of"
            " them."
        )
    tls = _tls(settings, properties) if plain.startswith("https") else ClientFacts()
    return RegistryFacts(
        url=plain,
        user_info=user_info,
        token=token,
        cluster=_value(settings, _CLUSTER) or "",
        pool=_value(settings, _POOL),
        ca=tls.ca,
        identity=tls.identity,
    )


@contextmanager
def registry_config(facts: RegistryFacts) -> Iterator[dict[str, Any]]:
    """Give the configuration of confluent-kafka's SchemaRegistryClient. It reads certificates and
    keys from files only: from some in a folder of this user's, until this context ends."""
    config: dict[str, Any] = {
        "url": facts.url,
        "timeout": REQUEST_TIMEOUT_S,
        "max.retries": 0,
    }
    if facts.user_info is not None:
        config[_USER] = facts.user_info
    if facts.token is not None:
        config |= {_TOKEN_SOURCE: "STATIC_TOKEN", _TOKEN: facts.token, _CLUSTER: facts.cluster}
        if facts.pool is not None:
            config[_POOL] = facts.pool
    pems = {"ssl.ca.location": facts.ca}
    if facts.identity is not None:
        pems |= {
            "ssl.certificate.location": facts.identity.chain,
            "ssl.key.location": facts.identity.key,
        }
    with TemporaryDirectory(prefix="topicproof-") as folder:
        for name, pem in pems.items():
            if pem is not None:
                path = Path(folder) / name
                path.touch(mode=0o600)
                path.write_text(pem, encoding="ascii")
                config[name] = str(path)
        yield config


def _without_login(address: str, place: str) -> tuple[str, str | None]:
    """Return the addresses without user and password, and `user:password` of the first."""
    plain, login = [], None
    for url in filter(None, map(str.strip, address.split(","))):
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{place}: it must be an http(s) address.")
        user, at, host = parts.netloc.rpartition("@")
        if at and login is None:
            login = user
        plain.append(urlunsplit(parts._replace(netloc=host)))
    return ",".join(plain), login


def _tls(properties: Properties, shared: Mapping[str, str]) -> ClientFacts:
    """Return how to speak TLS with the registry: with authorities of its own, or else Kafka's.

    Raises UsageError if something is unreadable, or does not fit together.
    """
    facts = tls_facts(properties, PREFIX).with_plain_key()
    if not facts.check_host:
        raise UsageError(
            f"{place_of(properties, PREFIX + _CHECK_HOST)}: the registry's certificate must name"
            " its host, because confluent-kafka's client always checks it. Remove the line."
        )
    if not any(PREFIX + name in properties for name in _AUTHORITIES):
        kafkas = {name: value for name, value in shared.items() if name in _AUTHORITIES}
        places = shared.places if isinstance(shared, Properties) else {}
        facts = replace(facts, ca=tls_facts(Properties(kafkas, places)).ca)
    tls_context(facts)
    return facts


def _name(properties: Mapping[str, str], name: str) -> str:
    return PREFIX + name if PREFIX + name in properties else name


def _value(properties: Mapping[str, str], name: str) -> str | None:
    return properties.get(_name(properties, name), "").strip() or None
