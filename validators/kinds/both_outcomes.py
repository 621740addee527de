"""No input has both a committed output and a committed dead letter.

A contract with `dead_letters:` says that each input is either processed or put aside. An input in
neither is a gap. An input in both was put aside although its output is there: whoever processes the
dead letters again makes a duplicate. Dead letters are usually written outside of the transaction,
so a program that is killed behind one, and that processes the input when it starts again, leaves
such a pair. An input is counted once, at its first dead letter.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Witness
from topicproof.validators.kinds import aborted_read, identity_repeated
from topicproof.validators.kinds.letter_repeated import first_letters
from topicproof.validators.kinds.matching import of_another
from topicproof.validators.kinds.traits import MATCHING_EACH, RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import known_aborted, real
from topicproof.validators.offsets import place_text
from topicproof.validators.sentences import Forms, Words

NAME = "both_outcomes"
TITLE = "Inputs with an output and a dead letter"
QUESTION = "Does each input have either an output or a dead letter?"
UNIT = "inputs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("input with an outcome", "inputs with an outcome"),
    bad=Forms("has both an output and a dead letter", "have both an output and a dead letter"),
    good=Forms("has either an output or a dead letter", "have either an output or a dead letter"),
)
TRAITS = Traits(
    row_record=RowRecord.ASIDE,
    shows_identity=True,
    premises=MATCHING_EACH,
    next_step=(
        "Do not process these dead letters again: the outputs of their inputs are in the sink."
        " Write dead letters in the transaction of the outputs, or commit the group's offset right"
        " behind each."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.counts.letters is None or not ledger.counts.letters.inputs:
        return None
    is_certain = ~known_aborted()
    outputs = (
        ledger.present.where(real())
        .groupBy("source_partition", "source_offset")
        .agg(
            F.min(F.struct("partition", "offset")).alias("output"),
            F.bool_or(is_certain).alias("is_output_certain"),
            F.bool_or("ambiguous").alias("is_output_ambiguous"),
        )
    )
    rows = first_letters(ledger).join(outputs, ["source_partition", "source_offset"])
    why = F.format_string(
        "This input has this dead letter, and a committed output at %s.",
        place_text(ledger.sink_bounds, "output.partition", "output.offset"),
    )
    ambiguous = F.col("ambiguous") | F.col("is_output_ambiguous")
    cause = F.when(~is_certain | ~F.col("is_output_certain"), aborted_read.NAME).when(
        ambiguous, identity_repeated.NAME
    )
    another = of_another(ledger)
    return evidence(rows, F.lit(0), why, cause if another is None else cause.otherwise(another))


def covered(ledger: Ledger) -> int:
    """Counts the inputs of the judged range with an outcome."""
    letters = ledger.counts.letters
    return 0 if letters is None else letters.inputs + letters.delivered - letters.both
