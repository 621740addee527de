"""A sink written by hand: one line of text a partition, one token an offset.

    0 1 C 2 A 2 C       inputs 0 and 1 committed, 2 aborted, then 2 again and committed

| token | meaning |
| --- | --- |
| `3` | the output of input 3 of source partition 0 |
| `1.3` | the output of input 3 of source partition 1 |
| `3#1` | the second output of input 3 |
| `C` `A` | the commit or abort marker of the transaction so far; without one it is open |
| `b:3` | the same, of producer b (`a` if none is named) |
| `b1:3` | of producer b at its epoch 1 |
| `3@2` | its header names the producer's second transaction, not the one it is in |
| `3@b2` | its header names producer b's second transaction |
| `3@` | it has no such header |
| `3%5` | its header says that its transaction has 5 records |
| `3^` | its sequence leaves one out |
| `3!` | it was in no transaction |
| `?` | it has no lineage |
| `3*` | visible to read_committed, whatever became of its transaction |
| `3~` | hidden from read_committed, whatever became of its transaction |
| `_` | gone, in no batch any more |
| `x` | gone, inside the batch of the record before it |
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession

from topicproof.validators import readings
from topicproof.validators.circumstances import NO_CIRCUMSTANCES, Circumstances
from topicproof.validators.contract_terms import NOTHING_MORE, ContractTerms
from topicproof.validators.coordinator import NO_ATTRIBUTION, Attribution
from topicproof.validators.decoded import DECODED
from topicproof.validators.expected import ONE_TO_ONE, Expected
from topicproof.validators.facts.header_transactions import outcomes_of
from topicproof.validators.facts.log_facts import BATCH_COLUMNS
from topicproof.validators.facts.raw_log import raw_log as raw_log_of
from topicproof.validators.finding import Bounds, Guarantee, Order, PartitionBounds
from topicproof.validators.judge import judge
from topicproof.validators.ledger.build import build_ledger
from topicproof.validators.ledger.ledger import Accounts, Ledger, LedgerInput
from topicproof.validators.ledger.rows import DECLARED_COLUMNS, Declared
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    Lineage,
    Transaction,
    format_lineage,
    format_transaction,
)
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.polled import POLLED_COLUMNS, Polled
from topicproof.validators.question import Question
from topicproof.validators.readings import ARROW_TYPES, Readings, SourceLog, frame_of, gathered
from topicproof.validators.report import Report

SOURCE, SINK = "numbers", "squares"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Written:
    """One token that took an offset."""

    offset: int
    producer: str
    """A letter, and its epoch where that is not 0."""
    text: str
    """What is left of the token: `C`, `A`, `_`, `x`, `?` or the input."""
    flags: str
    total: int | None = None
    """How many records its header says that its transaction has, where that is not how many there
    are."""
    named: str | None = None
    """The transaction that its header names instead; empty: none."""
    sequence: int = 1
    end: str | None = None
    """The marker that ended its transaction."""
    marker_offset: int | None = None

    @property
    def name(self) -> str:
        return self.producer[0]

    @property
    def epoch(self) -> int:
        return int(self.producer[1:] or 0)

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
    aborted: list[tuple[Any, ...]] = field(default_factory=list)
    """The source's aborted records."""
    polled: list[tuple[Any, ...]] = field(default_factory=list)
    """What a concurrent reader received, when there was one."""
    batches: list[tuple[Any, ...]] = field(default_factory=list)
    pending: list[tuple[Any, ...]] = field(default_factory=list)
    """The source's records at and above its last stable offset."""
    source_markers: list[tuple[int, int]] | None = None
    """The source's markers, partition and offset, where its log has lost records."""

    def ledger(
        self,
        spark: SparkSession,
        folder: Path,
        raw_log: bool = True,
        declared: Mapping[tuple[str, int], str] | None = None,
        identity: Identity = Identity.LINEAGE,
        expected: Expected = ONE_TO_ONE,
        agreed: ContractTerms = NOTHING_MORE,
        order: Order = Order.PER_SOURCE_PARTITION,
        source_log: bool = True,
        circumstances: Circumstances = NO_CIRCUMSTANCES,
        decoded: tuple[Column, Column] | None = None,
        attribution: Attribution = NO_ATTRIBUTION,
        source_ids: Mapping[str, str] = {},
    ) -> Ledger:
        """`declared`: outcomes of the journal by (transactional id, sequence), with the reason
        behind a colon. `decoded`: the column of that name, of the source and of the sink."""
        offsets = self.sink_bounds.offsets + self.source_bounds.offsets

        def reading(rows: Sequence[tuple[Any, ...]]) -> DataFrame:
            """As a check has it: in one partition."""
            return gathered(frame_of(spark, rows, readings.COLUMNS), offsets)

        journal = None
        if declared is not None:
            rows = [
                (name, sequence, 1, "task", *outcome.partition(":")[::2])
                for (name, sequence), outcome in declared.items()
            ]
            ids = frozenset(name for name, _ in declared)
            journal = Declared(
                frame_of(spark, rows, DECLARED_COLUMNS), len(rows), ids, outcomes_of(rows)
            )
        batches = table_of(self.batches, BATCH_COLUMNS)
        raw = raw_log_of(spark, batches, self.sink_bounds, offsets, attribution)
        aborted = reading(self.aborted) if self.aborted else None
        pending = reading(self.pending) if self.pending else None
        markers = None
        if self.source_markers is not None:
            markers = frame_of(spark, self.source_markers, "partition int, offset long")
        received = sum(p[6] - p[5] + 1 for p in self.polled)
        accounts = Accounts(
            raw_log=raw if raw_log else None,
            declared=journal,
            source_log=SourceLog(aborted, pending, markers) if source_log else None,
            polled=(
                Polled(frame_of(spark, self.polled, POLLED_COLUMNS), received)
                if self.polled
                else None
            ),
        )
        uncommitted = reading(self.uncommitted)
        source = reading(self.source)
        if decoded is not None:
            source = source.withColumn(DECODED, decoded[0])
            uncommitted = uncommitted.withColumn(DECODED, decoded[1])
        committed = reading(self.committed)
        question = Question(
            source=self.source_bounds,
            sink=self.sink_bounds.topic,
            identity=identity,
            expected=expected,
            agreed=agreed,
            order=order,
        )
        return build_ledger(
            LedgerInput(
                spark,
                question,
                sink_bounds=self.sink_bounds,
                readings=Readings(committed, uncommitted, source),
                evidence=f"file:{folder / uuid.uuid4().hex}",
                accounts=accounts,
                circumstances=circumstances,
                source_ids=source_ids,
            )
        )

    def report(
        self, spark: SparkSession, folder: Path, guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    ) -> Report:
        return judge(self.ledger(spark, folder), guarantee)


def hearing(ledger: Ledger, **accounts: Any) -> Ledger:
    """The ledger with other accounts of the witnesses."""
    return replace(ledger, accounts=ledger.accounts._replace(**accounts))


def agreeing(ledger: Ledger, agreed: ContractTerms) -> Ledger:
    """The ledger under other terms."""
    return replace(ledger, question=replace(ledger.question, agreed=agreed))


def history(
    *sink: str,
    inputs: int | Sequence[int] = 0,
    holes: Iterable[tuple[int, int]] = (),
    judged: Sequence[tuple[int, int]] | None = None,
    start: int = 0,
    keys: Mapping[tuple[int, int], bytes | None] | None = None,
    first: int = 0,
    lso: int | None = None,
    aborted: Iterable[tuple[int, int]] = (),
    writers: Mapping[tuple[int, int], str] | None = None,
    polls: Sequence[str] = (),
) -> History:
    """The history of a sink, line by line.

    `inputs`: how many the source has, per source partition; `holes`: (partition, offset) where it
    has none; `judged`: (start, end) per source partition, when less than all is judged; `start`:
    where the sink's log starts; `keys`: of inputs that have another key than their place; `first`:
    the number of the first partition of both topics; `lso`: of the sink's first partition, where
    the brokers' is not the one that its markers say; `aborted`: (partition, offset) of inputs that
    were aborted in the source; `writers`: the transactions that inputs' headers name, `a2` for the
    second one of producer a; `polls`: what a concurrent reader received of the sink's first
    partition, a text a session: `0-2 4` is one poll of two runs, `4/3` one that found the last
    stable offset at 3, `|` ends a poll.
    """
    counts = [inputs] if isinstance(inputs, int) else list(inputs)
    ranges = judged or [(0, count) for count in counts]
    lines = [_parse(line) for line in sink]
    made = History(
        Bounds(
            SINK,
            tuple(
                _bounds(partition, line, start, lso if partition == first else None)
                for partition, line in enumerate(lines, first)
            ),
        ),
        Bounds(
            SOURCE,
            tuple(PartitionBounds(first + p, *ranges[p], count) for p, count in enumerate(counts)),
        ),
    )
    totals = Counter(_transaction(one) for line in lines for one in line)
    named = keys or {}
    gone, lost = set(holes), set(aborted)
    for partition, count in enumerate(counts):
        for offset in range(count):
            if (partition, offset) not in gone:
                key = named.get((partition, offset), f"{partition}.{offset}".encode())
                writer = (writers or {}).get((partition, offset))
                headers = None
                if writer:
                    written = Transaction(f"{writer[0]}-{first}", int(writer[1:]), 1, "task", 1)
                    headers = [(TRANSACTION_HEADER, format_transaction(written))]
                rows = made.aborted if (partition, offset) in lost else made.source
                rows.append((first + partition, offset, BEGAN, key, b"", headers))
    for session, text in enumerate(polls):
        made.polled += _polled(
            f"session {session}", text, first, start, made.sink_bounds.partitions[0].hw
        )
    for partition, line in enumerate(lines, first):
        _write(made, partition, line, start, named, first, totals)
    return made


def side_by_side(histories: Iterable[History]) -> History:
    """Histories of different partitions as one: many stories for the price of one ledger."""
    every = list(histories)
    return History(
        Bounds(SINK, tuple(one for made in every for one in made.sink_bounds.partitions)),
        Bounds(SOURCE, tuple(one for made in every for one in made.source_bounds.partitions)),
        *(
            [row for made in every for row in getattr(made, name)]
            for name in (
                "committed",
                "uncommitted",
                "source",
                "aborted",
                "polled",
                "batches",
            )
        ),
    )


def table_of(rows: Sequence[tuple[Any, ...]], columns: str) -> pa.Table:
    schema = pa.schema(
        [(name, ARROW_TYPES[kind]) for name, kind in map(str.split, columns.split(", "))]
    )
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _polled(
    session: str, text: str, partition: int, start: int, end: int
) -> Iterator[tuple[Any, ...]]:
    yield session, 0, 0, 0, partition, start, start - 1, end
    run = 0
    for poll, received in enumerate(text.split("|"), 1):
        for token in received.split():
            run += 1
            places, _, lso = token.partition("/")
            first, _, last = places.partition("-")
            yield (
                session,
                poll,
                run,
                poll,
                partition,
                int(first),
                int(last or first),
                int(lso or end),
            )


def _parse(line: str) -> list[Written]:
    written = []
    for offset, token in enumerate(line.split()):
        producer, _, rest = token.rpartition(":")
        body = rest.rstrip("!*~^")
        place, _, total = body.partition("%")
        text, at, named = place.partition("@")
        flags = rest[len(body) :]
        written.append(
            Written(
                offset,
                producer or "a",
                text,
                flags,
                int(total) if total else None,
                named if at else None,
            )
        )
    # Data and markers are folded per producer: data since the previous marker belongs to the next
    # one.
    waiting: dict[str, list[Written]] = {}
    ended: dict[str, int] = {}
    for one in written:
        one.sequence = ended.get(one.name, 0) + 1
        if one.is_marker:
            for earlier in waiting.pop(one.name, []):
                earlier.end, earlier.marker_offset = one.text, one.offset
            ended[one.name] = one.sequence
        elif one.is_record and one.transactional:
            waiting.setdefault(one.name, []).append(one)
    return written


def _bounds(partition: int, line: list[Written], start: int, lso: int | None) -> PartitionBounds:
    if lso is not None:
        return PartitionBounds(partition, start, lso, len(line))
    unsettled = (
        one.offset for one in line if one.is_record and one.transactional and one.end is None
    )
    return PartitionBounds(partition, start, next(unsettled, len(line)), len(line))


def _write(
    made: History,
    partition: int,
    line: list[Written],
    start: int,
    keys: Mapping[tuple[int, int], bytes | None],
    first: int,
    totals: Mapping[tuple[str, int] | None, int],
) -> None:
    lso = made.sink_bounds.partitions[partition - first].lso
    for one in line:
        if one.offset < start or not one.is_record:
            continue
        row = _record(partition, one, keys, totals, first)
        made.uncommitted.append(row)
        settled = one.offset < lso and (one.end == "C" or not one.transactional)
        if (settled or "*" in one.flags) and "~" not in one.flags:
            made.committed.append(row)
    covered = (one for one in line if one.text != "_")
    sequences: dict[str, int] = {}
    for _, run in itertools.groupby(covered, key=_batch_of(line)):
        batch = list(run)
        row = _batch(partition, batch, first, sequences)
        if batch[-1].offset >= start:
            made.batches.append(row)


def _record(
    partition: int,
    one: Written,
    keys: Mapping[tuple[int, int], bytes | None],
    totals: Mapping[tuple[str, int] | None, int],
    first: int,
) -> tuple[Any, ...]:
    headers: list[tuple[str, bytes]] = []
    key: bytes | None = b"?"
    if one.text != "?":
        place, _, index = one.text.partition("#")
        source, _, offset = place.rpartition(".")
        lineage = Lineage(SOURCE, first + int(source or 0), int(offset), int(index or 0))
        headers.append((LINEAGE_HEADER, format_lineage(lineage)))
        key = keys.get(
            (int(source or 0), lineage.offset), f"{int(source or 0)}.{lineage.offset}".encode()
        )
    if (name := _transaction(one)) is not None:
        transaction = Transaction(
            f"{name[0]}-{first}", name[1], 1, "task", one.total or totals[name]
        )
        headers.append((TRANSACTION_HEADER, format_transaction(transaction)))
    return (
        partition,
        one.offset,
        BEGAN + timedelta(seconds=one.offset),
        key,
        one.text.encode(),
        headers,
    )


def _transaction(one: Written) -> tuple[str, int] | None:
    """The producer and sequence that a record's header names; None without one."""
    if not one.is_record or one.named == "" or (one.named is None and not one.transactional):
        return None
    named = one.named or str(one.sequence)
    return (one.name, int(named)) if named.isdecimal() else (named[0], int(named[1:]))


def _batch_of(line: list[Written]) -> Any:
    """A key that changes where a new batch begins: with the producer, a marker, a lost batch,
    another transaction."""

    def key(one: Written) -> tuple[Any, ...]:
        if one.is_marker:
            return one.offset, "marker"
        record = (
            one
            if one.is_record
            else next(two for two in reversed(line[: one.offset]) if two.is_record)
        )
        skips = sum("^" in two.flags for two in line[: one.offset + 1])
        lost = sum(two.text == "_" for two in line[: one.offset])
        return record.producer, record.sequence, record.transactional, lost, skips

    return key


def _batch(
    partition: int, batch: list[Written], story: int, sequences: dict[str, int]
) -> tuple[Any, ...]:
    """`story`: the number of its first partition; `sequences`: the next one of each producer and
    epoch, moved on."""
    first, last = batch[0], batch[-1]
    control = {"C": "COMMIT", "A": "ABORT"}.get(first.text)
    count = sum(one.text != "x" for one in batch)
    transactional = first.is_marker or first.transactional
    sequence = -1
    if transactional and not first.is_marker:
        sequence = sequences.get(first.producer, 0) + ("^" in first.flags)
        sequences[first.producer] = sequence + last.offset - first.offset + 1
    identity = (
        _producer_id(first.name, story) if transactional else -1,
        first.epoch if transactional else -1,
        sequence,
    )
    return (
        partition,
        first.offset,
        last.offset,
        count,
        *identity,
        transactional,
        control,
        0,
        0,
        100,
        "none",
        0,
    )


def _producer_id(name: str, story: int) -> int:
    return 1000 * (1 + story) + ord(name)
