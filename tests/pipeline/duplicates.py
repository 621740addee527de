"""How payments come to be in a topic twice: three real causes, each with what it repeats."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from confluent_kafka import Producer

from backend.pipeline.totals import account, payment
from backend.settings import idempotent_producer_config

LOST_EVERY = 7
"""Every so many answers of the ingest server are lost on their way."""


def restarted_filler(bootstrap: str, topic: str, numbers: range) -> list[int]:
    """An idempotent filler is killed half-way, and started again from the beginning: its new producer id is another
    one to the brokers, who drop nothing. Gives the payments that are there twice."""
    half = numbers[: len(numbers) // 2]
    for part in (half, numbers):
        producer = Producer(idempotent_producer_config(bootstrap, {}))
        for number in part:
            producer.produce(topic, payment(number), account(number))
        assert producer.flush(20) == 0
    return list(half)


def retrying_client(bootstrap: str, topic: str, numbers: range) -> list[int]:
    """A client posts each payment to an ingest server, and again where no answer comes. Gives those that are there
    twice: their first answer was lost after the server had appended them."""
    repeated = []
    with _ingest_server(bootstrap, topic) as port:
        for number in numbers:
            if not _posted(port, number):
                repeated.append(number)
                assert _posted(port, number)
    return repeated


def transfer_from_the_start(bootstrap: str, topic: str, numbers: range, database: str) -> list[int]:
    """A transfer copies a table of PostgreSQL, dies half-way before it noted how far it was, and reads the table from
    its starting point again. Gives the payments that are there twice."""
    half = len(numbers) // 2
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("create table payments (number int primary key, body text)")
        with connection.cursor() as cursor:
            cursor.executemany(
                "insert into payments values (%s, %s)", [(number, payment(number).decode()) for number in numbers]
            )
        for limit in (half, len(numbers)):
            producer = Producer(idempotent_producer_config(bootstrap, {}))
            rows = connection.execute("select body from payments order by number limit %s", (limit,))
            for (body,) in rows:
                producer.produce(topic, body, json.loads(body)["account"])
            assert producer.flush(20) == 0
    return list(numbers[:half])


def _posted(port: int, number: int) -> bool:
    """Whether the server answered."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        try:
            connection.request("POST", "/payments", payment(number))
            return connection.getresponse().status == 204
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return False


@contextmanager
def _ingest_server(bootstrap: str, topic: str) -> Iterator[int]:
    """Appends what is posted, and answers when the brokers have it; gives its port."""
    producer = Producer(idempotent_producer_config(bootstrap, {}) | {"linger.ms": 0})
    count = 0

    class Ingest(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal count
            body = self.rfile.read(int(self.headers["Content-Length"]))
            producer.produce(topic, body, json.loads(body)["account"])
            assert producer.flush(20) == 0
            count += 1
            if count % LOST_EVERY:
                self.send_response(204)
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Not on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ingest)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
