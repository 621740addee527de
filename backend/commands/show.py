"""Runs and reports as lines for a terminal. Every number has its denominator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from topicproof.backend.commands.terminal import Line, Style, Styled
from topicproof.backend.history.run_state import Facts, Progress
from topicproof.validators.expectation import PREMISES
from topicproof.validators.finding import Bounds, Example, Finding, Origin, Outcome, Witness
from topicproof.validators.next_steps import next_step
from topicproof.validators.report import Report
from topicproof.validators.sentences import counted, transaction_text

RANGES_MAX = 8
"""Maximum partitions whose ranges are listed."""

EXAMPLES_SHOWN = 3
"""Examples listed of each finding; the report has more."""
LINEAGE_PARTS = 3
"""Topic, partition and offset of an input; an output's number may follow."""
PARTITION_PARTS = 2
"""Topic and partition, where a finding is about a whole partition of the source."""

COLOURS: Mapping[Outcome, Style] = {
    Outcome.HOLDS: "green",
    Outcome.VIOLATED: "red",
    Outcome.UNKNOWN: "yellow",
}


def progress_line(progress: Progress) -> str:
    """Return one line of live figures; empty before the first look."""
    if not progress.stage:
        return ""
    total = progress.total
    parts = [
        progress.stage,
        f"{progress.processed:,}"
        + (f" of {total:,}" if total is not None else "")
        + " inputs committed",
        f"{progress.committed:,} transactions committed, {progress.aborted:,} aborted",
    ]
    if progress.fenced:
        parts.append(f"{progress.fenced:,} fenced")
    parts += [f"{stage.name} {stage.processed:,} of {stage.there:,}" for stage in progress.stages]
    if progress.faults:
        parts.append(f"{progress.faults:,} faults fired")
    withheld = sum(p.hw - p.lso for p in progress.sink)
    if withheld:
        parts.append(f"{withheld:,} offsets at or above the LSO")
    if progress.records_per_s:
        parts.append(f"{progress.records_per_s:,.0f} records/s")
    if progress.seconds_left:
        parts.append(f"{progress.seconds_left:,.0f} s left")
    if progress.trouble:
        parts.append(progress.trouble)
    return " · ".join(parts)


def side_effects(progress: Progress) -> str:
    """Return a line on work repeated beyond its outcome: outputs are exactly-once, processing is
    not. Empty until the journal has an entry."""
    if not progress.attempted:
        return ""
    sentence = (
        f"at least {progress.attempted:,} inputs processed for {progress.kept:,} declared committed"
    )
    if progress.downloads is not None:
        sentence += f", {progress.downloads:,} downloads of {progress.downloaded:,} files"
    return f"side effects: {sentence}"


def balances(facts: Facts) -> str:
    """Return whether totals equal the sum of the distinct payments, in the scenario totals; else an
    empty text."""
    wrong, accounts = facts.results.wrong_by, facts.results.accounts
    if wrong is None or accounts is None:
        return ""
    if not wrong:
        return f"totals: all {accounts:,} accounts equal the sum of their distinct payments"
    amount = sum(wrong.values()) / 100
    return (
        f"totals: {len(wrong):,} of {accounts:,} accounts are wrong, by {amount:+,.2f} in all,"
        " because some payments entered the source twice. `topicproof totals RUN` shows each;"
        " deduplicate_s in the plan drops such payments"
    )


def report_lines(report: Report, all_kinds: bool = False) -> Iterator[Line]:
    """Yield a report as lines. `all_kinds`: also a line for each kind that holds, and the reason
    for each kind that was not looked for."""
    yield (
        Styled(report.verdict, _bold(COLOURS[report.verdict])),
        f" {report.scope}: {report.why}",
    )
    fates = {
        name: count
        for name, count in report.fates.items()
        if count is not None and name != "never_transactional"
    }
    yield (
        f"judged: {report.source_records:,} inputs of {report.source.topic},"
        f" {judged_range(report.source)}",
    )
    terms = " + ".join(
        f"{count:,} {'marker' if (name, count) == ('markers', 1) else name}"
        for name, count in fates.items()
    )
    for warning in report.warnings:
        yield Styled("Warning", "yellow"), f": {warning}"
    yield (f"balance of {report.sink.topic}: {report.sink.offsets:,} offsets = {terms}",)
    moved = report.transactions
    per_partition = " (each counted once a partition)" if moved.told_by == Witness.RAW_LOG else ""
    ends = (
        f"{moved.committed or 0:,} committed, {moved.aborted or 0:,} aborted, {moved.open or 0:,}"
        " open"
    )
    if report.origin is not None:
        yield (origin_line(report.origin),)
    if report.source_origin is not None:
        yield (f"source: {origin_line(report.source_origin)}",)
    for note in report.notes:
        yield (f"note: {note}",)
    yield (f"transactions: {ends}{per_partition}",)
    yield from _kind_lines(report, all_kinds)
    for doubt in report.doubts:
        yield "  ", Styled("doubt", "yellow"), f" {doubt}"


def _kind_lines(report: Report, all_kinds: bool) -> Iterator[Line]:
    """Yield the findings, and then what holds and what was not looked for: in one line each, or in
    one for each kind."""
    uncounted = {entry.kind: entry.why for entry in report.not_checked}
    aside = {finding.kind: finding for finding in report.aside}
    holding, silent, steps = [], [], set()
    for finding in report.findings:
        if finding.kind in aside:
            continue
        # A kind that holds although it found something has more to say than its name.
        if finding.outcome is Outcome.HOLDS and not finding.count and not all_kinds:
            holding.append(finding.kind)
        else:
            yield from _finding_lines(report, finding, finding.kind in uncounted)
            if (step := next_step(finding)) and step not in steps:
                steps.add(step)
                yield (f"           Next: {step}",)
    if all_kinds:
        yield from _aside_lines(aside.values())
    else:
        for finding in aside.values():
            if finding.outcome is Outcome.HOLDS:
                name = f"{finding.kind} ({finding.count:,})" if finding.count else finding.kind
                holding.append(name)
            else:
                silent.append(finding.kind)
    looked_for = {finding.kind for finding in report.findings}
    not_looked_for = {kind: why for kind, why in uncounted.items() if kind not in looked_for}
    if all_kinds:
        for kind, why in not_looked_for.items():
            yield (f"  not checked {kind}: {why}",)
        return
    if holding:
        yield (f"  {counted(len(holding), 'kind holds', 'kinds hold')}: {', '.join(holding)}",)
    silent += not_looked_for
    if silent:
        kinds = counted(len(silent), "kind was", "kinds were")
        yield (f"  {kinds} not looked for (--all tells why): {', '.join(silent)}",)


def _bold(colour: Style) -> Style:
    bold: Mapping[Style, Style] = {
        "green": "bold green",
        "red": "bold red",
        "yellow": "bold yellow",
    }
    return bold[colour]


def judged_range(source: Bounds) -> str:
    """Format the judged range as `offsets 0: 0-499, 1: 20-480`, for the first few partitions."""
    ranges = [
        f"{p.partition}: {p.start:,}-{p.lso - 1:,}" for p in source.partitions if p.lso > p.start
    ]
    more = f" and {len(ranges) - RANGES_MAX:,} more partitions" if len(ranges) > RANGES_MAX else ""
    return f"offsets {', '.join(ranges[:RANGES_MAX])}{more}" if ranges else "no offset"


def origin_line(origin: Origin) -> str:
    """Return one line with the ids of the cluster and the topics."""
    topics = ", ".join(
        f"{name} {topic_id or 'without an id'}" for name, topic_id in origin.topics.items()
    )
    name = f" {origin.name}," if origin.name else ""
    return f"cluster{name} {origin.cluster or 'without an id'}, topic ids: {topics}"


def _finding_lines(report: Report, finding: Finding, uncounted: bool) -> Iterator[Line]:
    # The sentence names the kind that explains the rows, unless that is a broken premise.
    premise = finding.explained_by if finding.explained_by in PREMISES else None
    notes = [f"explained by {premise}"] if premise else []
    notes += ["not counted"] if uncounted else []
    note = f" ({', '.join(notes)})" if notes else ""
    outcome = Styled(f"{finding.outcome:8}", COLOURS[finding.outcome])
    yield "  ", outcome, f" {finding.kind}: {finding.why}{note}"
    for example in finding.examples[:EXAMPLES_SHOWN]:
        place = _place(report, example)
        yield (
            f"           {place + ': ' if place else ''}{example.why}{_writer(finding, example)}",
        )
    if (more := finding.count - EXAMPLES_SHOWN) > 0 and finding.examples:
        yield (f"           and {more:,} more",)


def _place(report: Report, example: Example) -> str:
    """Return where an example lies: in the sink, in the source, or in both, and what identifies it;
    empty if nowhere."""
    sink, source = "", ""
    if example.partition is not None:
        topic, partition = report.sink.place(example.partition)
        sink = f"{topic}-{partition}"
        sink += "" if example.offset is None else f"@{example.offset}"
    parts = (example.lineage or "").split("/")
    if len(parts) == PARTITION_PARTS and parts[1].isdecimal():
        source = f"{parts[0]}-{parts[1]}"
    if len(parts) >= LINEAGE_PARTS and parts[1].isdecimal() and parts[2].isdecimal():
        source = f"input {parts[0]}-{parts[1]}@{parts[2]}"
    place = f"{sink} ({source})" if sink and source else sink or source
    return f"{place}, identity {example.identity}" if place and example.identity else place


def _writer(finding: Finding, example: Example) -> str:
    """Return who wrote the record, unless a sentence about it says so."""
    transaction = example.transaction
    if transaction is None or transaction in finding.why or transaction in example.why:
        return ""
    return f" Transaction: {transaction_text(transaction)}."


def _aside_lines(findings: Iterable[Finding]) -> Iterator[Line]:
    """Yield a line for the kinds that do not count but hold, and one for those not judged."""
    for outcome, phrase in ((Outcome.HOLDS, "holds"), (Outcome.UNKNOWN, "not judged")):
        names = [
            f"{finding.kind} ({finding.count:,})" if finding.count else finding.kind
            for finding in findings
            if finding.outcome is outcome
        ]
        if names:
            yield (f"  not counted, {phrase}: {', '.join(names)}",)
