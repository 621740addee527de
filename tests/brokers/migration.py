"""A migration by Kafka's own MirrorMaker between two embedded clusters, judged.

    python -m tests.brokers.migration [--records 1000000] [--partitions 4]

Two records are kept from MirrorMaker, and three are written a second time after it. `topicproof
check` must name exactly these. Exit code: 1 when it does not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.brokers.mirror_maker import LOST, mirror_maker
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import SetupError
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.mirror_offsets import checkpoints
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.keeper import services
from topicproof.backend.services.processes import end_of_log
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.waiting import ask_until

NEVER = (3, 50)
"""The records, by number, that MirrorMaker leaves out."""
TWICE = (7, 8, 99)
"""Those that are written to the sink again."""
GROUP, READ = "billing", 100
"""A group of the source, and its offset in each partition."""
MIRROR_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Judged:
    """The check of a migration."""

    report: dict[str, Any]
    code: int
    mirror_s: float
    judge_s: float
    others: tuple[dict[str, Any], ...] = ()
    """The reports of a contract's further sinks."""

    @property
    def primary(self) -> dict[str, int]:
        """Rows of kinds that break the verdict, and that nothing explains."""
        return {
            one["kind"]: one["primary"]
            for one in self.report["findings"]
            if one["outcome"] == "VIOLATED" and one["primary"]
        }

    @property
    def exact(self) -> bool:
        counts = {"duplicate": len(TWICE), "gap": len(NEVER)}
        return self.code == 1 and self.primary == counts


def migrate(
    settings: Settings,
    folder: Path,
    source: Address,
    sink: Address,
    topic: str,
    records: int,
    partitions: int,
    say: Callable[[str], None] = lambda _text: None,
    contract: Path | None = None,
) -> Judged:
    """Fill the topic at `source`, let a group read its first records, mirror it, break the copy,
    and check both by key, or by a contract."""
    east, west = Cluster(source), Cluster(sink)
    east.create_topic(topic, partitions)
    _fill(source, topic, records)
    east.commit_offsets(GROUP, topic, dict.fromkeys(range(partitions), READ))
    say(f"{records:,} records written")
    started = time.monotonic()
    with mirror_maker(settings, folder, source.bootstrap, sink.bootstrap, topic) as log:
        wanted = records - len(NEVER)

        def copied() -> int:
            return west.bounds(topic).offsets if topic in west.topics() else 0

        if ask_until(copied, lambda count: count >= wanted, MIRROR_TIMEOUT_S) < wanted:
            raise SetupError(f"MirrorMaker copied {copied():,} of {wanted:,}. {end_of_log(log)}")

        def translated() -> int:
            return sum(len(each.found) for each in checkpoints(sink, [topic], budget=LookBudget()))

        if ask_until(translated, lambda n: n == partitions, MIRROR_TIMEOUT_S) < partitions:
            raise SetupError(f"MirrorMaker wrote no checkpoint of {GROUP}. {end_of_log(log)}")
    mirrored = time.monotonic()
    say(f"mirrored in {mirrored - started:.0f} s")
    producer = Producer(idempotent_producer_config(sink))
    for number in TWICE:
        producer.produce(topic, *_record(number))
    assert producer.flush(30) == 0
    arguments = ["--source", topic, "--sink", topic, "--bootstrap", sink.bootstrap]
    arguments += ["--source-bootstrap", source.bootstrap]
    if contract is not None:
        arguments = ["--contract", str(contract)]
    began = time.monotonic()
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = call("check", "--json", "-", *arguments)
    if not out.getvalue():
        raise SetupError(err.getvalue())
    reports = json.loads(out.getvalue())
    first, *others = [reports] if isinstance(reports, dict) else reports
    return Judged(first, code, mirrored - started, time.monotonic() - began, tuple(others))


def _fill(address: Address, topic: str, records: int) -> None:
    producer = Producer(idempotent_producer_config(address))
    for number in range(records):
        value, key = _record(number)
        headers: list[tuple[str, str | bytes | None]] = [(LOST, b"")] if number in NEVER else []
        while True:
            try:
                producer.produce(topic, value, key, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


def _record(number: int) -> tuple[bytes, bytes]:
    """Return a value and a key."""
    return b'{"order": %d}' % number, b"order-%d" % number


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge a migration by MirrorMaker.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = read_settings(home=folder / "home")
        west = EmbeddedKafka(folder / "west", jar_files(settings, BROKER))
        with services(settings) as found:
            os.environ |= settings.environment() | {"SPARK_REMOTE": found.spark_remote}
            west.start()
            try:
                sides = found.address, Address(west.bootstrap)
                judged = migrate(
                    *(settings, folder / "mirror", *sides, "orders"),
                    *(asked.records, asked.partitions, _say),
                )
            finally:
                west.stop()
    _say(judged.report["why"])
    for note in judged.report.get("notes", ()):
        _say(note)
    _say(f"judged in {judged.judge_s:.0f} s; {judged.primary}: exact: {judged.exact}")
    return int(not judged.exact)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
