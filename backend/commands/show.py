"""Runs and reports as lines for a terminal. Every number has its denominator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from topicproof.backend.commands.terminal import Line, Style, Styled
from topicproof.backend.history.run_state import Facts, Progress
from topicproof.validators.expectation import PREMISES, RANGE
from topicproof.validators.finding import Example, Finding, Origin, Outcome, Witness
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.next_steps import next_step
from topicproof.validators.report import Report, identified_place, identified_sentence
from topicproof.validators.sentences import counted, transaction_text
from topicproof.validators.who import who_sentence

RANGES_MAX = 8
"""Maximum partitions whose ranges are listed."""

EXAMPLES_SHOWN = 3
"""Examples listed of each finding; the report has more."""

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
        # A killed worker declares nothing, so the log may hold more aborted ones.
        f"transactions declared: {progress.committed:,} committed, {progress.aborted:,} aborted",
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
    others = foreign_sentence(facts.results.foreign_totals)
    if not wrong:
        return f"totals: all {accounts:,} accounts equal the sum of their distinct payments{others}"
    count, cents = facts.results.wrong_accounts, facts.results.wrong_cents
    amount = (sum(wrong.values()) if cents is None else cents) / 100
    return (
        f"totals: {len(wrong) if count is None else count:,} of {accounts:,} accounts are wrong, by"
        f" {amount:+,.2f} in all,"
        " because some payments entered the source twice. `topicproof totals RUN` shows each;"
        f" deduplicate_s in the plan drops such payments{others}"
    )


def foreign_sentence(count: int) -> str:
    """Return the rest of a sentence on records of a sink that are not totals; empty if all are."""
    records = "record of the sink is not a total" if count == 1 else "records are not totals"
    return f". {count:,} {records}" if count else ""


def report_lines(report: Report, all_kinds: bool = False) -> Iterator[Line]:
    """Yield a report as lines. `all_kinds`: also a line for each kind that holds, and the reason
    for each kind that was not looked for."""
    yield (
        Styled(report.verdict, _bold(COLOURS[report.verdict])),
        f" {report.scope}: {report.why}",
    )
    if who := who_sentence(report):
        yield (f"who: {who}",)
    fates = {
        name: count
        for name, count in report.fates.items()
        if count is not None and name != "never_transactional"
    }
    yield (judged_line(report),)
    # By lineage, each record names its input, and there was nothing to choose.
    if report.identity not in (None, str(Identity.LINEAGE)):
        yield (f"matched by: {report.identity}",)
    terms = " + ".join(
        f"{count:,} {'marker' if (name, count) == ('markers', 1) else name}"
        for name, count in fates.items()
    )
    for warning in report.warnings:
        yield Styled("Warning", "yellow"), f": {warning}"
    offsets = report.sink.offsets
    if report.of_topic:
        yield (f"balance of {report.sink.topic}: {counted(offsets, 'offset')} = {terms}",)
    else:
        yield (f"read of the table {report.sink.topic}: {counted(offsets, 'row')}",)
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
    if report.of_topic or moved.told_by is not None:
        yield (f"transactions: {ends}{per_partition}",)
    yield from _kind_lines(report, all_kinds)
    for doubt in report.doubts:
        yield "  ", Styled("doubt", "yellow"), f" {doubt}"


def _kind_lines(report: Report, all_kinds: bool) -> Iterator[Line]:
    """Yield the findings, and then what holds and what was not looked for: in one line each, or in
    one for each kind."""
    uncounted = {entry.kind: entry.why for entry in report.not_checked}
    aside = {finding.kind: finding for finding in report.aside}
    holding, silent = [], []
    steps: set[str] = set()
    rows: set[str] = set()
    for finding in report.findings:
        if finding.kind in aside:
            continue
        # A kind that holds although it found something, or left something out, has more to say
        # than its name.
        is_whole = not finding.count and ". " not in finding.why
        if finding.outcome is Outcome.HOLDS and is_whole and not all_kinds:
            holding.append(finding.kind)
        else:
            yield from _finding_lines(report, finding, finding.kind in uncounted, rows)
            if (step := next_step(finding)) and step not in steps:
                steps.add(step)
                yield (f"           Next: {step}",)
    if all_kinds:
        yield from _aside_lines(aside.values())
    else:
        for finding in aside.values():
            if finding.outcome is not Outcome.HOLDS:
                silent.append(finding.kind)
            elif finding.count:
                yield (f"  {'info':8} {_normal_rows(finding)}",)
            else:
                holding.append(finding.kind)
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


def _normal_rows(finding: Finding) -> str:
    """Describe what was seen and is not wrong: its first row, and how many more there are."""
    if not finding.examples:
        return f"{finding.kind}: {finding.why}"
    more = finding.count - 1
    others = f" And {more:,} more." if more else ""
    return f"{finding.kind}: {finding.examples[0].why}{others}"


def _bold(colour: Style) -> Style:
    bold: Mapping[Style, Style] = {
        "green": "bold green",
        "red": "bold red",
        "yellow": "bold yellow",
    }
    return bold[colour]


def judged_line(report: Report) -> str:
    """Format the judged range as `judged: 12 inputs: orders-0@0-9, orders-1@5-9 (3 of these offsets
    hold no input)`, for the first few partitions."""
    judged = [bounds for bounds in report.source.partitions if bounds.lso > bounds.start]
    ranges = []
    for bounds in judged[:RANGES_MAX]:
        topic, partition = report.source.place(bounds.partition)
        last = f"-{bounds.lso - 1}" if bounds.lso - 1 > bounds.start else ""
        ranges.append(f"{topic}-{partition}@{bounds.start}{last}")
    if (more := len(judged) - RANGES_MAX) > 0:
        ranges.append(f"and {counted(more, 'more partition')}")
    places = ", ".join(ranges) or f"no offset of {report.source.topic}"
    empty = sum(bounds.lso - bounds.start for bounds in judged) - report.source_records
    holes = ""
    if empty > 0 and report.source_records:
        holes = f" ({empty:,} of these offsets {'holds' if empty == 1 else 'hold'} no input)"
    return f"judged: {counted(report.source_records, 'input')}: {places}{holes}"


def origin_line(origin: Origin) -> str:
    """Return one line with the ids of the cluster and the topics."""
    topics = ", ".join(
        f"{name} {topic_id or 'without an id'}" for name, topic_id in origin.topics.items()
    )
    name = f" {origin.name}," if origin.name else ""
    return f"cluster{name} {origin.cluster or 'without an id'}, topic ids: {topics}"


def _finding_lines(
    report: Report, finding: Finding, uncounted: bool, rows: set[str]
) -> Iterator[Line]:
    """Yield a finding and its first rows. `rows`: those of earlier findings, to which these are
    added; a finding whose rows are all among them refers to them."""
    # The sentence names the kind that explains the rows, unless that is a broken premise.
    premise = finding.explained_by if finding.explained_by in PREMISES else None
    notes = [f"explained by {premise}"] if premise else []
    notes += ["not counted"] if uncounted else []
    note = f" ({', '.join(notes)})" if notes else ""
    outcome = Styled(f"{finding.outcome:8}", COLOURS[finding.outcome])
    yield "  ", outcome, f" {finding.kind}: {finding.why}{note}"
    if finding.story:
        yield (f"           What happened: {finding.story}",)
    if finding.outcome is Outcome.HOLDS and not finding.primary and finding.explained_by == RANGE:
        return
    lines = [_row(report, finding, example) for example in finding.examples[: EXAMPLES_SHOWN + 1]]
    if lines and rows.issuperset(lines):
        yield ("           The same records as above.",)
        return
    # A line for "1 more" would be no shorter than the row.
    is_one_more = finding.count == EXAMPLES_SHOWN + 1
    lines = lines[: EXAMPLES_SHOWN + is_one_more]
    rows.update(lines)
    yield from ((line,) for line in lines)
    if (more := finding.count - len(lines)) > 0 and lines:
        yield (f"           and {more:,} more",)


def _row(report: Report, finding: Finding, example: Example) -> str:
    place = identified_place(report, example)
    why = f"{identified_sentence(example)}{_writer(finding, example)}"
    return f"           {place + ': ' if place else ''}{why}"


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
