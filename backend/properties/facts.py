"""What client properties say, in words of no client.

People write them in Kafka's Java names and in librdkafka's, also mixed. They are translated once,
into `ClientFacts`; `spelling.py` says them again in the words of each client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from topicproof.backend.errors import UsageError
from topicproof.backend.properties.jaas import PLAIN, QUOTES, SCRAM, TOKENS, Login, parse_login
from topicproof.backend.properties.names import MSK_IAM, others
from topicproof.backend.properties.properties_file import place_of, read_text
from topicproof.backend.properties.stores import (
    Identity,
    authorities,
    identity,
    pem_certificates,
    pem_key,
    plain_key,
)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER = "OAUTHBEARER"
MODULES = {"PLAIN": PLAIN, "SCRAM-SHA-256": SCRAM, "SCRAM-SHA-512": SCRAM, OAUTHBEARER: TOKENS}
"""The login module of each supported mechanism."""
_EXTENSION_KEY = re.compile("[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\t !-+\--\[\]-~]+")
STORE_TYPES = ("JKS", "PKCS12", "PEM")


@dataclass(frozen=True)
class Tokens:
    """Where tokens come from: OAuth 2.0 client credentials (RFC 6749, section 4.4; KIP-768)."""

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    """SASL extensions (KIP-342)."""
    ca: str | None = field(default=None, repr=False)
    """Who may sign the endpoint's certificate, PEM; None: the system's authorities."""

    @property
    def shown_endpoint(self) -> str:
        """The endpoint for people: its query may hold a key."""
        return self.endpoint.partition("?")[0]


@dataclass(frozen=True)
class ClientFacts:
    """How to connect. Certificates and keys are PEM text. No secret is in its repr."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tokens: Tokens | None = None
    ca: str | None = field(default=None, repr=False)
    """Who may sign a broker's certificate; None: the system's authorities."""
    identity: Identity | None = field(default=None, repr=False)
    """The client's own certificate and key, for mutual TLS."""
    check_host: bool = True
    """Whether the broker's certificate must name its host (KIP-294)."""
    others: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of librdkafka that concern no security."""

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def with_plain_key(self) -> ClientFacts:
        """Return the same with a key that is not encrypted. Raises UsageError for its password."""
        if self.identity is None:
            return self
        client_identity = self.identity
        key = plain_key(client_identity.key, client_identity.key_password, client_identity.place)
        return replace(self, identity=Identity(client_identity.chain, key))


def facts_of(properties: Mapping[str, str]) -> ClientFacts:
    """Translate client properties. Files that they name are read now.

    Raises UsageError, one sentence with the line, for what is unknown, contradictory, unreadable,
    or not possible with each of the three clients.
    """
    rest = others(properties)
    lookup = _PropertyLookup(properties)
    protocol = lookup.value("security.protocol") or "PLAINTEXT"
    if protocol.upper() not in PROTOCOLS:
        raise lookup.error("security.protocol", _not_one_of(protocol, PROTOCOLS))
    facts = ClientFacts(protocol.upper(), others=rest)
    if facts.has_sasl:
        facts = _with_login(facts, lookup)
    if facts.has_tls:
        facts = _with_tls(facts, lookup)
    return facts


def tls_facts(properties: Mapping[str, str], prefix: str = "") -> ClientFacts:
    """Return what properties say of TLS alone; `prefix` stands before each of their names.

    Raises UsageError as `facts_of` does.
    """
    return _with_tls(ClientFacts("SSL"), _PropertyLookup(properties, prefix))


def _with_tls(facts: ClientFacts, lookup: _PropertyLookup) -> ClientFacts:
    return replace(
        facts, ca=_ca(lookup), identity=_identity(lookup), check_host=_check_host(lookup)
    )


class _PropertyLookup:
    """The properties, and what to say about them."""

    def __init__(self, properties: Mapping[str, str], prefix: str = "") -> None:
        self.properties = properties
        self.prefix = prefix
        """What stands before each name in `properties`."""

    def value(self, *names: str) -> str | None:
        """Return the value of one of the names; None if each is absent or empty. Raises UsageError
        if two of them disagree."""
        present = {name: self.properties[self.prefix + name] for name in names if self.has(name)}
        if len(set(present.values())) > 1:
            first, second = list(present)[:2]
            raise self.error(second, f"{self.prefix}{first} says something else. Keep one of them")
        return next(iter(present.values()), None)

    def one_of(self, *names: str) -> str | None:
        """Return which of the names is given. Raises UsageError if several are."""
        present = [name for name in names if self.has(name)]
        if len(present) > 1:
            first = self.prefix + present[0]
            raise self.error(present[1], f"{first} already gives it. Keep one of them")
        return present[0] if present else None

    def has(self, name: str) -> bool:
        """Return whether the name has a value that is not empty."""
        return bool(self.properties.get(self.prefix + name, "").strip())

    def error(self, name: str, why: str) -> UsageError:
        return UsageError(f"{self.place(name)}: {why}.")

    def place(self, name: str) -> str:
        return place_of(self.properties, self.prefix + name)


def _with_login(facts: ClientFacts, lookup: _PropertyLookup) -> ClientFacts:
    names = ("sasl.mechanism", "sasl.mechanisms")
    value = lookup.value(*names) or ""
    mechanism = value.upper()
    if mechanism not in MODULES:
        name = names[1] if names[1] in lookup.properties else names[0]
        raise lookup.error(name, _no_mechanism(value))
    text = lookup.value("sasl.jaas.config")
    login = parse_login(text, lookup.place("sasl.jaas.config")) if text else None
    if login is not None and login.module != MODULES[mechanism]:
        raise lookup.error(
            "sasl.jaas.config", f"{mechanism} needs the login module {MODULES[mechanism]}"
        )
    if mechanism == OAUTHBEARER:
        return replace(facts, mechanism=mechanism, tokens=_tokens(lookup, login))
    if login is not None and login.options.get("tokenauth", "").lower() == "true":
        raise lookup.error("sasl.jaas.config", "delegation tokens (tokenauth) are not supported")
    username = _from_login(lookup, login, "username", "sasl.username")
    password = _from_login(lookup, login, "password", "sasl.password")
    return replace(facts, mechanism=mechanism, username=username, password=password)


def _no_mechanism(value: str) -> str:
    """Explain what is wrong with a mechanism, or with its absence, and what to write."""
    if not value:
        return (
            "it is missing, and GSSAPI (Kerberos), which is meant without it, is not supported."
            f" Write which of {', '.join(MODULES)} the brokers have"
        )
    if value.upper() == "AWS_MSK_IAM":
        return MSK_IAM
    if value.upper() == "GSSAPI":
        return f"GSSAPI (Kerberos) is not supported. Supported are {', '.join(MODULES)}"
    return _not_one_of(value, tuple(MODULES))


def _not_one_of(value: str, allowed: tuple[str, ...]) -> str:
    """Explain why a value is none of those allowed: all of the line behind `=` belongs to it."""
    bare = re.split(r"\s+[#!;]|\s//", value)[0].strip(QUOTES)
    if bare != value and bare.upper() in allowed:
        return f"it reads {value!r}: comments and quotes belong to the value. Write {bare} alone"
    return f"it must be one of {', '.join(allowed)}, and reads {value!r}"


def _from_login(lookup: _PropertyLookup, login: Login | None, option: str, *names: str) -> str:
    """Return what the login says, or one of the names. Raises UsageError if nothing does, or both
    do and disagree."""
    in_login = login.options.get(option) if login is not None else None
    other = lookup.value(*names)
    if in_login is not None and other is not None and in_login != other:
        raise lookup.error(names[0], "sasl.jaas.config says something else. Keep one of them")
    if in_login is None and other is None:
        raise lookup.error(names[0], f"it is missing, and sasl.jaas.config has no {option}")
    return in_login if in_login is not None else other or ""


def _tokens(lookup: _PropertyLookup, login: Login | None) -> Tokens:
    options = login.options if login is not None else {}
    unsecured = [name for name in options if name.startswith("unsecured")]
    if unsecured:
        raise lookup.error("sasl.jaas.config", "unsigned tokens are not supported")
    options = _of_strimzi(lookup, options)
    prefix = "sasl.oauthbearer"
    endpoint = _from_options(lookup, options, _ENDPOINT, f"{prefix}.{_ENDPOINT}")
    if endpoint is None:
        raise lookup.error(
            f"{prefix}.{_ENDPOINT}",
            "it is missing. Write the http(s) address that gives tokens, and"
            f" {prefix}.client.id and {prefix}.client.secret. Tokens that a program makes itself,"
            " as for Amazon MSK's IAM, are not supported",
        )
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise lookup.error(f"{prefix}.{_ENDPOINT}", "it must be an http(s) address")
    if "@" in urlsplit(endpoint).netloc:
        raise lookup.error(
            f"{prefix}.{_ENDPOINT}",
            "it has a user, which errors would show. Leave it out: the client id and its secret"
            " have properties of their own",
        )
    login = login and replace(login, options=options)
    return Tokens(
        endpoint,
        _from_login(
            lookup,
            login,
            "clientId",
            f"{prefix}.client.id",
            f"{prefix}.client.credentials.client.id",
        ),
        _from_login(
            lookup,
            login,
            "clientSecret",
            f"{prefix}.client.secret",
            f"{prefix}.client.credentials.client.secret",
        ),
        lookup.value(f"{prefix}.scope") or options.get("scope"),
        _extensions(lookup, options),
        _token_ca(lookup, _PropertyLookup(options)),
    )


def _extensions(lookup: _PropertyLookup, options: Mapping[str, str]) -> dict[str, str]:
    """Return the SASL extensions (RFC 7628). Raises UsageError for one that could end inside the
    message to the broker, or inside the list for librdkafka, and begin another."""
    name = "sasl.oauthbearer.extensions"
    pairs = filter(None, map(str.strip, (lookup.value(name) or "").split(",")))
    extensions = [(*pair.partition("="), name) for pair in pairs]
    extensions += [
        (option.removeprefix("extension_"), "=", value, "sasl.jaas.config")
        for option, value in options.items()
        if option.startswith("extension_")
    ]
    for key, equals, value, place in extensions:
        if not _EXTENSION_KEY.fullmatch(key) or key == "auth" or not equals:
            raise lookup.error(
                place, "an extension is NAME=VALUE, its name has only letters, and is not auth"
            )
        if not _EXTENSION_VALUE.fullmatch(value):
            raise lookup.error(
                place,
                f"the extension {key} has a character that is not allowed. Use printable ASCII"
                " without comma and backslash",
            )
    return {key: value for key, _, value, _ in extensions}


def _from_options(
    lookup: _PropertyLookup, options: Mapping[str, str], option: str, name: str
) -> str | None:
    """Return what the login or the property says. Raises UsageError if they disagree."""
    in_login, other = options.get(option), lookup.value(name)
    if in_login is not None and other is not None and in_login != other:
        raise lookup.error(name, "sasl.jaas.config says something else. Keep one of them")
    return in_login or other


_ENDPOINT = "token.endpoint.url"
_STRIMZI = {
    "oauth.token.endpoint.uri": _ENDPOINT,
    "oauth.client.id": "clientId",
    "oauth.client.secret": "clientSecret",
    "oauth.scope": "scope",
    "oauth.ssl.truststore.location": "ssl.truststore.location",
    "oauth.ssl.truststore.certificates": "ssl.truststore.certificates",
    "oauth.ssl.truststore.password": "ssl.truststore.password",
    "oauth.ssl.truststore.type": "ssl.truststore.type",
}
"""Kafka's names for the options of Strimzi's login handler."""
_STRIMZI_IGNORED = (
    *("oauth.access.token.is.jwt", "oauth.username.claim", "oauth.fallback.username.claim"),
    *("oauth.fallback.username.prefix", "oauth.max.token.expiry.seconds", "oauth.enable.metrics"),
    *("oauth.connect.timeout.seconds", "oauth.read.timeout.seconds", "oauth.http.retries"),
    *("oauth.http.retry.pause.millis", "oauth.include.accept.header"),
)
"""How that handler reads tokens, or how patient it is: the brokers see no difference."""


def _of_strimzi(lookup: _PropertyLookup, options: Mapping[str, str]) -> Mapping[str, str]:
    """Return a login's options with Kafka's names instead of Strimzi's. Raises UsageError for an
    option that would not be kept, and for facts that only the environment of Strimzi has."""
    handler = lookup.value("sasl.login.callback.handler.class") or ""
    if not handler.startswith("io.strimzi.") and not any(n.startswith("oauth.") for n in options):
        return options
    unknown = [
        name
        for name in options
        if name.startswith("oauth.") and name not in (*_STRIMZI, *_STRIMZI_IGNORED)
    ]
    if unknown:
        raise lookup.error(
            "sasl.jaas.config",
            f"the option {unknown[0]} of Strimzi's login is not supported: only tokens by"
            " oauth.token.endpoint.uri, oauth.client.id and oauth.client.secret are",
        )
    needed = list(_STRIMZI)[:3]
    missing = [name for name in needed if name not in options and _STRIMZI[name] not in options]
    if missing:
        raise lookup.error(
            "sasl.jaas.config",
            f"Strimzi's login has no {missing[0]} there. Its programs may take it from their"
            f' environment; write {missing[0]}="VALUE" into the line',
        )
    remaining = {name: value for name, value in options.items() if name not in _STRIMZI_IGNORED}
    return {_STRIMZI.get(name, name): value for name, value in remaining.items()}


def _token_ca(lookup: _PropertyLookup, login: _PropertyLookup) -> str | None:
    """Return who may sign the token endpoint's certificate: librdkafka has properties for it, Java
    options of the login."""
    in_login = _ca(login)
    other = _pem_of(lookup, "https.ca.location", "https.ca.pem")
    if in_login is not None and other is not None:
        raise lookup.error("sasl.jaas.config", "https.ca.* already gives its trust store")
    return in_login if in_login is not None else other


def _check_host(lookup: _PropertyLookup) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = lookup.properties.get(lookup.prefix + name, "https").strip().lower()
    if algorithm not in ("https", "", "none"):
        raise lookup.error(name, "it must be https, or empty for no check of the host name")
    return algorithm == "https"


def _ca(lookup: _PropertyLookup) -> str | None:
    stores = ("ssl.truststore.location", "ssl.truststore.certificates")
    name = lookup.one_of("ssl.ca.location", "ssl.ca.pem", *stores)
    if name in stores:
        _require_type(lookup, "ssl.truststore.type")
    if name != stores[0]:
        return _pem_of(lookup, "ssl.ca.location", "ssl.ca.pem", stores[1])
    password = lookup.value("ssl.truststore.password")
    return authorities(lookup.value(name) or "", password, lookup.place(name))


def _pem_of(lookup: _PropertyLookup, location: str, *inline: str) -> str | None:
    name = lookup.one_of(location, *inline)
    value = lookup.value(name) if name else None
    if name is None or value is None or value == "probe":
        return None  # The word of librdkafka for the system's authorities.
    if name == location:
        return authorities(value, None, lookup.place(name))
    return pem_certificates(value, lookup.place(name))


def _identity(lookup: _PropertyLookup) -> Identity | None:
    store, chain, key = (
        lookup.one_of("ssl.keystore.location"),
        lookup.one_of(
            "ssl.certificate.location",
            "ssl.certificate.pem",
            "ssl.keystore.certificate.chain",
            "ssl.keystore.location",
        ),
        lookup.one_of(
            "ssl.key.location", "ssl.key.pem", "ssl.keystore.key", "ssl.keystore.location"
        ),
    )
    password = lookup.value("ssl.key.password")
    place = lookup.place("ssl.key.password" if password else store or key or chain or "")
    if store is not None:
        _require_type(lookup, "ssl.keystore.type")
        store_password = lookup.value("ssl.keystore.password")
        store_identity = identity(
            lookup.value(store) or "", store_password, password, lookup.place(store)
        )
        return replace(store_identity, place=place)
    if chain is None and key is None:
        return None
    if chain is None:
        raise lookup.error(key or "", "a key needs its certificate too (ssl.certificate.location)")
    certificates = _text(lookup, chain, "ssl.certificate.location")
    own_key = _text(lookup, key, "ssl.key.location") if key else certificates
    return Identity(
        pem_certificates(certificates, lookup.place(chain), lookup.value(chain) or ""),
        pem_key(own_key, lookup.place(key or chain)),
        password,
        place,
    )


def _text(lookup: _PropertyLookup, name: str, location: str) -> str:
    value = lookup.value(name) or ""
    return read_text(Path(value), lookup.place(name)) if name == location else value


def _require_type(lookup: _PropertyLookup, name: str) -> None:
    kind = lookup.value(name)
    if kind is not None and kind.upper() not in STORE_TYPES:
        raise lookup.error(name, f"it must be one of {', '.join(STORE_TYPES)}")
