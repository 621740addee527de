"""The two topics are related: some committed record names an input of the source.

A premise. Otherwise the topics do not belong together, or the identity is the wrong one: topics
that our sink did not write have no lineage headers. Every input would look lost, and every record
invented.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import identity_missing, source_removed
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "identity_disjoint"
TITLE = "Nothing in common"
QUESTION = "Does any committed record name an input of the source?"
UNIT = "committed records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed record", "committed records"),
    bad=Forms("names no input of the source", "name no input of the source"),
    good=Forms(
        "was compared with the source, and names an input of it",
        "were compared with the source, and some name inputs of it",
    ),
)
TRAITS = Traits(row_record=RowRecord.ASIDE)


def find(ledger: Ledger) -> DataFrame | None:
    if not ledger.disjoint:
        return None
    rows = ledger.in_sink.where(F.col("fate") == Fate.COMMITTED.value)
    why = F.when(F.col("identified"), "No input has its identity.").otherwise(
        "No identity of it is known, and so no input."
    )
    if not ledger.by_key:
        topic = ledger.question.source.topic
        why = F.lit(f"It has no lineage header that names an input of {topic}.")
    # Of a record without an identity, identity_missing tells that no input is known. Where no input
    # is left, no identity can do better.
    left = F.lit(None) if ledger.counts.inputs.judged else F.lit(source_removed.NAME)
    cause = F.when(~F.col("identified"), identity_missing.NAME).otherwise(left)
    return evidence(rows, F.lit(0), why, cause)


def covered(ledger: Ledger) -> int:
    return ledger.committed
