"""The judge tests itself on a report's own evidence: faults injected into copies of the readings
must be caught.

This happens automatically before a report is accepted (`before_signoff`), once for each state of
the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from topicproof.backend.errors import SelfTestError, UsageError
from topicproof.backend.evidence.folder import EVIDENCE, REPORT, evidence_hash, evidence_in
from topicproof.backend.judging.capture_store import Capture, read_capture
from topicproof.backend.judging.decoding import decoded_sink
from topicproof.backend.judging.judge import judge_capture
from topicproof.backend.judging.ledger_input import ledger_of
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import failed, spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.storage import discard, keep_in
from topicproof.validators.folded.fold import Folded
from topicproof.validators.ledger.counts import lettered_inputs
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.retained import OUTPUTS_MIN
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.report import Report
from topicproof.validators.selftest import NEIGHBOURS, Caught, choose, compare, inject, why_not

SCRATCH = "self-test"
OF_AGGREGATES = (
    "outputs are aggregates of many inputs, and the faults that it injects are of single outputs"
)
OF_TABLE = "the sink is a table, and the faults that it injects are of records in transactions"
WITHOUT_RECORDS = "the evidence was kept without payloads, so it has no record to change"
KEPT = "self-test.json"
"""File in a run's folder: the faults caught, and the evidence tested."""


@dataclass(frozen=True)
class SelfTest:
    """What was caught; or why nothing was injected, as a clause."""

    caught: tuple[Caught, ...] = ()
    reason: str = ""


def self_test(spark: SparkSession, folder: Path) -> SelfTest:
    """Inject faults into copies of the evidence in `folder`, and return what was caught. Nothing
    is injected if no transaction holds four distinct committed outputs, if the contract requires
    none of the injected kinds, if outputs are aggregates or rows of a table, or if the readings are
    folded.

    Raises SelfTestError if an injection is not found exactly once; EvidenceError, SparkError.
    """
    evidence, scratch = folder / EVIDENCE, folder / SCRATCH
    before = Report.from_json((folder / REPORT).read_text(encoding="utf-8"))
    try:
        capture = read_capture(spark, evidence)
        if isinstance(capture.readings, Folded):
            return SelfTest(reason=WITHOUT_RECORDS)
        if capture.question.agreed.aggregate is not None:
            return SelfTest(reason=OF_AGGREGATES)
        if capture.question.agreed.table is not None:
            return SelfTest(reason=OF_TABLE)
        ledger = ledger_of(spark, capture, scratch / "before")
        sink = _told_apart(_of_one_outcome(ledger), capture)
        question, after = capture.question, judged_after(ledger)
        injection = choose(
            sink,
            question.expected,
            order=question.order,
            unique=question.agreed.unique,
            after=after,
        )
        if injection is None:
            by_key = question.identity is Identity.KEY
            return SelfTest(reason=why_not(sink, by_key=by_key, after=after))

        def injected(reading: DataFrame, name: str) -> DataFrame:
            return keep_in(inject(reading, injection), scratch / name, capture.offsets)

        readings = capture.kept._replace(
            committed=injected(capture.committed, "committed"),
            uncommitted=injected(capture.uncommitted, "uncommitted"),
        )
        copies = replace(capture, readings=readings)
        caught = compare(before, judge_capture(spark, copies, scratch), injection)
    except PySparkException as error:
        raise failed("The self-test failed", error) from error
    finally:
        discard(spark, scratch)
    missed = [fault for fault in caught if fault.found != 1]
    if missed:
        counts = ", ".join(f"{fault.kind} {fault.found} times" for fault in missed)
        raise SelfTestError(
            f"The self-test failed: each was injected once, but found: {counts}. Do not trust any"
            " verdict."
        )
    if not caught:
        kinds = ", ".join(injection.kinds)
        return SelfTest(reason=f"none of the kinds that it can inject here is judged: {kinds}")
    return SelfTest(caught)


def judged_after(ledger: Ledger) -> Mapping[int, int] | None:
    """Return the places behind which a copy is certainly a duplicate, by sink partition; None
    without such a limit: nothing is matched by key with a source that has lost records. They do not
    depend on the few outputs that an injection changes."""
    if not (ledger.by_key and ledger.source_incomplete):
        return None
    return ledger.retained_range(OUTPUTS_MIN + NEIGHBOURS).judged_from


def _of_one_outcome(ledger: Ledger) -> DataFrame:
    """Return the sink's records; without those of inputs that also have a dead letter, which are no
    gap without their output."""
    if ledger.question.agreed.letters is None:
        return ledger.sink
    lettered = lettered_inputs(ledger.sink)
    return ledger.in_sink.join(lettered, lettered.columns, "left_anti")


def _told_apart(sink: DataFrame, capture: Capture) -> DataFrame:
    """Return the sink's records; by key, only those with a unique key."""
    if capture.question.identity is not Identity.KEY:
        return sink
    identities = decoded_sink(capture, capture.committed).select(
        "partition", "offset", capture.question.agreed.match.of_sink().alias("held")
    )
    alone = identities.groupBy("held").agg(
        F.count("*").alias("times"), F.first("partition").alias("partition")
    )
    once = identities.join(alone.where("times = 1").select("held"), "held", "left_semi")
    return sink.join(once.select("partition", "offset"), ["partition", "offset"], "left_semi")


def before_signoff(
    settings: Settings, folder: Path, comment: str, say: Callable[[str], None] = lambda _text: None
) -> list[str]:
    """Test the judge on a run's evidence before its report is accepted. Returns the kinds caught in
    every stage. Starts Spark unless this evidence was tested before.

    Raises UsageError if nothing can be injected and no comment justifies accepting the report
    anyway; SelfTestError, EvidenceError, SparkError, SetupError.
    """
    result = _kept(settings, folder, say)
    if not result["caught"] and not comment.strip():
        raise UsageError(
            f"The judge cannot test itself on {folder.name}: {result['reason']}. "
            "Say in a comment why the report is accepted anyway."
        )
    return list(result["caught"])


def _kept(settings: Settings, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return `caught` (kinds) of a self-test of this evidence, made now or before, and its `reason`
    if nothing was injected."""
    path, digest = folder / KEPT, evidence_hash(folder)
    if path.exists():
        before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        # Earlier versions kept no reason.
        if before["evidence"] == digest and (before["caught"] or "reason" in before):
            return before
    say(
        "self-test: a duplicate, a gap, a swap and a torn transaction are injected into copies of"
        " the readings"
    )
    with (
        services(settings, kafka=False, say=say) as up,
        spark_session(up.spark_remote, up.storage) as spark,
    ):
        tests = [self_test(spark, evidence.parent) for evidence in evidence_in(folder)]
    reason = next((test.reason for test in tests if not test.caught), "")
    kinds = dict.fromkeys(fault.kind for test in tests for fault in test.caught)
    outcome = {"caught": [], "reason": reason} if reason else {"caught": list(kinds)}
    result = {"evidence": digest, **outcome}
    path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return result
