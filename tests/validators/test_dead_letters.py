"""Contracts that name dead letters: each input is due in the sink or there."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyspark.sql import SparkSession

from tests.validators.history import SINK, History, history
from topicproof.backend.settings import ROOT
from topicproof.validators.circumstances import Circumstances, Removed
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Guarantee, Outcome, Part
from topicproof.validators.judge import judge
from topicproof.validators.kinds import (
    both_outcomes,
    duplicate,
    gap,
    letter_repeated,
    offset_ahead,
    phantom,
)
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.lineage.dead_letters import (
    ORIGINS,
    DeadLetters,
    lineage_of,
    place_in,
    why_no_place,
)
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.readings import HEADERS_TYPE, schema_of
from topicproof.validators.report import Report
from topicproof.validators.thresholds import Thresholds
from topicproof.validators.verdict_sentence import unchecked_filter

LETTERS = f"{SINK}.dlq"
KINDS = (duplicate, gap, phantom, both_outcomes, letter_repeated)
"""Kinds about the outcomes of inputs."""
TERMS = ContractTerms(letters=DeadLetters(LETTERS, "connect"))


def with_letters(*lines: str, **options: Any) -> History:
    """The history of a sink. Its last line is the only partition of the dead letters, which were
    written outside of transactions; what they name has been made their lineage."""
    *sink, letters = lines
    plain = " ".join(token if ":" in token else f"d:{token}@!" for token in letters.split())
    written = history(*sink, plain, **options)
    parts = (Part(SINK, 0), Part(LETTERS, len(sink)))
    written.sink_bounds = replace(written.sink_bounds, topic=f"{SINK} + {LETTERS}", parts=parts)
    return written


def report_of(ledger: Ledger) -> Report:
    return judge(ledger, Guarantee.EXACTLY_ONCE)


def rows(report: Report) -> dict[str, tuple[int, int]]:
    return {each.kind: (each.count, each.primary) for each in report.findings if each.count}


def found_of(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """How many rows each kind about outcomes has, and how many of them are primary."""
    return rows(report_of_outcomes(ledger))


def report_of_outcomes(ledger: Ledger) -> Report:
    names = [each.NAME for each in KINDS]
    return judge(ledger, Guarantee.EXACTLY_ONCE, names, validators=KINDS)


def test_each_input_has_one_outcome(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a program puts two inputs aside that it cannot process, one of them twice, as it was
    killed behind the first time. Their order is not promised. All of it holds, and the report says
    how many inputs have which outcome."""
    terms = replace(TERMS, warn=Thresholds(dead_letter_share=0.3))
    report = report_of(
        with_letters("0 2 C", "3 1 3", inputs=4).ledger(spark, tmp_path, agreed=terms)
    )
    assert (report.verdict, rows(report)) == (Outcome.HOLDS, {"letter_repeated": (1, 1)})
    assert report.why == (
        f"2 of 4 inputs committed exactly once, in order; 2 dead letters in {LETTERS}."
    )
    assert report.warnings == (
        "50.0% of the inputs are dead letters; the contract warns above 30.0%.",
    )
    assert report.notes == (
        "Outcomes of 4 inputs: 2 (50.0%) with an output, 2 (50.0%) with a dead letter in"
        f" {LETTERS}, 0 with both, 0 with neither.",
    )
    document = json.loads(report.to_json())
    assert document["source"]["records"] == 4
    assert document["source"]["outcomes"] == {
        "with_output": 2,
        "with_dead_letter": 2,
        "with_both": 0,
        "with_neither": 0,
        "output_share": 0.5,
        "dead_letter_share": 0.5,
    }
    jsonschema.validate(document, json.loads((ROOT / "docs/report.schema.json").read_text()))
    assert Report.from_json(report.to_json()) == report


STORIES = 60
"""Source partitions of drawn stories, each with a sink partition of its own."""


def drawn(seed: int) -> tuple[list[str], list[int], Counter[str]]:
    """Lines of a sink and of its dead letters, how many inputs each source partition has, and how
    often each kind must be found: by a plain count, which knows what was drawn."""
    chance = random.Random(seed)
    lines, letters, inputs, counts = [], [], [], Counter[str]()
    for story in range(STORIES):
        tokens: list[str] = []
        inputs.append(chance.randint(1, 6))
        for number in range(inputs[-1]):
            name = f"{story}.{number}"
            outputs = chance.choices((0, 1, 2), (3, 8, 1))[0]
            dead = chance.choices((0, 1, 2), (2, 7, 1) if outputs == 0 else (12, 1, 1))[0]
            tokens += [name] * outputs
            letters += [f"d:{name}@!"] * dead
            letters += [f"t:{name}@", "t:A"] * (chance.random() < 0.1)
            counts["gap"] += outputs == dead == 0
            counts["both_outcomes"] += outputs > 0 and dead > 0
            counts["duplicate"] += max(0, outputs - 1)
            counts["letter_repeated"] += max(0, dead - 1)
        strays = chance.random() < 0.1
        letters += [f"d:{story}.99@!"] * strays
        counts["phantom"] += strays
        lines.append(" ".join([*tokens, "C"] if tokens else []))
    return [*lines, " ".join(letters)], inputs, +counts


@pytest.mark.parametrize("identity", Identity)
def test_drawn_stories_with_dead_letters(
    spark: SparkSession, tmp_path: Path, identity: Identity
) -> None:
    """Story: sixty pipelines at once, each with inputs that have an output, a dead letter, both,
    neither, or several. Aborted dead letters count for nothing. Each kind is found as often as it
    was drawn, whatever records are matched by."""
    lines, inputs, counts = drawn(seed=7)
    written = history(*lines, inputs=inputs)
    parts = (Part(SINK, 0), Part(LETTERS, STORIES))
    written.sink_bounds = replace(written.sink_bounds, topic=f"{SINK} + {LETTERS}", parts=parts)
    ledger = written.ledger(spark, tmp_path, agreed=TERMS, identity=identity)
    primary = {kind: number for kind, (_, number) in found_of(ledger).items() if number}
    assert primary == counts
    assert len(counts) == 5, "each kind was drawn"


def test_terms_that_meet_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    """Story: filters, several outputs, an open transaction and retention. What a dead letter
    explains is no loss; what may have been one is unknown."""

    def ledger(*lines: str, **options: Any) -> Ledger:
        with_terms = {"agreed": TERMS} | options
        return with_letters(*lines, inputs=3).ledger(spark, tmp_path, **with_terms)

    filtered = ledger("0 C", "1", expected=Expected(Expect.ZERO_OR_ONE))
    assert found_of(filtered) == {}
    assert unchecked_filter(filtered)[0].startswith("1 input has no output: filtered or lost")
    many = Expected(Expect.ONE_TO_MANY, "2")
    # All outputs are there in the first partition, and one of input 2 is lost in the second.
    both = with_letters("0 0#1 2 2#1 C", "1.0 1.0#1 1.2 C", "0.1 1.1", inputs=[3, 3])
    halves = report_of_outcomes(both.ledger(spark, tmp_path, agreed=TERMS, expected=many))
    assert rows(halves) == {"gap": (1, 1)}
    (lost_half,) = next(each for each in halves.findings if each.count).examples
    assert lost_half.lineage == "numbers/1/2/1"
    assert found_of(ledger("0 2 C", "t:1@")) == {"gap": (1, 0)}
    # Beside a group, the pending dead letter stands for both outputs of its input.
    behind = ledger("0 0#1 C", "t:1@", expected=many, agreed=replace(TERMS, offsets={0: 2}))
    ahead = judge(behind, Guarantee.EXACTLY_ONCE, ["offset_ahead"], validators=(offset_ahead,))
    assert rows(ahead) == {"offset_ahead": (1, 0)}
    # A dead letter that is aborted behind an open transaction is no output without an input.
    assert not ledger("", "0 b:2@ t:1@ t:A").disjoint
    lost = Circumstances(looked=True, sink_removed={1: Removed(below=2)})
    assert found_of(ledger("0 2 C", "", circumstances=lost)) == {"gap": (1, 0)}


def test_dead_letters_that_name_nothing_are_not_judged(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the contract names the wrong program, so no dead letter has its headers. Nothing is
    judged by them. And a dead letter that holds an identity is matched by it."""
    report = report_of(with_letters("0 2 C", "? ?", inputs=3).ledger(spark, tmp_path, agreed=TERMS))
    assert report.verdict is Outcome.UNKNOWN
    assert report.why == (
        "Could not be judged: the contract's `dead_letters` cannot be read: none of the 2 dead"
        f" letters in {LETTERS} names its input by the headers of connect. Correct `origin`, or let"
        " the program write them."
    )
    by_key = ContractTerms(match=Match(), letters=DeadLetters(LETTERS, "header:order"))
    written = with_letters("0 2 C", "? ?", inputs=3)
    for reading in (written.committed, written.uncommitted):
        reading[:] = [
            (*row[:5], [("order", (b"0.1", b"0.7")[row[1]])]) if row[0] == 1 else row
            for row in reading
        ]
    ledger = written.ledger(spark, tmp_path, agreed=by_key, identity=Identity.KEY)
    report = judge(ledger, Guarantee.EXACTLY_ONCE, ["phantom", "gap"], validators=KINDS)
    assert rows(report) == {"phantom": (1, 1)}
    (example,) = next(each for each in report.findings if each.count).examples
    assert example.why == (
        "This dead letter names no input: no input of the source has the identity in its header"
        " order."
    )


def test_headers_are_read_alike_in_spark_and_in_python(spark: SparkSession) -> None:
    """Story: whoever writes a dead letter writes any bytes. What is no place names nothing, says
    why, and is masked in copies."""
    numbers = [b"0", b"17", b"-1", b"+1", b"01", b"1" * 30, b"", None, b"2147483648", b" 1", b"x"]
    numbers += [
        (0).to_bytes(4),
        (7).to_bytes(4),
        (2**31).to_bytes(4),
        (5).to_bytes(8),
        (2**63).to_bytes(8),
        bytes(3),
        b"9223372036854775808",
        b"9223372036854775807",
    ]
    topics = [b"orders", b"a/b", b"", b"x" * 250, b"caf\xc3\xa9", None]
    for headers in ORIGINS.values():
        right = ((7).to_bytes(4), (5).to_bytes(8)) if headers.is_binary else (b"17", b"0")
        cases = [
            *((topic, *right) for topic in topics),
            *((b"orders", number, right[1]) for number in numbers),
            *((b"orders", right[0], number) for number in numbers),
        ]
        rows_ = [
            [(name, value) for name, value in zip(headers.names, case, strict=True)]
            for case in cases
        ]
        schema = schema_of(f"headers {HEADERS_TYPE}")
        frame = spark.createDataFrame([(row,) for row in rows_], schema)
        read = frame.select(
            lineage_of(headers).alias("text"), why_no_place(headers).alias("why")
        ).collect()
        for row, answer in zip(rows_, read, strict=True):
            values = {name: value for name, value in row if value is not None}
            place = place_in(values, headers)
            expected = None if place is None else "/".join(map(str, (*place, 0)))
            assert (answer["text"], answer["why"] is None) == (expected, place is not None), row
        assert any(answer["text"] for answer in read) and any(answer["why"] for answer in read)
