"""What both measurements of a watch share: a Kafka that is thrown away, the watch as a command in a
process of its own, its notices, and a file of results that is written as they come."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.processes import free_ports
from topicproof.backend.settings import read_settings

SCRAPE_TIMEOUT_S = 30
END_TIMEOUT_S = 30


class Results:
    """Figures by name, in a file that always has the newest ones."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.figures: dict[str, Any] = {}

    def note(self, name: str, figures: Mapping[str, Any]) -> None:
        """Replace the figures of this name."""
        self.figures[name] = dict(figures)
        if self.path is None:
            return
        new = self.path.with_suffix(f"{self.path.suffix}.new")
        new.write_text(json.dumps(self.figures, indent=2) + "\n")
        new.replace(self.path)


@contextmanager
def throwaway_kafka() -> Iterator[tuple[str, Path]]:
    """Yield the address of a Kafka, and a folder; both are gone behind the block."""
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder:
        (home := Path(folder) / "kafka").mkdir()
        kafka = EmbeddedKafka(home, jar_files(read_settings(), BROKER))
        try:
            kafka.start()
            yield kafka.bootstrap, Path(folder)
        finally:
            kafka.stop()


class WatchProcess:
    """A watch in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, notices: Path) -> None:
        self.process, self.port, self.path = process, port, notices
        self.kernel = psutil.Process(process.pid)
        self._read = 0

    def metrics(self, name: str) -> list[float]:
        """Return a figure of all contracts; none while it does not answer."""
        try:
            url = f"http://127.0.0.1:{self.port}/metrics"
            text = httpx.get(url, timeout=SCRAPE_TIMEOUT_S).text
        except httpx.TransportError:
            return []
        return [
            float(value)
            for value in re.findall(rf"^topicproof_watch_{name}{{.*}} (\S+)$", text, re.M)
        ]

    def new_notices(self) -> list[dict[str, Any]]:
        """Return the notices that were written since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + bool(whole)
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def is_caught_up(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.port}/readyz"
            return httpx.get(url, timeout=SCRAPE_TIMEOUT_S).is_success
        except httpx.TransportError:
            return False

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def cpu_s(self) -> float:
        times = self.kernel.cpu_times()
        return times.user + times.system

    @property
    def memory_mib(self) -> float:
        return self.kernel.memory_info().rss / 2**20

    def wait_until_caught_up(self, timeout_s: float, step_s: float = 0.5) -> bool:
        until = time.monotonic() + timeout_s
        while not self.is_caught_up:
            if time.monotonic() > until or not self.is_alive:
                return False
            time.sleep(step_s)
        return True


@contextmanager
def watch_process(
    bootstrap: str,
    folder: Path,
    contracts: Sequence[Path],
    every_s: float,
    profile: str | None = None,
) -> Iterator[WatchProcess]:
    """Run a watch of these contracts, with a home of its own in the folder."""
    (port,) = free_ports(1)
    command = [sys.executable, "-P", "-m", *(["cProfile", "-o", profile, "-m"] if profile else ())]
    command += ["topicproof", "watch", *map(str, contracts), "--bootstrap", bootstrap]
    notices = folder / "notices"
    command += ["--every", str(every_s), "--metrics", str(port), "--json", str(notices)]
    environment = {**python_environment(), "TOPICPROOF_HOME": str(folder / "home")}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield WatchProcess(process, port, notices)
            if profile:
                process.terminate()
                process.wait(END_TIMEOUT_S)
        finally:
            process.kill()


def contract_text(source: str, sink: str, within: str = "30s") -> str:
    return f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nwithin: {within}\n"


def contract_file(folder: Path, source: str, sink: str) -> Path:
    path = folder / f"{sink}.yaml"
    path.write_text(contract_text(source, sink))
    return path
