"""What a verdict rests on: each premise broken, with what it blocks, beside a topic in which it
holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

from tests.validators import golden
from tests.validators.history import History, history
from topicproof.validators.circumstances import Circumstances, Growth, Incarnation, Removed
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.expectation import PREMISES
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Guarantee, Order, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.report import Report
from topicproof.validators.sentences import sentence

Keys = Mapping[tuple[int, int], bytes | None]
RETAINED = ContractTerms(retained=True)
BY_KEY: dict[str, Any] = {"identity": Identity.KEY}
TWO = {"identity": Identity.KEY, "expected": Expected(Expect.ONE_TO_MANY, "2")}


def judged(spark: SparkSession, folder: Path, made: History, **more: Any) -> Report:
    report = judge(made.ledger(spark, folder, **more), Guarantee.EXACTLY_ONCE)
    golden.compare_report("premises.txt", report)
    return report


def found(report: Report) -> dict[str, tuple[int, int, str | None]]:
    """Kinds with rows that count: all, primary, explained by."""
    uncounted = {one.kind for one in report.not_checked}
    return {
        one.kind: (one.count, one.primary, one.explained_by)
        for one in report.findings
        if one.count and one.kind not in uncounted
    }


def keyed(*keys: bytes | None) -> Keys:
    return {(0, offset): key for offset, key in enumerate(keys)}


def removed(source: int = 0, sink: int = 0) -> Circumstances:
    lost = [{0: Removed(below=offsets)} if offsets else {} for offsets in (source, sink)]
    return Circumstances(looked=True, source_removed=lost[0], sink_removed=lost[1])


def test_a_misspelt_header_identifies_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Story: no record has the header that the contract names, input 1 came twice and input 3 not
    at all. Null once equalled null, and that held."""
    match = ContractTerms(Match("header:order-id", "header:order-id"))
    report = judged(spark, tmp_path, history("0 1 1 2 C", inputs=4), agreed=match, **BY_KEY)
    assert (report.verdict, report.exit_code) == (Outcome.UNKNOWN, 3)
    assert (
        report.why == "Could not be judged: identity_missing: all 8 records hold no identity."
        " Have each record written with one, or name what every record holds: `topicproof contract"
        " init` proposes an identity."
    )


@pytest.mark.parametrize(
    ("broken", "verdict", "rows"),
    [
        ([], Outcome.HOLDS, {}),
        (
            [1],
            Outcome.UNKNOWN,
            {
                "undecodable": (2, 2, None),
                "identity_missing": (2, 0, "undecodable"),
                "phantom": (1, 0, "identity_missing"),
            },
        ),
    ],
    ids=["all are decoded", "an input and its output are broken"],
)
def test_records_that_cannot_be_decoded(
    spark: SparkSession,
    tmp_path: Path,
    broken: list[int],
    verdict: Outcome,
    rows: dict[str, Any],
) -> None:
    """Story: records are matched by a field of both sides."""
    field = "field:id"
    agreed = ContractTerms(Match(field, field), source_fields=(field,), sink_fields=(field,))
    lost = F.col("offset").isin(broken)
    column = F.struct(
        F.when(lost, F.lit("No schema 7.")).alias("reason"),
        F.when(~lost, F.col("offset").cast("string")).alias(field),
    )
    made, two = history("0 1 2 C", inputs=3), (column, column)
    report = judged(spark, tmp_path, made, agreed=agreed, decoded=two, **BY_KEY)
    assert (report.verdict, found(report)) == (verdict, rows), report.why
    (checked,) = [one.records for one in report.checked if one.kind == "undecodable"]
    assert checked == 6


@pytest.mark.parametrize(
    ("text", "reason", "verdict", "rows", "doubts"),
    [
        ("offset", None, Outcome.HOLDS, {}, 0),
        ("9 - offset", None, Outcome.VIOLATED, {"wrong_value": (3, 3, None)}, 0),
        (
            "if(offset = 1, null, offset)",
            "if(offset = 1, 'No schema 7.', null)",
            Outcome.UNKNOWN,
            {"undecodable": (1, 1, None), "wrong_value": (1, 0, "undecodable")},
            0,
        ),
        ("null", None, Outcome.UNKNOWN, {"wrong_value": (3, 3, None)}, 1),
    ],
    ids=["as promised", "wrong", "broken and so unknown", "a misspelt field"],
)
def test_fields_of_outputs(
    spark: SparkSession,
    tmp_path: Path,
    text: str,
    reason: str | None,
    verdict: Outcome,
    rows: dict[str, Any],
    doubts: int,
) -> None:
    """Story: a contract gives a field of each output by a field of its input."""
    field = "field:n"
    sql = "to_json(named_struct('n', decoded.`field:n`), map('ignoreNullFields', 'false'))"
    agreed = ContractTerms(
        value=sql, compared=(field,), source_fields=(field,), sink_fields=(field,)
    )
    source, sink = (
        F.expr(f"named_struct('reason', string({why}), '{field}', string({given}))")
        for why, given in (("null", "offset"), (reason or "null", text))
    )
    made = history("0 1 2 C", inputs=3)
    report = judged(spark, tmp_path, made, agreed=agreed, decoded=(source, sink))
    assert (report.verdict, found(report)) == (verdict, rows), report.why
    assert len(report.doubts) == doubts, report.doubts


@pytest.mark.parametrize(
    ("sink", "keys", "verdict", "rows"),
    [
        # The output of input 1 may be the record without a key.
        (
            "0 2 C",
            keyed(b"a", b"b", None),
            Outcome.UNKNOWN,
            {
                "identity_missing": (2, 2, None),
                "gap": (1, 0, "identity_missing"),
                "phantom": (1, 0, "identity_missing"),
            },
        ),
        # Two outputs are missing, and only one record has no key: one of them is missing for
        # certain.
        (
            "0 3 C",
            keyed(b"a", b"b", b"c", None),
            Outcome.VIOLATED,
            {
                "identity_missing": (2, 2, None),
                "gap": (2, 1, "identity_missing"),
                "phantom": (1, 0, "identity_missing"),
            },
        ),
    ],
    ids=["a gap that may be none", "more gaps than records without a key"],
)
def test_records_without_an_identity(
    spark: SparkSession,
    tmp_path: Path,
    sink: str,
    keys: Keys,
    verdict: Outcome,
    rows: dict[str, Any],
) -> None:
    report = judged(spark, tmp_path, history(sink, inputs=len(keys), keys=keys), **BY_KEY)
    assert (report.verdict, found(report)) == (verdict, rows)


@pytest.mark.parametrize(
    ("sink", "count", "verdict", "rows"),
    [
        ("0 1 C", "if(key is null, 0, 1)", Outcome.HOLDS, {}),
        ("0 C", "if(key is null, 0, 1)", Outcome.VIOLATED, {"gap": (1, 1, None)}),
        # The count says that input 2 has an output, and nothing tells which one.
        ("0 1 C", "1", Outcome.UNKNOWN, {"identity_missing": (1, 1, None)}),
        # An output without an identity may be that of any input.
        (
            "0 2 C",
            "if(key is null, 0, 1)",
            Outcome.UNKNOWN,
            {
                "identity_missing": (1, 1, None),
                "gap": (1, 0, "identity_missing"),
                "phantom": (1, 0, "identity_missing"),
            },
        ),
    ],
    ids=["none of it", "a loss beside it", "it must have an output", "an output of it"],
)
def test_an_input_without_an_output_needs_no_identity(
    spark: SparkSession,
    tmp_path: Path,
    sink: str,
    count: str,
    verdict: Outcome,
    rows: dict[str, Any],
) -> None:
    """Story: input 2 is a tombstone, as Debezium writes behind each delete. It has no identity, and
    the contract's count says that it has no output."""
    made = history(sink, inputs=3, keys=keyed(b"a", b"b", None))
    more = {"expected": Expected(Expect.ZERO_OR_ONE, count), **BY_KEY}
    report = judged(spark, tmp_path, made, **more)
    assert (report.verdict, found(report)) == (verdict, rows), report.why


@pytest.mark.parametrize(
    ("sink", "verdict", "rows"),
    [
        # A duplicate of input 0 beside the loss of input 1 looks the same.
        ("0 0 2 C", Outcome.UNKNOWN, {"identity_repeated": (1, 1, None)}),
        (
            "0 0 1 2 C",
            Outcome.VIOLATED,
            {"identity_repeated": (1, 1, None), "duplicate": (1, 1, None)},
        ),
        ("0 1 3 2 C", Outcome.VIOLATED, {"identity_repeated": (1, 1, None), "order": (1, 1, None)}),
    ],
    ids=["a duplicate beside a gap", "too many", "others swapped"],
)
def test_inputs_that_share_an_identity_are_counted(
    spark: SparkSession, tmp_path: Path, sink: str, verdict: Outcome, rows: dict[str, Any]
) -> None:
    """Story: inputs 0 and 1 have one key. Their outputs can be counted, and nothing else."""
    inputs = 4 if "3" in sink else 3
    report = judged(
        spark, tmp_path, history(sink, inputs=inputs, keys=keyed(b"a", b"a", b"b", b"c")), **BY_KEY
    )
    assert (report.verdict, found(report)) == (verdict, rows)


def test_topics_without_lineage_are_not_condemned(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a healthy pair that somebody else wrote, judged by the default lineage."""
    report = judged(spark, tmp_path, history("? ? ? C", inputs=3))
    assert report.verdict is Outcome.UNKNOWN
    assert found(report) == {
        "identity_disjoint": (3, 3, None),
        "gap": (3, 0, "identity_disjoint"),
        "phantom": (3, 0, "identity_disjoint"),
    }
    assert (
        report.why
        == "Could not be judged: identity_disjoint: all 3 committed records name no input of the"
        " source. Match them by something else: `topicproof contract init` proposes an"
        " identity."
    )
    assert judged(spark, tmp_path, history("0 ? 2 C", inputs=3)).verdict is Outcome.VIOLATED


@pytest.mark.parametrize(
    ("sink", "keys", "verdict", "rows"),
    [
        ("0#0 0#1 1#0 1#1 C", {}, Outcome.HOLDS, {}),
        ("0#0 0#0 1#0 1#1 C", {}, Outcome.UNKNOWN, {"outputs_alike": (1, 1, None)}),
    ],
    ids=["apart", "one twice and one never"],
)
def test_outputs_that_are_alike(
    spark: SparkSession,
    tmp_path: Path,
    sink: str,
    keys: Keys,
    verdict: Outcome,
    rows: dict[str, Any],
) -> None:
    """Story: each input has two outputs, and only what they hold tells them apart."""
    report = judged(spark, tmp_path, history(sink, inputs=2, keys=keys), **TWO)
    seen = {kind: row for kind, row in found(report).items() if kind != "order"}
    assert (report.verdict, seen) == (verdict, rows)


def test_a_key_that_is_spread_has_no_order(spark: SparkSession, tmp_path: Path) -> None:
    """Story: order is promised per key. Key a lies in two partitions, whose offsets say nothing of
    each other."""
    spread = history("0 C", "1 C", inputs=2, keys=keyed(b"a", b"a"))
    report = judged(spark, tmp_path, spread, order=Order.PER_KEY)
    assert (report.verdict, found(report)) == (Outcome.UNKNOWN, {"key_spread": (1, 1, None)})


def test_records_without_a_key_are_in_no_order(spark: SparkSession, tmp_path: Path) -> None:
    """Story: order is promised per key, and two records have none. They are not the records of one
    key. All records of the keys that there are lie in one partition."""
    made = history("2 1 0 3 C", "4 C", inputs=5, keys=keyed(b"a", None, None, b"a", b"b"))
    assert judged(spark, tmp_path, made, order=Order.PER_KEY).verdict is Outcome.HOLDS


def test_a_gap_that_a_removal_may_explain_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the sink has lost its first record, the contract accepts that, and promises no order.
    The missing output may be the lost one, and the sentence says so."""
    more = {"circumstances": removed(sink=1), "agreed": RETAINED, "order": Order.NONE, **BY_KEY}
    report = judged(spark, tmp_path, history("1 0 2 C", inputs=3, start=1), **more)
    assert report.verdict is Outcome.UNKNOWN
    assert report.why.startswith("Could not be judged: gap: 1 of 3 expected outputs"), report.why


@pytest.mark.parametrize("agreed", [ContractTerms(), RETAINED], ids=["whole", "retained"])
def test_of_an_emptied_source_nothing_is_left_to_judge(
    spark: SparkSession, tmp_path: Path, agreed: ContractTerms
) -> None:
    """Story: retention removed all inputs. No identity and no range can help, so nobody is sent to
    look for one."""
    made = history("0 1 2 C", inputs=3, holes=[(0, n) for n in range(3)], judged=[(3, 3)])
    report = judged(spark, tmp_path, made, circumstances=removed(source=3), agreed=agreed, **BY_KEY)
    assert report.verdict is Outcome.UNKNOWN
    assert "No input is left to judge. Check sooner the next time" in report.why
    assert "contract init" not in report.why and "range: retained" not in report.why


@pytest.mark.parametrize(
    ("sink", "more", "verdict", "rows"),
    [
        ("1 2 C", {"circumstances": removed(source=1)}, Outcome.UNKNOWN, {
            "source_removed": (1, 1, None),
        }),
        ("1 2 C", {"circumstances": removed(source=1), "agreed": RETAINED}, Outcome.HOLDS, {
            "source_removed": (1, 0, "range"),
        }),
        # By key, the second record may be the output of an input that is gone.
        ("1 1 2 C", {"circumstances": removed(source=1), **BY_KEY}, Outcome.UNKNOWN, {
            "source_removed": (1, 1, None), "duplicate": (1, 0, "source_removed"),
            "order": (1, 0, "source_removed"),
        }),
        ("0 1 2 C", {"circumstances": removed(sink=1)}, Outcome.UNKNOWN, {
            "sink_removed": (1, 1, None), "gap": (1, 0, "sink_removed"),
            "torn": (1, 0, "range"),
        }),
        ("0 1 2 2 C", {"circumstances": removed(sink=1)}, Outcome.VIOLATED, {
            "sink_removed": (1, 1, None), "gap": (1, 0, "sink_removed"),
            "duplicate": (1, 1, None), "order": (1, 0, "duplicate"),
            "torn": (1, 0, "range"),
        }),
    ],
)  # fmt: skip
def test_what_kafka_removed_is_not_blamed_on_the_program(
    spark: SparkSession,
    tmp_path: Path,
    sink: str,
    more: dict[str, Any],
    verdict: Outcome,
    rows: dict[str, Any],
) -> None:
    """Story: inputs 1 and 2 of 3 are still there, or the sink has lost its first record."""
    if more["circumstances"].sink_removed:
        made = history(sink, inputs=3, start=1)
    else:
        made = history(sink, inputs=3, judged=[(1, 3)], holes=[(0, 0)])
    report = judged(spark, tmp_path, made, **more)
    assert (report.verdict, found(report)) == (verdict, rows)


def test_the_output_of_a_compacted_input_is_no_phantom(spark: SparkSession, tmp_path: Path) -> None:
    """Story: compaction removed input 1; offset 3 of the source is a marker, from which nothing can
    stem."""
    made = history("0 1 2 3 C", inputs=4, holes=[(0, 1), (0, 3)])
    made.source_markers = [(0, 3)]
    lost = Circumstances(looked=True, source_removed={0: Removed(inside=1)})
    report = judged(spark, tmp_path, made, circumstances=lost)
    assert found(report)["phantom"] == (2, 1, "source_removed")


@pytest.mark.parametrize(
    ("sink", "told", "verdict", "gaps"),
    [
        ("0 2 C", False, Outcome.UNKNOWN, (1, 0, "movement")),
        ("0 2 C", True, Outcome.VIOLATED, (1, 1, None)),
        ("0 1 2 C 3", False, Outcome.HOLDS, None),
    ],
    ids=["a hole", "a hole below what was due", "a transaction under way"],
)
def test_topics_that_move_are_not_condemned(
    spark: SparkSession,
    tmp_path: Path,
    sink: str,
    told: bool,
    verdict: Outcome,
    gaps: tuple[int, int, str | None],
) -> None:
    """Story: the topics grow during the check. What is missing may be on its way, unless it was due
    before."""
    moved = Circumstances(
        looked=True, watched=True, growth=(Growth("sink", 0, 3, 9),), due_told=told
    )
    made = history(sink, inputs=4, judged=[(0, 3)])
    report = judged(spark, tmp_path, made, circumstances=moved)
    assert (report.verdict, found(report).get("gap")) == (verdict, gaps)
    assert (
        next(one.why for one in report.findings if one.kind == "movement")
        == "1 of 2 partitions grew during the check."
    )


def test_the_output_of_a_pending_input_is_not_settled(spark: SparkSession, tmp_path: Path) -> None:
    """Story: input 2 lies behind an open transaction of the source, and is processed already. It
    may still be aborted."""
    seen = Circumstances(looked=True, source_lso={0: 2})
    made = history("0 1 2 C", inputs=3, judged=[(0, 2)])
    report = judged(spark, tmp_path, made, circumstances=seen)
    assert (report.verdict, found(report)) == (Outcome.UNKNOWN, {"phantom": (1, 0, "pending")})
    pending = next(one for one in report.findings if one.kind == "source_pending")
    assert (pending.outcome, pending.why) == (
        Outcome.HOLDS,
        "The only source partition ends with pending inputs, which are not judged yet.",
    )


def test_an_aborted_input_has_no_output_beyond_the_judged_range_either(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the group's offset, and with it what is judged, ends below input 1, which was aborted.
    Its output is still there. Beside it is the output of input 2, which is only not judged."""
    made = history("0 1 2 C", inputs=3, aborted=[(0, 1)], judged=[(0, 1)])
    report = judged(spark, tmp_path, made)
    assert (report.verdict, found(report)) == (
        Outcome.VIOLATED,
        {"aborted_input": (1, 1, None), "phantom": (2, 0, "aborted_input")},
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict", "rows"),
    [
        ({0: 2}, {0: 3}, Outcome.HOLDS, {}),
        ({0: 2}, {0: 2}, Outcome.VIOLATED, {"offset_behind": (1, 1, None)}),
        ({0: 9}, None, Outcome.VIOLATED, {"offset_ahead": (1, 1, None)}),
        (
            {},
            None,
            Outcome.UNKNOWN,
            {"offset_ahead": (1, 0, "no_offset"), "offset_behind": (1, 0, "no_offset")},
        ),
    ],
    ids=["moved on meanwhile", "behind", "beyond the end", "no offset"],
)
def test_the_offsets_of_a_group(
    spark: SparkSession,
    tmp_path: Path,
    before: dict[int, int],
    after: dict[int, int] | None,
    verdict: Outcome,
    rows: dict[str, Any],
) -> None:
    seen = Circumstances(looked=True, offsets_after=after)
    made = history("0 1 2 C", inputs=3)
    report = judged(spark, tmp_path, made, circumstances=seen, agreed=ContractTerms(offsets=before))
    assert (report.verdict, found(report)) == (verdict, rows)


@pytest.mark.parametrize(
    ("inputs", "circumstances", "verdict"),
    [
        ([2, 2], {}, Outcome.HOLDS),
        ([2, 3], {}, Outcome.UNKNOWN),
        ([2, 2], {"source_lso": {0: 2, 1: 1}}, Outcome.UNKNOWN),
        # Compaction removed the third record of the partition.
        ([2, 3], {"source_removed": {1: Removed(inside=1)}}, Outcome.UNKNOWN),
    ],
    ids=["aborted alone", "a committed one", "an open transaction", "a removed record"],
)
def test_a_group_has_no_offset_where_it_never_received_a_record(
    spark: SparkSession,
    tmp_path: Path,
    inputs: list[int],
    circumstances: dict[str, Any],
    verdict: Outcome,
) -> None:
    """Story: the first two records of source partition 1 were aborted, so no read_committed
    consumer receives them. The group has an offset of partition 0 alone."""
    made = history(
        *("0 1 C", ""),
        inputs=inputs,
        aborted=[(1, 0), (1, 1)],
        holes=[(1, 2)] if "source_removed" in circumstances else [],
        judged=[(0, 2), (0, 0)],
    )
    more = {"circumstances": Circumstances(looked=True, **circumstances)}
    agreed = ContractTerms(offsets={0: 2}, retained=True)
    report = judged(spark, tmp_path, made, agreed=agreed, **more)
    assert report.verdict is verdict, report.why
    rows = found(report).get("offset_ahead")
    assert rows == (None if verdict is Outcome.HOLDS else (1, 0, "no_offset"))


def test_every_premise_has_the_words_of_a_kind() -> None:
    """Story: the report treats all kinds alike."""
    names = (*PREMISES, "movement", "source_pending")
    kinds = [one for one in VALIDATORS if one.NAME in names]
    assert {one.NAME for one in kinds} == set(names)
    for one in kinds:
        assert one.QUESTION.endswith("?") and one.UNIT and one.WITNESSES
        assert sentence(one.WORDS, 0, 1_000).startswith("all 1,000 ")
    assert all(one.remedy.endswith(".") for one in PREMISES.values())


@pytest.mark.parametrize(
    ("end", "verdict", "rows"),
    [
        (None, Outcome.VIOLATED, {"duplicate": (2, 2, None)}),
        (3, Outcome.UNKNOWN, {"recreated": (2, 2, None)}),
    ],
)
def test_outputs_older_than_their_source_are_of_another_one(
    end: int | None,
    verdict: Outcome,
    rows: dict[str, Any],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Story: two inputs were processed. The source was made again, and all three of its inputs were
    processed. The later outputs repeat nothing, and do not come after the old ones."""
    older = () if end is None else (Incarnation("numbers", 0, {0: end}),)
    seen = Circumstances(looked=True, incarnations=older)
    made = history("0 1 C 0 1 2 C", inputs=3)
    report = judged(spark, tmp_path, made, circumstances=seen)
    assert report.verdict is verdict, report.why
    assert {kind: row for kind, row in found(report).items() if kind != "order"} == rows


def test_a_topic_with_another_id_is_never_judged(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the log is healthy, but its source is not the one that the run had."""
    seen = Circumstances(looked=True, replaced=("topic numbers was deleted and made again",))
    report = judged(spark, tmp_path, history("0 1 C", inputs=2), circumstances=seen)
    assert report.verdict is Outcome.UNKNOWN
    assert report.why.startswith("Could not be judged: topic numbers was deleted and made again. ")
