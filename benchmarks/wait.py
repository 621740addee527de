"""How long somebody waits at a terminal: for the version, a topic at a glance, and a small check.
Run as `make bench-wait`.

Kafka has two topics of 5,000 records, in a home that is thrown away afterwards. Each time is that
of a whole command, from its start until it has ended, and the median of five. A cold check starts
Kafka and Spark itself. Beside them: the same check by hand in DuckDB, which needs Kafka alone.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

from topicproof.backend.address import Address
from topicproof.backend.errors import SetupError
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import ROOT, Settings, read_settings

RECORDS, PARTITIONS, PER_TRANSACTION = 5_000, 4, 1_000
TIMES = 5
SOURCE, SINK = "wait-source", "wait-sink"
TIMEOUT_S = 60.0
BY_HAND_NEEDS = ("duckdb==2.0.1", "confluent-kafka==2.16.1", "pyarrow==26.0.1")


@dataclass(frozen=True)
class Wait:
    """The times of one command, in seconds."""

    what: str
    goal_s: float | None
    seconds: Sequence[float]
    processor_s: Sequence[float]
    """Processor time of the command and its children, without the services it shares."""

    @property
    def row(self) -> str:
        """A row of the table in docs/SPEED.md."""
        goal = "" if self.goal_s is None else f"{self.goal_s:g} s"
        spread = f"{min(self.seconds):.2f} to {max(self.seconds):.2f}"
        return (
            f"| {self.what} | {statistics.median(self.seconds):.2f} s | {spread} |"
            f" {statistics.median(self.processor_s):.2f} s | {goal} |"
        )


def fill(address: Address) -> None:
    """Write both topics, in transactions."""
    producer = Producer(transactional_producer_config(address, "wait", 60_000))
    producer.init_transactions(TIMEOUT_S)
    for topic in (SOURCE, SINK):
        Cluster(address).create_topic(topic, PARTITIONS)
        for first in range(0, RECORDS, PER_TRANSACTION):
            producer.begin_transaction()
            for number in range(first, first + PER_TRANSACTION):
                producer.produce(topic, str(number), str(number))
            producer.commit_transaction(TIMEOUT_S)


def measure(
    what: str,
    goal_s: float | None,
    command: Sequence[str],
    settings: Settings,
    times: int,
    before_each: Callable[[], None] = lambda: None,
) -> Wait:
    """Run a command so many times, after one that is not counted. Raises SetupError if it fails."""
    seconds, processor_s = [], []
    for _ in range(times + 1):
        before_each()
        earlier = os.times()
        begin = time.monotonic()
        answer = subprocess.run(
            command,
            cwd=settings.home,
            env={**os.environ, "TOPICPROOF_HOME": str(settings.home)},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds.append(time.monotonic() - begin)
        later = os.times()
        processor_s.append(
            later.children_user
            + later.children_system
            - (earlier.children_user + earlier.children_system)
        )
        if answer.returncode != 0:
            raise SetupError(f"{what} ended with {answer.returncode}: {answer.stderr}")
    return Wait(what, goal_s, seconds[1:], processor_s[1:])


def await_end_of_services(settings: Settings) -> None:
    """Wait until the keeper of Kafka and Spark has stopped both: the next command finds nothing."""
    with (settings.services / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def python_by_hand(folder: Path) -> Path:
    """Make the environment of the check by hand. Returns its Python."""
    uv = str(Path(sys.executable).with_name("uv"))
    environment = folder / "by-hand"
    for command in (
        [uv, "venv", "--quiet", f"--python={sys.executable}", str(environment)],
        [uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python")],
    ):
        needs = BY_HAND_NEEDS if "pip" in command else ()
        subprocess.run([*command, *needs], check=True, cwd=folder)
    return environment / "bin" / "python"


def waits(settings: Settings, times: int, by_hand: Path) -> Iterator[Wait]:
    """Measure each wait. Kafka and Spark run, except for the cold check. Raises SetupError."""
    topicproof = [sys.executable, "-P", "-m", "topicproof"]
    check = [*topicproof, "check", "--source", SOURCE, "--sink", SINK, "--identity", "key"]
    with services(settings, spark=False) as up:
        fill(up.address)
        yield measure("`topicproof --version`", 0.3, [*topicproof, "--version"], settings, times)
        inspect = [*topicproof, "inspect", SINK, "--bootstrap", up.bootstrap]
        yield measure("`topicproof inspect`", 0.8, inspect, settings, times)
        script = str(ROOT / "benchmarks" / "by_hand.py")
        command = [str(by_hand), "-P", script, up.bootstrap, SOURCE, SINK]
        yield measure("by hand in DuckDB, Kafka runs", None, command, settings, times)
    with services(settings):
        warm = "`topicproof check`, Kafka and Spark run"
        yield measure(warm, 3, check, settings, times)
    cold = "`topicproof check`, nothing runs"
    yield measure(cold, 12, check, settings, times, lambda: await_end_of_services(settings))


def main() -> None:
    options = argparse.ArgumentParser(description="How long somebody waits at a terminal.")
    options.add_argument("--times", type=int, default=TIMES)
    times = options.parse_args().times
    out = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="topicproof-wait-") as home:
        settings = read_settings(home=Path(home))
        try:
            for wait in waits(settings, times, python_by_hand(Path(home))):
                out.print(wait.row)
        finally:
            await_end_of_services(settings)


if __name__ == "__main__":
    main()
