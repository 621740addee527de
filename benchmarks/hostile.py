"""Is judging lossless on hostile data, and in how much memory? Run as `make bench-hostile`.

Each case fills a source and a sink with the same keys and values, in transactions of which some are
aborted, and breaks the sink in known places: some inputs committed twice, some not at all. Judged
by identity by key, the verdict must name exactly these. A Kafka and a Spark are started for it and
thrown away afterwards; each case is judged in a process of its own, so that its peak of memory is
its own. `--small` divides the large cases by 50.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.scan import peak_bytes
from topicproof.backend.address import Address, Sides
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import (
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark import without_token
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import read_settings
from topicproof.validators.finding import Order
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question

PER_TRANSACTION = 5_000
ABORT_EVERY = 10
"""Of the sink's transactions, one in so many is aborted and written again."""
TWICE = (7, 99)
"""The inputs, by number, whose outputs are committed twice."""
NEVER = (3, 50, 51)
"""Those that have none."""
MEGABYTE = 1_000_000
SAMPLE_S = 0.2

Message = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Records by number, and where they go."""

    name: str
    records: int
    partitions: int
    message: Callable[[int], Message]
    partition: Callable[[int], int]
    bytes_max: int = MEGABYTE
    per_transaction: int = PER_TRANSACTION


@dataclass(frozen=True)
class Figures:
    """One case, judged."""

    name: str
    records: int
    partitions: int
    verdict: str
    duplicates: int
    gaps: int
    others: int
    """Rows of other kinds that count for the verdict, and that nothing explains: 0."""
    unexplained: int
    """Offsets: 0."""
    exact: bool
    fill_s: float
    judge_s: float
    run_peak_bytes: int
    """The most that the judging process ever held."""
    spark_peak_bytes: int
    """The most that the Spark server and its workers held while it was judged, seen every 0.2 s."""


def _key(number: int) -> bytes:
    """Neither UTF-8 nor unlike its neighbours'."""
    return b"\xff\xfe\x00" + number.to_bytes(8, "big")


def odd(number: int) -> Message:
    """Tombstones, empty values, headers that are empty, repeated or not text; keys that are empty
    or not UTF-8."""
    headers: list[tuple[str, bytes | None]] = [
        ("", b""),
        ("h", None),
        ("h", b"\xff"),
        ("h", b"\xff"),
        ("\u2028", b"1"),
    ]
    value = [None, b"", b"\x00\xff" * 8, "\u202e<b>é".encode()][number % 4]
    return {
        "key": b"" if number == 0 else _key(number),
        "value": value,
        "headers": headers[: number % 6],
    }


def cases(divisor: int) -> list[Case]:
    """The cases; the large ones divided."""
    return [
        Case("odd bytes, tombstones, headers", 20_000, 4, odd, lambda number: number % 4),
        Case(
            "records of 10 MB",
            100,
            2,
            lambda number: {"key": _key(number), "value": bytes([number % 251]) * 10 * MEGABYTE},
            lambda number: number % 2,
            11 * MEGABYTE,
            per_transaction=10,
        ),
        Case(
            "a million distinct keys",
            1_000_000 // divisor,
            8,
            lambda number: {"key": _key(number), "value": b"v"},
            lambda number: number % 8,
        ),
        Case(
            "5 million in one partition, 63 empty",
            5_000_000 // divisor,
            64,
            lambda number: {"key": _key(number), "value": b"v"},
            lambda _number: 17,
        ),
    ]


def main() -> None:
    console, errors = Console(), Console(stderr=True)
    found: list[Figures] = []
    # Kafka may still write to its files for a moment when it is no longer needed.
    with tempfile.TemporaryDirectory(
        prefix="topicproof-bench-", ignore_cleanup_errors=True
    ) as folder:
        settings = read_settings(home=Path(folder))
        with services(settings, say=errors.print) as up:
            for case in cases(50 if "--small" in sys.argv else 1):
                found.append(measure(up.bootstrap, up.spark_remote, case, Path(folder) / "judged"))
                errors.print(
                    f"{case.name}: {found[-1].verdict},"
                    f" {'exact' if found[-1].exact else 'NOT EXACT'}"
                )
    console.print(as_table(found))
    console.print_json(json.dumps([asdict(one) for one in found]))
    if not all(one.exact for one in found):
        sys.exit("A count is not the one that was written.")


def measure(bootstrap: str, spark_remote: str, case: Case, folder: Path) -> Figures:
    cluster = Cluster(Address(bootstrap))
    name = f"hostile-{uuid.uuid4().hex[:6]}"
    topics = (f"{name}-source", f"{name}-sink")
    for topic in topics:
        cluster.create_topic(
            topic, case.partitions, False, **{"max.message.bytes": str(case.bytes_max)}
        )
    try:
        began = time.monotonic()
        fill(bootstrap, case, *topics)
        filled = time.monotonic() - began
        with spark_peak(spark_remote) as peak, multiprocessing.get_context("spawn").Pool(1) as pool:
            said = pool.apply(judge_alone, (bootstrap, spark_remote, *topics, folder))
        kinds = said["primary"]
        others = sum(count for kind, count in kinds.items() if kind not in ("duplicate", "gap"))
        exact = (kinds.get("duplicate"), kinds.get("gap")) == (len(TWICE), len(NEVER))
        return Figures(
            case.name,
            case.records,
            case.partitions,
            said["verdict"],
            kinds.get("duplicate", 0),
            kinds.get("gap", 0),
            others,
            said["unexplained"],
            exact and not others and not said["unexplained"],
            round(filled, 1),
            said["seconds"],
            said["peak"],
            peak(),
        )
    finally:
        cluster.delete_topics(list(topics))


def fill(bootstrap: str, case: Case, source: str, sink: str) -> None:
    """The source as it is, the sink in transactions, with what is wrong with it."""
    large = {"message.max.bytes": 2 * case.bytes_max, "queue.buffering.max.kbytes": 200_000}
    plain = Producer({**idempotent_producer_config(Address(bootstrap)), **large})
    for number in range(case.records):
        _produce(plain, source, case, number)
    _require(plain.flush(300) == 0, source)
    producer = Producer(
        {**transactional_producer_config(Address(bootstrap), f"{sink}-writer"), **large}
    )
    producer.list_topics()
    producer.init_transactions(30)
    outputs = [number for number in range(case.records) if number not in NEVER]
    for turn, first in enumerate(range(0, len(outputs), case.per_transaction)):
        chunk = outputs[first : first + case.per_transaction]
        for aborted in (True, False) if turn % ABORT_EVERY == 1 else (False,):
            producer.begin_transaction()
            for number in chunk:
                _produce(producer, sink, case, number)
            if aborted:
                _require(producer.flush(300) == 0, sink)
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(300)
    producer.begin_transaction()
    for number in TWICE:
        _produce(producer, sink, case, number)
    producer.commit_transaction(60)


def _produce(producer: Producer, topic: str, case: Case, number: int) -> None:
    message = case.message(number)
    while True:
        try:
            producer.produce(topic, partition=case.partition(number), **message)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


def _require(taken: bool, topic: str) -> None:
    if not taken:
        sys.exit(f"Kafka did not take every record of {topic}.")


def judge_alone(
    bootstrap: str, spark_remote: str, source: str, sink: str, folder: Path
) -> dict[str, Any]:
    """In a process that has done nothing else."""
    began = time.monotonic()
    question = Question(
        fetch_bounds(Address(bootstrap), source), sink, identity=Identity.KEY, order=Order.NONE
    )
    with spark_session(spark_remote) as spark:
        report = judge_topics(spark, Sides(Address(bootstrap)), question, folder)
    uncounted = {one.kind for one in report.not_checked}
    return {
        "verdict": report.verdict.value,
        "primary": {one.kind: one.primary for one in report.findings if one.kind not in uncounted},
        "unexplained": report.fates["unexplained"],
        "seconds": round(time.monotonic() - began, 1),
        "peak": peak_bytes(),
    }


@contextmanager
def spark_peak(spark_remote: str) -> Iterator[Callable[[], int]]:
    """The most memory that Spark's server and its workers hold together during the block."""
    port = int(without_token(spark_remote).rpartition(":")[2])
    server = next(
        psutil.Process(one.pid) for one in psutil.net_connections("tcp") if _listens(one, port)
    )
    ended, most = threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            most[0] = max(most[0], sum(map(_held, [server, *server.children(recursive=True)])))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        watching.join()


def _listens(connection: Any, port: int) -> bool:
    return (
        connection.status == psutil.CONN_LISTEN
        and connection.laddr.port == port
        and connection.pid is not None
    )


def _held(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def as_table(found: list[Figures]) -> Table:
    table = Table(title="Hostile data, judged")
    table.add_column("case")
    for name in (
        "records",
        "partitions",
        "duplicates",
        "gaps",
        "others",
        "exact",
        "judged s",
        "run MB",
        "Spark MB",
    ):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            one.name,
            f"{one.records:,}",
            str(one.partitions),
            *(f"{count:,}" for count in (one.duplicates, one.gaps, one.others)),
            "yes" if one.exact else "NO",
            f"{one.judge_s:.1f}",
            f"{one.run_peak_bytes / 1e6:,.0f}",
            f"{one.spark_peak_bytes / 1e6:,.0f}",
        )
    return table


if __name__ == "__main__":
    main()
