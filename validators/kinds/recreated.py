"""Outputs and inputs belong to the same topics: none was deleted and made again under its name.

A premise. Lineage names offsets, and an offset of a deleted topic is valid in the new one
(franz-go 1426, librdkafka 3255, KAFKA-12257). Topic ids show it, in the record's own header or
where a run kept them. Otherwise the times show it: an output that is older than every record of its
source is none of its outputs (validators/incarnations.py). Such records neither repeat others nor
break their order.

Matched by key, an output names what its input holds and not where it was, so times say nothing.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import COLUMNS, evidence, together
from topicproof.validators.facts.writers import time_of
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.incarnations import SKEW_MS
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import Forms, Words, capitalized

NAME = "recreated"
TITLE = "Made again"
QUESTION = "Are the committed records outputs of the present topics, and not of deleted ones?"
UNIT = "committed records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed record", "committed records"),
    bad=Forms(
        "may be an output of an earlier source topic, deleted and made again under its name",
        "may be outputs of an earlier source topic, deleted and made again under its name",
    ),
    good=Forms("belongs to the present topics", "belong to the present topics"),
)
TRAITS = Traits(row_record=RowRecord.ASIDE)

NAMESAKE = "Its header names another topic of its source's name, by its id."


def find(ledger: Ledger) -> DataFrame | None:
    """Returns a row for each topic with another id, and one for each record that is too old."""
    frames = []
    circumstances = ledger.circumstances
    if circumstances.replaced:
        # The topics keep their order.
        ranks = range(len(circumstances.replaced), 0, -1)
        clauses = [
            (*(None,) * 8, rank, f"{capitalized(why)}.")
            for rank, why in zip(ranks, circumstances.replaced, strict=True)
        ]
        frames.append(frame_of(ledger.spark, clauses, COLUMNS))
    foreign = ledger.of_namesakes
    if foreign is not None:
        committed = F.col("fate") == Fate.COMMITTED.value
        # A source that retention cut has older outputs of inputs before the judged range. An id
        # leaves no doubt.
        at_input = F.col("of_namesake") | (F.col("place") == Place.INPUT.value)
        rows = ledger.sink.where(committed & at_input & foreign)
        older = F.lit("")
        for incarnation in circumstances.incarnations:
            is_of_topic = F.col("source_topic") == incarnation.topic
            text = older_text(incarnation.topic, incarnation.began_ms + SKEW_MS)
            older = F.when(is_of_topic, F.lit(text)).otherwise(older)
        why = F.when(F.col("of_namesake"), F.lit(NAMESAKE)).otherwise(older)
        frames.append(evidence(rows, F.lit(0), why))
    return together(frames)


def older_text(topic: str, first_ms: int) -> str:
    """Returns the sentence of a record that is older than the first record of its source."""
    time = time_of(first_ms)
    return (
        f"It was committed before the oldest record of {topic} was written"
        f"{f' ({time})' if time else ''}: the input that it names was in an earlier {topic}, or"
        " clocks differ."
    )


def covered(ledger: Ledger) -> int:
    """Counts committed records; none if the topics were not inspected."""
    return ledger.committed if ledger.circumstances.looked else 0
