"""The last committed output of each group is the aggregate of all its committed inputs.

A contract with `aggregate:` says which. A program that loses an update, applies one twice, or
continues with an old store leaves another number (KAFKA-20685). Inputs that are not due may be in
an output or not: then it must be right for one of the moments since. Numbers are compared exactly,
unless the contract has a `tolerance:`.

Each row shows its group and both numbers, as in group_missing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.aggregate import AggregateTerms, is_equal, number_text
from topicproof.validators.evidence import evidence
from topicproof.validators.expectation import NO_NUMBER, SEVERAL_SINKS
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.group_missing import OF_GROUPS, at_last_input, inputs_text
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.group_totals import WRONG
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "wrong_aggregate"
TITLE = "Wrong aggregates"
QUESTION = "Is the last output of each group the aggregate of all its inputs?"
UNIT = "groups"
OTHER = "The last output of this group is not the aggregate of its inputs"
UNREADABLE = "An input or the output of this group holds no number that can be compared exactly"
SPREAD = "Outputs of this group lie in several partitions of the sink"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("group with an output", "groups with an output"),
    bad=Forms("has a wrong aggregate", "have a wrong aggregate"),
    good=Forms("has the aggregate of its inputs", "have the aggregate of their inputs"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    premises=OF_GROUPS,
    next_step=(
        "Aggregate the inputs of one of these groups by hand. If the contract is right, compare"
        " with the program's store and its changelog: too little is a lost update, too much is one"
        " that was applied twice."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    groups, terms = ledger.groups, ledger.question.agreed.aggregate
    if groups is None or terms is None or not groups.faults:
        return None
    rows = groups.groups.where(F.col("fault") == WRONG)
    clause = (
        F.when(F.col("cause") == NO_NUMBER, UNREADABLE)
        .when(F.col("cause") == SEVERAL_SINKS, SPREAD)
        .otherwise(OTHER)
    )
    why = F.concat(
        clause,
        F.lit(": "),
        shown("group"),
        inputs_text(ledger.question.source),
        *_comparisons(terms),
    )
    return evidence(at_last_input(rows, ledger), F.col("inputs"), why, F.col("cause"))


def _comparisons(terms: AggregateTerms) -> list[Column]:
    """Formats each number that differs, with the one that is expected."""
    texts = []
    for at, value in enumerate(terms.values):
        expected, actual = F.col(f"expected_{at}"), F.col(f"actual_{at}")
        differs = F.concat(
            F.lit(f" {value.words} is "),
            actual_text_shown(f"actual_{at}"),
            F.lit(", and "),
            F.coalesce(number_text(expected), F.lit("no number")),
            F.lit(" is expected."),
        )
        texts.append(F.when(is_equal(expected, actual, terms), F.lit("")).otherwise(differs))
    return texts


def actual_text_shown(name: str) -> Column:
    """Formats a number as an output has it; null where it has none."""
    return shown(name, in_quotes=False)


def covered(ledger: Ledger) -> int:
    """Counts the groups with both an input and an output."""
    return 0 if ledger.groups is None else ledger.groups.compared
