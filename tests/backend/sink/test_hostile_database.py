"""A server that speaks PostgreSQL and answers without end: whoever asks it gives it up."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import psycopg
import pytest

from tests.backend.kafka.test_reading import little_memory
from topicproof.backend.contracts.sink_table import PostgresAddress
from topicproof.backend.errors import SinkError
from topicproof.backend.judging.postgres_table import PostgresTable
from topicproof.backend.sink.bounded_postgres import BoundedConnection
from topicproof.backend.sink.table import committed_offsets

ENCRYPTIONS = (80877103, 80877104)
"""What a client asks first: TLS, or GSSAPI."""
CHUNK = bytes(100_000)
PACE_S = 0.001
"""Between two of these: as fast as a network. libpq reads on while more arrives, so a server of the
same machine may get further."""


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


GREETING = (
    message(b"R", struct.pack("!i", 0))
    + message(b"S", b"server_version\0" + b"17.0\0")
    + message(b"S", b"client_encoding\0UTF8\0")
    + message(b"Z", b"I")
)
COLUMN = struct.pack("!h", 1) + b"name\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0)
BEGIN = message(b"1", b"") + message(b"2", b"") + message(b"T", COLUMN)


def send_for_ever(connection: socket.socket, data: bytes) -> None:
    pace = Event()
    while not pace.wait(PACE_S):
        connection.sendall(data)


def endless_rows(connection: socket.socket) -> None:
    """Millions of rows of 100 kB."""
    row = message(b"D", struct.pack("!hi", 1, len(CHUNK)) + CHUNK)
    connection.sendall(BEGIN)
    send_for_ever(connection, row)


def one_large_row(connection: socket.socket) -> None:
    """A row of 1 GB."""
    size = 1_000_000_000
    head = b"D" + struct.pack("!ihi", size + 10, 1, size)
    connection.sendall(BEGIN + head)
    send_for_ever(connection, CHUNK)


def silence(connection: socket.socket) -> None:
    """A byte, and then nothing."""
    connection.sendall(BEGIN[:1])
    while connection.recv(len(CHUNK)):
        pass


Answer = Callable[[socket.socket], None]


@contextmanager
def hostile(answer: Answer) -> Iterator[int]:
    """Serve one connection; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=_serve, args=(server, answer))
        thread.start()
        yield server.getsockname()[1]
    thread.join()


def _serve(server: socket.socket, answer: Answer) -> None:
    connection, _ = server.accept()
    with connection:
        while True:
            length, code = struct.unpack("!ii", connection.recv(8, socket.MSG_WAITALL))
            connection.recv(length - 8, socket.MSG_WAITALL)
            if code not in ENCRYPTIONS:
                break
            connection.sendall(b"N")
        connection.sendall(GREETING)
        connection.recv(1, socket.MSG_PEEK)
        try:
            answer(connection)
        except OSError:
            return


@pytest.mark.parametrize("answer", [endless_rows, one_large_row])
def test_a_server_that_answers_without_end_is_given_up(answer: Answer) -> None:
    """Story: a contract, or a plan, names a server that its author controls. It answers the first
    question with gigabytes: as many rows, or as one."""
    with hostile(answer) as port, little_memory():
        address = PostgresAddress("127.0.0.1", port, "tests", "tests")
        with pytest.raises(SinkError, match="an answer has more than 16,000,000 bytes"):
            PostgresTable.open(pytest.fail, address, "invoices", pytest.fail)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [endless_rows, one_large_row])
def test_so_is_the_server_of_a_run(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "bytes_max", 16_000_000)
    with hostile(answer) as port, little_memory():
        url = f"postgresql+psycopg://tests@127.0.0.1:{port}/tests"
        with pytest.raises(SinkError, match="an answer has more than 16,000,000 bytes"):
            committed_offsets(url, "group", "topic")


def test_a_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a server is asked to keep is one of its own."""
    monkeypatch.setattr(BoundedConnection, "seconds_max", 0.2)
    with (
        hostile(silence) as port,
        pytest.raises(psycopg.OperationalError, match="an answer takes more than"),
        BoundedConnection.connect(
            host="127.0.0.1", port=port, user="tests", dbname="tests", autocommit=True
        ) as connection,
    ):
        connection.execute("select 1")
