"""How fast this project is beside what a user would pick instead. Run as `make bench ARGS="--peers
DIR"`.

Both sides of a row work on the same topic, in turn, at least three times; the ratio of each turn
counts, and of these the median, with the lowest and the highest beside it. Kafka and Spark are
started for it and thrown away afterwards. Without `--peers` (a folder of other programs, which is
no part of this project) only this project is measured.

The speed of a pipeline is its records over the time from the first transaction that was begun to
the last one that was committed; of Kafka Streams, over the time from its first record until it has
closed. What starting costs is in "whole".
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks import sides
from benchmarks.line import Line, Row
from benchmarks.rows import growth, machines, throughput, waiting
from benchmarks.sides import RECORDS, Bench
from benchmarks.speed_report import as_markdown, as_page
from topicproof.backend.errors import TopicproofError
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import ROOT, STOP_TIMEOUT_S, read_settings
from topicproof.backend.waiting import ask_until

TIMES = 3
QUICK_RECORDS = 200_000
ROWS: dict[str, Row] = {
    "streams": throughput.row_streams,
    "lineage": throughput.row_lineage,
    "interval": throughput.row_interval,
    "guarantees": throughput.row_guarantees,
    "sizes": throughput.row_sizes,
    "verdict": growth.row_verdict,
    "latency": waiting.row_latency,
    "realtime": waiting.row_real_time,
    "curve": waiting.row_curve,
    "backlog": waiting.row_backlog,
    "first": waiting.row_first,
    "linear": growth.row_linear,
    "large": growth.row_large,
    "brokers": machines.row_brokers,
    "executors": machines.row_executors,
}
QUICK_ROWS = ("streams", "lineage", "first")


def measure(
    bench: Bench, rows: Sequence[str], records: int, times: int, say: Callable[[str], None]
) -> list[Line]:
    """The rows' figures. A peer that does not run is said, and its row left out."""
    found: list[Line] = []
    # Not counted: what a server is told for the first time, it compiles.
    for count in sorted({min(records, 10_000), records}):
        sides.ours(bench, bench.source(count), count)
    for row in rows:
        try:
            for line in ROWS[row](bench, records, times):
                found.append(line)
                beside = (
                    f", {statistics.median(line.ratios):.2f} of {line.against}"
                    if line.ratios
                    else ""
                )
                say(f"{line.what}: {statistics.median(line.ours):,.2f} {line.unit}{beside}")
        except (TopicproofError, OSError, subprocess.TimeoutExpired) as error:
            say(f"Row {row} was left out: {error}")
    return found


def write(found: Sequence[Line], folder: Path, records: int) -> None:
    """speed.json, speed.md and speed.html."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"commit": _commit(), "cores": os.cpu_count(), "records": records}
    lines = [{**asdict(line), "ratios": line.ratios} for line in found]
    (folder / "speed.json").write_text(
        json.dumps({**head, "lines": lines}, indent=2) + "\n", encoding="utf-8"
    )
    (folder / "speed.md").write_text(as_markdown(lines, head), encoding="utf-8")
    (folder / "speed.html").write_text(as_page(lines, head), encoding="utf-8")


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        asked, capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()


def main() -> None:
    options = argparse.ArgumentParser(
        description="How fast, beside what a user would pick instead."
    )
    options.add_argument(
        "--peers", type=Path, help="folder of the programs to measure beside this one"
    )
    options.add_argument(
        "--peers-python", default=sys.executable, help="a Python that has what its scripts import"
    )
    options.add_argument(
        "--quick", action="store_true", help="few records and the main rows: under three minutes"
    )
    options.add_argument("--records", type=int)
    options.add_argument("--times", type=int, default=TIMES)
    options.add_argument("--rows", default="", help=f"only these, of {', '.join(ROWS)}")
    options.add_argument(
        "--out", type=Path, default=Path("artifacts/speed"), help="folder for JSON, table and page"
    )
    asked = options.parse_args()
    out, errors = Console(), Console(stderr=True)
    rows = [row for row in asked.rows.split(",") if row] or (
        QUICK_ROWS if asked.quick else list(ROWS)
    )
    if unknown := set(rows) - set(ROWS):
        options.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    records = asked.records or (QUICK_RECORDS if asked.quick else RECORDS)
    if asked.peers is None:
        errors.print("No --peers: this project is measured alone.")
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as home:
        settings = read_settings(home=Path(home))
        with services(settings, say=errors.print) as up:
            bench = Bench(settings, up, asked.peers, asked.peers_python)
            found = measure(bench, rows, records, asked.times, errors.print)
            write(found, asked.out, records)
        # They stop after their last user has left. Until then they write into the folder.
        running = settings.services / "running.json"
        ask_until(running.exists, operator.not_, 2 * STOP_TIMEOUT_S)
    out.print(
        (asked.out / "speed.md").read_text(encoding="utf-8"),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
