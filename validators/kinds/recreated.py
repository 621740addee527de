"""Outputs and inputs belong to the same topics: none was deleted and made again under its name.

A premise. Lineage names offsets, and an offset of a deleted topic is valid in the new one
(franz-go 1426, librdkafka 3255, KAFKA-12257). Topic ids show it where they were kept. Otherwise
the times show it: an output that is older than every record of its source is none of its outputs
(validators/incarnations.py). Such records neither repeat others nor break their order.

Matched by key, an output names what its input holds and not where it was, so times say nothing.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topicproof.validators.evidence import COLUMNS, evidence, together
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.incarnations import is_older
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.sentences import Forms, Words

NAME = "recreated"
TITLE = "Made again"
QUESTION = "Are the committed records outputs of the present topics, and not of deleted ones?"
UNIT = "committed records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed record", "committed records"),
    bad=Forms(
        "belongs to a topic that was deleted and made again under its name",
        "belong to a topic that was deleted and made again under its name",
    ),
    good=Forms("belongs to the present topics", "belong to the present topics"),
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns a row for each topic with another id, and one for each record that is too old."""
    frames = []
    circumstances = ledger.circumstances
    if circumstances.replaced:
        clauses = [
            (*(None,) * 8, 1, f"{why[:1].upper()}{why[1:]}.") for why in circumstances.replaced
        ]
        frames.append(ledger.spark.createDataFrame(clauses, COLUMNS))
    older = None if ledger.by_key else is_older(circumstances)
    if older is not None:
        committed = F.col("fate") == Fate.COMMITTED.value
        rows = ledger.sink.where(committed & (F.col("place") == Place.INPUT.value) & older)
        why = "It was committed before the first record of its source was written."
        frames.append(evidence(rows, F.lit(0), F.lit(why)))
    return together(frames)


def covered(ledger: Ledger) -> int:
    """Counts committed records; none if the topics were not inspected."""
    return ledger.committed if ledger.circumstances.looked else 0
