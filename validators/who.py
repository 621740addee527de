"""Who caused what makes a verdict: the line below the verdict.

A finding on records of other programs names their writers in its own sentence. Records of a run
name their transaction in a header, which a mask may hide, so no sentence of a finding quotes it.
Where no writer is known, the line says why, and where one is to be found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from topicproof.validators.expectation import PENDING, PREMISES, UNTOLD
from topicproof.validators.facts.writers import UNNAMED
from topicproof.validators.finding import Bounds, Finding, Outcome
from topicproof.validators.kinds.gap import OF_NEAREST, WITHOUT_TRACE
from topicproof.validators.report import Report
from topicproof.validators.sentences import counted, transaction_text
from topicproof.validators.shell_words import command_line

WRITERS_MAX = 3
"""Writers named of each kind."""
_WITH_PRODUCER = re.compile(
    r"(?:(?P<name>transactional id .*), )?"
    rf"(?P<producer>producer id \d+, epoch \d+|{UNNAMED})(?:, .*)?",
    re.DOTALL,
)
"""A transaction of an example, as words. Somebody else chose the name, so the last producer is the
one of the batch."""
_OF_NAME = re.compile(r", transaction \d+ of it, attempt \d+$")
_REMOVED = (
    "no writer removed records: retention, compaction or a DeleteRecords request did, and Kafka's"
    " log does not say who sent the request"
)
_OF_GROUP = (
    "a check does not look up who committed the group's offset: a producer in a transaction, a"
    " member, or an operator's reset. `kafka-dump-log.sh --offsets-decoder` shows its record in"
    " __consumer_offsets, which has a producer id if a transaction committed it"
)
_OF_KIND: Mapping[str, str] = {
    "source_removed": _REMOVED,
    "sink_removed": _REMOVED,
    "recreated": (
        "Kafka's log does not say who deleted a topic and made it again; the controller's log and"
        " an authorizer's audit log may"
    ),
    "offset_ahead": _OF_GROUP,
    "offset_behind": _OF_GROUP,
}
"""What is known about who caused rows that no record shows."""


def who_sentence(report: Report) -> str:
    """Returns who caused what the verdict does not hold for, as one sentence for each kind that
    makes it; empty if it holds, or if its own sentence names every writer."""
    if report.doubts or report.verdict is Outcome.HOLDS:
        return ""
    kinds_by_clause: dict[str, list[str]] = {}
    for finding in _deciding(report):
        for clause in _clauses(report, finding):
            kinds_by_clause.setdefault(clause, []).append(finding.kind)
    clauses_by_kinds: dict[str, list[str]] = {}
    for clause, kinds in kinds_by_clause.items():
        clauses_by_kinds.setdefault(", ".join(kinds), []).append(clause)
    return "; ".join(
        f"{kinds}: {'; '.join(clauses)}" for kinds, clauses in clauses_by_kinds.items()
    )


def _deciding(report: Report) -> list[Finding]:
    """Returns the findings that the verdict's sentence names."""
    uncounted = {check.kind for check in report.not_checked}
    bad = [
        finding
        for finding in report.findings
        if finding.outcome is report.verdict and finding.kind not in uncounted and finding.count
    ]
    if report.verdict is Outcome.VIOLATED:
        return [finding for finding in bad if finding.primary] or bad
    causes = [finding for finding in bad if finding.kind in PREMISES and finding.primary]
    return [
        finding for finding in bad if finding in causes or finding.explained_by not in PREMISES
    ] or bad


def _clauses(report: Report, finding: Finding) -> list[str]:
    transactions = dict.fromkeys(example.transaction for example in finding.examples)
    writers = list(dict.fromkeys(_writer(text) for text in transactions if text))
    if any(writer in finding.why for writer in writers):
        return []
    clauses = [_written_by(finding, writers)] if writers else []
    if finding.kind in _OF_KIND and finding.explained_by != UNTOLD:
        clauses.append(_OF_KIND[finding.kind])
    elif None in transactions and (unknown := _unknown(report, finding)):
        clauses.append(unknown)
    return clauses


def _written_by(finding: Finding, writers: Sequence[str]) -> str:
    rows = len(finding.examples)
    looked_at = f" (of {rows} of {finding.count:,} rows)" if rows < finding.count else ""
    return f"written by {_names(writers)}{looked_at}"


def _names(writers: Sequence[str]) -> str:
    names = list(writers[:WRITERS_MAX])
    if more := len(writers) - len(names):
        names.append(counted(more, "more writer"))
    return " and ".join(names)


def _writer(transaction: str) -> str:
    """Returns a writer without its transaction's number, outcome and time."""
    text = transaction_text(transaction)
    match = _WITH_PRODUCER.fullmatch(text)
    name, producer = (match["name"], match["producer"]) if match else (text, None)
    return ", ".join(part for part in (_OF_NAME.sub("", name or ""), producer) if part)


def _unknown(report: Report, finding: Finding) -> str:
    """Says why no writer is known of rows without a transaction."""
    rows = [example for example in finding.examples if example.transaction is None]
    sink, source = report.sink.topic, report.source.topic
    if finding.explained_by == PENDING:
        return f"{_inspect(report.sink)} names the producers of open transactions"
    if any(WITHOUT_TRACE in example.why for example in rows):
        nearest = [match[1] for row in rows if (match := OF_NEAREST.search(row.why))]
        others = _names(list(dict.fromkeys(map(_writer, nearest))))
        inputs = "this input" if finding.count == 1 else "these inputs"
        nearest_ones = "nearest output was" if finding.count == 1 else "nearest outputs were"
        return (
            f"no writer is named, because no record of {sink} names {inputs}, aborted ones"
            f" included{f'; the {nearest_ones} written by {others}' if others else ''}"
        )
    if finding.kind in PREMISES and all(example.partition is None for example in rows):
        return (
            f"the producers of {source} are not looked up in a check:"
            f" {_inspect(report.source)} lists those that its brokers remember"
        )
    return ""


def _inspect(bounds: Bounds) -> str:
    topic = bounds.topic if len(bounds.topics) == 1 else "TOPIC"
    return f"`{command_line('topicproof inspect', topic)}`"
