"""What a terminal shows of runs, reports and topics. Every number has its denominator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from validators.finding import Outcome
from validators.report import Report

if TYPE_CHECKING:
    from backend.kafka.inspect import TopicView

COLOURS = {Outcome.HOLDS: "green", Outcome.VIOLATED: "red", Outcome.UNKNOWN: "yellow"}


def progress_line(progress: Mapping[str, Any]) -> str:
    """One line of live figures; empty before the first look."""
    if not progress:
        return ""
    total = progress["total"]
    parts = [
        progress["stage"],
        f"{progress['processed']:,}" + (f" of {total:,}" if total is not None else "") + " inputs committed",
        f"{progress['committed']:,} transactions committed, {progress['aborted']:,} aborted",
    ]
    if progress["faults"]:
        parts.append(f"{progress['faults']:,} faults fired")
    withheld = sum(p["hw"] - p["lso"] for p in progress["sink"])
    if withheld:
        parts.append(f"{withheld:,} offsets above the LSO")
    if progress["records_per_s"]:
        parts.append(f"{progress['records_per_s']:,.0f} records/s")
    if progress["seconds_left"]:
        parts.append(f"{progress['seconds_left']:,.0f} s left")
    if progress["trouble"]:
        parts.append(progress["trouble"])
    return " · ".join(parts)


def report_lines(report: Report) -> Iterator[str]:
    """A report as lines of Rich markup."""
    colour = COLOURS[report.verdict]
    yield f"[bold {colour}]{report.verdict}[/] {report.guarantee}: {_plain(report.why)}"
    fates = {name: count for name, count in report.fates.items() if count is not None and name != "never_transactional"}
    terms = " + ".join(f"{count:,} {name}" for name, count in fates.items())
    yield f"balance of {report.sink.topic}: {report.sink.offsets:,} offsets = {terms}"
    moved = report.transactions
    yield f"transactions: {moved.committed or 0:,} committed, {moved.aborted or 0:,} aborted, {moved.open or 0:,} open"
    for finding in report.findings:
        colour = COLOURS[finding.outcome]
        explained = f" (explained by {finding.explained_by})" if finding.explained_by else ""
        yield f"  [{colour}]{finding.outcome:8}[/] {finding.kind}: {_plain(finding.why)}{explained}"
        for example in finding.examples[:3]:
            where = "" if example.partition is None else f"{report.sink.topic}-{example.partition}@{example.offset}: "
            yield f"           {_plain(where + example.why)}"
    for missing in report.not_checked:
        yield f"  not checked {missing.kind}: {_plain(missing.why)}"
    for doubt in report.doubts:
        yield f"  [yellow]doubt[/] {_plain(doubt)}"


def print_topic(out: Console, view: TopicView) -> None:
    """What `topicproof inspect` shows."""


def _plain(text: str) -> str:
    """Square brackets in texts must not be taken for markup."""
    return text.replace("[", r"\[")
