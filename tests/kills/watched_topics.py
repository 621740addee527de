"""Kills of `topicproof watch` while pipelines write to the topics of its contracts.

Ten pipelines lose an output, repeat one, and bring the lost one later, at random rounds; groups go
back. The watch is killed in each round, at a random moment between its start and some seconds of
work. The last one is left alone until it is caught up.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.backend.watch.monitoring import Listener, listener
from tests.backend.watch.test_contracts import Pipeline
from tests.conftest import wait_until
from tests.kills.kill import Kill
from tests.ports import free_ports
from topicproof.backend.address import Address
from topicproof.backend.interpreter import python_environment
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import Settings

WATCH = "watch"
PIPELINES, INPUTS = 10, 20
DELAY_S = 9.0
"""The kill comes up to this long after the start, half of which takes to import."""
CAUGHT_UP_S = 120.0
DUPLICATE, GAP, BACK = "duplicate", "gap", "offset_moved_backwards"
Told = tuple[str, str, str]
"""Change, kind, and whose it is."""


@dataclass
class Story:
    """One pipeline, and what a watch must tell of it."""

    pipeline: Pipeline
    repeats_at: int
    """The round in which it repeats an output."""
    loses_at: int
    brings_at: int | None
    """The round in which the lost output comes after all; None: never."""
    group_moves_at: int
    written: int = 0
    lost: int | None = None
    expected: set[Told] = field(default_factory=set)
    """What lasts, so that some watch sees it."""

    @property
    def name(self) -> str:
        return self.pipeline.sink

    def write(self, cluster: Cluster, number: int) -> None:
        """Write what belongs to a round."""
        first = self.written
        self.pipeline.write_inputs(INPUTS)
        self.written += INPUTS
        outputs = [*range(first, self.written)]
        if number == self.loses_at:
            self.lost = outputs.pop(INPUTS // 2)
            if self.brings_at is None:
                self.expected.add(("began", GAP, self.name))
        if number == self.repeats_at:
            outputs.append(first)
            self.expected.add(("began", DUPLICATE, self.name))
        if number == self.brings_at and self.lost is not None:
            outputs.append(self.lost)
        self.pipeline.write_outputs(outputs)
        # It stays there, so that some watch sees it.
        offset = 0 if number >= self.group_moves_at else self.written
        cluster.commit_offsets(self.name, self.pipeline.source, {0: offset})
        if number == self.group_moves_at:
            self.expected.add(("happened", BACK, self.name))


def kill_watch(settings: Settings, times: int, seed: int) -> list[Kill]:
    """Kill a watch so many times, and look at what all of its processes told together."""
    chance = random.Random(f"{seed}-{WATCH}")
    folder = settings.home / "watched"
    folder.mkdir()
    with services(settings, spark=False) as running, listener() as hook:
        cluster = Cluster(Address(running.bootstrap))
        stories = [
            _story(cluster, running.bootstrap, number, times, chance) for number in range(PIPELINES)
        ]
        watch = _Watch(settings, folder, hook, stories, running.bootstrap)
        kills = [_kill(watch, cluster, number, chance) for number in range(times)]
        began = time.monotonic()
        with watch.process():
            wait_until(lambda: watch.is_caught_up(), CAUGHT_UP_S, "a watch that is caught up")
            metrics = watch.metrics()
            wait_until(lambda: watch.delivered() >= watch.expected, CAUGHT_UP_S, "the alarms")
        surprise = watch.surprise(metrics)
    repeated = len(hook.documents) - len({*map(_number, hook.documents)})
    told = f"{len(watch.lines())} notices, {repeated} sent again"
    return [*kills, Kill(WATCH, "left alone", time.monotonic() - began, told, surprise)]


def _story(
    cluster: Cluster, bootstrap: str, number: int, times: int, chance: random.Random
) -> Story:
    source, sink = f"numbers-{number}", f"squares-{number}"
    for topic in (source, sink):
        cluster.create_topic(topic, 1, exists_ok=False)
    loses_at = chance.randrange(times)
    brings_at = chance.randrange(loses_at + 1, times + 1) if number % 2 else None
    return Story(
        Pipeline(bootstrap, source, sink),
        repeats_at=chance.randrange(times),
        loses_at=loses_at,
        brings_at=brings_at if brings_at != times else None,
        group_moves_at=chance.randrange(times // 2, times),
    )


def _kill(watch: _Watch, cluster: Cluster, number: int, chance: random.Random) -> Kill:
    """Start a watch, write the round, and kill it."""
    delay = chance.uniform(0, DELAY_S)
    with watch.process() as process:
        until = time.monotonic() + delay
        for story in watch.stories:
            story.write(cluster, number)
        # The moment is the point of it: whatever the watch does then.
        time.sleep(max(0.0, until - time.monotonic()))
        code = process.poll()
        process.kill()
    surprise = "" if code is None else f"it ended by itself with {code}"
    return Kill(WATCH, f"start + {delay:.1f} s", 0.0, "", surprise)


class _Watch:
    """The command, and what its processes told."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        hook: Listener,
        stories: list[Story],
        bootstrap: str,
    ) -> None:
        self.settings, self.folder, self.hook, self.stories = settings, folder, hook, stories
        (self.port,) = free_ports(1)
        address = folder / "webhook"
        address.write_text(hook.address)
        address.chmod(0o600)
        self.command = [sys.executable, "-P", "-m", "topicproof", "watch"]
        for story in stories:
            contract = folder / f"{story.name}.yaml"
            source, sink = story.pipeline.source, story.pipeline.sink
            contract.write_text(
                f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nwithin: 1s\norder: none\n"
            )
            self.command.append(str(contract))
        self.command += ["--bootstrap", bootstrap, "--every", "1", "--webhook", str(address)]
        self.command += ["--json", str(folder / "notices"), "--metrics", str(self.port)]

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        """A watch, which is killed at the end."""
        environment = {**os.environ, **python_environment(), **self.settings.environment()}
        with (
            (self.folder / "log").open("ab") as log,
            subprocess.Popen(self.command, env=environment, stdout=log, stderr=log) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    @property
    def expected(self) -> set[Told]:
        return {told for story in self.stories for told in story.expected}

    def metrics(self) -> dict[tuple[str, str, str], float]:
        """Return the figures by name, contract and kind; none if it does not answer."""
        try:
            text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        except httpx.TransportError:
            return {}
        rows = re.findall(
            r'^topicproof_watch_(\w+){contract="([\w-]+)"(?:,kind="(\w+)")?} (\S+)', text, re.M
        )
        return {(name, contract, kind): float(value) for name, contract, kind, value in rows}

    def is_caught_up(self) -> bool:
        metrics = self.metrics()
        return all(
            metrics.get(("contract_behind_offsets", story.name, "")) == 0
            and metrics.get(("inputs_due_total", story.name, "")) == story.written
            for story in self.stories
        )

    def lines(self) -> list[dict[str, Any]]:
        try:
            text = (self.folder / "notices").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def delivered(self) -> set[Told]:
        """Return what both the file and the webhook have."""
        return {*map(_told, self.lines())} & {*map(_told, self.hook.documents)}

    def surprise(self, metrics: dict[tuple[str, str, str], float]) -> str:
        """Return what is wrong with the verdicts and the alarms."""
        wrong = []
        for story in self.stories:
            counts = {DUPLICATE: 1, GAP: 1 if story.brings_at is None else 0}
            for kind, count in counts.items():
                value = metrics[("contract_findings", story.name, kind)]
                if value != count:
                    wrong.append(f"{story.name} has {value:.0f} of {kind}, not {count}")
        in_file = Counter(map(_told, self.lines()))
        for told in self.expected:
            if in_file[told] != 1:
                wrong.append(f"{told} was told {in_file[told]} times")
        # What was brought before any watch saw that it was lost is no alarm.
        passed = set()
        for story in self.stories:
            if story.brings_at is not None:
                both = {("began", GAP, story.name), ("ended", GAP, story.name)}
                passed |= both
                if {in_file[told] for told in both} not in ({0}, {1}):
                    wrong.append(f"the gap of {story.name} was told in part, or twice")
        unexpected = in_file.keys() - self.expected - passed
        if unexpected:
            wrong.append(f"{sorted(unexpected)} was told")
        once = {_number(document): document for document in self.hook.documents}
        by_webhook = Counter(map(_told, once.values()))
        if by_webhook != in_file:
            wrong.append(f"the webhook differs: {by_webhook - in_file} {in_file - by_webhook}")
        return "; ".join(wrong)


def _told(notice: dict[str, Any]) -> Told:
    whose = notice["contract"] or next(iter(notice["groups"]), "")
    return notice["change"], notice["finding"] or notice["kind"], whose


def _number(notice: dict[str, Any]) -> tuple[str, str]:
    return notice["alarm"], notice["change"]
