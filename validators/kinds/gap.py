"""Every expected output of the inputs in the judged range is committed. validators/expected.py
defines the expected outputs.

Catalogue 2 and 3, Jepsen's `lost-write` and `unseen`. A hole has committed neighbours after it. The
lost tail lies beyond the last committed output of its source partition, so no check of neighbours
can see it. A missing output may have an explanation:

- `pending`: its record is pending, so nothing is known yet.
- `reading_mismatch`, `wrong_attribution`: the raw log or the journal commits it nevertheless.
- `torn`: its transaction is committed in part.
- `offset_ahead`: it is in a lost tail below the group's committed offset.
- `sink_removed`: the sink has lost records, maybe this one.
- `range`: the contract judges what is left, and this one may be among the first ones removed. No
  removal explains more outputs than the sink has lost offsets.
- `identity_missing`: a record without an identity may be it, unless more outputs are missing than
  there are such records.
- `movement`: the topics move, nothing tells what is due, and it may still arrive.

If the contract names dead letters, an input with a committed one owes no output.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.evidence import evidence, of_source
from topicproof.validators.expectation import PENDING, RANGE
from topicproof.validators.expected import Expect
from topicproof.validators.facts.writers import with_writers, written
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import (
    offset_ahead,
    reading_mismatch,
    sink_removed,
    torn,
    wrong_attribution,
)
from topicproof.validators.kinds.letter_repeated import pending_letters
from topicproof.validators.kinds.matching import among, why_missing
from topicproof.validators.kinds.traits import MATCHING_EACH, RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place, is_hidden, known_aborted
from topicproof.validators.offsets import (
    bits,
    bound,
    by_partition,
    holds,
    members,
    minus,
    own_place,
    word,
)
from topicproof.validators.sentences import Forms, Words

NAME = "gap"
TITLE = "Gaps"
QUESTION = "Does every input have its committed outputs?"
UNIT = "expected outputs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("expected output", "expected outputs"),
    bad=Forms("is missing", "are missing"),
    good=Forms("is committed", "are committed"),
)
TRAITS = Traits(
    row_record=RowRecord.LOST,
    shows_identity=True,
    premises=(*MATCHING_EACH, "outputs_alike"),
    next_step=(
        "Read the application's log at these inputs, then process them alone again: a reset of the"
        " group to the first of them would repeat the later ones. If the pipeline may not have"
        " reached them yet, name its consumer group under `group:` in the contract: what lies"
        " beyond the group's offset is not due."
    ),
)
WITHOUT_TRACE = "No aborted record names this input either, so the log shows no writer"
"""Of a row: the raw log was read, and holds no trace of an output."""
NEAREST = "The nearest output"
"""Begins the sentence on who wrote the output next to such a gap."""
OF_NEAREST = re.compile(rf"{NEAREST}, \S+ of input \S+, was written by (.*)\.$", re.DOTALL)
"""Finds that writer in a row's sentence."""


def find(ledger: Ledger) -> DataFrame | None:
    has_letters = ledger.question.agreed.letters is not None
    if not has_letters and not ledger.counts.repeats and ledger.at_inputs == ledger.counts.outputs:
        # All expected outputs are there and none occurs twice, so none can be missing.
        return None
    many = ledger.question.expected.kind is Expect.ONE_TO_MANY
    fate = F.col("fate")
    declared = (F.col("outcome") == Fate.ABORTED.value) & (
        F.col("declared") == Fate.COMMITTED.value
    )
    names = ["source_partition", "output_index", "word"]
    keys = (F.col("source_partition"), F.col("output_index"), word("source_offset").alias("word"))
    outputs = (
        ledger.in_sink.where(F.col("place") == Place.INPUT.value)
        .groupBy(*keys)
        .agg(
            bits("source_offset", fate == Fate.COMMITTED.value).alias("committed"),
            # At or above the last stable offset, but the raw log already has its ABORT marker, so
            # the record will never be committed.
            bits("source_offset", (fate == Fate.PENDING.value) & ~known_aborted()).alias("pending"),
            bits("source_offset", (fate == Fate.ABORTED.value) | known_aborted()).alias("aborted"),
            bits("source_offset", is_hidden()).alias("hidden"),
            bits("source_offset", declared).alias("declared"),
        )
    )
    expected = ledger.outputs.groupBy(*keys).agg(bits("source_offset").alias("wanted"))
    lacking = minus(F.col("wanted"), F.col("committed"))
    missing = (
        expected.join(outputs, names, "left")
        .where(lacking != 0)
        .withColumn("source_offset", members("word", lacking))
    )
    after = {
        bounds.partition: ledger.after(bounds.partition)
        for bounds in ledger.question.source.partitions
    }
    tail = F.col("source_offset") >= by_partition("source_partition", after)
    pending, is_letter_pending = holds("pending", "source_offset"), F.lit(False)
    if has_letters:
        missing = missing.join(
            pending_letters(ledger), ["source_partition", "source_offset"], "left"
        )
        is_letter_pending = F.col("has_pending_letter").isNotNull()
    before, unclear = _of_removal(ledger, missing)
    neither = " Nor does a dead letter name it." if has_letters else ""
    why = (
        F.when(pending, "The output of this input is pending: its transaction is still open.")
        .when(
            is_letter_pending,
            "The dead letter of this input is pending: its transaction is still open.",
        )
        .when(
            before,
            "Its output may be among those that the sink has lost: in a partition that has lost"
            " records, no earlier input has one.",
        )
        .when(
            tail,
            f"This input has no committed output, and no later input of its partition has one."
            f"{neither}",
        )
        .when(
            F.lit(many),
            F.format_string(
                "Output %d of this input, counted from 0, is not committed, although other outputs"
                " of it or of later inputs are.",
                "output_index",
            ),
        )
        .otherwise(
            f"This input has no committed output, although later inputs of its partition have one."
            f"{neither}"
        )
    )
    offsets = ledger.question.agreed.offsets or {}
    uncertain = why_missing(ledger)
    hidden = holds("hidden", "source_offset")
    rows = _with_aborted(of_source(missing, ledger.question.source.topic), ledger)
    sink, partition = own_place(ledger.sink_bounds, "aborted_partition")
    aborted = F.concat(
        F.lit(" An output of it was aborted: " if many else " Its output was aborted: "),
        F.concat_ws("-", sink, partition),
        F.concat(F.lit("@"), "aborted_offset"),
        F.lit(", "),
        written(),
        F.lit("."),
    )
    traces = (
        F.when(hidden, " The raw log commits its output, and read_committed did not deliver it.")
        .when(F.col("writer").isNotNull(), aborted)
        .when(
            holds("aborted", "source_offset") | F.col("aborted_offset").isNotNull(),
            " Its output was aborted.",
        )
        .when(
            F.lit(ledger.accounts.raw_log is None) | pending | is_letter_pending | before,
            "",
        )
        .otherwise(f" {WITHOUT_TRACE}.")
    )
    # If each input has one output, the input alone identifies it.
    index = F.when(F.lit(many), F.col("output_index"))
    rows = rows.withColumn("output_index", index)
    cause = (
        F.when(pending | is_letter_pending, PENDING)
        .when(hidden, reading_mismatch.NAME)
        .when(holds("declared", "source_offset"), wrong_attribution.NAME)
        .when(before, RANGE)
        .when(unclear, sink_removed.NAME)
        .when(F.lit(uncertain is not None), F.lit(uncertain))
        .when(
            tail & (F.col("source_offset") < by_partition("source_partition", offsets)),
            offset_ahead.NAME,
        )
    )
    if any(transactional_id.torn for transactional_id in ledger.counts.ids):
        rows = rows.join(_of_torn(ledger), ["source_partition", "source_offset"], "left")
        cause = F.coalesce(cause, F.when(F.col("torn"), torn.NAME))
    badness = F.when(tail, 0).otherwise(1)
    return evidence(rows, badness, F.concat(why, traces), cause, F.nullif(written(), F.lit("")))


def _with_aborted(rows: DataFrame, ledger: Ledger) -> DataFrame:
    """Adds the columns of `aborted_outputs`; null without one, or if the raw log was not read."""
    if ledger.accounts.raw_log is None:
        nothing = {"aborted_partition": "int", "aborted_offset": "long"}
        rows = rows.withColumns({name: F.lit(None).cast(kind) for name, kind in nothing.items()})
        return with_writers(rows, None)
    outputs = aborted_outputs(ledger)
    return rows.join(outputs, _of_output(ledger), "left")


def _of_output(ledger: Ledger) -> list[str]:
    """Returns the columns that tell which output an aborted record was; by key, only its input is
    known."""
    return ["source_partition", "source_offset", *(("output_index",) * (not ledger.by_key))]


def aborted_outputs(ledger: Ledger) -> DataFrame:
    """Returns the last aborted record that was the output of each input: source_partition,
    source_offset, by lineage output_index, aborted_partition, aborted_offset and its writer
    (facts/writers.py), by the logs. What its header says may be masked."""
    records = ledger.sink.where((F.col("fate") == Fate.ABORTED.value) | known_aborted())
    by = _of_output(ledger)
    if ledger.frames.sink_keys is not None and ledger.frames.identities is not None:
        # No record is counted as its output, so it has no place: only the identity connects them.
        inputs = ledger.frames.identities().where(~F.col("pending"))
        records = (
            records.drop(*by)
            .join(ledger.frames.sink_keys(), ["partition", "offset"])
            .join(inputs, "source_key")
        )
    else:
        records = records.where(F.col("place") == Place.INPUT.value)
    last = records.groupBy(*by).agg(
        F.max(F.struct("timestamp", "partition", "offset")).alias("last")
    )
    last = last.select(
        *by,
        F.col("last.partition").alias("aborted_partition"),
        F.col("last.offset").alias("aborted_offset"),
    )
    return with_writers(last, ledger.accounts.raw_log, "aborted_partition", "aborted_offset")


def _of_removal(ledger: Ledger, missing: DataFrame) -> tuple[Column, Column]:
    """Tells which missing outputs the sink may have lost (validators/ledger/retained.py): those
    before what is judged, and those of which nothing is certain. If they are more than the sink has
    lost, some are lost for certain, although nothing tells which."""
    none = F.lit(False)
    if not ledger.sink_incomplete:
        return none, none
    letters_from = ledger.question.first_of_letters(ledger.sink_bounds)
    if letters_from is not None and max(ledger.circumstances.sink_removed) >= letters_from:
        # Any input may have had a dead letter there.
        return none, F.lit(True)
    before, retained = none, ledger.retained
    if retained.inputs_from:
        first = by_partition("source_partition", retained.inputs_from)
        before = F.coalesce(F.col("source_offset") <= first, none)
    unclear = ~before & ~among("source_partition", retained.complete)
    if not ledger.question.agreed.retained:
        return before, unclear
    removed = sum(removal.offsets for removal in ledger.circumstances.sink_removed.values())
    waiting = holds("pending", "source_offset")
    explained = missing.where((before | unclear) & ~waiting).count()
    is_more = explained > removed + ledger.unidentified_outputs
    return (none, none) if is_more else (before, unclear)


def _of_torn(ledger: Ledger) -> DataFrame:
    """Returns the inputs that torn transactions processed or may have processed: source_partition,
    source_offset, torn (true)."""
    rows = torn.parts(ledger).where(
        F.col("cause").isNull() & (F.col("first_source") == F.col("last_source"))
    )
    # A header's numbers are its writer's: none makes more rows than the partition has inputs.
    source = ledger.question.source
    start = bound("first_source", source, "start")
    end = bound("first_source", source, "hw") - 1
    rows = rows.where((F.col("first_of_all") <= end) & (F.col("last_of_all") >= start))
    first = F.greatest("first_of_all", start)
    last = F.least("last_of_all", end)
    missing = F.least(F.col("missing"), end - start + 1)
    around = F.sequence(F.greatest(first - missing, start), F.least(last + missing, end))
    inputs = rows.select(
        F.col("first_source").alias("source_partition"), F.explode(around).alias("source_offset")
    )
    return inputs.distinct().withColumn("torn", F.lit(True))


def covered(ledger: Ledger) -> int:
    return ledger.counts.outputs
