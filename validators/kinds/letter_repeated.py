"""Each input has at most one dead letter.

Information. Most programs write dead letters outside of the transaction of their outputs: Kafka
Connect by a producer of its own (KIP-298), a share group by the broker (KIP-1191), Spring where no
transaction is configured. So a program that is killed behind one writes it again: at least once.
That breaks no guarantee, but whoever processes dead letters again must expect it. A contract whose
program writes them in the transaction (Kafka Streams with exactly_once_v2, KIP-1034) can list this
kind under `require:`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import identity_repeated
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import known_aborted, real
from topicproof.validators.offsets import place_text
from topicproof.validators.sentences import Forms, Words

NAME = "letter_repeated"
TITLE = "Repeated dead letters"
QUESTION = "Has each input at most one dead letter?"
UNIT = "dead letters"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("dead letter", "dead letters"),
    bad=Forms(
        "repeats an earlier one of its input: dead letters were written at least once",
        "repeat an earlier one of their input: dead letters were written at least once",
    ),
    good=Forms("is the only one of its input", "are the only ones of their inputs"),
)
TRAITS = Traits(
    row_record=RowRecord.ASIDE,
    shows_identity=True,
    next_step=(
        "Let whoever processes dead letters again drop the later ones of an input. If the program"
        " writes them in its transactions, list letter_repeated under `require:`."
    ),
)


def first_letters(ledger: Ledger) -> DataFrame:
    """Returns the first dead letter of each input, as rows of the ledger's sink."""
    return _numbered(ledger).where(F.col("turn") == 1).drop("turn", "first")


def pending_letters(ledger: Ledger) -> DataFrame:
    """Returns the inputs with a pending dead letter: source_partition, source_offset,
    has_pending_letter (true)."""
    is_pending = F.col("is_letter") & (F.col("fate") == Fate.PENDING.value) & ~known_aborted()
    letters = ledger.sink.where(is_pending & F.col("source_offset").isNotNull())
    inputs = letters.select("source_partition", "source_offset").distinct()
    return inputs.withColumn("has_pending_letter", F.lit(True))


def _numbered(ledger: Ledger) -> DataFrame:
    """Returns the committed dead letters of inputs, with `turn` (from 1) and `first` (the place of
    the first one)."""
    of_input = Window.partitionBy("source_partition", "source_offset")
    place = F.struct("timestamp", "partition", "offset")
    turn = F.row_number().over(of_input.orderBy("timestamp", "partition", "offset"))
    letters = ledger.sink.where(F.col("is_letter") & real())
    return letters.withColumns({"turn": turn, "first": F.min(place).over(of_input)})


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.counts.letters is None or not ledger.counts.letters.records:
        return None
    rows = _numbered(ledger).where(F.col("turn") > 1)
    why = F.format_string(
        "An earlier dead letter of this input is at %s.",
        place_text(ledger.sink_bounds, "first.partition", "first.offset"),
    )
    cause = F.when(F.col("ambiguous"), identity_repeated.NAME)
    return evidence(rows, F.col("turn"), why, cause)


def covered(ledger: Ledger) -> int:
    return 0 if ledger.counts.letters is None else ledger.counts.letters.records
