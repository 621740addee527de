"""What a terminal shows of runs, reports and topics. Every number has its denominator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from validators.finding import Fate, Finding, Outcome
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
    uncounted = {one.kind: one.why for one in report.not_checked}
    aside = {finding.kind: finding for finding in report.aside}
    for finding in report.findings:
        if finding.kind not in aside:
            yield from _finding_lines(report, finding, finding.kind in uncounted)
    yield from _aside_lines(aside.values())
    looked_for = {finding.kind for finding in report.findings}
    for kind, why in uncounted.items():
        if kind not in looked_for:
            yield f"  not checked {kind}: {_plain(why)}"
    for doubt in report.doubts:
        yield f"  [yellow]doubt[/] {_plain(doubt)}"


def _finding_lines(report: Report, finding: Finding, uncounted: bool) -> Iterator[str]:
    colour = COLOURS[finding.outcome]
    notes = [f"explained by {finding.explained_by}"] if finding.explained_by else []
    notes += ["not counted"] if uncounted else []
    note = f" ({', '.join(notes)})" if notes else ""
    yield f"  [{colour}]{finding.outcome:8}[/] {finding.kind}: {_plain(finding.why)}{note}"
    for example in finding.examples[:3]:
        where = "" if example.partition is None else f"{report.sink.topic}-{example.partition}@{example.offset}: "
        yield f"           {_plain(where + example.why)}"


def _aside_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Kinds that do not count, one line for those that hold and one for those that could not be judged."""
    for outcome, said in ((Outcome.HOLDS, "in order"), (Outcome.UNKNOWN, "not judged")):
        names = [f"{one.kind} ({one.count:,})" if one.count else one.kind for one in findings if one.outcome is outcome]
        if names:
            yield f"  not counted, {said}: {', '.join(names)}"


def print_topic(out: Console, view: TopicView) -> None:
    """What `topicproof inspect` shows: balance, partitions, transactions, what is open, and every group's lag."""
    fates = {fate: count for fate, count in view.fates.items() if count or fate in _ALWAYS}
    terms = " + ".join(f"{count:,} {fate.lower()}" for fate, count in fates.items())
    out.print(f"[bold]{view.topic}[/] at {view.taken_at:%Y-%m-%d %H:%M:%S} UTC", highlight=False)
    out.print(f"{view.bounds.offsets:,} offsets = {terms}; {view.outside:,} records in no transaction", highlight=False)
    partitions = _table("p", "start", "LSO", "HW", *(fate.lower() for fate in fates))
    for one in view.partitions:
        counts = (one.fates.get(fate, 0) for fate in fates)
        partitions.add_row(str(one.partition), *(f"{n:,}" for n in (one.start, one.lso, one.hw, *counts)))
    out.print(partitions)
    moved = view.transactions
    out.print(
        f"transactions: {moved.committed:,} committed ({moved.records_committed:,} records), {moved.aborted:,} aborted "
        f"({moved.records_aborted:,} records), {moved.open:,} open",
        highlight=False,
    )
    last = _table("p", "first", "last", "records", "outcome", "marker", "producer")
    for each in moved.last:
        marker = "" if each.marker_offset is None else f"{each.marker_offset:,}"
        places = (f"{n:,}" for n in (each.first_offset, each.last_offset, each.records))
        last.add_row(str(each.partition), *places, each.outcome, marker, f"{each.producer_id}:{each.producer_epoch}")
    if moved.last:
        out.print(last)
    for waiting in view.open:
        out.print(f"[yellow]{_plain(waiting.why)}[/]", highlight=False)
    lags = _table("group", "to read (read_committed)", "to read (read_uncommitted)", "HW - committed", "")
    for lag in view.lags:
        stuck = "stuck behind an open transaction" if lag.stuck else ""
        lags.add_row(lag.group, *(f"{n:,}" for n in (lag.visible, lag.uncommitted, lag.subtraction)), stuck)
    out.print(lags if view.lags else "No group has committed offsets here.")
    for question in view.not_heard:
        out.print(f"[yellow]not heard[/] {_plain(question)}", highlight=False)


_ALWAYS = {Fate.COMMITTED, Fate.ABORTED, Fate.PENDING, Fate.MARKER}


def _table(*names: str) -> Table:
    """Words to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in {"", "group", "outcome", "producer"} else "right")
    return table


def _plain(text: str) -> str:
    """Square brackets in texts must not be taken for markup."""
    return text.replace("[", r"\[")
