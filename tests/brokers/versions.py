"""Topicproof on brokers of many versions.

    python -m tests.brokers.versions [2.8.2 4.4.0 ...]

Each version is started on loopback, and five things are tried on it. The result is a table in
Markdown: what works, what that broker lacks, what failed. Exit code: 1 when anything failed.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.backend.kafka.hanging import hang
from tests.brokers.broker import broker_of
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.browse.describe import describe_cluster, describe_topic
from topicproof.backend.kafka.browse.search import latest
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import Settings, read_settings

VERSIONS = (
    *("2.8.2", "3.3.2", "3.4.1", "3.7.2", "3.9.1"),
    *("4.0.0", "4.1.2", "4.2.2", "4.3.1", "4.4.0"),
)
RECORDS = 3_000
RUN = f"run --records {RECORDS} --partitions 2 --per-transaction 300 --abort-probability 0.3"
FAULT = "--fault crash@transaction=2 --seed 1"
LACKS = "do not offer"
"""What the sentence about a request says that a broker does not know."""
OK = "ok"


@dataclass
class Broker:
    """A running broker, and what the cells before have made on it."""

    bootstrap: str
    topics: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> Address:
        return Address(self.bootstrap)

    def ask(self, command: str) -> Any:
        """Return the JSON answer of a command. Raises ClusterError with its error."""
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = call(*command.split(), "--bootstrap", self.bootstrap, "--json")
        if code != 0:
            raise ClusterError(err.getvalue().strip().removeprefix("ClusterError: "))
        return json.loads(out.getvalue())


def run(broker: Broker) -> str:
    """Aborts, and a crash of every worker."""
    report = broker.ask(f"{RUN} {FAULT}")
    broker.topics = {side: report[side]["topic"] for side in ("source", "sink")}
    return OK if report["verdict"] == "HOLDS" else f"FAILED: {report['headline']}"


def inspect(broker: Broker) -> str:
    """The sink's fates, and what the page Topics reads."""
    sink = broker.topics["sink"]
    view = broker.ask(f"inspect {sink}")
    assert view["fates"]["committed"] == RECORDS and view["fates"]["aborted"] > 0, view["fates"]
    assert len(describe_cluster(broker.address).brokers) == 1
    assert len(describe_topic(broker.address, sink)[0]) == 2
    with connect(broker.address) as kafka:
        bounds = kafka.bounds(sink)
        ranges = fate_ranges(kafka.scan(sink, bounds), bounds)
    assert len(latest(broker.address, bounds, ranges, READ_COMMITTED, 10)) == 10
    assert view["producers"]
    return " ".join(view["not_heard"]) or OK


def transactions(broker: Broker) -> str:
    view = broker.ask("transactions")
    assert view["ids"] and not view["open"], view
    return OK


def check(broker: Broker) -> str:
    report = broker.ask(f"check --source {broker.topics['source']} --sink {broker.topics['sink']}")
    return OK if report["verdict"] == "HOLDS" else f"FAILED: {report['headline']}"


def hanging(broker: Broker) -> str:
    """A transaction that no coordinator knows."""
    Cluster(broker.address).create_topic("hanging", 1)
    producer_id = hang(broker.bootstrap, "hanging")
    assert broker.ask("inspect hanging")["fates"]["pending"] == 1
    (found,) = broker.ask("transactions")["open"]
    assert found["hanging"] and found["producer_id"] == producer_id, found
    return OK


CELLS: tuple[Callable[[Broker], str], ...] = (run, inspect, transactions, check, hanging)


def try_version(settings: Settings, spark_remote: str, version: str, folder: Path) -> list[str]:
    """Start a broker and return its cells: `ok`, a sentence about what it lacks, or `FAILED` with
    the error."""
    kafka = broker_of(settings, version, folder)
    kafka.start()
    try:
        with _environment(SPARK_REMOTE=spark_remote, TOPICPROOF_HOME=str(folder / "home")):
            broker = Broker(kafka.bootstrap)
            return [_outcome(cell, broker) for cell in CELLS]
    finally:
        kafka.stop()


def _outcome(cell: Callable[[Broker], str], broker: Broker) -> str:
    try:
        told = cell(broker)
    except Exception as error:
        told = str(error) if LACKS in str(error) else f"FAILED: {type(error).__name__}: {error}"
    return " ".join(told.replace(f" at {broker.bootstrap}", "").split())


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    # In a narrow terminal, a sentence would have several lines.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (variables | {"COLUMNS": "2000"}).items():
            patch.setenv(name, value)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="Try Topicproof on brokers of many versions.")
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    names = [cell.__name__ for cell in CELLS]
    rows = [["broker", *names], ["---"] * (1 + len(names))]
    with tempfile.TemporaryDirectory() as folder:
        settings = read_settings(home=Path(folder))
        with services(settings, kafka=False) as found:
            for version in parser.parse_args().versions:
                cells = try_version(settings, found.spark_remote, version, Path(folder) / version)
                rows.append([version, *cells])
                print(f"| {' | '.join(rows[-1])} |", file=sys.stderr, flush=True)  # noqa: T201
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))  # noqa: T201
    return int(any(cell.startswith("FAILED") for row in rows for cell in row))


if __name__ == "__main__":
    sys.exit(main())
