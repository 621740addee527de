"""Each committed output is the aggregate of the first inputs of its group, and none goes back.

Only if the contract says `running: true`. A program that writes each update lets readers follow: an
output that no first inputs give, or that stands for fewer inputs than one before it, shows a store
that kept an aborted write, or that was put back. Several outputs for the same inputs are allowed.

An output is not judged if its group has outputs in several partitions of the sink, or inputs in
several of the source: then nothing tells their order. Each row shows its group, as in
group_missing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.aggregate import AggregateTerms, is_inexact
from topicproof.validators.evidence import evidence, of_log, together
from topicproof.validators.expectation import NO_NUMBER, PENDING, SEVERAL_SINKS, SEVERAL_SOURCES
from topicproof.validators.finding import Witness
from topicproof.validators.kinds import group_missing, source_removed, undecodable, wrong_aggregate
from topicproof.validators.kinds.group_missing import OF_GROUPS
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.kinds.wrong_aggregate import actual_text_shown
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.group_totals import (
    NO_PREFIX,
    REMOVED,
    WRONG,
    has_pending_inputs,
    is_mixed,
    is_spread,
    updates,
)
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "wrong_update"
TITLE = "Wrong updates"
QUESTION = "Is each output the aggregate of the first inputs of its group, and does none go back?"
UNIT = "records"
STRANGER = "No first inputs of its group give this output"
OLDER = "This output is of fewer inputs than one before it"
UNORDERED = "The updates of this group cannot be followed"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed output", "committed outputs"),
    bad=Forms("is a wrong update", "are wrong updates"),
    good=Forms("is the aggregate of first inputs", "are aggregates of first inputs"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    premises=OF_GROUPS,
    next_step=(
        "Look at what happened to the program just before these outputs: a crash, a rebalance or a"
        " restored store. An update that goes back means that the store was older than the sink."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    groups, terms = ledger.groups, ledger.question.agreed.aggregate
    if groups is None or terms is None or not terms.running:
        return None
    rows = updates(groups, terms)
    clause = F.when(F.col("fault") == NO_PREFIX, STRANGER).otherwise(OLDER)
    of_fewer = F.format_string(", of %,d of its inputs, after an output of %,d.", "most", "before")
    end = F.when(F.col("fault") == NO_PREFIX, F.lit(".")).otherwise(of_fewer)
    why = F.concat(clause, F.lit(": "), shown("group"), *_numbers(terms), end)
    # What the last output of a group is counts once.
    is_last = F.col("offset") == F.col("last_offset")
    cause = (
        F.when(F.lit(ledger.source_incomplete), source_removed.NAME)
        .when(F.lit(bool(ledger.counts.decoded.undecoded)), undecodable.NAME)
        .when(F.col("reason").isNotNull(), undecodable.NAME)
        .when(F.lit(has_pending_inputs(ledger.question.source, ledger.circumstances)), PENDING)
        .when((F.col("unreadable") > 0) | _is_inexact(terms), NO_NUMBER)
        .when(~is_last, F.lit(None))
        .when(F.col("group_fault") == WRONG, wrong_aggregate.NAME)
        .when(F.col("group_fault") == REMOVED, group_missing.NAME)
    )
    unordered = groups.groups.where(
        F.col("inputs").isNotNull() & F.col("outputs").isNotNull() & (is_spread() | is_mixed(terms))
    )
    reason = F.when(is_spread(), SEVERAL_SINKS).otherwise(SEVERAL_SOURCES)
    text = F.concat(F.lit(f"{UNORDERED}: "), shown("group"), F.lit("."))
    return together(
        [
            evidence(of_log(rows), F.lit(0), why, cause),
            evidence(of_log(unordered), F.lit(0), text, reason),
        ]
    )


def _is_inexact(terms: AggregateTerms) -> Column:
    inexact = F.lit(False)
    for at, _ in enumerate(terms.values):
        inexact |= is_inexact(F.col(f"actual_{at}"), terms)
    return inexact


def _numbers(terms: AggregateTerms) -> list[Column]:
    texts = []
    for at, value in enumerate(terms.values):
        name = "the value" if value.field is None else value.words
        texts += [F.lit(f", {name} "), actual_text_shown(f"actual_{at}")]
    return texts


def covered(ledger: Ledger) -> int:
    """Counts the committed outputs, if each of them is judged."""
    groups, terms = ledger.groups, ledger.question.agreed.aggregate
    return groups.outputs if groups is not None and terms is not None and terms.running else 0
