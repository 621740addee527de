"""Transactional ids in headers are whatever the writer of a record says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import history
from topicproof.validators.facts import header_transactions
from topicproof.validators.facts.header_transactions import ID_CHARACTERS_MAX, IDS_MAX
from topicproof.validators.finding import Outcome
from topicproof.validators.ledger import counts

FOUR_WRITERS = "a:0 a:2 a:C b:1 b:4 b:C c:3 c:6 c:C d:5 d:7 d:C"
"""Each id begins among the inputs of the one before it."""


def test_ids_are_told_apart_up_to_a_bound(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four ids take turns with one source partition. Each pair is found by the one query. Where
    fewer than four are told apart, nothing is said of the topic at all."""
    log = history(FOUR_WRITERS, inputs=8)
    ids = [each.transactional_id for each in log.ledger(spark, tmp_path / "all").counts.ids]
    assert len(ids) == 4
    report = log.report(spark, tmp_path / "told")
    finding = next(each for each in report.findings if each.kind == "zombie_write")
    assert (finding.outcome, finding.count) == (Outcome.VIOLATED, 3)
    assert [(example.offset, example.why.split(" ")[0]) for example in finding.examples] == [
        (3, ids[1]),
        (6, ids[2]),
        (9, ids[3]),
    ]
    monkeypatch.setattr(header_transactions, "IDS_MAX", 3)
    report = log.report(spark, tmp_path / "few")
    assert report.verdict is Outcome.UNKNOWN
    assert "transactional ids that headers name beyond what is told apart" in report.why


def test_long_and_many_ids_are_counted() -> None:
    """A name that is cut is no name, and neither is one of too many."""
    long = "a" * (ID_CHARACTERS_MAX + 1)
    assert header_transactions.beyond_limits(["a" * ID_CHARACTERS_MAX, "b"]) == 0
    assert header_transactions.beyond_limits([long, "b"]) == 1
    assert header_transactions.beyond_limits([str(number) for number in range(IDS_MAX + 2)]) == 2
    assert counts.Doubt.IDS.value.endswith("(10,000, each of at most 1,000 characters)")
