"""Outputs of one source partition lie in each sink partition in the order of their inputs.

Catalogue 7, Jepsen's `nonmonotonic-send`. Per (source partition, sink partition), in sink offset
order, the lineage (offset, output index) must strictly rise from record to record. Records of
different source partitions have no order, nor have records of different sink partitions. If order
is promised only per key, the rule applies per (source partition, sink partition, key). Primary rows
are the inversions that remain without the later copies. An inversion that only a later copy causes
is explained by the cause of that copy. If nothing tells which copy came first, the inversions that
depend on it are explained by `first_copy`: unknown. Outputs of which no two have an order, such as
one of each key, hold.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.expectation import FIRST_COPY, PENDING
from topicproof.validators.finding import Bounds, Order, Witness
from topicproof.validators.kinds import aborted_read, duplicate, identity_missing, sink_removed
from topicproof.validators.kinds.matching import is_judged, of_another
from topicproof.validators.kinds.traits import MATCHING_EACH, RowRecord, Traits
from topicproof.validators.ledger.counts import first_unknown
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import LINE, known_aborted, ordered, real
from topicproof.validators.offsets import place_text
from topicproof.validators.sentences import Forms, Words

NAME = "order"
TITLE = "Order"
QUESTION = "Are the outputs of a source partition in the order of its inputs?"
UNIT = "pairs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("adjacent pair of outputs", "adjacent pairs of outputs"),
    bad=Forms("is out of order", "are out of order"),
    good=Forms("is in order", "are in order"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    shows_identity=True,
    premises=(*MATCHING_EACH, "key_spread"),
    next_step=(
        "Compare the writer of the record with that of the one before it. If they are two, let only"
        " one have a source partition at a time. If it is one producer without idempotence, a retry"
        " may have done it (enable.idempotence=true prevents that). If it is one with idempotence"
        " or transactions, the application itself sent them so: look for threads or asynchronous"
        " calls between reading and sending."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.counts.proved:
        return None
    per_key = ledger.question.order is Order.PER_KEY
    line = Window.partitionBy(*LINE, *(("key_hash",) if per_key else ())).orderBy("offset")
    place = F.struct("source_offset", "output_index")
    rows = ledger.present.where(real() & ordered(per_key))
    # Lines that rise from record to record are the rule. One look is cheaper than all of the below.
    if not ledger.counts.repeats and not _any_behind(rows, place, line):
        return None
    first, maybe_first = ~F.col("repeat") & ~F.col("unsure"), ~F.col("repeat") | F.col("unsure")
    rows = _with_copies(rows, ledger).withColumns(
        {
            "place_before": F.lag(place).over(line),
            "aborted_before": F.lag(known_aborted()).over(line),
            "waiting_before": F.lag("waiting").over(line),
            "first_before": _last_before(F.when(first, place), line),
            "maybe_before": _last_before(F.when(maybe_first, place), line),
            "offset_before": F.lag("offset").over(line),
            "first_offset_before": _last_before(F.when(first, F.col("offset")), line),
            "maybe_offset_before": _last_before(F.when(maybe_first, F.col("offset")), line),
        }
    )
    certain = F.coalesce(first & (F.col("first_before") >= place), F.lit(False))
    maybe = F.coalesce(maybe_first & (F.col("maybe_before") >= place), F.lit(False))
    rows = rows.where(certain | maybe | (F.col("place_before") >= place))
    above = (
        F.when(certain, F.col("first_before"))
        .when(maybe, F.col("maybe_before"))
        .otherwise(F.col("place_before"))
    )
    # Both records of an inversion must be outputs of inputs that are still there. The earlier one
    # decides.
    rows = rows.withColumn(
        "compared_offset",
        F.when(certain, F.col("first_offset_before"))
        .when(maybe, F.col("maybe_offset_before"))
        .otherwise(F.col("offset_before")),
    )
    why = _behind(ledger.question.source, above)
    cause = F.when(known_aborted() | F.col("aborted_before"), aborted_read.NAME)
    another = _of_another(ledger)
    if another is not None:
        # The record named as the cause may not be a duplicate.
        cause = cause.when(F.col("waiting_before"), PENDING).when(another.isNotNull(), another)
    cause = F.when(maybe & ~certain, FIRST_COPY).otherwise(cause.otherwise(duplicate.NAME))
    backwards = above.getField("source_offset") - F.col("source_offset")
    return evidence(rows, backwards, why, F.when(~certain, cause).otherwise(_uncertain(ledger)))


def _any_behind(rows: DataFrame, place: Column, line: WindowSpec) -> bool:
    """Whether the place of any record is not beyond that of the record before."""
    behind = rows.select((F.lag(place).over(line) >= place).alias("behind")).where("behind")
    return bool(behind.limit(1).collect())


def _behind(source: Bounds, above: Column) -> Column:
    """Formulates which record a row comes after, though its own place is not beyond it. `above`:
    the input and output index of that record."""
    offset, index = above.getField("source_offset"), above.getField("output_index")
    place = place_text(source, "source_partition", "source_offset")
    later_input = F.format_string(
        "The output of %s comes after the output of %s.",
        place,
        place_text(source, "source_partition", offset),
    )
    later_output = F.format_string(
        "Output %d of %s, counted from 0, comes after output %d of the same input.",
        "output_index",
        place,
        index,
    )
    again = F.format_string("The output of %s comes after another copy of itself.", place)
    return (
        F.when(F.col("source_offset") != offset, later_input)
        .when(F.col("output_index") != index, later_output)
        .otherwise(again)
    )


def _with_copies(rows: DataFrame, ledger: Ledger) -> DataFrame:
    """Adds `repeat` (it is a later copy) and `unsure` (nothing tells whether it is)."""
    if not ledger.counts.repeats:
        return rows.withColumns({"repeat": F.lit(False), "unsure": F.lit(False)})
    copies_by_name = {"repeat": ledger.repeats, "unsure": first_unknown(ledger.present)}
    for name, copies in copies_by_name.items():
        marked = copies.select("partition", "offset", F.lit(True).alias(name))
        rows = rows.join(marked, ["partition", "offset"], "left")
    return rows.withColumns({name: F.coalesce(name, F.lit(False)) for name in copies_by_name})


def _last_before(place: Column, line: WindowSpec) -> Column:
    """Returns the last place before a record that is not null."""
    earlier = line.rowsBetween(Window.unboundedPreceding, -1)
    return F.last(place, ignorenulls=True).over(earlier)


def _uncertain(ledger: Ledger) -> Column:
    """Returns why a record may be in order after all. If repeats are allowed, it may be one whose
    first copy is gone or has no identity."""
    another = _of_another(ledger)
    another = F.lit(None) if another is None else another
    if not ledger.question.agreed.repeats:
        return another
    copy = None
    if ledger.sink_incomplete:
        copy = F.lit(sink_removed.NAME)
    elif ledger.unidentified_outputs:
        copy = F.lit(identity_missing.NAME)
    if ledger.by_key and ledger.source_incomplete:
        return another if copy is None else F.coalesce(another, copy)
    return another if copy is None else copy


def _of_another(ledger: Ledger) -> Column | None:
    return of_another(
        ledger, is_judged(ledger.retained.judged_from, "partition", "compared_offset")
    )


def covered(ledger: Ledger) -> int:
    """Counts adjacent pairs: each line has one fewer than it has records."""
    return sum(cell.committed for cell in ledger.matched) - ledger.counts.lines


def without_pairs(ledger: Ledger) -> str | None:
    """Explains why the outputs are in order although no two of them have an order: a clause. None
    if there is no output, or if order is promised per key and no output has a key."""
    outputs = sum(cell.committed for cell in ledger.matched)
    per_key = ledger.question.order is Order.PER_KEY
    if not outputs or (per_key and not ledger.counts.keys.all):
        return None
    if outputs == 1:
        return "Nothing can be out of order: there is one committed output"
    certain = " whose input is certain" if ledger.counts.identities.repeated else ""
    shared = (
        "have the same key and partition"
        if per_key
        else "have the same partition in the source and in the sink"
    )
    pairs = f"of {outputs:,} committed outputs, no two{certain} {shared}"
    return f"Nothing can be out of order: {pairs}"
