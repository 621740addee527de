"""The channel of Spark Connect's client: where a token may go."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder, core

from topicproof.backend.errors import SparkError
from topicproof.backend.services.processes import LOOPBACK, listener_uids
from topicproof.backend.services.spark import AUTHORIZATION, KEEPER, LISTENER_UID
from topicproof.validators.spark_errors import ENDED

THIS_MACHINE = (LOOPBACK, "localhost", "::1")


class OwnChannelBuilder(DefaultChannelBuilder):
    """PySpark's channel, whose token goes only to the right program of this machine.

    `localhost` may be resolved to `::1` first, where another user may listen at the same port. So
    without TLS it means 127.0.0.1. The address of an embedded server also names the user whose
    process must listen there. gRPC connects again by itself, and the port of a server that has
    ended is free for anybody, so each call asks for that.
    """

    def __init__(self, url: str, channelOptions: list[tuple[str, Any]] | None = None) -> None:
        self.is_local = urlsplit(url).hostname in THIS_MACHINE
        # The environment's proxy is not used for this machine.
        proxy = ("grpc.enable_http_proxy", int(not self.is_local))
        super().__init__(url, [*(channelOptions or ()), proxy])
        self._listener_uid = self._params.pop(LISTENER_UID, None)
        self._params.pop(KEEPER, None)
        self._header: str | None = None
        """The header with the token, for a server of this machine without TLS."""
        if self.is_local and not self.use_ssl:
            bearer = f"Bearer {self.token}" if self.token is not None else None
            self._header = self._params.pop(AUTHORIZATION, bearer)

    @property
    def endpoint(self) -> str:
        if self._host == "localhost" and not self.use_ssl:
            return f"{LOOPBACK}:{self._port}"
        return super().endpoint  # With TLS, the certificate has the name.

    def toChannel(self) -> grpc.Channel:
        if not self.is_local or self.use_ssl:
            return super().toChannel()
        if self._header is None:
            return self._insecure_channel(self.endpoint)
        # gRPC asks for the header when it has a connection, and sends nothing before.
        return self._secure_channel(
            self.endpoint,
            grpc.composite_channel_credentials(
                grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP),
                grpc.metadata_call_credentials(self._give_header, "token"),
            ),
        )

    def _give_header(
        self, _context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback
    ) -> None:
        uids = None if self._listener_uid is None else listener_uids(self._port)
        if uids is None or uids == {int(self._listener_uid or 0)}:
            callback(((AUTHORIZATION, self._header),), None)
        else:
            callback((), SparkError(f"Another user's program has its port. {ENDED}"))


def use_for_all() -> None:
    """Let PySpark's own sessions of this process use our channel."""
    core.DefaultChannelBuilder = OwnChannelBuilder  # type: ignore[misc]
