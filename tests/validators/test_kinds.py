"""Each kind, on a topic broken in one way: found there, once, at the right offset, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import History, history
from validators import evidence
from validators.catalogue import VALIDATORS, Validator
from validators.identity import Identity

HEALTHY = history("0 1 2 C 3 4 A 3 4 5 C", inputs=6)

# (partition, offset, lineage's partition, lineage's offset, explained by)
Row = tuple[int | None, int | None, int | None, int | None, str | None]


def found(
    spark: SparkSession, folder: Path, made: History, identity: Identity = Identity.LINEAGE
) -> dict[str, list[Row]]:
    """What every validator finds, without the kinds that find nothing."""
    ledger = made.ledger(spark, folder, identity=identity)
    assert ledger.doubts == ()
    rows: dict[str, list[Row]] = {}
    for validator in VALIDATORS:
        columns = ("partition", "offset", "source_partition", "source_offset", "explained_by")
        for row in validator.find(ledger).select(*columns).collect():
            rows.setdefault(validator.NAME, []).append(tuple(row))
    return {kind: sorted(them, key=str) for kind, them in rows.items()}


@pytest.mark.parametrize("validator", VALIDATORS, ids=lambda validator: validator.NAME)
def test_every_validator_has_the_same_shape_and_is_silent_on_a_healthy_topic(
    validator: Validator, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: an aborted transaction was replayed and committed. Nobody finds anything, and everybody had to look."""
    ledger = HEALTHY.ledger(spark, tmp_path)
    rows = validator.find(ledger)
    assert rows.schema.simpleString() == spark.createDataFrame([], evidence.COLUMNS).schema.simpleString()
    assert (rows.count(), validator.covered(ledger) > 0) == (0, True)
    assert validator.NAME == validator.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    assert validator.QUESTION.endswith("?") and validator.UNIT and validator.WITNESSES


def test_a_record_committed_twice_is_a_duplicate_and_no_gap(spark: SparkSession, tmp_path: Path) -> None:
    """Story: input 1 is committed in two transactions. The later copy is the duplicate; the order it breaks is its own
    doing."""
    assert found(spark, tmp_path, history("0 1 C 1 2 C", inputs=3)) == {
        "duplicate": [(0, 3, 0, 1, None)],
        "order": [(0, 3, 0, 1, "duplicate")],
    }


def test_a_copy_in_another_partition_is_a_duplicate_too(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the copy of input 1 went to another partition, later. Each partition alone looks perfect."""
    assert found(spark, tmp_path, history("0 1 C", "_ _ _ _ 1 C", inputs=2)) == {"duplicate": [(1, 4, 0, 1, None)]}


def test_three_copies_are_two_duplicates(spark: SparkSession, tmp_path: Path) -> None:
    """Story: input 0 is committed three times, so that two records are too many."""
    rows = found(spark, tmp_path, history("0 C 0 C 0 C 1 C", inputs=2))
    assert rows["duplicate"] == [(0, 2, 0, 0, None), (0, 4, 0, 0, None)]


def test_two_outputs_of_one_input_are_no_duplicates(spark: SparkSession, tmp_path: Path) -> None:
    """Story: input 0 has two outputs. They differ in their index, and stand in its order."""
    assert found(spark, tmp_path, history("0#0 0#1 1#0 C", inputs=2)) == {}


def test_a_record_left_out_is_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    """Story: input 1 was never produced, although later ones were. The order of the others is not broken by that."""
    assert found(spark, tmp_path, history("0 2 C 3 C", inputs=4)) == {"gap": [(None, None, 0, 1, None)]}


def test_the_lost_tail_is_a_gap_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the run claims four inputs, but the last transaction was aborted and never replayed. No neighbour is
    missing between two others, so only the judged range can tell."""
    ledger = history("0 C 2 C 3 A", inputs=[4]).ledger(spark, tmp_path)
    gap = next(one for one in VALIDATORS if one.NAME == "gap")
    rows = gap.find(ledger).orderBy("source_offset").select("source_offset", "why").collect()
    assert [tuple(row) for row in rows] == [
        (1, "A hole: later inputs of this partition have committed outputs, this one has none."),
        (
            3,
            "Lost tail: neither this input nor any later one of its partition has a committed output. "
            "Its output was aborted.",
        ),
    ]


def test_two_records_swapped_are_one_inversion(spark: SparkSession, tmp_path: Path) -> None:
    """Story: inputs 1 and 2 changed places. One adjacent pair is inverted: the one that ends at input 1."""
    assert found(spark, tmp_path, history("0 2 1 3 C", inputs=4)) == {"order": [(0, 2, 0, 1, None)]}


def test_partitions_have_no_order_between_them(spark: SparkSession, tmp_path: Path) -> None:
    """Story: two source partitions write to two sink partitions, interleaved as they please. Each line is in order."""
    assert found(spark, tmp_path, history("0.5 1.0 0.6 1.9 C", "1.1 0.0 0.1 1.2 C", inputs=[0, 0])) != {}
    lines = ("b:1.0 0.0 b:1.2 C 0.2 C b:C", "b:1.1 b:C 0.1 C")
    assert found(spark, tmp_path, history(*lines, inputs=[3, 3])) == {}


def test_a_replayed_chunk_explains_the_order_it_breaks(spark: SparkSession, tmp_path: Path) -> None:
    """Story: skipping was switched off, and a whole chunk was produced again. Three duplicates, one inversion of their
    making."""
    assert found(spark, tmp_path, history("0 1 2 C 0 1 2 C 3 C", inputs=4)) == {
        "duplicate": [(0, 4, 0, 0, None), (0, 5, 0, 1, None), (0, 6, 0, 2, None)],
        "order": [(0, 4, 0, 0, "duplicate")],
    }


def test_a_swap_hidden_behind_a_copy_is_still_found(spark: SparkSession, tmp_path: Path) -> None:
    """Story: between inputs 5 and 4, which are swapped, stands a copy of input 3. The inversion is not the copy's."""
    assert found(spark, tmp_path, history("0 1 2 3 5 3 4 C", inputs=6)) == {
        "duplicate": [(0, 5, 0, 3, None)],
        "order": [(0, 5, 0, 3, "duplicate"), (0, 6, 0, 4, None)],
    }


def test_an_aborted_record_that_read_committed_shows_is_g1a(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a reader ignores the ABORT marker and shows input 1 from the aborted attempt, too. That is the cause; the
    duplicate and the order follow from it."""
    assert found(spark, tmp_path, history("0 C 1* A 1 2 C", inputs=3)) == {
        "aborted_read": [(0, 2, 0, 1, None)],
        "duplicate": [(0, 2, 0, 1, "aborted_read")],
        "order": [(0, 4, 0, 1, "aborted_read")],
    }


def test_a_marker_belongs_to_its_own_producer(spark: SparkSession, tmp_path: Path) -> None:
    """Story: two producers share a partition; one aborts while the other commits. Whoever matched a marker with the
    nearest records would see aborted records in the open."""
    made = history("0 b:1.0 A b:1.1 0 1 b:C C", inputs=[2, 2])
    assert found(spark, tmp_path, made) == {}


def test_the_journal_alone_shows_an_aborted_read(spark: SparkSession, tmp_path: Path) -> None:
    """Story: nobody read the raw log, but the worker wrote down that it aborted its second transaction. Its record is
    visible."""
    ledger = history("0 C 1* A 1 C", inputs=2).ledger(
        spark, tmp_path, raw_log=False, declared={("a-0", 1): "COMMITTED", ("a-0", 2): "ABORTED", ("a-0", 3): "UNKNOWN"}
    )
    aborted_read = next(one for one in VALIDATORS if one.NAME == "aborted_read")
    assert [row["offset"] for row in aborted_read.find(ledger).collect()] == [2]
    assert aborted_read.covered(ledger) == 2


def test_what_has_no_input_is_a_phantom(spark: SparkSession, tmp_path: Path) -> None:
    """Story: one record has no lineage, one names an offset that the source never had, one a partition that it has
    not."""
    assert found(spark, tmp_path, history("0 ? 9 3.1 1 C", inputs=2)) == {
        "phantom": [(0, 1, None, None, None), (0, 2, 0, 9, None), (0, 3, 3, 1, None)]
    }


def test_an_output_of_an_offset_without_an_input_is_a_phantom(spark: SparkSession, tmp_path: Path) -> None:
    """Story: offset 1 of the source is a marker or an aborted record, so that nothing committed can stem from it."""
    made = history("0 1 2 C", inputs=3, holes=[(0, 1)])
    assert found(spark, tmp_path, made) == {"phantom": [(0, 1, 0, 1, None)]}


def test_a_record_outside_a_range_that_was_cut_is_no_phantom(spark: SparkSession, tmp_path: Path) -> None:
    """Story: only inputs 1 to 2 of 5 are judged. The outputs of the others exist, are listed, and are explained."""
    made = history("0 1 2 3 C", inputs=5, judged=[(1, 3)])
    assert found(spark, tmp_path, made) == {"phantom": [(0, 0, 0, 0, "range"), (0, 3, 0, 3, "range")]}


def test_a_pending_output_is_not_missing_yet(spark: SparkSession, tmp_path: Path) -> None:
    """Story: inputs 1 and 2 have no committed output, but the transaction of 1 is still open."""
    assert found(spark, tmp_path, history("0 C 1", inputs=3)) == {
        "gap": [(None, None, 0, 1, "pending"), (None, None, 0, 2, None)]
    }


def test_keys_identify_where_there_is_no_lineage(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the topics are someone else's, so their keys tell. Inputs 0 and 2 share a key, 1 and 3 have none; one of
    each is missing, and one key came twice."""
    keys = {(0, 0): b"a", (0, 1): None, (0, 2): b"a", (0, 3): None, (0, 4): b"b"}
    made = history("0 1 ? 4 4 C", inputs=5, keys=keys)
    assert found(spark, tmp_path, made, Identity.KEY) == {
        "duplicate": [(0, 4, 0, 4, None)],
        "gap": [(None, None, 0, 2, None), (None, None, 0, 3, None)],
        "order": [(0, 4, 0, 4, "duplicate")],
        "phantom": [(0, 2, None, None, None)],
    }
