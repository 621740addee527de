"""kafka-python's client: opens it, and turns its errors into sentences."""

from __future__ import annotations

import logging
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from textwrap import shorten
from typing import Any

from kafka import KafkaAdminClient
from kafka.cluster import get_ip_port_afi
from kafka.errors import (
    AuthorizationError,
    IncompatibleBrokerVersion,
    KafkaError,
    SaslAuthenticationFailedError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.sasl.oauth import AbstractTokenProvider

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, UsageError
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.admission import require_admitted
from topicproof.backend.kafka.tokens import Token, fetch_token
from topicproof.backend.properties.facts import Tokens, facts_of

_RIGHTS = {
    "abort_transaction": "Alter on the cluster",
    "describe_configs": "DescribeConfigs on {}",
    "describe_metadata_quorum": "Describe on the cluster",
    "describe_producers": "Read on topic {}",
    "describe_topics": "Describe on topic {}",
    "describe_transactions": "Describe on transactional id {}",
    "list_group_offsets": "Describe on group {}",
    "list_partition_offsets": "Describe on topic {}",
}
"""The ACL that each call needs (Kafka's documentation, "Operations and resources on protocols";
KIP-664)."""

CONNECT_TIMEOUT_S = 3.0
DETAILS_CHARACTERS = 240
MUTE = "it accepts connections, but answers nothing"
_CORRELATION_ID = b"ours"
_API_VERSIONS = struct.pack(">ihh4sh", 10, 18, 0, _CORRELATION_ID, -1)
"""Every broker answers ApiVersions in version 0, before any authentication. This request has no
client id."""
_ANSWER_BYTES = 8
"""The size of an answer, then its correlation id."""
_TLS_ALERT = b"\x15\x03"
_QUESTIONS = ((_API_VERSIONS, 2.0), (b"\r\n\r\n", 1.0))
"""What is sent to an address, and how many seconds its answer may take. Servers that speak in lines
of text answer only the second."""


class DirectSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's connection that also closes a socket whose connect failed. The scheme `direct`
    selects it."""

    SCHEMES = ("direct",)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class Admin:
    """kafka-python's admin client, with its methods. A call that the brokers do not allow notes on
    its error which right it needs."""

    def __init__(self, admin: Any) -> None:
        self.admin = admin

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.admin, name)
        return partial(_noting, method, _RIGHTS[name]) if name in _RIGHTS else method


def _noting(method: Callable[..., Any], right: str, *arguments: Any, **named: Any) -> Any:
    try:
        return method(*arguments, **named)
    except AuthorizationError as error:
        error.add_note(right.format(_resources(*arguments)))
        raise


def _resources(subject: object = (), *_more: object) -> str:
    """Return the names of what a call asked about: topics of partitions, groups, ids."""
    items = (
        subject
        if isinstance(subject, Iterable) and not isinstance(subject, str | tuple)
        else [subject]
    )
    names = sorted({str(getattr(item, "topic", getattr(item, "name", item))) for item in items})
    return ", ".join(names)


@contextmanager
def open_client(address: Address) -> Iterator[tuple[Any, Any]]:
    """Open kafka-python's admin client and the network client below it.

    Raises ClusterError, also for kafka-python's errors inside the block; UsageError for a malformed
    address.
    """
    # The library logs received bytes and every failed attempt. Real failures reach the caller as
    # errors.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    require_reachable(address)
    require_admitted(address)
    opened: list[Any] = []

    def keep(**config: object) -> Any:
        opened.append(KafkaNetClient(**config))
        return opened[0]

    try:
        try:
            admin = KafkaAdminClient(
                **client_configs.kafka_python_config(address),
                **_token_provider(address),
                kafka_client=keep,
                proxy_url="direct://",
            )
        except BaseException:
            # The constructor starts a thread before it looks for a broker, and leaves it running on
            # failure.
            for each in opened:
                each.close()
            raise
        try:
            yield Admin(admin), opened[0]
        finally:
            admin.close()
    except KafkaError as error:
        raise cluster_error(address, error) from error


def _token_provider(address: Address) -> dict[str, TokenProvider]:
    tokens = facts_of(address.client).tokens
    return {} if tokens is None else {"sasl_oauth_token_provider": TokenProvider(tokens)}


def require_reachable(address: Address) -> None:
    """Ask the addresses in turn until one answers as a Kafka broker.

    Raises ClusterError naming the reason for each address, after at most 3 s each; UsageError for a
    malformed one. A TLS listener only has to answer a handshake.

    kafka-python itself retries a dead address until its timeout, reports only that timeout, and
    leaves sockets open. For the answer to a handshake it waits forever.
    """
    try:
        places = [get_ip_port_afi(each) for each in address.bootstrap.split(",")]
    except ValueError as error:
        raise UsageError(
            f"The address of Kafka, {address}, must be host:port, or several with commas, without"
            " quotes."
        ) from error
    tls = facts_of(address.client).has_tls
    refused = []
    for host, port, _family in places:
        try:
            with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connection:
                reason = _not_tls(connection, host) if tls else _not_kafka(connection)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if not reason:
            return
        refused.append(f"{host}:{port}: {reason}")
    raise ClusterError(
        f"No Kafka broker can be reached ({'; '.join(refused)}). Check the address and that the"
        " broker runs."
    )


def _not_tls(connection: socket.socket, host: str) -> str:
    """Return what is wrong if the other side does not answer a handshake; otherwise empty."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        # A refusal is an answer too: the listener may ask for a certificate.
        with suppress(ssl.SSLError), context.wrap_socket(connection, server_hostname=host):
            return ""
    except TimeoutError:
        return MUTE
    return ""


def _not_kafka(connection: socket.socket) -> str:
    """Return what is wrong with the other side's answers; empty for a Kafka broker. Raises
    OSError."""
    answer = b""
    for question, patience_s in _QUESTIONS:
        connection.settimeout(patience_s)
        connection.sendall(question)
        with suppress(TimeoutError), connection.makefile("rb") as stream:
            answer = stream.read(_ANSWER_BYTES)
            break
    else:
        return MUTE
    if not answer or answer.startswith(_TLS_ALERT):
        return "it closes the connection; a TLS listener needs security.protocol=SSL or SASL_SSL"
    if answer.endswith(_CORRELATION_ID):
        return ""
    return f"it is no Kafka broker; its answer begins {answer.decode(errors='replace')!r}"


def cluster_error(address: Address, error: KafkaError) -> ClusterError:
    """Describe what happened, where, and what to do."""
    name = type(error).__name__
    # The library may name hundreds of partitions.
    details = f": {shorten(str(error.args[0]), DETAILS_CHARACTERS)}" if error.args else ""
    if isinstance(error, IncompatibleBrokerVersion):
        # Only the text names the request.
        request = re.search(r"'(\w+?)(Request)?'", str(error))
        request_name = request.group(1) if request else str(error)
        return ClusterError(
            f"The brokers at {address} do not offer {request_name} as it is needed here; Apache"
            " Kafka 3.0 and later do."
        )
    if isinstance(error, AuthorizationError):
        rights = getattr(error, "__notes__", [])
        return address.not_allowed(rights[0] if rights else f"a right ({name})")
    if isinstance(error, SaslAuthenticationFailedError):
        return ClusterError(
            f"Kafka at {address} refused this client ({name}). "
            "Check the user in the client properties."
        )
    if error.retriable:
        return ClusterError(
            f"Kafka at {address} did not answer in time ({name}{details}). Check that its brokers"
            " run and that the client properties have the right security settings."
        )
    message = shorten(str(error), DETAILS_CHARACTERS)
    return ClusterError(f"Kafka at {address} refused the request ({name}: {message}).")


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Keeps a token until most of its lifetime has passed. Raises ClusterError if none can be
    fetched."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self.tokens = tokens
        self.kept: Token | None = None

    def token(self) -> str:
        if self.kept is None or not self.kept.is_fresh:
            self.kept = fetch_token(self.tokens)
        return self.kept.text

    def extensions(self) -> dict[str, str]:
        return dict(self.tokens.extensions)
