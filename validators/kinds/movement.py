"""Which partitions were written to during the check.

Information. Moving topics are judged on a cut: the source's bounds are taken after the sink's, so
each output finds its input. Outputs are due for inputs below the group's committed offset, which is
read before the sink's bounds. Without a group, outputs are due up to the last input with a
committed output. Inputs beyond are not processed yet.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.evidence import COLUMNS
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import Forms, Words

NAME = "movement"
TITLE = "Growth during the check"
QUESTION = "Which partitions grew during the check?"
UNIT = "partitions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("partition", "partitions"),
    bad=Forms("grew during the check", "grew during the check"),
    good=Forms("stood still during the check", "stood still during the check"),
)
TRAITS = Traits()


def find(ledger: Ledger) -> DataFrame | None:
    rows = []
    for growth in ledger.circumstances.growth:
        bounds = ledger.question.source if growth.side == "source" else ledger.sink_bounds
        topic, partition = bounds.place(growth.partition)
        why = (
            f"Partition {partition} of {topic} grew from {growth.before:,} to {growth.after:,}"
            " offsets during the check."
        )
        if growth.side == "sink" and ledger.question.agreed.table is not None:
            why = f"The table {topic} changed during the check."
        sink = (growth.partition, None) if growth.side == "sink" else (None, None)
        source = (bounds.topic, growth.partition) if growth.side == "source" else (None, None)
        rows.append((*sink, *source, None, None, None, None, growth.after - growth.before, why))
    return frame_of(ledger.spark, rows, COLUMNS) if rows else None


def covered(ledger: Ledger) -> int:
    """Counts all partitions of both topics, if they were looked at twice."""
    partitions = len(ledger.question.source.partitions) + len(ledger.sink_bounds.partitions)
    return partitions if ledger.circumstances.watched else 0
