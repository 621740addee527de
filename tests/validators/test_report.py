"""The verdict: what is merged, what it says, and what is never a pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from pyspark.sql import SparkSession

from tests.validators.history import agreeing, hearing, history
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.expectation import CONTRADICTIONS, OF_AGGREGATE, REQUIRED
from topicproof.validators.finding import EXAMPLES_MAX, Guarantee, Outcome, PartitionBounds
from topicproof.validators.judge import OF_LETTERS, judge
from topicproof.validators.kinds import duplicate, gap, phantom
from topicproof.validators.kinds.catalogue import VALIDATORS, Validator
from topicproof.validators.ledger.counts import Doubt
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.report import Report
from topicproof.validators.thresholds import Thresholds

KINDS = [validator.NAME for validator in VALIDATORS]
SCHEMA = json.loads(Path("docs/report.schema.json").read_text())


@pytest.fixture(scope="module")
def healthy(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Ten inputs in two transactions, the second aborted once and replayed."""
    return history("0 1 2 3 4 C 5 6 A 5 6 7 8 9 C", inputs=10).ledger(
        spark, tmp_path_factory.mktemp("healthy")
    )


@pytest.fixture(scope="module")
def broken(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Input 1 committed twice, input 3 not at all."""
    return history("0 1 C 1 2 C", inputs=4).ledger(spark, tmp_path_factory.mktemp("broken"))


def test_a_healthy_topic_holds_in_one_sentence(healthy: Ledger) -> None:
    """Story: an aborted transaction was replayed, and all is as promised. The report says so, and
    survives JSON."""
    report = judge(
        healthy, Guarantee.EXACTLY_ONCE, run="r1", not_processed=2, versions={"topicproof": "0"}
    )
    assert (report.verdict, report.exit_code, report.why) == (
        Outcome.HOLDS,
        0,
        (
            "10 of 10 inputs committed exactly once, in order; 2 aborted records stayed invisible;"
            " 2 inputs not processed."
        ),
    )
    checked = {check.kind: check.records for check in report.checked}
    expected = {
        "identity_disjoint": 10,
        "source_removed": 0,
        "sink_removed": 0,
        "duplicate": 10,
        "gap": 10,
        "order": 9,
        "aborted_read": 10,
        "phantom": 10,
        "reading_mismatch": 12,
        "fate_split": 3,
        "wrong_attribution": 3,
        "late_append": 3,
        "zombie_write": 3,
        "marker_accounting": 6,
        "torn": 2,
        "resurrected": 10,
        "aborted_input": 0,
        "circular_flow": 0,
        "intruder": 3,
        "sequence_hole": 3,
        "identity_change": 1,
        "aborted_volume": 3,
        "interleaving": 3,
        "movement": 0,
        "source_pending": 0,
    }
    assert expected.items() <= checked.items()
    uncounted = {one.kind for one in report.not_checked}
    counted = {kind for kind in KINDS if kind not in (*uncounted, *OF_LETTERS, *OF_AGGREGATE)}
    silent = {"aborted_input", "circular_flow", "precommitted_read", "poll_skip"}
    exactly = Guarantee.EXACTLY_ONCE
    assert counted == {"identity_disjoint", *REQUIRED[exactly], *CONTRADICTIONS[exactly]} - silent
    known = [one for one in report.aside if one.outcome is not Outcome.UNKNOWN]
    assert {one.outcome for one in known} == {Outcome.HOLDS}
    shown = {"intruder", "sequence_hole", "identity_change", "aborted_volume", "interleaving"}
    assert shown <= {one.kind for one in known}
    jsonschema.validate(json.loads(report.to_json()), SCHEMA)
    assert Report.from_json(report.to_json()) == report


def test_a_threshold_warns_beside_the_verdict(healthy: Ledger) -> None:
    """Story: 2 of 12 records are aborted, and a contract warns of more than a tenth. The verdict
    stays what it is."""
    agreed = ContractTerms(warn=Thresholds(pending=0, aborted_share=0.1))
    report = judge(agreeing(healthy, agreed), Guarantee.EXACTLY_ONCE)
    assert report.verdict is Outcome.HOLDS
    assert report.warnings == ("16.7% of the records are aborted; the contract warns above 10.0%.",)
    jsonschema.validate(json.loads(report.to_json()), SCHEMA)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    ("guarantee", "verdict", "why"),
    [
        (
            Guarantee.EXACTLY_ONCE,
            Outcome.VIOLATED,
            (
                "Not exactly once: 1 of 4 committed records repeats a committed output; "
                "1 of 4 expected outputs is missing (of input numbers-0@3)."
            ),
        ),
        (
            Guarantee.AT_LEAST_ONCE,
            Outcome.VIOLATED,
            "Not at least once: 1 of 4 expected outputs is missing (of input numbers-0@3).",
        ),
        (
            Guarantee.AT_MOST_ONCE,
            Outcome.VIOLATED,
            "Not at most once: 1 of 4 committed records repeats a committed output.",
        ),
    ],
)
def test_the_same_topic_breaks_each_promise_in_its_own_way(
    guarantee: Guarantee, verdict: Outcome, why: str, broken: Ledger
) -> None:
    """Story: one input twice, another not at all. What was promised decides which of the two is
    wrong."""
    report = judge(broken, guarantee)
    assert (report.verdict, report.exit_code, report.why) == (verdict, 1, why)
    jsonschema.validate(json.loads(report.to_json()), SCHEMA)


def test_what_is_not_required_is_not_checked_and_says_why(broken: Ledger) -> None:
    """Story: a contract asks for phantoms only, on a topic with a duplicate. It holds, and claims
    no more than that."""
    report = judge(broken, Guarantee.EXACTLY_ONCE, require=["phantom"])
    assert (report.verdict, report.why) == (
        Outcome.HOLDS,
        "Nothing but phantom was judged, and none was found among 4 inputs.",
    )
    premises = {"identity_disjoint"}  # of the others nobody looked
    unnamed = {"phantom", *premises, *OF_LETTERS, *OF_AGGREGATE}
    assert {one.kind for one in report.not_checked} == set(KINDS) - unnamed
    asked = [
        "identity_disjoint",
        "source_removed",
        "sink_removed",
        "recreated",
        "phantom",
        "movement",
        "source_pending",
    ]
    assert [one.kind for one in report.findings] == asked


def test_an_unknown_kind_cannot_be_required(broken: Ledger) -> None:
    """Story: a contract misspells a kind, or requires nothing. Neither may pass silently."""
    for require in (["duplicates"], []):
        with pytest.raises(ValueError, match="Unknown kinds required"):
            judge(broken, Guarantee.EXACTLY_ONCE, require=require)


def test_a_crashed_validator_is_unknown_and_spoils_no_other(broken: Ledger) -> None:
    """Story: one check has a bug. The others still find what they find, and the report names the
    error."""

    def find(_ledger: Ledger) -> Any:
        raise RuntimeError("no such column")

    crashed = SimpleNamespace(**{**vars(phantom), "find": find})
    report = judge(
        broken, Guarantee.EXACTLY_ONCE, require=["duplicate", "phantom"], validators=_with(crashed)
    )
    line = find.__code__.co_firstlineno + 1
    assert [(one.kind, one.outcome, one.primary, one.why) for one in report.findings] == [
        ("duplicate", Outcome.VIOLATED, 1, "1 of 4 committed records repeats a committed output."),
        (
            "phantom",
            Outcome.UNKNOWN,
            0,
            f"Not judged: the check itself failed (RuntimeError in test_report.py, line {line}).",
        ),
    ]
    assert report.verdict is Outcome.VIOLATED


def _with(other: SimpleNamespace) -> tuple[Validator, ...]:
    return (duplicate, gap, cast(Validator, other))


def test_a_required_witness_that_is_missing_is_no_pass(healthy: Ledger) -> None:
    """Story: neither the raw log nor a journal is available. Whether aborted records were visible
    is unknown."""
    deaf = hearing(healthy, raw_log=None)
    report = judge(deaf, Guarantee.EXACTLY_ONCE)
    assert (report.verdict, report.exit_code, report.why) == (
        Outcome.UNKNOWN,
        3,
        "Could not be judged: aborted_read: not judged: a witness is missing (raw_log or journal).",
    )


def test_a_pending_offset_is_no_pass(healthy: Ledger) -> None:
    """Story: everything is there, but a transaction is open. It may still commit a copy of
    something."""
    behind = replace(healthy.sink_bounds, partitions=(PartitionBounds(0, 0, 14, 15),))
    report = judge(replace(healthy, sink_bounds=behind), Guarantee.EXACTLY_ONCE)
    assert (report.verdict, report.why) == (
        Outcome.UNKNOWN,
        "Could not be judged: 1 offset of the sink is still pending, at or above the last stable"
        " offset.",
    )


def test_readings_that_are_doubted_are_no_violation(broken: Ledger) -> None:
    """Story: the topic looks broken, but so does the reader. Nothing may be said against the
    pipeline."""
    doubt = f"{Doubt.UNSEEN}: 3."
    report = judge(replace(broken, doubts=(doubt,)), Guarantee.EXACTLY_ONCE)
    assert (report.verdict, report.why) == (
        Outcome.UNKNOWN,
        "The readings cannot be trusted: records visible to read_committed, but not to"
        " read_uncommitted: 3. Check again; if it repeats, report it to whoever maintains the"
        " broker. It says nothing against the pipeline.",
    )


def test_an_empty_topic_proves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Story: source and sink are empty, so no check finds anything. None of them holds."""
    report = judge(history("", inputs=0).ledger(spark, tmp_path), Guarantee.EXACTLY_ONCE)
    assert {finding.outcome for finding in report.findings} == {Outcome.UNKNOWN}
    assert report.verdict is Outcome.UNKNOWN


def test_examples_are_the_worst_few(spark: SparkSession, tmp_path: Path) -> None:
    """Story: 30 inputs are lost at the end and one in the middle. The count is whole; the hole is
    shown first."""
    ledger = history("0 2 C", inputs=33).ledger(spark, tmp_path)
    report = judge(ledger, Guarantee.EXACTLY_ONCE, require=["gap"])
    finding = next(one for one in report.findings if one.kind == "gap")
    assert (finding.count, finding.primary, len(finding.examples)) == (31, 31, EXAMPLES_MAX)
    assert [example.lineage for example in finding.examples[:2]] == ["numbers/0/1", "numbers/0/3"]


def test_every_kind_of_the_catalogue_is_in_the_schema() -> None:
    """Story: a validator was added, and the schema forgotten. This test remembers."""
    assert SCHEMA["$defs"]["kind"]["enum"] == KINDS


def test_a_contradiction_counts_where_it_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Story: every input is committed once, but a fenced producer could write after its successor.
    That breaks Kafka's promise of exactly-once. Under at-least-once the same is shown and does not
    count."""
    ledger = history("a1:0 C a:1 C", inputs=2).ledger(spark, tmp_path)
    exactly, at_least = (
        judge(ledger, one) for one in (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE)
    )
    assert (exactly.verdict, exactly.why) == (
        Outcome.VIOLATED,
        "Not exactly once: 1 write is of a fenced producer, among 2 batches: producer id 1097,"
        " epoch 0, committed, no time known.",
    )
    assert at_least.verdict is Outcome.HOLDS
    shown = next(one for one in at_least.findings if one.kind == "zombie_write")
    assert (shown.outcome, shown.primary) == (Outcome.VIOLATED, 1) and shown not in at_least.aside
    assert "zombie_write" in {one.kind for one in at_least.not_checked}


def test_a_topic_without_transactions_is_judged_too(spark: SparkSession, tmp_path: Path) -> None:
    """Story: an idempotent pipeline without transactions wrote each output once. The raw log says
    of every batch that it is in no transaction, so none was aborted. There is no transaction to
    contradict itself; the report says so, and the verdict rests on the other kinds."""
    ledger = history("0! 1! 2!", inputs=3).ledger(spark, tmp_path)
    assert judge(ledger, Guarantee.AT_LEAST_ONCE).verdict is Outcome.HOLDS
    exactly = judge(ledger, Guarantee.EXACTLY_ONCE)
    assert (exactly.verdict, exactly.why) == (
        Outcome.HOLDS,
        "3 of 3 inputs committed exactly once, in order.",
    )
    assert {one.kind: one.records for one in exactly.checked}["aborted_read"] == 3
    unheard = history("0! 1! 2!", inputs=3).ledger(spark, tmp_path, raw_log=False)
    assert judge(unheard, Guarantee.EXACTLY_ONCE).verdict is Outcome.UNKNOWN
    said = {one.kind: one.why for one in exactly.not_checked}
    assert said["fate_split"] == "Nothing to look at: there are no transactions."


def test_a_pipeline_without_transactions_is_no_intruder_in_its_own_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: our own pipeline at least once: its headers name its chunks, and no batch is in a
    transaction."""
    ledger = history("0@1! 1@1! 2@2!", inputs=3).ledger(spark, tmp_path)
    report = judge(ledger, Guarantee.AT_LEAST_ONCE)
    assert report.verdict is Outcome.HOLDS and ledger.counts.ids
    assert {one.outcome for one in report.findings} == {Outcome.HOLDS, Outcome.UNKNOWN}
