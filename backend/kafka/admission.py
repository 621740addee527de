"""Whether a cluster lets this client in, and if not, why: one sentence, within three seconds.

Clients retry a connection that can never succeed, and report only that time ran out. librdkafka
tells each failed attempt to its `error_cb`. What it does not tell (which certificate check failed,
whether a port speaks TLS at all) is found out by a TLS handshake of our own.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, UsageError
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.kafka.tokens import fetch_token
from topicproof.backend.properties.facts import ClientFacts, facts_of
from topicproof.backend.properties.spelling import tls_context

LIMIT_S = 3.0
"""A cluster that has not answered by then is left to the caller's own timeout. After a first error,
the cause may take as long again."""
ASK_S, SECOND_ASK_S = 0.25, 1.0
ADVERTISED_AT_ONCE = 16
"""How many advertised addresses are tried at the same time."""
HANDSHAKE_S = 1.5
_EXPIRED, _NOT_YET, _HOST, _IP = 10, 9, 62, 64
"""OpenSSL's X509_V_ERR codes."""
_NO_CERTIFICATE = ("certificate required", "bad certificate", "handshake failure")
"""OpenSSL's names of the alerts of a broker that wants a certificate."""
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A request: size, key, version, correlation id, no client id."""
_admitted: set[int] = set()
"""Addresses that let this process in. Each is asked once."""


def require_admitted(address: Address) -> None:
    """Open one connection, log in, and ask for metadata.

    Raises ClusterError naming the cause, or UsageError, if the cluster refuses, and ClusterError if
    none of the addresses that its brokers advertise can be reached. Returns if it lets us in, and
    if it does not answer at all.
    """
    key = hash((address.bootstrap, frozenset(address.client.items())))
    if key in _admitted:
        return
    facts = facts_of(address.client)
    if facts.tokens is not None:
        fetch_token(facts.tokens)
    errors: list[KafkaError] = []
    admin = open_admin(address, error_cb=errors.append)
    hosts = [_with_port(host.strip()) for host in address.bootstrap.split(",")]
    began = time.monotonic()
    patience_s = ASK_S
    while time.monotonic() < began + LIMIT_S * (2 if errors else 1):
        try:
            metadata = admin.list_topics(timeout=patience_s)
        except KafkaException as error:
            admin.poll(0)
            # Without a login librdkafka has no broker to ask. With one, a large answer may be late.
            # Or librdkafka has left the bootstrap address for an advertised one, in vain: it
            # returns there, so the next answer has all advertised addresses.
            is_late = error.args[0].code() == KafkaError._TIMED_OUT and not any(map(_node, errors))
            # On a busy machine the first answer may be late for no other reason.
            let_in = is_late and patience_s > ASK_S
            patience_s = SECOND_ASK_S
        else:
            _require_advertised(
                address, {f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}
            )
            let_in = True
        if let_in:
            _admitted.add(key)
            return
        if not any(map(_listens, hosts)):
            return
        refusal = _refusal(address, hosts, facts, errors)
        if refusal is not None:
            raise refusal
    # Metadata had these addresses, and the client has tried them since. On a busy machine it may
    # not have returned to the bootstrap address in time.
    _require_advertised(address, {match[1] for match in map(_node, errors) if match})


def _require_advertised(address: Address, advertised: Collection[str]) -> None:
    """Raises ClusterError if none of the addresses that the brokers advertise can be reached.

    A client uses the bootstrap address only to ask for these addresses, and everything after that
    goes to them. One that is down is an outage, which clients survive.
    """
    if not advertised:
        return
    with ThreadPoolExecutor(ADVERTISED_AT_ONCE) as pool:
        failures = {pool.submit(_unreachable, host): host for host in sorted(advertised)}
        reasons = []
        for future in as_completed(failures):
            reason = future.result()
            if reason is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return
            reasons.append(f"{failures[future]}, {reason}")
    reasons.sort()
    more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    raise ClusterError(
        f"Kafka at {address.bootstrap} answers, and says: reach me at {'; '.join(reasons[:3])}"
        f"{more}. Set advertised.listeners of its brokers to addresses that this machine reaches,"
        " or run this where they can be reached."
    )


def _node(error: KafkaError) -> re.Match[str] | None:
    """Match an error about an address from the cluster's metadata, `HOST:PORT/ID: …`: group 1 is
    the address. A bootstrap address has no id."""
    return re.search(r"([^/\s]+:\d+)/\d+: ", error.str())


def _unreachable(host: str) -> str | None:
    """Return why no connection to an advertised address opens; None if one does."""
    try:
        with _connection(host):
            return None
    except socket.gaierror:
        return "which this machine cannot resolve"
    except ConnectionRefusedError:
        local = host.rpartition(":")[0] in ("localhost", "127.0.0.1", "::1")
        return "where nothing listens" + (" on this machine" if local else "")
    except OSError as error:
        return f"which cannot be reached ({error.strerror or error})"


def open_admin(address: Address, **settings: Any) -> AdminClient:
    """Raises UsageError for settings that librdkafka cannot use together."""
    try:
        return AdminClient({**admin_config(address), **settings})
    except KafkaException as error:
        raise UsageError(
            f"librdkafka cannot use these client properties: {error.args[0].str()}."
        ) from error


def _refusal(
    address: Address, hosts: Sequence[str], facts: ClientFacts, errors: Sequence[KafkaError]
) -> ClusterError | None:
    """Return the cause, once each address of the bootstrap list has failed."""
    causes = [error for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
    if errors and not causes:
        return _wrong_protocol(hosts[0], facts)
    if not all(any(f"//{host}/" in error.str() for error in causes) for host in hosts):
        return None
    for error in causes:
        if error.code() == KafkaError._AUTHENTICATION:
            return _not_authenticated(address, facts, error.str())
    if not facts.has_tls:
        return None
    for host in hosts:
        if (why := _tls_refusal(host, facts)) is not None:
            return ClusterError(why)
    if any(word in error.str() for word in _NO_CERTIFICATE for error in causes):
        return ClusterError(_wants_certificate(address, facts))
    if any(error.code() == KafkaError._SSL for error in causes):
        return ClusterError(f"TLS with Kafka at {address} failed. Check the ssl.* properties.")
    return None


def _not_authenticated(address: Address, facts: ClientFacts, message: str) -> ClusterError:
    if "mechanism handshake failed" in message:
        offered = message.rpartition("supported mechanisms:")[2].partition("(")[0].strip()
        why = f"offers {offered}" if offered else "asks for no login on this port"
        return ClusterError(
            f"Kafka at {address} does not take {facts.mechanism}: it {why}. Change sasl.mechanism"
            " or security.protocol."
        )
    who = facts.tokens.client_id if facts.tokens is not None else facts.username
    return ClusterError(
        f"Kafka at {address} does not know user {who} with this password ({facts.mechanism})."
        " Check sasl.username and sasl.password."
        if facts.tokens is None
        else f"Kafka at {address} refused the token of client {who}. Check its scope and audience."
    )


def _wants_certificate(address: Address, facts: ClientFacts) -> str:
    certificate = (
        "another client certificate" if facts.identity is not None else "a client certificate"
    )
    return (
        f"Kafka at {address} asks for {certificate}. Set ssl.keystore.location, or"
        " ssl.certificate.location and ssl.key.location, to one that its authorities signed."
    )


def _wrong_protocol(host: str, facts: ClientFacts) -> ClusterError | None:
    """Return why a connection breaks without a word: client and port speak different protocols."""
    if not facts.has_tls and _speaks_tls(host):
        protocol = "SASL_SSL" if facts.has_sasl else "SSL (or SASL_SSL)"
        return ClusterError(
            f"Kafka at {host} speaks TLS, and this client does not. Set"
            f" security.protocol={protocol}."
        )
    if not facts.has_sasl and _speaks_kafka(host, facts):
        protocol = "SASL_SSL" if facts.has_tls else "SASL_PLAINTEXT"
        return ClusterError(
            f"Kafka at {host} closes the connection of a client that does not log in. Set"
            f" security.protocol={protocol}, sasl.mechanism and its user."
        )
    return None


def _connection(host: str) -> socket.socket:
    """Raises OSError."""
    name, _, port = host.rpartition(":")
    return socket.create_connection((name.strip("[]"), int(port)), HANDSHAKE_S)


def _with_port(host: str) -> str:
    """Return the address as librdkafka understands it."""
    return host if host.rpartition(":")[2].isdigit() else f"{host}:9092"


def _listens(host: str) -> bool:
    try:
        with _connection(host):
            return True
    except OSError:
        return False


def _speaks_tls(host: str) -> bool:
    """Return whether the port answers a TLS handshake, whatever its certificate says."""
    context = tls_context(ClientFacts("SSL"), verified=False)
    try:
        with _connection(host) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _speaks_kafka(host: str, facts: ClientFacts) -> bool:
    """Return whether the port answers ApiVersions, which needs no login (KIP-35, KIP-43)."""
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(_connection(host))
            if facts.has_tls:
                context = tls_context(facts, verified=False)
                connection = stack.enter_context(context.wrap_socket(connection))
            connection.sendall(_API_VERSIONS)
            answer = connection.recv(8)
    except OSError:
        return False
    return answer[4:8] == _API_VERSIONS[8:12]


def _tls_refusal(host: str, facts: ClientFacts) -> str | None:
    """Return why a TLS handshake with this address fails; None if it succeeds, or if nothing
    listens."""
    name = host.rpartition(":")[0].strip("[]")
    context = tls_context(facts)
    try:
        plain = _connection(host)
    except OSError:
        return None
    try:
        with plain, context.wrap_socket(plain, server_hostname=name):
            return None
    except ssl.SSLCertVerificationError as error:
        return _untrusted(host, name, error)
    except TimeoutError:
        return None
    except OSError as error:
        if "ALERT" in str(getattr(error, "reason", "")):
            return None
        return (
            f"Kafka at {host} does not speak TLS on this port. Set"
            f" security.protocol={'SASL_PLAINTEXT' if facts.has_sasl else 'PLAINTEXT'}, or use its"
            " port for TLS."
        )


def _untrusted(host: str, name: str, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in (_HOST, _IP):
        return (
            f"The certificate of Kafka at {host} is not for the name {name}. Use the name in the"
            " certificate, or leave ssl.endpoint.identification.algorithm empty to check no name."
        )
    if error.verify_code == _EXPIRED:
        return f"The certificate of Kafka at {host} has expired. Renew it on the broker."
    if error.verify_code == _NOT_YET:
        return f"The certificate of Kafka at {host} is not valid yet. Check both clocks."
    return (
        f"The certificate of Kafka at {host} is signed by an authority that this client does not"
        f" trust ({error.verify_message}). Set ssl.ca.location or ssl.truststore.location to that"
        " authority's certificate."
    )
