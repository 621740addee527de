"""A sink written by hand: one line of text a partition, one token an offset.

    0 1 C 2 A 2 C       inputs 0 and 1 committed, 2 aborted, then 2 again and committed

`3`      the output of input 3 of source partition 0; `1.3` of source partition 1; `3#1` its second output
`C` `A`  the commit or abort marker of the transaction so far; a transaction without one is open
`b:3`    the same, of producer b (`a` when none is named)
`3!`     was in no transaction                  `?`  carries no lineage
`3*`     visible to read_committed, whatever became of its transaction
`3~`     hidden from read_committed, whatever became of its transaction
`_`      gone, in no batch any more             `x`  gone, inside the batch of the record before it
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from validators import readings
from validators.balance import BATCH_COLUMNS, TRANSACTION_COLUMNS, RawLog
from validators.finding import Bounds, Guarantee, PartitionBounds
from validators.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    Lineage,
    Transaction,
    format_lineage,
    format_transaction,
)
from validators.identity import Identity
from validators.ledger import DECLARED_COLUMNS, Ledger, build_ledger
from validators.report import Report, judge

SOURCE, SINK = "numbers", "squares"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Written:
    """One token that took an offset."""

    offset: int
    producer: str
    text: str
    """What is left of the token: `C`, `A`, `_`, `x`, `?` or the input."""
    flags: str
    sequence: int = 1
    end: str | None = None
    """The marker that ended its transaction."""
    marker_offset: int | None = None

    @property
    def is_marker(self) -> bool:
        return self.text in ("C", "A")

    @property
    def is_record(self) -> bool:
        return self.text not in ("C", "A", "_", "x")

    @property
    def transactional(self) -> bool:
        return "!" not in self.flags


@dataclass
class History:
    """The readings, the raw log and the bounds of a sink and its source, as plain rows."""

    sink_bounds: Bounds
    source_bounds: Bounds
    committed: list[tuple[Any, ...]] = field(default_factory=list)
    uncommitted: list[tuple[Any, ...]] = field(default_factory=list)
    source: list[tuple[Any, ...]] = field(default_factory=list)
    batches: list[tuple[Any, ...]] = field(default_factory=list)
    transactions: list[tuple[Any, ...]] = field(default_factory=list)

    def ledger(
        self,
        spark: SparkSession,
        folder: Path,
        raw_log: bool = True,
        declared: Mapping[tuple[str, int], str] | None = None,
        identity: Identity = Identity.LINEAGE,
    ) -> Ledger:
        """`declared`: outcomes of the journal by (transactional id, sequence)."""
        journal = None
        if declared is not None:
            rows = [(name, sequence, 1, "task", outcome) for (name, sequence), outcome in declared.items()]
            journal = spark.createDataFrame(rows, DECLARED_COLUMNS)
        raw = RawLog(
            spark.createDataFrame(self.batches, BATCH_COLUMNS),
            spark.createDataFrame(self.transactions, TRANSACTION_COLUMNS),
        )
        return build_ledger(
            committed=spark.createDataFrame(self.committed, readings.COLUMNS),
            uncommitted=spark.createDataFrame(self.uncommitted, readings.COLUMNS),
            source=spark.createDataFrame(self.source, readings.COLUMNS),
            sink_bounds=self.sink_bounds,
            source_bounds=self.source_bounds,
            evidence=f"file:{folder / uuid.uuid4().hex}",
            raw_log=raw if raw_log else None,
            declared=journal,
            identity=identity,
        )

    def report(self, spark: SparkSession, folder: Path, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> Report:
        return judge(self.ledger(spark, folder), guarantee)


def history(
    *sink: str,
    inputs: int | Sequence[int] = 0,
    holes: Iterable[tuple[int, int]] = (),
    judged: Sequence[tuple[int, int]] | None = None,
    start: int = 0,
    keys: Mapping[tuple[int, int], bytes | None] | None = None,
    first: int = 0,
) -> History:
    """The history of a sink, line by line.

    `inputs`: how many the source has, per source partition; `holes`: (partition, offset) where it has none;
    `judged`: (start, end) per source partition, when less than all is judged; `start`: where the sink's log starts;
    `keys`: of inputs that have another key than their place; `first`: the number of the first partition of both topics.
    """
    counts = [inputs] if isinstance(inputs, int) else list(inputs)
    ranges = judged or [(0, count) for count in counts]
    lines = [_parse(line) for line in sink]
    made = History(
        Bounds(SINK, tuple(_bounds(partition, line, start) for partition, line in enumerate(lines, first))),
        Bounds(SOURCE, tuple(PartitionBounds(first + p, *ranges[p], count) for p, count in enumerate(counts))),
    )
    named = keys or {}
    gone = set(holes)
    for partition, count in enumerate(counts):
        for offset in range(count):
            if (partition, offset) not in gone:
                key = named.get((partition, offset), f"{partition}.{offset}".encode())
                made.source.append((first + partition, offset, BEGAN, key, b"", None))
    for partition, line in enumerate(lines, first):
        _write(made, partition, line, start, named, first)
    return made


def side_by_side(histories: Iterable[History]) -> History:
    """Histories of different partitions as one: many stories for the price of one ledger."""
    every = list(histories)
    return History(
        Bounds(SINK, tuple(one for made in every for one in made.sink_bounds.partitions)),
        Bounds(SOURCE, tuple(one for made in every for one in made.source_bounds.partitions)),
        *(
            [row for made in every for row in getattr(made, name)]
            for name in ("committed", "uncommitted", "source", "batches", "transactions")
        ),
    )


def _parse(line: str) -> list[Written]:
    written = []
    for offset, token in enumerate(line.split()):
        producer, _, rest = token.rpartition(":")
        text = rest.rstrip("!*~")
        written.append(Written(offset, producer or "a", text, rest[len(text) :]))
    # Data and markers are folded per producer: data since the previous marker belongs to the next one.
    waiting: dict[str, list[Written]] = {}
    ended: dict[str, int] = {}
    for one in written:
        one.sequence = ended.get(one.producer, 0) + 1
        if one.is_marker:
            for earlier in waiting.pop(one.producer, []):
                earlier.end, earlier.marker_offset = one.text, one.offset
            ended[one.producer] = one.sequence
        elif one.is_record and one.transactional:
            waiting.setdefault(one.producer, []).append(one)
    return written


def _bounds(partition: int, line: list[Written], start: int) -> PartitionBounds:
    unsettled = (one.offset for one in line if one.is_record and one.transactional and one.end is None)
    return PartitionBounds(partition, start, next(unsettled, len(line)), len(line))


def _write(
    made: History,
    partition: int,
    line: list[Written],
    start: int,
    keys: Mapping[tuple[int, int], bytes | None],
    first: int,
) -> None:
    lso = made.sink_bounds.partitions[partition - first].lso
    for one in line:
        if one.offset < start or not one.is_record:
            continue
        row = _record(partition, one, keys, line, first)
        made.uncommitted.append(row)
        settled = one.offset < lso and (one.end == "C" or not one.transactional)
        if (settled or "*" in one.flags) and "~" not in one.flags:
            made.committed.append(row)
    covered = (one for one in line if one.text != "_")
    for _, run in itertools.groupby(covered, key=_batch_of(line)):
        batch = list(run)
        if batch[-1].offset >= start:
            made.batches.append(_batch(partition, batch))
    named = [one for one in line if one.is_record and one.transactional]
    for (producer, _), records in itertools.groupby(
        sorted(named, key=lambda one: (one.producer, one.offset)), key=lambda one: (one.producer, one.sequence)
    ):
        data = list(records)
        if data[-1].offset >= start:
            outcome = {"C": "COMMITTED", "A": "ABORTED", None: "OPEN"}[data[0].end]
            places = (data[0].offset, data[-1].offset, len(data), outcome, data[0].marker_offset)
            made.transactions.append((partition, _producer_id(producer), 0, *places))


def _record(
    partition: int, one: Written, keys: Mapping[tuple[int, int], bytes | None], line: list[Written], first: int
) -> tuple[Any, ...]:
    headers: list[tuple[str, bytes]] = []
    key: bytes | None = b"?"
    if one.text != "?":
        place, _, index = one.text.partition("#")
        source, _, offset = place.rpartition(".")
        lineage = Lineage(SOURCE, first + int(source or 0), int(offset), int(index or 0))
        headers.append((LINEAGE_HEADER, format_lineage(lineage)))
        key = keys.get((int(source or 0), lineage.offset), f"{int(source or 0)}.{lineage.offset}".encode())
    if one.transactional:
        same = [other for other in line if other.is_record and other.transactional]
        total = sum((other.producer, other.sequence) == (one.producer, one.sequence) for other in same)
        transaction = Transaction(f"{one.producer}-{partition}", one.sequence, 1, "task", total)
        headers.append((TRANSACTION_HEADER, format_transaction(transaction)))
    return partition, one.offset, BEGAN + timedelta(seconds=one.offset), key, one.text.encode(), headers


def _batch_of(line: list[Written]) -> Any:
    """A key that changes where a new batch begins: with the producer, a marker, a lost batch, another transaction."""

    def key(one: Written) -> tuple[Any, ...]:
        if one.is_marker:
            return one.offset, "marker"
        record = one if one.is_record else next(two for two in reversed(line[: one.offset]) if two.is_record)
        lost = sum(two.text == "_" for two in line[: one.offset])
        return record.producer, record.sequence, record.transactional, lost

    return key


def _batch(partition: int, batch: list[Written]) -> tuple[Any, ...]:
    first, last = batch[0], batch[-1]
    control = {"C": "COMMIT", "A": "ABORT"}.get(first.text)
    count = sum(one.text != "x" for one in batch)
    transactional = first.is_marker or first.transactional
    identity = (_producer_id(first.producer) if transactional else -1, 0, 0)
    return (partition, first.offset, last.offset, count, *identity, transactional, control, 0, 0, 100, "none", 0)


def _producer_id(name: str) -> int:
    return 1000 + ord(name)
