"""Topics that other programs wrote, killed in the middle of their work: judged by a contract, by
key.

Each is killed with SIGKILL where it hurts; its successor continues until its group has committed
the end of the source. The verdict is compared with tests/foreign/count.py, a plain consumer with a
dictionary, which shares no code with what it checks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conftest import wait_until
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.transactions import cluster_transactions
from topicproof.backend.services.jars import BROKER, STREAMS, jar_files
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.processes import java
from topicproof.backend.settings import ROOT, Settings

HERE = Path(__file__).parent
CONTRACTS = ROOT / "contracts"
PARTITIONS, RECORDS = 2, 2_000
WAIT_S = 300
PAUSE_MS = "2"
"""What a value takes a Kafka Streams that is to be killed: its transactions are open for most of
the time."""

Start = Callable[[list[str]], subprocess.Popen[str]]


@dataclass(frozen=True)
class Judged:
    """What a check said, and what the independent script counted."""

    code: int
    report: Any
    counted: dict[str, int]

    @property
    def counts(self) -> dict[str, int]:
        """Of what was found, by kind, without what another kind explains."""
        return {one["kind"]: one["primary"] for one in self.report["findings"] if one["primary"]}


@dataclass(frozen=True)
class Topics:
    """A filled source, an empty sink, and the group of the program between them."""

    settings: Settings
    cluster: Cluster
    source: str
    sink: str

    @property
    def group(self) -> str:
        return f"{self.sink}-app"

    @property
    def named(self) -> list[str]:
        """As the programs are told."""
        return [self.cluster.address.bootstrap, self.source, self.sink, self.group]

    def finish(self, successor: subprocess.Popen[str]) -> None:
        """Let the successor of one that was killed work until all is done."""
        ends = {one.partition: one.hw for one in self.cluster.bounds(self.source).partitions}

        def done() -> bool:
            assert successor.poll() is None, "the successor ended"
            return self.cluster.committed(self.group, self.source) == ends

        wait_until(done, WAIT_S, f"the end of {self.source}")
        successor.send_signal(signal.SIGTERM)
        successor.wait(WAIT_S)

    def strike(self, program: subprocess.Popen[str]) -> bool:
        """Stop the program. It stays stopped with some transactions behind it and one open, or it
        goes on."""
        assert program.poll() is None, "the program ended"
        program.send_signal(signal.SIGSTOP)
        sink = self.cluster.bounds(self.sink).partitions
        if any(one.start < one.lso < one.hw for one in sink):
            return True
        program.send_signal(signal.SIGCONT)
        return False

    def settled(self) -> bool:
        return all(one.lso == one.hw for one in self.cluster.bounds(self.sink).partitions)

    def judge(self, example: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Judged:
        """Check them by an example of contracts/, with these topics in place of its own; and
        count."""
        text = (CONTRACTS / example).read_text(encoding="utf-8")
        for said, mine in (
            ("numbers", self.source),
            ("squares", self.sink),
            ("squares-app", self.group),
        ):
            text = text.replace(f": {said}}}", f": {mine}}}").replace(f": {said}\n", f": {mine}\n")
        contract = folder / example
        contract.write_text(text)
        capsys.readouterr()
        code = call("check", "--contract", str(contract), "--out", str(folder / "proof"), "--json")
        report = json.loads(capsys.readouterr().out)
        assert (folder / "proof" / "contract.yaml").read_text().strip() == text.strip(), (
            "the contract is evidence"
        )
        counted = subprocess.run(
            [
                sys.executable,
                HERE / "count.py",
                self.cluster.address.bootstrap,
                self.source,
                self.sink,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        return Judged(code, report, json.loads(counted.stdout))


def survive_a_kill(topics: Topics, program: str, start: Start, folder: Path) -> None:
    """Let a Kafka Streams application work with exactly_once_v2. It is killed while it has some
    transactions behind it and one open, and another one works until all is done."""
    jars = [*jar_files(topics.settings, BROKER), *jar_files(topics.settings, STREAMS)]
    classpath = os.pathsep.join(map(str, jars))
    command = [java(), "-cp", classpath, str(HERE / program), *topics.named]
    command += ["exactly_once_v2", str(folder / "state")]
    first = start([*command, PAUSE_MS])

    wait_until(lambda: topics.strike(first), WAIT_S, "an open transaction of Kafka Streams")
    first.kill()
    first.wait(WAIT_S)
    topics.finish(start([*command, "0"]))
    wait_until(topics.settled, WAIT_S, "the end of the transaction that the killed one left open")


@pytest.fixture
def topics(
    settings: Settings,
    cluster: Services,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Topics:
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    made = Topics(
        settings, Cluster(Address(cluster.bootstrap)), new_topic(PARTITIONS), new_topic(PARTITIONS)
    )
    producer = Producer(idempotent_producer_config(Address(cluster.bootstrap)))
    for number in range(RECORDS):
        producer.produce(made.source, str(number), str(number), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program; none is left behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(command: list[str]) -> subprocess.Popen[str]:
        with (tmp_path / f"program-{len(started)}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=tmp_path
                )
            )
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("commits", ["after", "before"])
def test_a_plain_loop_repeats_or_loses_the_batch_that_it_died_in(
    commits: str,
    topics: Topics,
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a consumer-producer loop is killed between producing a batch and committing its
    offsets. Its successor reads the batch again: each record of it is a duplicate, no more and no
    fewer. With the two steps exchanged the batch is lost instead."""

    command = [sys.executable, str(HERE / "loop.py"), *topics.named, commits]
    first = start([*command, "3"])
    assert first.stdout is not None and first.stdout.readline() == "standing\n"
    first.kill()
    first.wait(WAIT_S)
    topics.finish(start([*command, "0"]))
    judged = topics.judge("loop.yaml", tmp_path, capsys)
    kind, other = ("duplicates", "missing") if commits == "after" else ("missing", "duplicates")
    damage = judged.counted[kind]
    assert (
        damage > 0
        and judged.counted[other] == judged.counted["unexplained"] == judged.counted["wrong"] == 0
    )
    assert judged.code == 1 and judged.report["verdict"] == "VIOLATED"
    assert judged.counts == {"duplicate" if commits == "after" else "gap": damage}
    assert judged.report["source"]["records"] == judged.counted["inputs"] == RECORDS
    assert judged.report["sink"]["fates"]["committed"] == judged.counted["committed"]


def test_kafka_streams_is_exactly_once(
    topics: Topics, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a Kafka Streams application with exactly_once_v2 is killed in the middle of a
    transaction. Its successor has other transactional ids; the transaction expires, its records
    stay in the log as aborted, and each input still has one output."""
    survive_a_kill(topics, "Streams.java", start, tmp_path)
    judged = topics.judge("streams.yaml", tmp_path, capsys)
    assert judged.counted["inputs"] == judged.counted["committed"] == RECORDS
    assert not any(
        judged.counted[wrong] for wrong in ("duplicates", "missing", "unexplained", "wrong")
    )
    assert judged.code == 0 and judged.report["verdict"] == "HOLDS", judged.report["why"]
    fates = judged.report["sink"]["fates"]
    assert fates["committed"] == RECORDS and fates["pending"] == 0
    assert fates["aborted"] == judged.counted["uncommitted"] - RECORDS > 0
    # Its transactions each have an epoch of their own, so that no late request reaches the next.
    ids = cluster_transactions(topics.cluster.address).ids
    mine = [each for each in ids if each.transactional_id.startswith(topics.group)]
    assert mine and {each.exposed for each in mine if each.state == "CompleteCommit"} == {False}
    # By key, with an expression and a group: all of it comes from the evidence when it is judged
    # again.
    assert call("verify", str(tmp_path / "proof")) == 0
