"""A long torture, watched from outside: `python -m tests.kills.soak --minutes 30 --brokers 3`.

Each ten seconds it looks at every process of the home: how many there are, their memory, threads
and open files. Prints the medians of the second and the last third of the time, the threads of
Spark whose number changed, and what is left after the end. The exit code is 1 if a run was a
surprise, memory or files grew, or something is left.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient

from tests.conftest import wait_until
from tests.kills.pipeline import RESUME_S, start
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import Settings, read_settings

LOOK_S = 10.0
GROWTH = 1.2
"""Above this ratio of the last third to the second one, a figure counts as growing. Java's heaps
are still filling in the first third."""
HEAPS_MIB = {"Spark": 4_096 + 1_024, "broker": 3 * (512 + 256)}
"""Java fills its heap before it collects garbage, so its memory grows only beyond the heap, with
what lies outside it: of the server, and of three brokers."""
KEPT_BY_SPARK = "Idle Worker Mon"
"""Spark keeps such a thread for each session that ran Python, as long as it lives (SPARK-54055).
They are told, but do not count as growth."""
POOLS = ("prefork server and workers", "workers of Spark's own")
"""The number of their processes follows the runs under way, so memory is judged for each one."""
FEW = 16
"""So many more threads or open files are within what one run more or less needs."""
ROLES = {
    "SparkConnectServer": "Spark",
    "kafka.Kafka": "broker",
    "prefork_server": "prefork server and workers",
    "pyspark.daemon": "workers of Spark's own",
    "torture": "torture",
}


@dataclass(frozen=True)
class Look:
    """What all processes of one role had at one moment."""

    processes: int
    mib: float
    threads: int
    files: int
    named: Counter[str] = field(default_factory=Counter)
    """Threads by name, without the numbers in it."""

    @property
    def mib_each(self) -> float:
        return self.mib / self.processes

    def __add__(self, other: Look) -> Look:
        return Look(
            self.processes + other.processes,
            self.mib + other.mib,
            self.threads + other.threads,
            self.files + other.files,
            self.named + other.named,
        )


def role(command: str) -> str:
    """Return what a process is, by its command line."""
    return next((name for word, name in ROLES.items() if word in command), "keeper and others")


def belonging(home: Path) -> Iterator[psutil.Process]:
    """Yield the processes that work on this home, except this one."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(home) in process.environ().values():
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def threads_by_name(pid: int) -> Counter[str]:
    """Return the threads of a process by name, as Linux keeps it: 15 characters."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found[re.sub(r"[0-9a-f-]*\d[0-9a-f-]*", "N", (task / "comm").read_text().strip())] += 1
    return found


def look(home: Path) -> dict[str, Look]:
    """Return what the processes of a home have now, by role."""
    found: dict[str, Look] = {}
    for process in belonging(home):
        try:
            # Workers are forks that share most pages, so each counts with its part of them.
            mib = process.memory_full_info().pss / 2**20
            name = role(" ".join(process.cmdline()))
            named = threads_by_name(process.pid)
            counted = named.total() - named[KEPT_BY_SPARK]
            one = Look(1, mib, counted, process.num_fds(), named)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, FileNotFoundError):
            continue
        found[name] = found[name] + one if name in found else one
    return found


def watch(settings: Settings, torture: subprocess.Popen[str], log: Path) -> list[dict[str, Look]]:
    """Look until the torture ends, and print what there is once a minute."""
    looks: list[dict[str, Look]] = []
    while torture.poll() is None:
        looks.append(look(settings.home))
        if len(looks) % 6 == 0:
            runs = log.read_text(encoding="utf-8").count("as expected")
            totals = ", ".join(f"{name} {one.mib:.0f} MiB" for name, one in looks[-1].items())
            _say(f"{len(looks) * LOOK_S / 60:.0f} min, {runs} runs: {totals}")
        time.sleep(LOOK_S)
    return looks


def table(looks: Sequence[dict[str, Look]]) -> tuple[list[str], list[str]]:
    """Return the medians as a table in Markdown, and the figures that grew."""
    third = len(looks) // 3
    rows, grown = [], []
    for name in sorted({name for one in looks for name in one}):
        cells = []
        parts = [
            [one[name] for one in part if name in one]
            for part in (looks[third : 2 * third], looks[2 * third :])
        ]
        for figure in ("processes", "mib", "threads", "files"):
            middle, last = _medians(parts, figure)
            cells.append(f"{middle:,.0f} → {last:,.0f}")
            heap = HEAPS_MIB.get(name, 0) if figure == "mib" else 0
            few = FEW
            if figure == "mib" and name in POOLS:
                (middle, last), few = _medians(parts, "mib_each"), 0
            if last > GROWTH * middle and last - middle > few and last > heap:
                grown.append(f"{name}: {figure} {middle:,.0f} → {last:,.0f}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    head = ["| | processes | memory, MiB | threads | open files |", "| --- |" + " ---: |" * 4]
    return [*head, *rows], grown


def _medians(parts: Sequence[Sequence[Look]], figure: str) -> tuple[float, ...]:
    return tuple(
        statistics.median(getattr(one, figure) for one in part) if part else 0.0 for part in parts
    )


def changed_threads(looks: Sequence[dict[str, Look]], of: str = "Spark") -> list[str]:
    """Return the names of a role's threads whose median number is another one in the last third."""
    third = len(looks) // 3
    middle, last = (
        [one[of].named for one in part if of in one]
        for part in (looks[third : 2 * third], looks[2 * third :])
    )
    if not middle or not last:
        return []
    return [
        f"{of}, threads {name}: {before:.0f} → {after:.0f}"
        for name in sorted(set().union(*middle, *last))
        if (before := statistics.median(one[name] for one in middle))
        != (after := statistics.median(one[name] for one in last))
    ]


def left_on(settings: Settings) -> list[str]:
    """Return the topics that are still there, but those that Kafka and the home keep."""
    with services(settings, spark=False) as found:
        topics = AdminClient({"bootstrap.servers": found.bootstrap}).list_topics(timeout=30).topics
    return sorted(name for name in topics if not name.startswith("__"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kills.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        settings = read_settings(home=Path(folder) / "home", brokers=given.brokers)
        wrong = soak(settings, given.minutes, given.seed, Path(folder) / "torture.log")
    _say("\n".join(f"SURPRISE {one}" for one in wrong) or "Nothing surprised, grew or is left.")
    sys.exit(bool(wrong))


def soak(settings: Settings, minutes: float, seed: int, log: Path) -> list[str]:
    """Return what was wrong, one sentence each."""
    temporary = settings.home.parent / "tmp"
    temporary.mkdir()
    # Of this process too, or it would look for the keeper's socket elsewhere.
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    with log.open("w", encoding="utf-8") as out:
        torture = start(
            settings,
            *("torture", "--minutes", str(minutes), "--seed", str(seed), "--no-shrink"),
            *("--brokers", str(settings.brokers)),
            out=out,
        )
        looks = watch(settings, torture, log)
    rows, grown = table(looks)
    wrong = []
    _say("\n".join([*rows, *changed_threads(looks)]))
    told = log.read_text(encoding="utf-8")
    lines = told.strip().splitlines()
    _say("\n".join([*(one for one in lines if "Replay:" in one), lines[-1]]))
    if torture.returncode != 0:
        wrong.append(f"torture ended with {torture.returncode}: {told[-2_000:]}")
    wait_until(lambda: not any(belonging(settings.home)), RESUME_S, "the end of all processes")
    if topics := left_on(settings):
        wrong.append(f"topics are left: {', '.join(topics)}")
    wait_until(lambda: not any(belonging(settings.home)), RESUME_S, "the end of all processes")
    # The folder of sockets stays, empty.
    if files := sorted(str(one) for one in temporary.rglob("*") if not one.is_dir()):
        wrong.append(f"temporary files are left: {', '.join(files)}")
    return [*wrong, *grown]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
