"""No two inputs of the source hold the same identity.

A premise, asked if records are matched by key. If inputs share an identity, their outputs can only
be counted: an excess is a duplicate and a lack is a gap, whichever input it belongs to. But a
duplicate of one beside the loss of another stays invisible, and neither order nor values can be
judged. So the verdict is never HOLDS.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence, of_source
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.offsets import place_text
from topicproof.validators.sentences import Forms, Words

NAME = "identity_repeated"
TITLE = "Inputs that share an identity"
QUESTION = "Does each input have an identity of its own?"
UNIT = "inputs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("input with an identity", "inputs with an identity"),
    bad=Forms("repeats that of an earlier input", "repeat that of an earlier input"),
    good=Forms("shares it with no other", "share it with no other"),
)
TRAITS = Traits(shows_identity=True)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row for each input whose identity an earlier input already holds. Pending inputs
    count: they may be committed."""
    if not ledger.counts.identities.repeated or ledger.frames.identities is None:
        return None
    same = Window.partitionBy("source_key")
    place = F.struct("source_partition", "source_offset")
    inputs = ledger.frames.identities().where(F.col("source_key").isNotNull())
    inputs = inputs.withColumns(
        {"first": F.min(place).over(same), "inputs": F.count("*").over(same)}
    )
    later = inputs.where(place > F.col("first"))
    why = F.format_string(
        "%d inputs hold the identity of this one; the first is at %s.",
        "inputs",
        place_text(ledger.question.source, "first.source_partition", "first.source_offset"),
    )
    rows = of_source(later, ledger.question.source.topic).withColumn("output_index", F.lit(None))
    return evidence(rows, F.col("inputs"), why)


def covered(ledger: Ledger) -> int:
    """Counts the inputs with an identity, pending ones included."""
    return ledger.counts.identities.records - ledger.counts.identities.missing
