"""Every output is of a group that has an input.

With `aggregate:`, an output names its group. A group in the sink without any input, or an output
that names none, was made of nothing that is in the source. A group whose last output has no value
is gone, and no finding.

Each row shows its group, as in group_missing.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence, of_log, together
from topicproof.validators.finding import Witness
from topicproof.validators.kinds import undecodable
from topicproof.validators.kinds.group_missing import OF_GROUPS
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.group_totals import STRANGE, names_no_group
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "group_unknown"
TITLE = "Groups without an input"
QUESTION = "Is every output of a group that has an input?"
UNIT = "groups"
STRANGER = "No input is of the group of this output"
NAMELESS = "This output names no group"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("group of the sink", "groups of the sink"),
    bad=Forms("has no input", "have no input"),
    good=Forms("has an input", "have an input"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    premises=OF_GROUPS,
    next_step=(
        "Find out who wrote these records, and whether `group_by:` and `key:` of the contract spell"
        " a group in the same way."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    groups = ledger.groups
    if groups is None:
        return None
    frames = []
    if groups.faults:
        rows = groups.groups.where(F.col("fault") == STRANGE)
        outputs = F.format_string(", with %,d committed records of it.", "outputs")
        why = F.concat(F.lit(f"{STRANGER}: "), shown("group"), outputs)
        frames.append(evidence(of_log(rows), F.col("outputs"), why, F.col("cause")))
    if groups.nameless:
        rows = groups.outputs_frame.where(names_no_group())
        cause = F.when(F.col("reason").isNotNull(), F.lit(undecodable.NAME))
        frames.append(evidence(of_log(rows), F.lit(0), F.lit(f"{NAMELESS}."), cause))
    return together(frames)


def covered(ledger: Ledger) -> int:
    """Counts the groups of the sink, and each output that names none."""
    groups = ledger.groups
    return 0 if groups is None else groups.in_sink + groups.nameless
