"""The judge tests itself on a report's own evidence: faults injected into copies of the readings
must be caught.

This happens automatically before a report is accepted (`before_signoff`), once for each state of
the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topicproof.backend.errors import SelfTestError, UsageError
from topicproof.backend.evidence.folder import EVIDENCE, REPORT, evidence_hash, evidence_in
from topicproof.backend.judging.capture_store import Capture, read_capture
from topicproof.backend.judging.decoding import decoded_sink
from topicproof.backend.judging.judge import judge_capture, ledger_of, with_headers
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark import failed, spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.storage import discard, keep_in
from topicproof.validators.folded.fold import Folded
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.retained import OUTPUTS_MIN
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.report import Report
from topicproof.validators.selftest import NEIGHBOURS, Caught, choose, compare, inject

SCRATCH = "self-test"
NOTHING_TO_INJECT_INTO = (
    "no transaction has four committed outputs that differ, none of the kinds that would be"
    " injected is judged, nothing tells a copy from the output of a removed input, or the evidence"
    " was kept without payloads"
)
KEPT = "self-test.json"
"""File in a run's folder: the faults caught, and the evidence tested."""


def self_test(spark: SparkSession, folder: Path) -> tuple[Caught, ...]:
    """Inject faults into copies of the evidence in `folder`, and return what was caught. Empty if
    nothing can be injected: no transaction holds four distinct committed outputs, the contract
    requires none of the injected kinds, or the readings are folded.

    Raises SelfTestError if an injection is not found exactly once; EvidenceError, SparkError.
    """
    evidence, scratch = folder / EVIDENCE, folder / SCRATCH
    before = Report.from_json((folder / REPORT).read_text(encoding="utf-8"))
    try:
        capture = read_capture(spark, evidence)
        if isinstance(capture.readings, Folded):
            return ()
        capture = with_headers(capture, scratch)
        ledger = ledger_of(spark, capture, scratch / "before")
        sink = _told_apart(ledger.sink, capture)
        question = capture.question
        injection = choose(
            sink,
            question.expected,
            order=question.order,
            unique=question.agreed.unique,
            after=judged_after(ledger),
        )
        if injection is None:
            return ()

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
    missed = [one for one in caught if one.found != 1]
    if missed:
        counts = ", ".join(f"{one.kind} {one.found} times" for one in missed)
        raise SelfTestError(
            f"The self-test failed: each was injected once, but found: {counts}. Do not trust any"
            " verdict."
        )
    return caught


def judged_after(ledger: Ledger) -> Mapping[int, int] | None:
    """Return the places behind which a copy is certainly a duplicate, by sink partition; None
    without such a limit: nothing is matched by key with a source that has lost records. They do not
    depend on the few outputs that an injection changes."""
    if not (ledger.by_key and ledger.source_incomplete):
        return None
    return ledger.retained_range(OUTPUTS_MIN + NEIGHBOURS).judged_from


def _told_apart(sink: DataFrame, capture: Capture) -> DataFrame:
    """Return the sink's records; by key, only those with a unique key."""
    if capture.question.identity is not Identity.KEY:
        return sink
    held = decoded_sink(capture, capture.committed).select(
        "partition", "offset", capture.question.agreed.match.of_sink().alias("held")
    )
    alone = held.groupBy("held").agg(
        F.count("*").alias("times"), F.first("partition").alias("partition")
    )
    once = held.join(alone.where("times = 1").select("held"), "held", "left_semi")
    return sink.join(once.select("partition", "offset"), ["partition", "offset"], "left_semi")


def before_signoff(
    settings: Settings, folder: Path, comment: str, say: Callable[[str], None] = lambda _text: None
) -> list[str]:
    """Test the judge on a run's evidence before its report is accepted. Returns the kinds caught in
    every stage. Starts Spark unless this evidence was tested before.

    Raises UsageError if nothing can be injected and no comment justifies accepting the report
    anyway; SelfTestError, EvidenceError, SparkError, SetupError.
    """
    caught = _caught(settings, folder, say)
    if not caught and not comment.strip():
        raise UsageError(
            f"The judge cannot test itself on {folder.name}: {NOTHING_TO_INJECT_INTO}. "
            "Say in a comment why the report is accepted anyway."
        )
    return caught


def _caught(settings: Settings, folder: Path, say: Callable[[str], None]) -> list[str]:
    kept, digest = folder / KEPT, evidence_hash(folder)
    if kept.exists():
        said = json.loads(kept.read_text(encoding="utf-8"))
        if said["evidence"] == digest:
            return list(said["caught"])
    say(
        "self-test: a duplicate, a gap, a swap and a torn transaction are injected into copies of"
        " the readings"
    )
    with (
        services(settings, kafka=False, say=say) as up,
        spark_session(up.spark_remote, up.storage) as spark,
    ):
        found = [self_test(spark, evidence.parent) for evidence in evidence_in(folder)]
    caught = list(dict.fromkeys(one.kind for each in found for one in each)) if all(found) else []
    kept.write_text(json.dumps({"evidence": digest, "caught": caught}) + "\n", encoding="utf-8")
    return caught
