"""Duplicate payments in a topic from three real causes, as fills of the scenario totals.

None of them breaks a promise of Kafka. An idempotent producer never repeats a record within its own
lifetime, and a transaction would not prevent these repeats either. They happen before any offset is
committed, so exactly-once totals add them twice. Only the payments' ids reveal them.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from confluent_kafka import Producer
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select
from sqlalchemy.exc import DBAPIError

from topicproof.backend.errors import ClusterError, SinkError
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.fill import TIMEOUT_S, fill
from topicproof.backend.runs.totals import account, payment
from topicproof.backend.services.local_servers import HOST, LoopbackHandler, LoopbackServer
from topicproof.backend.sink.table import connect_database, require_own_file, said, shown

LOST_EVERY = 7
"""The ingest server loses every Nth answer."""
POSTS_MAX = 5
"""Maximum posts of a payment before the client gives up."""
ACCEPTED = 204
BODY_BYTES_MAX = 10_000
"""Bytes of a post: whoever may connect to this machine may post."""


class Cause(StrEnum):
    """Why the source holds payments twice."""

    INGEST = "ingest"
    """A client posts payments to an HTTP server that appends them, and posts again if an answer is
    lost."""
    RESTART = "restart"
    """An idempotent filler dies halfway and restarts from the beginning. To the brokers it is a new
    producer."""
    TRANSFER = "transfer"
    """A transfer copies a database table. It dies halfway, before saving its position, and restarts
    from its starting point."""


@dataclass(frozen=True)
class Twice:
    """Input of a fill with duplicates."""

    cluster: Cluster
    topic: str
    records: int
    database: str
    """URL of the database that a transfer reads. The payments are stored in a table named like the
    topic."""
    stopped: Callable[[], bool] = lambda: False
    on_filled: Callable[[int], None] = lambda _count: None
    present: Set[int] = frozenset()
    """Payments that an earlier, killed fill has already written."""


def fill_twice(cause: Cause, twice: Twice) -> None:
    """Fill payments 0 to records - 1 into a topic, some of them twice. Raises ClusterError,
    SinkError."""
    {Cause.INGEST: _ingest, Cause.RESTART: _restart, Cause.TRANSFER: _transfer}[cause](twice)


def _restart(twice: Twice) -> None:
    for count in (twice.records // 2, twice.records):
        _fill(twice, count, payment)


def _transfer(twice: Twice) -> None:
    table = table_of(twice.topic)
    engine = connect_database(twice.database)
    numbered = [
        {"number": number, "body": payment(number).decode()} for number in range(twice.records)
    ]
    require_own_file(engine, table.name)
    try:
        table.create(engine, checkfirst=True)
        with engine.begin() as connection:
            if connection.execute(select(table.c.number).limit(1)).first() is None:
                connection.execute(insert(table), numbered)
        for count in (twice.records // 2, twice.records):
            with engine.connect() as connection:
                rows = connection.execute(select(table).order_by(table.c.number).limit(count))
                bodies = {row.number: row.body.encode() for row in rows}
            _fill(twice, count, bodies.__getitem__)
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def table_of(topic: str) -> Table:
    """Return the table that a transfer copies into a topic."""
    return Table(
        topic,
        MetaData(),
        Column("number", Integer, primary_key=True),
        Column("body", String, nullable=False),
    )


def _fill(twice: Twice, count: int, value: Callable[[int], bytes]) -> None:
    """Fill during one lifetime of a producer."""
    fill(
        twice.cluster,
        twice.topic,
        count,
        stopped=twice.stopped,
        on_filled=twice.on_filled,
        present=twice.present,
        value=value,
        key=account,
    )


def _ingest(twice: Twice) -> None:
    count = len(twice.present)
    with _ingest_server(twice.cluster, twice.topic) as port:
        for number in range(twice.records):
            if twice.stopped():
                return
            if number in twice.present:
                continue
            # Without an answer the client cannot know, and posts again: at least once.
            if not any(_posted(port, payment(number)) for _post in range(POSTS_MAX)):
                raise ClusterError(
                    f"The ingest server did not accept payment {number} in {POSTS_MAX} posts."
                )
            count += 1
            twice.on_filled(count)


def _posted(port: int, body: bytes) -> bool:
    """Post a payment. Returns whether the server accepted it."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)) as connection:
        try:
            connection.request("POST", "/payments", body)
            return connection.getresponse().status == ACCEPTED
        except (http.client.RemoteDisconnected, ConnectionResetError, TimeoutError):
            return False


@contextmanager
def _ingest_server(cluster: Cluster, topic: str) -> Iterator[int]:
    """Serve posts: append each, and answer once the brokers have it. Yields the port. Posts of
    other users' processes get no answer (Linux): they would be payments of the run."""
    producer = Producer(idempotent_producer_config(cluster.address) | {"linger.ms": 0})
    count = 0

    class Ingest(LoopbackHandler):
        def do_POST(self) -> None:
            nonlocal count
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
                self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                return
            body = self.rfile.read(int(length))
            try:
                key = json.loads(body)["account"].encode()
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            producer.produce(topic, body, key)
            if producer.flush(TIMEOUT_S):
                return
            count += 1
            if count % LOST_EVERY:
                self.send_response(ACCEPTED)
                self.end_headers()

    server = LoopbackServer(0, Ingest)
    server.serves_others = False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        producer.close()
