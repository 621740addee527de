"""Pending inputs: at or above the source's last stable offset, of an open transaction or after one.

Information. A read_committed pipeline does not receive them yet, so no output is due. A committed
output of one is listed under `phantom`, explained by `pending`: it may still prove to be the output
of an aborted input.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.evidence import COLUMNS
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import Forms, Words

NAME = "source_pending"
TITLE = "Pending inputs"
QUESTION = "Which inputs are pending in the source?"
UNIT = "source partitions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("source partition", "source partitions"),
    bad=Forms(
        "ends with pending inputs, which are not judged yet",
        "end with pending inputs, which are not judged yet",
    ),
    good=Forms("has no pending inputs", "have no pending inputs"),
)
TRAITS = Traits()


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row for each partition, at its last stable offset."""
    rows = []
    for partition in ledger.question.source.partitions:
        lso = ledger.circumstances.source_lso.get(partition.partition, partition.hw)
        if lso < partition.hw:
            why = (
                f"{partition.hw - lso:,} offsets are pending from here on: they are in an open"
                " transaction or wait behind one."
            )
            place = (ledger.question.source.topic, partition.partition, lso, None)
            rows.append((None, None, *place, None, None, partition.hw - lso, why))
    return frame_of(ledger.spark, rows, COLUMNS) if rows else None


def covered(ledger: Ledger) -> int:
    return len(ledger.circumstances.source_lso)
