"""From two topics to a report: capture, ledger, verdict, evidence.

Each stage is computed once and handed on. After the capture, nothing asks Kafka again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from topicproof.backend.address import Sides
from topicproof.backend.errors import ShellFailed, UsageError
from topicproof.backend.evidence.folder import EVIDENCE, REPORT, complete
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.faults.by_hand import strike_notes
from topicproof.backend.formats.formats import WITHOUT_REGISTRY, SideFormats
from topicproof.backend.judging.bounded_question import identify
from topicproof.backend.judging.capture import capture_topics
from topicproof.backend.judging.capture_store import (
    NOTHING_RECORDED,
    Capture,
    RunAccounts,
    empty,
    keep_capture,
    write_text,
)
from topicproof.backend.judging.decoding import FOLDER as DECODED_FOLDER, with_schemas
from topicproof.backend.judging.ledger_input import ledger_of
from topicproof.backend.judging.table_capture import capture_table
from topicproof.backend.judging.table_rows import TableSink
from topicproof.backend.services.spark_session import failed
from topicproof.backend.storage import discard, fetch
from topicproof.validators.expectation import MOVEMENT
from topicproof.validators.finding import Order, Origins
from topicproof.validators.folded.fold import Folded
from topicproof.validators.judge import judge
from topicproof.validators.kinds import gap
from topicproof.validators.ledger.by_proof import is_provable
from topicproof.validators.ledger.group_totals import FOLDER as GROUPS_FOLDER
from topicproof.validators.ledger.ledger import ReadingsNeeded
from topicproof.validators.question import Question
from topicproof.validators.report import Report

VERSIONS = (
    "topicproof",
    "pyspark",
    "confluent-kafka",
    "kafka-python",
    "plotly",
    "junitparser",
    "pyarrow",
)
"""Packages that read, judge and render."""
READING, JUDGING, WRITING = "reading both topics", "judging", "writing the evidence"
STEPS = READING, JUDGING, WRITING
"""The steps of judging, as `judge_topics` announces them, in their order."""

OnStep = Callable[[str], None]
"""Takes the step that begins now. Whatever it raises ends the judging."""


def _ignore_step(_step: str) -> None:
    pass


@dataclass(frozen=True)
class JudgeOptions:
    """What a verdict is given besides its question."""

    attachments: Mapping[str, Any] = field(default_factory=dict)
    """Further files of the evidence, by name: the plan, the contract."""
    payloads: Payloads = Payloads.ALL
    """With none, readings are kept only if something is irregular, which takes less than half the
    time. Otherwise the evidence first holds them whole, and backend/evidence/copy.py removes
    payloads."""
    on_step: OnStep = _ignore_step
    """Called at the start of each step."""
    formats: SideFormats = WITHOUT_REGISTRY
    """Decode the fields that the question names."""
    table: TableSink | None = None
    """The table that is the sink; None for topics."""
    run_accounts: RunAccounts = NOTHING_RECORDED
    """What the run that wrote the sink recorded."""


WITHOUT_OPTIONS = JudgeOptions()


# It starts from nothing: with an empty folder, and the bounds of the question.
@retry(retry=retry_if_exception_type(ShellFailed), stop=stop_after_attempt(2), reraise=True)
def judge_topics(
    spark: SparkSession,
    sides: Sides,
    question: Question,
    folder: Path,
    options: JudgeOptions = WITHOUT_OPTIONS,
) -> Report:
    """Judge a sink, a topic or a table, against its source. Writes `report.json` and the evidence
    into `folder`. Raises ClusterError, TopicError, SparkError, EvidenceError; of a table what
    `capture_table` raises."""
    if question.agreed.table is not None and options.table is None:
        raise UsageError("A table is judged by `topicproof check` alone.")
    question = identify(sides, question)
    is_foldable = options.payloads is Payloads.NONE and not sides.across and options.table is None
    try:
        folded = is_foldable and is_provable(question, folded=True)
        report = _judge_once(spark, sides, question, folder, options, folded=folded)
    except ReadingsNeeded:
        report = _judge_once(spark, sides, question, folder, options)
    if question.order is Order.PER_SOURCE_PARTITION and _on_their_way(report):
        # Outputs are in order, so everything below the last committed one was due when it was read.
        # Outputs that are still missing at a second look will not come.
        due = {p.partition: p.lso for p in report.source.partitions}
        report = _judge_once(spark, sides, replace(question, due=due), folder, options)
    return report


def _judge_once(
    spark: SparkSession,
    sides: Sides,
    question: Question,
    folder: Path,
    options: JudgeOptions,
    *,
    folded: bool = False,
) -> Report:
    """Capture the topics and judge them. Raises ReadingsNeeded if `folded` readings are not
    enough."""
    empty(spark, folder / EVIDENCE)
    options.on_step(READING)
    if options.table is not None:
        capture = capture_table(spark, sides, question, options.table, folder / EVIDENCE)
    else:
        capture = capture_topics(spark, sides, question, folder / EVIDENCE, folded=folded)
    if not folded:
        capture = with_schemas(capture, options.formats)
    # No other witness may speak about topics that vanished.
    if not capture.circumstances.vanished:
        capture = replace(capture, run_accounts=options.run_accounts)
    return conclude(spark, capture, folder, options.attachments, options.on_step)


def _on_their_way(report: Report) -> bool:
    """Return whether missing outputs may still arrive, because the topics move."""
    return any(
        finding.kind == gap.NAME and finding.explained_by == MOVEMENT for finding in report.findings
    )


def conclude(
    spark: SparkSession,
    capture: Capture,
    folder: Path,
    attachments: Mapping[str, Any],
    on_step: OnStep = _ignore_step,
) -> Report:
    """Judge a capture, and write report and evidence into `folder`, which already has the readings
    if they are kept. Raises ReadingsNeeded if folded readings are not enough."""
    evidence = folder / EVIDENCE
    on_step(JUDGING)
    keep_capture(capture, evidence)
    report = judge_capture(spark, capture, evidence)
    on_step(WRITING)
    fetch(spark, evidence)
    payloads = Payloads.NONE if isinstance(capture.readings, Folded) else Payloads.ALL
    complete(evidence, report, attachments, payloads)
    write_text(folder / REPORT, report.to_json())
    return report


def judge_capture(spark: SparkSession, capture: Capture, evidence: Path) -> Report:
    """Judge a capture, new or read from evidence. Uses only Spark; intermediate results are kept in
    the folder `evidence`. Raises SparkError; ReadingsNeeded as `conclude`."""
    question = capture.question
    try:
        ledger = ledger_of(spark, capture, evidence)
        report = judge(
            ledger,
            question.guarantee,
            require=question.agreed.require,
            not_processed=ledger.question.not_processed,
            run=question.run,
            versions=versions(),
        )
        return replace(
            report,
            origins=(
                None if capture.origin is None else Origins(capture.origin, capture.source_origin)
            ),
            notes=(
                *report.notes,
                *capture.notes,
                *strike_notes(capture.run_accounts.journal or ()),
            ),
        )
    except PySparkException as error:
        raise failed(f"Spark could not judge {question.sink}", error) from error
    finally:
        # They can be made again from the readings and the schemas.
        discard(spark, evidence / DECODED_FOLDER)
        discard(spark, evidence / "ledger" / GROUPS_FOLDER)


def versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONS}
