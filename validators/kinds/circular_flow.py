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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import COLUMNS
from topicproof.validators.expectation import TOO_MANY
from topicproof.validators.facts.header_transactions import NAME as NAMED
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import real
from topicproof.validators.readings import frame_of
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
TRAITS = Traits(
    next_step=("Look for a stage that reads its own output, or that reads at read_uncommitted.")
)

FLOWS_MAX = 200_000
"""Pairs of transactions of which one read what the other wrote. A pair costs a kilobyte."""
BEYOND = (
    f"More than {FLOWS_MAX:,} pairs of transactions read from each other, by the names in their"
    " headers: circles among them are not looked for."
)

Name = tuple[object, ...]
Place = tuple[int, ...]
"""Partition and offset of an output, partition, offset and output index of its input."""


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
        .limit(FLOWS_MAX + 1)
        .collect()
    )
    edges = {(tuple(row["writer"]), tuple(row["reader"])): tuple(row["at"]) for row in flow}
    topic = ledger.question.source.topic
    if len(edges) > FLOWS_MAX:
        (_, reader), at = next(iter(edges.items()))
        rows = [_row(at, topic, reader, 0, BEYOND, TOO_MANY)]
    else:
        rows = [_of_circle(*member, topic) for member in _members(edges)]
    return frame_of(ledger.spark, rows, COLUMNS) if rows else None


def _members(edges: Mapping[tuple[Name, Name], Place]) -> Iterator[tuple[Name, Name, Place, int]]:
    """Yields each transaction of a circle: with the one of the circle whose output it read first,
    where it did, and how many the circle has."""
    before: dict[Name, list[Name]] = defaultdict(list)
    for writer, reader in edges:
        before[reader].append(writer)
    for circle in _circles(edges):
        members = set(circle)
        for reader in circle:
            place, writer = min(
                (edges[writer, reader], writer) for writer in before[reader] if writer in members
            )
            yield writer, reader, place, len(circle)


def _of_circle(writer: Name, reader: Name, place: Place, size: int, topic: str) -> tuple[Any, ...]:
    why = (
        "Its transaction read an input that it had written itself."
        if writer == reader
        else f"Its transaction read what {_spell(writer)} wrote, which depends on it in"
        f" turn: a circle of {size} transactions."
    )
    return _row(place, topic, reader, -size, why)


def _row(
    place: Place, topic: str, reader: Name, rank: int, why: str, cause: str | None = None
) -> tuple[Any, ...]:
    """Returns a row of `COLUMNS`."""
    partition, offset, *of_input = place
    return (partition, offset, topic, *of_input, _spell(reader), cause, rank, why)


def _circles(edges: Iterable[tuple[Name, Name]]) -> list[list[Name]]:
    """Returns the transactions of each circle; circles that share a transaction are merged.

    These are the strongly connected components of the flow, found in one walk (Tarjan 1972), whose
    time and memory grow with the edges: names in headers are anybody's, so chains of them can be as
    long as the topic. The walk keeps its own stack, for Python's is shorter than such a chain.
    """
    after: dict[Name, list[Name]] = defaultdict(list)
    for writer, reader in edges:
        after[writer].append(reader)
    order: dict[Name, int] = {}
    lowest: dict[Name, int] = {}
    open_: dict[Name, None] = {}
    circles: list[list[Name]] = []
    for start in sorted(after, key=str):
        walk = [] if start in order else [(start, iter(after[start]))]
        while walk:
            transaction, readers = walk[-1]
            if transaction not in order:
                order[transaction] = lowest[transaction] = len(order)
                open_[transaction] = None
            following: Name | None = next(readers, None)
            if following is None:
                walk.pop()
                if walk:
                    before = walk[-1][0]
                    lowest[before] = min(lowest[before], lowest[transaction])
                if lowest[transaction] == order[transaction]:
                    circle = _taken_up_to(transaction, open_)
                    if len(circle) > 1 or transaction in after[transaction]:
                        circles.append(sorted(circle, key=str))
            elif following not in order:
                walk.append((following, iter(after.get(following, ()))))
            elif following in open_:
                lowest[transaction] = min(lowest[transaction], order[following])
    return sorted(circles, key=str)


def _taken_up_to(transaction: Name, open_: dict[Name, None]) -> list[Name]:
    """Takes the transactions out of `open_`, the newest first, up to this one."""
    circle = []
    while True:
        newest, _ = open_.popitem()
        circle.append(newest)
        if newest == transaction:
            return circle


def _spell(name: Name) -> str:
    transactional_id, sequence, attempt = name[:3]
    return f"transaction {sequence} of {transactional_id} (attempt {attempt})"


def covered(ledger: Ledger) -> int:
    return sum(ledger.counts.writers.values())
