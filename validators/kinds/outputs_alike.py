"""No two outputs of one input hold the same key and value in the same topic.

A premise, asked if an input has several outputs and records are matched by key. Only content
distinguishes such outputs. If two are alike, a repeated output looks like an intended one, and
hides a missing one.

A limit: suppose that an output was written twice with different bytes, such as the time of writing,
and another output of the same input was lost. That is not seen. Lineage, or an identity for each
output, tells these apart.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.counts import later_alike
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "outputs_alike"
TITLE = "Outputs that cannot be told apart"
QUESTION = "Can the outputs of an input be told apart?"
UNIT = "committed records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed record", "committed records"),
    bad=Forms("is like another output of its input", "are like another output of their input"),
    good=Forms(
        "differs from other outputs of its input", "differ from other outputs of their input"
    ),
)
TRAITS = Traits(row_record=RowRecord.ASIDE)


def find(ledger: Ledger) -> DataFrame | None:
    if not ledger.counts.alike:
        return None
    why = F.lit("An earlier output of the same input has the same key and value.")
    return evidence(later_alike(ledger.in_sink, ledger.sink_bounds), F.lit(0), why)


def covered(ledger: Ledger) -> int:
    return ledger.at_inputs
