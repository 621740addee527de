"""Every group of inputs has an aggregate in the sink.

A contract with `aggregate:` says what groups inputs. Each group with an input in the judged range
owes an output. If the last output of a group has no value, the group is removed there although its
inputs are not, so it is missing as well.

Each row shows its group, which is a payload. Copies of evidence without payloads hold the row's
`without_group` instead.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.evidence import evidence, of_log
from topicproof.validators.finding import Bounds, Witness
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.group_totals import MISSING, REMOVED
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.offsets import place_text
from topicproof.validators.sentences import Forms, Words

NAME = "group_missing"
TITLE = "Groups without an aggregate"
QUESTION = "Does every group of inputs have an aggregate in the sink?"
UNIT = "groups"
LOST = "No committed output is of this group"
ENDED = "The last output of this group has no value, which removes the group"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
OF_GROUPS = ("undecodable", "source_removed", "recreated")
"""The premises of kinds about groups. No single output is matched with an input."""
WORDS = Words(
    noun=Forms("group of inputs", "groups of inputs"),
    bad=Forms("has no aggregate in the sink", "have no aggregate in the sink"),
    good=Forms("has an aggregate in the sink", "have an aggregate in the sink"),
)
TRAITS = Traits(
    row_record=RowRecord.ASIDE,
    premises=OF_GROUPS,
    next_step=(
        "Read the application's log at these inputs, and look into its store for the group: it was"
        " not updated, or the update was not written. If the program may not have reached them yet,"
        " name its consumer group under `group:` in the contract."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    groups = ledger.groups
    if groups is None or not groups.faults:
        return None
    rows = groups.groups.where(F.col("fault").isin(MISSING, REMOVED))
    clause = F.when(F.col("fault") == MISSING, LOST).otherwise(ENDED)
    why = F.concat(clause, F.lit(": "), shown("group"), inputs_text(ledger.question.source))
    return evidence(at_last_input(rows, ledger), F.col("inputs"), why, F.col("cause"))


def at_last_input(rows: DataFrame, ledger: Ledger) -> DataFrame:
    """Returns rows of groups with the place of the last input, and that of the last output if there
    is one."""
    places = {
        "source_topic": F.lit(ledger.question.source.topic),
        "source_partition": F.col("last.source_partition"),
        "source_offset": F.col("last.source_offset"),
    }
    return of_log(rows).withColumns(places)


def inputs_text(source: Bounds) -> Column:
    """Formats how many inputs a group has, and where the first and the last of them lie."""
    first, last = (
        place_text(source, F.col(f"{end}.source_partition"), F.col(f"{end}.source_offset"))
        for end in ("first", "last")
    )
    ends = F.concat(F.lit("s, from "), first, F.lit(" to "), last)
    single = F.concat(F.lit(", "), first)
    rest = F.when(F.col("inputs") == 1, single).otherwise(ends)
    return F.concat(F.format_string(" has %,d input", "inputs"), rest, F.lit("."))


def without_group(why: str) -> str:
    """Returns a row's sentence without the group and its numbers."""
    return f"{why.partition(':')[0].rstrip('.')}."


def covered(ledger: Ledger) -> int:
    """Counts the groups with an input in the judged range."""
    return 0 if ledger.groups is None else ledger.groups.due
