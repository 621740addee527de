"""How an output came to be committed twice, by the writers of both copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd
from pyspark.sql import DataFrame, Row, functions as F

from topicproof.validators.facts.log_facts import COMMITTED
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.facts.writers import RECORD_WRITER_COLUMNS, with_writers
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.incidents.holes import holes_before
from topicproof.validators.incidents.incident import (
    Incident,
    Inputs,
    Writer,
    clock,
    inputs_text,
    merged,
    outputs_text,
)
from topicproof.validators.incidents.records import drop_step, ranges_of
from topicproof.validators.kinds import duplicate
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.sentences import capitalized

PAIRS_MAX = 3
"""A story tells of at most this many pairs of writers, those with the most copies."""
ROWS_MAX = 1_000
"""At most this many pairs of writers in a source partition are looked at, those with the most
copies."""
HOLES_MAX = 20
"""Copies of at most this many inputs are looked at one by one."""


class Course(StrEnum):
    """How the writers of both copies followed one another."""

    TOGETHER = "two writers had transactions open at the same time"
    IN_TURNS = "the first one wrote again after the second one had"
    HANDED_OVER = "the second one began after the first one's last batch"
    UNDECIDED = "two writers, and nothing proves any of these"
    RESTARTED = "one transactional id, which was initialised anew"
    AGAIN = "one transactional id, in a later transaction"
    IN_ONE_TRANSACTION = "one transaction holds both copies"
    RAISED = "one producer without transactions, which raised its epoch"
    SENT_TWICE = "one producer without transactions, in one epoch"
    UNNAMED = "producers without idempotence"


@dataclass(frozen=True)
class CopyPair:
    """The copies that one writer made of another's outputs, or of its own."""

    first: Writer
    later: Writer
    course: Course
    copies: int
    inputs: tuple[Inputs, ...]
    written_ms: int | None
    """When the first of the later copies was written."""


def incident_of_copies(ledger: Ledger, later_copies: DataFrame) -> Incident | None:
    """Tells how the copies came about, if the raw log was read and holds them. `later_copies`: the
    rows of evidence."""
    log = ledger.accounts.raw_log
    if log is None or not ledger.counts.repeats or ledger.question.agreed.unique:
        return None
    pairs = copy_pairs(ledger, log)
    holes: list[str] = []
    began_one_low = False
    if len(pairs) == 1 and sum(each.count for each in pairs[0].inputs) <= HOLES_MAX:
        (pair,) = pairs
        if pair.course in (Course.SENT_TWICE, Course.AGAIN):
            holes = holes_before(ledger, pair.inputs, HOLES_MAX)
        if not holes and pair.course in (Course.AGAIN, Course.RESTARTED, Course.HANDED_OVER):
            began_one_low = _began_one_low(ledger, log)
    source = ledger.question.source
    incident = merged(
        incident_of_pair(pair, source, holes, began_one_low=began_one_low)
        for pair in pairs[:PAIRS_MAX]
    )
    if incident is None:
        return None
    drop = drop_step(ledger.sink_bounds, "the later copies", ranges_of(later_copies))
    return Incident(incident.story, f"{incident.next_step} {drop}", began_one_low=began_one_low)


def copy_pairs(ledger: Ledger, log: RawLog) -> list[CopyPair]:
    """Returns the pairs of writers with the most copies first."""
    rows = _with_both_writers(ledger, log).collect()
    by_pair: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = (row["first_name"], row["first_number"], row["later_name"], row["later_number"])
        by_pair.setdefault(key, []).append(row)
    pairs = [_pair(parts, log) for parts in by_pair.values()]
    return sorted(pairs, key=lambda pair: (-pair.copies, pair.first.label, pair.later.label))


def _began_one_low(ledger: Ledger, log: RawLog) -> bool:
    """Whether each repeated input is the last one of the transaction that first committed its
    output, and the first one of the transaction with the copy. There are few copies. False if
    outputs of the source partition lie in several partitions: a transaction spans them."""
    places = ("source_partition", "source_offset", "first_partition", "partition", "offset")
    ends = ("first_began", "first_ended", "later_began")
    copies = F.broadcast(_copies(ledger, log).select(*places, *ends))
    outputs = ledger.in_sink.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    )
    outputs = outputs.select(
        F.col("partition").alias("log"),
        F.col("offset").alias("at"),
        F.col("source_partition").alias("source"),
        F.col("source_offset").alias("input"),
    )
    beyond = (
        (F.col("log") == F.col("first_partition"))
        & F.col("at").between(F.col("first_began"), F.col("first_ended"))
        & (F.col("input") > F.col("source_offset"))
    )
    before = (
        (F.col("log") == F.col("partition"))
        & (F.col("at") >= F.col("later_began"))
        & (F.col("at") < F.col("offset"))
    )
    elsewhere = F.col("log") != F.col("first_partition")
    is_plain = F.col("first_began").isNull() | F.col("later_began").isNull()
    is_of_source = F.col("source") == F.col("source_partition")
    return copies.join(outputs, is_of_source & (is_plain | elsewhere | beyond | before)).isEmpty()


def _copies(ledger: Ledger, log: RawLog) -> DataFrame:
    """Returns the later copies with both writers: `first_name`, `later_name` and so on."""
    rows = ledger.sink.join(ledger.repeats, ["partition", "offset"]).where(~F.col("ambiguous"))
    rows = rows.where(duplicate.cause_of(ledger).isNull())
    columns = [column.split()[0] for column in RECORD_WRITER_COLUMNS.split(", ")]
    for side, place in (("first", "first_"), ("later", "")):
        rows = with_writers(rows, log, f"{place}partition", f"{place}offset")
        rows = rows.withColumns(
            {f"{side}_{column.removeprefix('writer_')}": F.col(column) for column in columns}
        ).drop(*columns)
    return rows


def _with_both_writers(ledger: Ledger, log: RawLog) -> DataFrame:
    """Returns a row for each pair of writers and source partition."""
    rows = _copies(ledger, log)
    has_writers = F.col("first_number").isNotNull() & F.col("later_number").isNotNull()
    in_one_log = F.col("first_partition") == F.col("partition")
    overlaps = (F.col("first_began") < F.col("later_ended")) & (
        F.col("later_began") < F.col("first_ended")
    )
    is_same = F.col("first_began") == F.col("later_began")
    groups = rows.where(has_writers).groupBy(
        "first_name", "first_number", "later_name", "later_number", "source_partition"
    )
    in_log = F.when(in_one_log, F.col("partition"))
    return (
        groups.agg(
            F.count("*").alias("copies"),
            F.count_distinct("source_offset").alias("inputs"),
            F.min("source_offset").alias("first_input"),
            F.max("source_offset").alias("last_input"),
            *(
                function(f"{side}_epoch").alias(f"{side}_{end}_epoch")
                for side in ("first", "later")
                for end, function in (("lowest", F.min), ("highest", F.max))
            ),
            F.min(F.col("first_epoch") == F.col("later_epoch")).alias("in_one_epoch"),
            F.min(F.col("first_began").isNotNull() & F.col("later_began").isNotNull()).alias(
                "in_transactions"
            ),
            F.max(F.coalesce(in_one_log & overlaps & ~is_same, F.lit(False))).alias("overlaps"),
            F.min(F.coalesce(in_one_log & is_same, F.lit(False))).alias("in_one_transaction"),
            F.min(in_one_log).alias("in_one_log"),
            F.count_distinct(in_log).alias("logs"),
            F.min("partition").alias("partition"),
            F.max("first_offset").alias("last_of_first"),
            F.min("offset").alias("first_of_later"),
            F.min("later_written_ms").alias("written_ms"),
        )
        .orderBy(F.col("copies").desc(), "source_partition", "first_number", "later_number")
        .limit(ROWS_MAX)
    )


def _pair(rows: Sequence[Row], log: RawLog) -> CopyPair:
    first, later = (_writer(rows, side) for side in ("first", "later"))
    inputs = sorted(
        (
            Inputs(row["source_partition"], row["first_input"], row["last_input"], row["inputs"])
            for row in rows
        ),
        key=lambda each: each.partition,
    )
    times = [row["written_ms"] for row in rows if row["written_ms"] is not None]
    return CopyPair(
        first=first,
        later=later,
        course=_course(rows, first, later, log),
        copies=sum(row["copies"] for row in rows),
        inputs=tuple(inputs),
        written_ms=min(times, default=None),
    )


def _writer(rows: Sequence[Row], side: str) -> Writer:
    epochs = (
        min(row[f"{side}_lowest_epoch"] for row in rows),
        max(row[f"{side}_highest_epoch"] for row in rows),
    )
    return Writer(rows[0][f"{side}_name"], rows[0][f"{side}_number"], epochs)


def _course(rows: Sequence[Row], first: Writer, later: Writer, log: RawLog) -> Course:
    if first.number < 0 or later.number < 0:
        return Course.UNNAMED
    is_one = first.number == later.number or (first.name is not None and first.name == later.name)
    in_transactions = all(row["in_transactions"] for row in rows)
    if is_one and not in_transactions:
        in_one_epoch = all(row["in_one_epoch"] for row in rows)
        return Course.SENT_TWICE if in_one_epoch else Course.RAISED
    if is_one and all(row["in_one_transaction"] for row in rows):
        return Course.IN_ONE_TRANSACTION
    if is_one:
        in_one_epoch = all(row["in_one_epoch"] for row in rows)
        is_each = in_one_epoch or _raises_each(log.facts.transactions, first.number)
        return Course.AGAIN if is_each else Course.RESTARTED
    if any(row["overlaps"] for row in rows):
        return Course.TOGETHER
    # Both copies of one source partition lie in one log, so their offsets tell which came first.
    if any(
        row["logs"] == 1 and row["in_one_log"] and row["last_of_first"] > row["first_of_later"]
        for row in rows
    ):
        return Course.IN_TURNS
    batches = log.facts.batches
    data = batches[batches["control"].isna()]
    logs = {row["partition"] for row in rows if row["logs"] == 1 and row["in_one_log"]}
    follows = [_begins_after(data[data["partition"] == log], first, later) for log in sorted(logs)]
    is_whole = len(logs) > 0 and all(row["logs"] == 1 and row["in_one_log"] for row in rows)
    return Course.HANDED_OVER if is_whole and all(follows) else Course.UNDECIDED


def _begins_after(data: pd.DataFrame, first: Writer, later: Writer) -> bool:
    """Whether all batches of one partition by `later` lie behind those by `first`."""
    before = data[data["producer_id"] == first.number]["last_offset"]
    after = data[data["producer_id"] == later.number]["base_offset"]
    return bool(before.max() < after.min())


def _raises_each(transactions: pd.DataFrame, producer_id: int) -> bool:
    """Whether each commit of a producer raises its epoch (transactions of version 2, KIP-890): its
    COMMIT marker has the next one."""
    commits = transactions[
        (transactions["producer_id"] == producer_id) & (transactions["outcome"] == COMMITTED)
    ]
    return bool((commits["marker_epoch"] > commits["producer_epoch"]).any())


_FENCE = (
    "Let the broker fence one of two instances: sendOffsetsToTransaction with the group's metadata"
    " (KIP-447), or one transactional.id for each source partition."
)
_STOP = "If both still run, stop one of them."
_WENT_BACK = "a restart, a rebalance, a seek, or a retry after a commit whose answer was lost."
_ONE_LOW = (
    "the offset that it kept or committed may be the last record's own, and must be the one after"
    " it; or a commit whose answer was lost was repeated."
)
_OFFSETS = (
    "Commit the group's offset in the transaction of the outputs (sendOffsetsToTransaction), as the"
    " offset after the last processed record."
)


def incident_of_pair(
    pair: CopyPair, source: Bounds, holes: Sequence[str] = (), *, began_one_low: bool = False
) -> Incident:
    """Tells the story of one pair of writers. `holes`: the places before all of these inputs that
    hold no input; empty unless each has one. `began_one_low`: each of these inputs ends the first
    transaction and begins the later one."""
    first, later = pair.first, pair.later
    inputs, outputs = inputs_text(source, pair.inputs), outputs_text(source, pair.inputs)
    when = clock(pair.written_ms)
    one_low = _one_low(pair) if began_one_low else ""
    why_back = _ONE_LOW if began_one_low else _WENT_BACK
    match pair.course:
        case Course.TOGETHER:
            return Incident(
                f"Two instances were at work: {first.text} and {later.text} both committed"
                f" {outputs}, in transactions that were open at the same time. The log does not"
                " tell which of them owned these inputs.",
                f"{_STOP} Look in {first.log} and in {later.log} for why both had these inputs"
                f"{when}. {_FENCE}",
            )
        case Course.IN_TURNS:
            return Incident(
                f"Two instances were at work in turns: {first.text} and {later.text} both"
                f" committed {outputs}, and {first.label} wrote on after {later.label}"
                " had begun.",
                f"{_STOP} Look in {first.log} and in {later.log} for why both had these inputs"
                f"{when}. {_FENCE}",
            )
        case Course.HANDED_OVER:
            return Incident(
                f"{later.text} took over from an older offset: {first.text} had already written"
                f" {outputs}, and wrote nothing there after that.{one_low}",
                f"Look where {later.label} took its first offset from{when}: {first.label}"
                " may have committed its last offset late, not at all, or one too low."
                f" {_OFFSETS}",
            )
        case Course.UNDECIDED:
            return Incident(
                f"{first.text} and {later.text} both committed {outputs}. Nothing tells"
                f" whether {first.label} was still at work.",
                f"Look in {first.log} whether it was still at work{when}. If so:"
                f" {_FENCE} If not: {_OFFSETS}",
            )
        case Course.RESTARTED:
            return Incident(
                f"{first.label} wrote both copies, and its epoch rose between them"
                f" ({first.epochs[0]}, then {later.epochs[1]}): a new start, or, with transaction"
                " version 2, merely the next transaction. Either way it read again from an older"
                f" offset and repeated {outputs}.{one_low}",
                f"Look in {later.log} for why it began at an older offset{when}: {why_back}"
                f" {_OFFSETS}",
            )
        case Course.AGAIN:
            return Incident(
                f"{first.label} wrote both copies, in different transactions: it processed {inputs}"
                f" again.{_behind(holes)}{one_low}",
                f"Look in {later.log} for why its position went back{when}: {why_back}"
                f" {capitalized(_holes_step(holes))}{_OFFSETS}",
            )
        case Course.IN_ONE_TRANSACTION:
            return Incident(
                f"{first.text} wrote both copies in one transaction: it sent {outputs} twice.",
                f"Look in {later.log} for a send that is repeated{when}, such"
                " as a retry of its own after an error.",
            )
        case Course.RAISED:
            return Incident(
                f"One producer without transactions, {first.label}, wrote both copies, and raised"
                f" its epoch between them ({first.epochs[0]}, then {later.epochs[1]}), as it does"
                " after a send that failed or timed out. What it then sends again is a new record"
                f" to the broker: {outputs}.",
                f"Look in {later.log} for a time-out or an OutOfOrderSequenceException"
                f" before the second copy{when}. Write in transactions, with the group's offsets in"
                " them, and let consumers read with isolation.level=read_committed.",
            )
        case Course.SENT_TWICE:
            causes = (
                f"Look in {later.log}: {_holes_step(holes)}"
                if holes
                else f"Look in {later.log} for why it sent them again: a retry of its own, or a"
                " position in the source that went back. Outputs and the group's offset belong into"
                " one transaction."
            )
            return Incident(
                f"One producer without transactions, {first.text}, wrote both copies. A broker"
                " drops what a client repeats within an epoch, so the application itself sent"
                f" {outputs} twice.{_behind(holes)}",
                causes.strip(),
            )
        case Course.UNNAMED:
            return Incident(
                f"The copies of {inputs} were written without idempotence, so no sequence number"
                " tells whether a client sent a batch again or the application processed the"
                " inputs twice. A batch that is sent again keeps its timestamps: copies with other"
                " ones are the application's.",
                "Set enable.idempotence=true in the producer, which excludes the former, and look"
                " in the log of each application that writes here (Kafka keeps no id and no host of"
                f" such a producer) for an error{when}.",
            )


def _behind(holes: Sequence[str]) -> str:
    if not holes:
        return ""
    subject = "This input follows" if len(holes) == 1 else "Each of these inputs follows"
    hole = "an offset" if len(holes) == 1 else "an offset of its own"
    return f" {subject} {hole} that holds no input, such as a transaction marker: {_listed(holes)}."


def _holes_step(holes: Sequence[str]) -> str:
    if not holes:
        return ""
    return (
        "its code may expect every offset to hold a record, or set Spark's failOnDataLoss=false:"
        " both stumble over transaction markers. "
    )


def _one_low(pair: CopyPair) -> str:
    is_single = sum(each.count for each in pair.inputs) == 1
    subject = "This input is" if is_single else "Each of these inputs is"
    return (
        f" {subject} the last one of its first transaction, and the first one of the later: the"
        " pipeline began one offset too low."
    )


def _listed(places: Sequence[str]) -> str:
    return ", ".join(places)
