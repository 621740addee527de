"""How inputs came to have no committed output: the aborted transactions that hold their outputs,
and how the pipeline went on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import DataFrame, Row, functions as F

from topicproof.validators.expected import Expect
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.facts.writers import with_writers, written
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.incidents.incident import (
    Incident,
    Inputs,
    Writer,
    clock,
    inputs_text,
    merged,
    outputs_text,
)
from topicproof.validators.kinds import gap
from topicproof.validators.kinds.matching import of_group
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.offsets import place_text
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import in_words, lowered, once_more

TRANSACTIONS_MAX = 3
"""A story tells of at most this many aborted transactions, those with the most lost outputs."""
ROWS_MAX = 1_000
"""At most this many transactions are looked at, each once for a source partition."""


@dataclass(frozen=True)
class Loss:
    """The lost outputs of one aborted transaction, in one partition of the sink."""

    writer: Writer
    reason: str | None
    """declared, timeout, fenced or operator; None: nothing tells."""
    lost: tuple[Inputs, ...]
    again: tuple[Inputs, ...]
    """Further inputs whose outputs it aborted, and which are committed behind them."""
    open_ms: int | None
    """From its first record to its marker."""
    successor: tuple[int, int] | None
    """A later epoch of its transactional id, and the time of its first record."""
    went_on: str
    """The next committed output behind the first lost input, and who wrote it: a clause."""


def incident_of_losses(ledger: Ledger, missing: DataFrame) -> Incident | None:
    """Tells how outputs came to be lost. `missing`: the rows of evidence of missing outputs."""
    losses = aborted_losses(ledger, missing)
    group = _group_clause(ledger, losses)
    source = ledger.question.source
    incidents = [incident_of_loss(loss, source, group) for loss in losses[:TRANSACTIONS_MAX]]
    untraced, is_traceless = _untraced(missing)
    if untraced:
        inputs = inputs_text(source, untraced)
        sinks = " and ".join(ledger.sink_bounds.topics)
        may_come = not _is_passed(ledger, untraced)
        story = without_trace(inputs, sinks, may_come=may_come) if is_traceless else ""
        incidents.append(Incident(story, step_without_trace(ledger, untraced)))
    return merged(incidents)


def without_trace(inputs: str, sinks: str, *, may_come: bool) -> str:
    """Tells what may have become of inputs that no record names. `may_come`: nothing shows that
    the program has passed them."""
    reading = "has not read that yet" if may_come else "did not read that"
    return (
        f"No record of {sinks} names {inputs}, aborted ones included: the program {reading}, left"
        " it out, or, outside transactions, lost its send. The log does not tell which."
    )


def _is_passed(ledger: Ledger, inputs: Sequence[Inputs]) -> bool:
    """Whether the group, or later outputs, show that the pipeline has passed these inputs."""
    return ledger.question.agreed.offsets is not None or all(
        each.last < ledger.after(each.partition) for each in inputs
    )


def _untraced(missing: DataFrame) -> tuple[list[Inputs], bool]:
    """Returns the inputs of which no aborted output names a writer, by source partition; and
    whether the raw log shows no record of any of them."""
    places = missing.where(F.col("transaction").isNull()).groupBy("source_partition")
    rows = places.agg(
        F.min("source_offset").alias("first_input"),
        F.max("source_offset").alias("last_input"),
        F.count_distinct("source_offset").alias("inputs"),
        F.min(F.col("why").contains(gap.WITHOUT_TRACE)).alias("is_traceless"),
    )
    partitions = rows.orderBy("source_partition").collect()
    inputs = [
        Inputs(row["source_partition"], row["first_input"], row["last_input"], row["inputs"])
        for row in partitions
    ]
    return inputs, all(row["is_traceless"] for row in partitions)


def aborted_losses(ledger: Ledger, missing: DataFrame) -> list[Loss]:
    """Returns the aborted transactions with lost outputs, the most first; none if the raw log was
    not read."""
    log = ledger.accounts.raw_log
    if log is None:
        return []
    places = missing.select("source_partition", "source_offset", F.lit(True).alias("is_lost"))
    outputs = gap.aborted_outputs(ledger).where(F.col("writer_began").isNotNull())
    outputs = outputs.join(places.distinct(), ["source_partition", "source_offset"], "left")
    is_lost = F.coalesce("is_lost", F.lit(False))
    offset = F.when(is_lost, F.col("source_offset"))
    outputs = outputs.join(_last_committed(ledger), _OUTPUT, "left")
    is_again = ~is_lost & F.coalesce(F.col("committed_at") > F.col("aborted_offset"), F.lit(False))
    again = F.when(is_again, F.col("source_offset"))
    groups = outputs.groupBy(
        "aborted_partition", "writer_began", "writer_name", "writer_number", "source_partition"
    ).agg(
        F.count_distinct(offset).alias("lost"),
        F.count_distinct(again).alias("again"),
        F.min(again).alias("first_again"),
        F.max(again).alias("last_again"),
        F.min(offset).alias("first_input"),
        F.max(offset).alias("last_input"),
        F.min("writer_epoch").alias("lowest_epoch"),
        F.max("writer_epoch").alias("highest_epoch"),
    )
    rows = groups.where(F.col("lost") > 0).orderBy(F.col("lost").desc(), "source_partition")
    rows_by_transaction: dict[tuple[int, int], list[Row]] = {}
    for row in rows.limit(ROWS_MAX).collect():
        transaction = (row["aborted_partition"], row["writer_began"])
        rows_by_transaction.setdefault(transaction, []).append(row)
    went_on = _went_on(ledger, [rows[0] for rows in rows_by_transaction.values()])
    is_single = ledger.question.expected.kind is Expect.ONE_TO_ONE
    return [
        _loss(parts, log, went_on, tells_again=is_single) for parts in rows_by_transaction.values()
    ]


def _loss(
    rows: Sequence[Row], log: RawLog, went_on: dict[tuple[int, int], str], *, tells_again: bool
) -> Loss:
    first = rows[0]
    partition, began = first["aborted_partition"], first["writer_began"]
    epochs = (
        min(row["lowest_epoch"] for row in rows),
        max(row["highest_epoch"] for row in rows),
    )
    writer = Writer(first["writer_name"], first["writer_number"], epochs)
    reasons = {
        (reason.partition, reason.first_offset): reason.reason for reason in log.attribution.reasons
    }
    transactions = log.facts.transactions
    transaction = transactions[
        (transactions["partition"] == partition) & (transactions["first_offset"] == began)
    ]
    began_ms, ended_ms = transaction["first_timestamp"].max(), transaction["marker_timestamp"].max()
    has_times = bool(len(transaction)) and began_ms > 0 and not pd.isna(ended_ms)
    open_ms = int(ended_ms) - int(began_ms) if has_times else None
    later = transactions[
        (transactions["producer_id"] == writer.number)
        & (transactions["producer_epoch"] > writer.epochs[1])
    ].sort_values(["producer_epoch", "first_timestamp"])
    successor = None
    if len(later):
        successor = (int(later["producer_epoch"].iloc[0]), int(later["first_timestamp"].iloc[0]))
    return Loss(
        writer=writer,
        reason=reasons.get((partition, began)),
        lost=tuple(
            Inputs(row["source_partition"], row["first_input"], row["last_input"], row["lost"])
            for row in sorted(rows, key=lambda row: int(row["source_partition"]))
        ),
        again=tuple(
            Inputs(row["source_partition"], row["first_again"], row["last_again"], row["again"])
            for row in sorted(rows, key=lambda row: int(row["source_partition"]))
            if tells_again and row["again"]
        ),
        open_ms=open_ms,
        successor=successor,
        went_on=went_on.get((first["source_partition"], first["first_input"]), ""),
    )


_OUTPUT = ["source_partition", "source_offset", "aborted_partition"]


def _last_committed(ledger: Ledger) -> DataFrame:
    """Returns the last committed output of each input in each partition of the sink: `_OUTPUT`,
    committed_at."""
    committed = ledger.in_sink.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    ).withColumnRenamed("partition", "aborted_partition")
    return committed.groupBy(*_OUTPUT).agg(F.max("offset").alias("committed_at"))


def _went_on(ledger: Ledger, rows: Sequence[Row]) -> dict[tuple[int, int], str]:
    """Returns the next committed output behind each row's first lost input, by that input."""
    if not rows:
        return {}
    places = [(row["source_partition"], row["first_input"]) for row in rows]
    lost = frame_of(ledger.spark, places, "source_partition int, lost_offset long")
    outputs = ledger.in_sink.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    ).select("source_partition", "source_offset", "partition", "offset")
    # There are few transactions, so the records need not be shuffled.
    later = outputs.join(F.broadcast(lost.distinct()), "source_partition")
    later = later.where(F.col("source_offset") > F.col("lost_offset"))
    nearest = later.groupBy("source_partition", "lost_offset").agg(
        F.min(F.struct("source_offset", "partition", "offset")).alias("next")
    )
    nearest = nearest.select(
        "source_partition", "lost_offset", "next.source_offset", "next.partition", "next.offset"
    )
    clause = F.concat(
        place_text(ledger.question.source, "source_partition", "source_offset"),
        F.lit(", whose output is "),
        place_text(ledger.sink_bounds, "partition", "offset"),
        F.coalesce(F.concat(F.lit(" by "), F.nullif(written(), F.lit(""))), F.lit("")),
    )
    clauses = with_writers(nearest, ledger.accounts.raw_log).select(
        "source_partition", "lost_offset", clause.alias("clause")
    )
    return {
        (row["source_partition"], row["lost_offset"]): row["clause"] for row in clauses.collect()
    }


def _group_clause(ledger: Ledger, losses: Sequence[Loss]) -> str:
    """Says where the contract's group stands if that is behind what was lost; empty if it names
    none."""
    offsets = ledger.question.agreed.offsets or {}
    inputs = [each for loss in losses for each in loss.lost]
    if not inputs or any(offsets.get(each.partition, 0) <= each.last for each in inputs):
        return ""
    places = []
    for partition in sorted({each.partition for each in inputs}):
        topic, number = ledger.question.source.place(partition)
        places.append(f"{topic}-{number}@{offsets[partition]}")
    more = len(places) - TRANSACTIONS_MAX
    places = [*places[:TRANSACTIONS_MAX], *([f"{more} more"] if more > 0 else [])]
    at = ", ".join(places)
    return f" {of_group(ledger)} is at {at}, beyond what is lost, and will not read it again."


def incident_of_loss(loss: Loss, source: Bounds, group: str = "") -> Incident:
    """Tells the story of one aborted transaction. `group`: where the group stands, a sentence."""
    lost = inputs_text(source, loss.lost)
    outputs = outputs_text(source, loss.lost)
    story = f"{loss.writer.text} wrote {outputs} without a commit: {_reason(loss)}."
    if loss.again:
        again = inputs_text(source, loss.again)
        story += (
            f" It also held {outputs_text(source, loss.again)}, committed behind it: the pipeline"
            f" processed {again} again, but committed no output of {lost}."
        )
    if loss.went_on:
        story += f" The pipeline went on with {loss.went_on}."
    return Incident(story + group, f"{_remedy(loss, source)} {once_more(lost)}")


def _reason(loss: Loss) -> str:
    match loss.reason:
        case "declared":
            return "it aborted the transaction itself"
        case "timeout":
            open_for = "" if loss.open_ms is None else f" after {in_words(loss.open_ms)}"
            return (
                f"the coordinator aborted the transaction{open_for}, because it had been open"
                " longer than its transaction.timeout.ms, as the coordinator's log shows"
            )
        case "fenced":
            if loss.successor is None:
                return (
                    "its transactional id was initialised anew (by a new instance or the same one,"
                    " or by an operator's fenceProducers), and the new epoch wrote nothing to this"
                    " log"
                )
            epoch, first_ms = loss.successor
            return (
                "its transactional id was initialised anew, by a new instance or the same one,"
                " which aborts what is open. Then"
                f" epoch {epoch} wrote, first{clock(first_ms) or ' behind it'}"
            )
        case "operator":
            return (
                "an operator aborted the transaction (`kafka-transactions.sh abort`, or the same"
                " request; an authorizer's audit log may say who)"
            )
        case _:
            return "the transaction was aborted, and nothing tells why"


def _remedy(loss: Loss, source: Bounds) -> str:
    match loss.reason:
        case "declared":
            return (
                "After abortTransaction() the consumer must seek back to the group's committed"
                " offset, which an aborted transaction does not move"
                f"{_how_it_went_on(loss, source)}."
            )
        case "timeout":
            return (
                f"Look in {loss.writer.log} for why it hung or died while the transaction was open,"
                " and where the one that went on took its first offset from: that must be the"
                " group's committed one, committed in the transaction (sendOffsetsToTransaction),"
                " not beside it."
            )
        case "fenced":
            return (
                "Look where the program took its first offset from after that: it must be the"
                " group's committed one, committed in the transaction of the outputs"
                " (sendOffsetsToTransaction), not beside it."
            )
        case _:
            return (
                "After an abort the pipeline must read again from the group's committed offset, and"
                " that must be committed in the transaction (sendOffsetsToTransaction)."
            )


def _how_it_went_on(loss: Loss, source: Bounds) -> str:
    if loss.again:
        return f"; here it committed only {outputs_text(source, loss.again)} after that"
    return "; here the pipeline read on" if loss.went_on else ""


def step_without_trace(ledger: Ledger, untraced: Sequence[Inputs]) -> str:
    """Returns the next step for inputs whose outputs left no trace in the log."""
    inputs = inputs_text(ledger.question.source, untraced)
    if ledger.unidentified_outputs:
        return (
            "Look first at the records without an identity (identity_missing): some of them may be"
            f" the outputs of {inputs}. Process an input again only when none of them is its"
            " output."
        )
    search = (
        "look in the application's log, at the time of the nearest output, for an exception that"
        " was caught, a filter (then the contract must `expect: zero_or_one`), or, outside"
        " transactions, a send whose error was ignored."
    )
    repair = f"If it was not left out on purpose: {lowered(once_more(inputs))}"
    if ledger.question.agreed.offsets is not None:
        return (
            f"{of_group(ledger)} is beyond {inputs} and will not read that again: {search} {repair}"
        )
    if _is_passed(ledger, untraced):
        return f"Later inputs have outputs, so the pipeline has passed {inputs}: {search} {repair}"
    return (
        "Name the pipeline's consumer group under `group:` in the contract and check again: inputs"
        f" at or beyond its offset are not due. Only if it is beyond {inputs}: {search} {repair}"
    )
