"""The verdict on two topics as an assertion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from topicproof.backend.address import Sides
from topicproof.backend.characters import visible
from topicproof.backend.commands.show import report_lines
from topicproof.backend.commands.terminal import plain_text
from topicproof.backend.contracts.contract import make_contract, read_fields
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.errors import ContractError, UsageError
from topicproof.backend.evidence.annotations import broken, place
from topicproof.backend.harness.broker import Broker
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.services.spark_session import spark_session
from topicproof.validators.finding import Finding, Outcome
from topicproof.validators.kinds import identity_disjoint
from topicproof.validators.report import Report

EXAMPLES = 5
"""How many places of a finding a message shows."""
BY_KEY = (
    "Records were matched by key. If the key changes, give assert_exactly_once a contract, such as"
    ' {"identity": {"source": {"json": "$.id"}, "sink": {"json": "$.payment_id"}}}.'
)
Terms = Mapping[str, Any] | Path | str | None
"""Fields of a contract, which are matched by key unless they say otherwise, or a YAML file."""


def judge(broker: Broker, source: object, sink: object, contract: Terms, folder: Path) -> Report:
    """Judge a sink topic against its source, and keep the evidence in `folder`. Raises UsageError,
    ContractError, ClusterError, SparkError, SetupError."""
    for side in (source, sink):
        if isinstance(side, list | tuple | set):
            raise UsageError("A verdict has one source and one sink. Judge each sink by itself.")
    if isinstance(contract, Path | str):
        fields = dict(read_fields(Path(contract)))
    else:
        fields = {"identity": "key", **(contract or {})}
    fields |= {
        side: {**fields.get(side, {}), "topic": str(topic)}
        for side, topic in (("source", source), ("sink", sink))
    }
    if "sinks" in fields:
        raise UsageError("The contract names sinks. Judge each sink by itself, without that field.")
    try:
        (terms,) = make_contract(fields).each()
    except ContractError as error:
        # The sentences say it all. What raised them would only hide them in pytest's output.
        raise error from None
    question = question_of(terms, broker.cluster)
    with spark_session(broker.spark_remote) as spark:
        return judge_topics(spark, Sides(broker.services.address), question, folder)


def said(report: Report, folder: Path, by_default: bool = False) -> str:
    """Return the verdict in plain text: what was found, with offsets, and where the evidence is.
    `by_default`: no contract says how records are matched."""
    lines = list(_lines(report))
    if by_default and any(finding.kind == identity_disjoint.NAME for finding in broken(report)):
        lines.append(BY_KEY)
    lines += [line for finding in broken(report) for line in _finding(report, finding)]
    return "\n".join([*lines, f"evidence: {folder}"])


def _lines(report: Report) -> Iterator[str]:
    """Yield the lines above the findings."""
    for line in report_lines(report):
        text = plain_text(line)
        if text.startswith("  "):
            return
        yield text


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    yield visible(f"  {finding.outcome:8} {finding.kind}: {finding.why}")
    for example in finding.examples[:EXAMPLES]:
        yield visible(f"           {place(report, example)}")
    if (more := finding.count - EXAMPLES) > 0:
        yield f"           and {more:,} more"


def require_exactly_once(
    broker: Broker, source: object, sink: object, contract: Terms, folder: Path
) -> Report:
    """Return the report of a verdict that holds. Raises AssertionError, whose message is the
    verdict, for any other; what `judge` raises."""
    __tracebackhide__ = True
    report = judge(broker, source, sink, contract, folder)
    if report.verdict is not Outcome.HOLDS:
        default = not isinstance(contract, Path | str) and "identity" not in (contract or {})
        raise AssertionError(said(report, folder, default))
    return report
