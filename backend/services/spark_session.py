"""Sessions on a Spark Connect server. As a process: releases the session whose address it reads."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import grpc
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from topicproof.backend.errors import ShellFailed, SparkError
from topicproof.backend.services.spark import (
    MEANING,
    SESSION_TIMEOUT_S,
    keeper_of,
    no_address,
    without_token,
)
from topicproof.backend.services.spark_channel import OwnChannelBuilder
from topicproof.backend.storage import Storage, attach
from topicproof.validators.spark_errors import (
    ENDED,
    OF_VALUES,
    first_line,
    server_ended,
    setup_line,
)

ANY_SETTING = "spark.sql.session.timeZone"
"""A question about it keeps a session alive. One about the version does not."""
ASKED_S = 2.0
"""How long the end of a session waits for a question that is on its way."""
VALUE_LOGGERS = ("SQLQueryContextLogger", "pyspark.sql.connect.logging")
"""They log each error of an expression, with values of records in it. The error itself is raised.
PySpark disables the second one itself, and whoever configures logging in this process, such as
uvicorn, enables what is disabled."""
SHELL_FAILED = "org.apache.hadoop.util.Shell$ExitCodeException"
"""What Spark's error text has if a program that Hadoop started has failed."""

CONNECT_RETRIES, CONNECT_BACKOFF_MS = 4, 1_000
"""A server that does not answer is asked again this often, within about 3 s. Spark's default of 10
minutes suits a network that comes back, but not a dead server on this machine."""


def connect(remote: str) -> SparkSession:
    """Open a new session on the server. Raises SparkError when nothing answers there."""
    try:
        channel = OwnChannelBuilder(remote)
    except (PySparkException, ValueError):
        raise no_address(remote) from None  # Its text has the address.
    # As in `SparkSession.builder.remote`, which accepts no channel: makes `pyspark.sql.functions`
    # build columns for Connect.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    for name in VALUE_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    session = ConnectSession.builder.channelBuilder(channel).create()
    client = session.client
    patience = client.get_retry_policies()
    try:
        client.set_retry_policies(
            [DefaultPolicy(max_retries=CONNECT_RETRIES, max_backoff=CONNECT_BACKOFF_MS)]
        )
        # The error below reports it. The filter stays: the server may go away later.
        warnings.filterwarnings("ignore", ".*RETRIES_EXCEEDED")
        session.version  # noqa: B018  the first question to the server; creating a session asks nothing
        if not channel.is_local:
            client.set_retry_policies(patience)
    except Exception as error:
        client.close()
        details = re.search(r'details = "([^"]+)"', str(error))
        why = details[1] if details else setup_line(error)
        raise SparkError(
            f"Spark does not answer at {without_token(remote)}. Check SPARK_REMOTE. ({why})"
        ) from error
    try:
        _mean_the_same(session, remote)
    except SparkError:
        session.stop()
        raise
    return cast("SparkSession", session)


def _mean_the_same(session: ConnectSession, remote: str) -> None:
    """Raises SparkError if the server refuses one of the settings in `MEANING`."""
    for name, value in MEANING.items():
        try:
            if session.conf.get(name, value) != value:
                session.conf.set(name, value)
        except PySparkException as error:
            raise SparkError(
                f"Spark at {without_token(remote)} refuses {name}={value}, so a contract would mean"
                f" something else there. ({setup_line(error)})"
            ) from error


@contextmanager
def spark_session(remote: str, storage: Storage | None = None) -> Iterator[SparkSession]:
    """Open a new session until the block ends. `storage`: where it keeps files, if not on this
    machine's disk. Raises SparkError if nothing answers there, EvidenceError."""
    session = connect(remote)
    if storage is not None:
        attach(session, storage)
    with _released_if_killed(session, keeper_of(remote)):
        try:
            with kept_alive(lambda: session.conf.get(ANY_SETTING)):
                yield session
        finally:
            session.stop()
            if storage is not None:
                storage.close()


@contextmanager
def _released_if_killed(session: SparkSession, keeper: str) -> Iterator[None]:
    """Let the server's keeper release the session if this process is killed in the block. `keeper`:
    its socket; empty: there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        # A keeper that is gone takes its server along.
        with suppress(OSError):
            if keeper:
                connection.connect(keeper)
                _tell(connection, session=session_id(session), user=_user_of(session))
        try:
            yield
        finally:
            with suppress(OSError):
                _tell(connection, over=True)


def _tell(connection: socket.socket, **message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


@contextmanager
def kept_alive(ask: Callable[[], object], every_s: float = SESSION_TIMEOUT_S / 4) -> Iterator[None]:
    """Ask the server something again and again until the block ends.

    The server closes a session that nobody has asked for a while. A large log takes longer to scan,
    and so does the wait until a coordinator aborts a transaction.
    """
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(every_s):
            try:
                ask()
            except (PySparkException, grpc.RpcError, ValueError):
                # The owner's next question fails in the same way, and says so. A ValueError: the
                # session was stopped meanwhile.
                return

    thread = threading.Thread(target=go_on, name="session", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(ASKED_S)


def server_gone(error: PySparkException) -> SparkError | None:
    """Return the sentence for an error that means that the server itself is gone, else None."""
    # An error about a value quotes it, and it may read like this.
    is_of_value = (error.getSqlState() or "").startswith(OF_VALUES)
    return SparkError(ENDED) if server_ended(str(error)) and not is_of_value else None


def failed(doing: str, error: PySparkException) -> SparkError:
    """Return the sentence for Spark's failure at something: `doing` says what it could not do."""
    kind = ShellFailed if SHELL_FAILED in str(error) else SparkError
    return server_gone(error) or kind(f"{doing}: {first_line(error)}")


def session_id(session: SparkSession) -> str:
    """Return the session's id on its server, used to find the queries of a killed client."""
    return str(session.session_id)  # type: ignore[attr-defined]


def _user_of(session: SparkSession) -> str | None:
    """Return the name under which the server has the session."""
    user: str | None = session.client._user_id
    return user


def main() -> None:
    """Release the session whose address is the input."""
    # Its server may be gone, or have ended it.
    with suppress(SparkError, PySparkException):
        connect(sys.stdin.read()).stop()


if __name__ == "__main__":
    main()
