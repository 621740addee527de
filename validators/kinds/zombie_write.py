"""A producer that was replaced writes no more.

Catalogue 26. Fencing must keep out a producer whose epoch was raised. A violation shows as data of
a lower epoch after a higher one of the same producer id. If order is promised, one source partition
also has one writer at a time. If committed inputs of two transactional ids overlap, both processed
them, each unaware of the other.

Headers tell which transactional id processed an input. If no header does, the coordinators' log
names the writers of both copies of a repeated output. If that names nobody, two producer ids are
two transactional ids if their transactions were open at the same time: a transactional id has one
transaction at a time. That is judged by offsets of one partition, for clocks may differ.

If one id's copies all lie behind those of the other, nothing shows that the first one still wrote:
it may have handed over at an older offset. Such a pair is shown, as a consequence of `duplicate`.

Two ids that share a source partition without repeating an output of each other are no finding,
although their transactions overlap: other programs may divide its inputs, as the parallel sinks of
one Flink job do.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence, of_log, records, together
from topicproof.validators.facts.header_transactions import TransactionalId
from topicproof.validators.facts.raw_log import RawLog, settled
from topicproof.validators.facts.writers import RECORD_WRITER_COLUMNS, with_writers
from topicproof.validators.finding import Order, Witness
from topicproof.validators.kinds import duplicate
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import Forms, Words

NAME = "zombie_write"
TITLE = "Writes of replaced producers"
QUESTION = "Do no fenced or replaced producers write?"
UNIT = "batches"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("batch", "batches"),
    bad=Forms(
        "is of a fenced producer, or of a second writer of the same inputs",
        "are of fenced producers, or of second writers of the same inputs",
    ),
    counted=Forms("write", "writes"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    shows_identity=True,
    next_step=(
        "Find out why the replaced instance still ran, and let the broker fence it:"
        " sendOffsetsToTransaction with the group's metadata (KIP-447), or one transactional.id for"
        " each source partition."
    ),
)
OF_FENCED = WORDS._replace(bad=Forms("is of a fenced producer", "are of fenced producers"))
OF_SECOND = WORDS._replace(
    bad=Forms(
        "worked among another's inputs, under a transactional id of its own, which fences nobody",
        "worked among others' inputs, under transactional ids of their own, which fence nobody",
    ),
    counted=Forms("second writer", "second writers"),
)
PAIR_COLUMNS = "transactional_id string, last_of_earlier long, why string"


def find(ledger: Ledger) -> DataFrame | None:
    frames: list[DataFrame] = []
    if ledger.accounts.raw_log is not None and ledger.marks("stale"):
        stale = ledger.accounts.raw_log.batches.where(settled(ledger.sink_bounds) & F.col("stale"))
        why = F.format_string(
            "%s of producer id %d written at epoch %d after its epoch %d: it had been fenced.",
            records("count"),
            "producer_id",
            "producer_epoch",
            "epoch_before",
        )
        frames.append(
            evidence(of_log(stale.withColumn("offset", F.col("base_offset"))), F.col("count"), why)
        )
    if overlaps := _overlaps(ledger):
        frames.append(_first_of_later(ledger, overlaps))
    if not ledger.counts.ids and _may_repeat_each_other(ledger):
        frames.append(_repeated_by_another(ledger, ledger.accounts.raw_log))
    return together(frames)


def words(ledger: Ledger) -> Words:
    """Returns the words for what was found: fenced producers, second writers, or both."""
    if not ledger.marks("stale"):
        return OF_SECOND
    has_second = _overlaps(ledger) or _may_repeat_each_other(ledger)
    return WORDS if has_second else OF_FENCED


def _overlaps(ledger: Ledger) -> list[tuple[TransactionalId, TransactionalId]]:
    """Returns neighbouring transactional ids whose committed inputs of one source partition
    overlap, the later one second."""
    if ledger.question.order is not Order.PER_SOURCE_PARTITION:
        return []
    ids = [
        transactional_id
        for transactional_id in ledger.counts.ids
        if transactional_id.source_partition is not None
    ]
    ids.sort(
        key=lambda transactional_id: (
            transactional_id.source_partition,
            transactional_id.first_input,
        )
    )
    overlaps = []
    furthest = ids[:1]
    for transactional_id in ids[1:]:
        last = furthest[0]
        if last.source_partition == transactional_id.source_partition and (
            last.last_input or 0
        ) >= (transactional_id.first_input or 0):
            overlaps.append((last, transactional_id))
        if last.source_partition != transactional_id.source_partition or (last.last_input or 0) < (
            transactional_id.last_input or 0
        ):
            furthest = [transactional_id]
    return overlaps


def _first_of_later(
    ledger: Ledger, overlaps: Sequence[tuple[TransactionalId, TransactionalId]]
) -> DataFrame:
    """Finds, for each pair, the first transaction of the later id that reaches into the inputs of
    the earlier one. One query for all pairs: headers can name thousands of ids."""
    pairs = frame_of(
        ledger.sink.sparkSession,
        pd.DataFrame(
            {
                "transactional_id": [later.transactional_id for _, later in overlaps],
                "last_of_earlier": [earlier.last_input for earlier, _ in overlaps],
                "why": [_why_overlap(earlier, later) for earlier, later in overlaps],
            }
        ),
        PAIR_COLUMNS,
    )
    rows = ledger.frames.named.join(F.broadcast(pairs), "transactional_id").where(
        (F.col("committed") > 0) & (F.col("first_input") <= F.col("last_of_earlier"))
    )
    turn = F.row_number().over(
        Window.partitionBy("transactional_id", "why").orderBy("first_input", "partition", "offset")
    )
    return evidence(rows.withColumn("turn", turn).where(F.col("turn") == 1), F.lit(0), F.col("why"))


def _why_overlap(earlier: TransactionalId, later: TransactionalId) -> str:
    return (
        f"{later.transactional_id} commits outputs of the inputs from offset {later.first_input}"
        f" on, and {earlier.transactional_id} of the offsets {earlier.first_input} to"
        f" {earlier.last_input} of the same source partition: neither knows of the other."
    )


def _may_repeat_each_other(ledger: Ledger) -> bool:
    return (
        ledger.question.order is Order.PER_SOURCE_PARTITION
        and ledger.counts.repeats > 0
        and ledger.accounts.raw_log is not None
        and ledger.accounts.raw_log.facts.transactions["producer_id"].nunique() > 1
    )


def _repeated_by_another(ledger: Ledger, log: RawLog | None) -> DataFrame:
    """Finds, for each pair of transactional ids and each source partition, the first output of one
    id that the other repeats."""
    sides = ("first", "later")
    rows = ledger.sink.join(ledger.repeats, ["partition", "offset"]).where(~F.col("ambiguous"))
    rows = rows.withColumn("cause", duplicate.cause_of(ledger))
    for side, place in zip(sides, ("first_", ""), strict=True):
        rows = with_writers(rows, log, f"{place}partition", f"{place}offset")
        unnamed = F.format_string("producer id %d", "writer_id")
        rows = rows.withColumns(
            {
                f"{side}_name": F.coalesce("writer_name", unnamed),
                f"{side}_is_named": F.col("writer_name").isNotNull(),
                f"{side}_began": F.col("writer_began"),
                f"{side}_ended": F.col("writer_ended"),
            }
        )
        rows = rows.drop(*(name for name, _ in map(str.split, RECORD_WRITER_COLUMNS.split(", "))))
    in_one_log = F.col("first_partition") == F.col("partition")
    overlap = in_one_log & (F.col("first_began") < F.col("later_ended"))
    overlap = F.coalesce(overlap & (F.col("later_began") < F.col("first_ended")), F.lit(False))
    are_named = F.col("first_is_named") & F.col("later_is_named")
    rows = rows.where((F.col("first_name") != F.col("later_name")) & (are_named | overlap))
    pair = Window.partitionBy("source_partition", "first_name", "later_name")
    rows = rows.withColumns(
        {
            "turn": F.row_number().over(pair.orderBy("source_offset", "partition", "offset")),
            "shared": F.count("*").over(pair),
            "last_input": F.max("source_offset").over(pair),
            "overlaps": F.max(overlap).over(pair),
            "is_one_log": F.min(in_one_log).over(pair),
            "last_of_first": F.max(F.when(in_one_log, F.col("first_offset"))).over(pair),
            "first_of_later": F.min(F.when(in_one_log, F.col("offset"))).over(pair),
        }
    )
    in_turns = F.coalesce(F.col("last_of_first") > F.col("first_of_later"), F.lit(False))
    inputs = F.when(F.col("shared") == 1, "input").otherwise("inputs")
    times = (
        F.when(F.col("overlaps"), ", in transactions that were open at the same time")
        .when(in_turns, ", in turns")
        .when(F.col("is_one_log"), ", in transactions one after the other")
        .otherwise("")
    )
    is_one = F.col("source_offset") == F.col("last_input")
    offsets = F.when(is_one, F.format_string("offset %d", "source_offset")).otherwise(
        F.format_string("offsets %d to %d", "source_offset", "last_input")
    )
    why = F.format_string(
        "Both %s and %s committed outputs of %s of one source partition, %s%s.",
        "first_name",
        "later_name",
        F.format_string("%,d %s", "shared", inputs),
        offsets,
        times,
    )
    # Otherwise nothing shows that the first one still wrote when the second one began.
    cause = F.coalesce("cause", F.when(~F.col("overlaps") & ~in_turns, duplicate.NAME))
    return evidence(rows.where(F.col("turn") == 1), F.col("shared"), why, cause)


def covered(ledger: Ledger) -> int:
    """Counts data batches of producers with an epoch."""
    return ledger.marks("sequenced")
