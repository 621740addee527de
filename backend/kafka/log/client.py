"""kafka-python's client: opens it, and turns its errors into sentences."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient
from kafka.cluster import get_ip_port_afi
from kafka.errors import AuthorizationError, KafkaError, SaslAuthenticationFailedError
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, UsageError
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.admission import require_admitted
from topicproof.backend.kafka.log.token_provider import TokenProvider
from topicproof.backend.properties.facts import facts_of


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


@contextmanager
def open_client(address: Address) -> Iterator[tuple[Any, Any]]:
    """Open kafka-python's admin client and the network client below it.

    Raises ClusterError, also for kafka-python's errors inside the block; UsageError for a malformed
    address.
    """
    # The library logs received bytes and every failed attempt. Real failures reach the caller as
    # errors.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    require_reachable(address.bootstrap)
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
            yield admin, opened[0]
        finally:
            admin.close()
    except KafkaError as error:
        raise cluster_error(address, error) from error


def _token_provider(address: Address) -> dict[str, TokenProvider]:
    tokens = facts_of(address.client).tokens
    return {} if tokens is None else {"sasl_oauth_token_provider": TokenProvider(tokens)}


def require_reachable(bootstrap: str) -> None:
    """Open and close a connection to one of the addresses.

    Raises ClusterError naming the reason for each address, UsageError for a malformed one.

    kafka-python itself retries a dead address until its timeout, reports only that timeout, and
    leaves sockets open.
    """
    try:
        addresses = [get_ip_port_afi(address) for address in bootstrap.split(",")]
    except ValueError as error:
        raise UsageError(
            f"The address of Kafka, {bootstrap}, must be host:port, or several with commas."
        ) from error
    refused = []
    for host, port, _family in addresses:
        try:
            with socket.create_connection(
                (host, port), client_configs.REQUEST_TIMEOUT_MS / 1000 / len(addresses)
            ):
                return
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            refused.append(f"{host}:{port}: {reason}")
    raise ClusterError(
        f"No Kafka broker can be reached ({'; '.join(refused)}). Check the address and that the"
        " broker runs."
    )


def cluster_error(address: Address, error: KafkaError) -> ClusterError:
    """Describe what happened, where, and what to do."""
    name = type(error).__name__
    details = f": {error.args[0]}" if error.args else ""
    if isinstance(error, SaslAuthenticationFailedError | AuthorizationError):
        return ClusterError(
            f"Kafka at {address} refused this client ({name}). "
            "Check the user and its rights in the client properties."
        )
    if error.retriable:
        return ClusterError(
            f"Kafka at {address} did not answer in time ({name}{details}). Check that its brokers"
            " run and that the client properties have the right security settings."
        )
    return ClusterError(f"Kafka at {address} refused the request ({name}: {error}).")
