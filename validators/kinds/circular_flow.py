"""No transaction depends on its own output.

Catalogue 16, Adya's `G1c`. A transaction reads inputs that other transactions wrote, and writes
outputs that others read. Its lineage names what it read; the headers of the inputs name their
writers. Following writers to readers never leads back to the start. A read_committed reader sees
only what is committed, so two transactions cannot wait for each other's commit. The shortest circle
is a transaction that reads its own record.

Only a transaction that wrote to both source and sink can be in a circle. If no transactional id
did, there is nothing to follow. Chains of stages through topics that are not judged together stay
invisible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topicproof.validators.evidence import COLUMNS
from topicproof.validators.facts.header_transactions import NAME as NAMED
from topicproof.validators.finding import Witness
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import real
from topicproof.validators.sentences import Forms, Words

NAME = "circular_flow"
TITLE = "Transactions that read their own output"
QUESTION = "Is every transaction independent of its own output?"
UNIT = "inputs that name their transaction"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("input that names its transaction", "inputs that name their transaction"),
    bad=Forms("closes a circle of transactions", "close circles of transactions"),
)

Name = tuple[object, ...]


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transaction in a circle, at its first record with an input from another
    transaction of the circle."""
    names = {transactional_id.transactional_id for transactional_id in ledger.counts.ids}
    both = names & ledger.counts.writers.keys()
    if not both or ledger.frames.written is None:
        return None
    flow = (
        ledger.sink.where(real() & F.col("transactional_id").isin(*both))
        .join(ledger.frames.written, ["source_partition", "source_offset"])
        .where(F.col("writer.transactional_id").isin(*both))
        .groupBy("writer", F.struct(*NAMED).alias("reader"))
        .agg(
            F.min(
                F.struct("partition", "offset", "source_partition", "source_offset", "output_index")
            ).alias("at")
        )
        .collect()
    )
    edges = {(tuple(row["writer"]), tuple(row["reader"])): tuple(row["at"]) for row in flow}
    rows = []
    for circle in _circles(edges):
        for reader in circle:
            at, writer = min(
                (edges[writer, reader], writer) for writer in circle if (writer, reader) in edges
            )
            partition, offset, source_partition, source_offset, output_index = at
            why = (
                "Its transaction read an input that it had written itself."
                if writer == reader
                else f"Its transaction read what {_spell(writer)} wrote, which depends on it in"
                f" turn: a circle of {len(circle)} transactions."
            )
            place = (
                partition,
                offset,
                ledger.question.source.topic,
                source_partition,
                source_offset,
                output_index,
            )
            rows.append((*place, _spell(reader), None, -len(circle), why))
    return ledger.spark.createDataFrame(rows, COLUMNS) if rows else None


def _circles(edges: Mapping[tuple[Name, Name], object]) -> list[list[Name]]:
    """Returns the transactions of each circle; circles that share a transaction are merged."""
    after: dict[Name, set[Name]] = defaultdict(set)
    for writer, reader in edges:
        after[writer].add(reader)
    reached = {transaction: _reach(transaction, after) for transaction in after}
    circles: list[list[Name]] = []
    for transaction in sorted(after, key=str):
        if transaction in reached[transaction] and not any(
            transaction in circle for circle in circles
        ):
            circles.append(
                sorted(
                    (
                        other
                        for other in reached[transaction]
                        if transaction in reached.get(other, ())
                    ),
                    key=str,
                )
            )
    return circles


def _reach(first: Name, after: Mapping[Name, set[Name]]) -> set[Name]:
    reached: set[Name] = set()
    waiting = [first]
    while waiting:
        new = after.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def _spell(name: Name) -> str:
    return "/".join(map(str, name[:3]))


def covered(ledger: Ledger) -> int:
    return sum(ledger.counts.writers.values())
