"""Every topic of the catalogue, judged increment by increment: a watch finds what a check finds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message

from tests.validators.history import SINK, SOURCE, History, history, table_of
from tests.validators.test_kinds import STORIES, Story
from topicproof.backend.kafka.log.batches import SCHEMA
from topicproof.backend.watch.pair_reader import LogSpan, LongTransactions, fold_log, read_log
from topicproof.backend.watch.record_reader import MatchTerms, PlaceReader
from topicproof.validators.expectation import REQUIRED
from topicproof.validators.facts.log_facts import BATCH_COLUMNS
from topicproof.validators.finding import Bounds, Guarantee
from topicproof.validators.increments.watch_verdict import WATCHED, WatchTerms, verdict_of
from topicproof.validators.increments.watched_pair import SourceSpan, WatchedPair

FOR_EVER = 10**15
SEEDS = range(3)
WITHOUT_JOURNAL: dict[str, dict[tuple[str, str | None], int]] = {
    "committed against the journal": {},
    "aborted against the journal": {("gap", None): 1},
    "come back": {},
}
"""What a check finds of these stories by the journal of a run, which no watch has."""


class StoryLog:
    """The raw log of a story, in place of a connection's."""

    def __init__(self, made: History) -> None:
        self.batches = table_of(made.batches, BATCH_COLUMNS)

    def scan(
        self, _topic: str, bounds: Bounds, *, part_of: Bounds, readable: bool, **_options: object
    ) -> pa.Table:
        """Return the batches that a reader of these ranges gets."""
        assert readable and len(part_of.partitions) == len(bounds.partitions)
        ranges = {p.partition: p for p in bounds.partitions}
        rows = [
            row
            for row in self.batches.to_pylist()
            if (p := ranges.get(row["partition"])) is not None
            and row["last_offset"] >= p.start
            and row["base_offset"] < p.hw
        ]
        table = pa.Table.from_pylist(rows, self.batches.schema)
        sizes = pa.array([0] * len(rows), pa.int64())
        return table.append_column("inflated", sizes).cast(SCHEMA)


def messages(rows: list[tuple[Any, ...]]) -> Iterator[Message]:
    for partition, offset, written, key, value, headers in sorted(rows, key=lambda row: row[:2]):
        at_ms = int(written.timestamp() * 1_000)
        yield Message(SINK, partition, offset, key, value, headers, timestamp=(1, at_ms))


def watched(made: History, chance: random.Random) -> dict[tuple[str, str | None], int]:
    """Fold a story in slices of random lengths. Returns the rows of each kind and what explains
    them."""
    pair = WatchedPair(SOURCE, SINK, outputs=1, within_ms=0)
    reader = PlaceReader(SOURCE, MatchTerms(by_key=False))
    log, long_transactions = StoryLog(made), LongTransactions()
    sink_at = {p.partition: p.start for p in made.sink_bounds.partitions}
    source_at = {p.partition: p.start for p in made.source_bounds.partitions}
    for number, start in sink_at.items():
        pair.sink_lost[number] += start
    everything = False
    while not everything:
        everything = chance.random() < 0.3
        for p in made.source_bounds.partitions:
            begin = source_at[p.partition]
            end = p.lso if everything else chance.randint(begin, p.lso)
            span = SourceSpan(
                p.partition,
                begin,
                end,
                p.hw,
                offsets_in(made.source, p.partition, begin, end),
                offsets_in(made.aborted, p.partition, begin, end),
                np.zeros(0, np.int64),
            )
            pair.add_source(span, now_ms=0)
            source_at[p.partition] = end
        spans = {
            p.partition: (
                sink_at[p.partition],
                p.lso if everything else chance.randint(sink_at[p.partition], p.lso),
            )
            for p in made.sink_bounds.partitions
        }
        read, _ = read_log(
            log,  # type: ignore[arg-type]
            SINK,
            made.sink_bounds,
            spans,
            long_transactions,
            readable=True,
        )
        new = [row for row in made.committed if is_in(row, read)]
        pair.add_sink(fold_log(pair, reader.rows(messages(new)), read))
        sink_at = dict(pair.sink_ends)
        pair.settle(5, is_sink_read=True)
    pair.settle(FOR_EVER, is_sink_read=True)
    open_rows = [row for row in made.uncommitted if row[1] >= sink_at[row[0]]]
    pending = pair.missing_among(reader.rows(messages(open_rows)))
    terms = WatchTerms(Guarantee.EXACTLY_ONCE, REQUIRED[Guarantee.EXACTLY_ONCE])
    verdict = verdict_of(pair, terms, pending=pending)
    rows_of: dict[tuple[str, str | None], int] = Counter()
    for finding in verdict.findings:
        if finding.kind in WATCHED:
            rows_of[finding.kind, None] += finding.primary
            rows_of[finding.kind, finding.explained_by] += finding.count - finding.primary
    return +Counter(rows_of)


def offsets_in(
    rows: list[tuple[Any, ...]], partition: int, begin: int, end: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = [row[1] for row in rows if row[0] == partition and begin <= row[1] < end]
    return np.array(sorted(offsets), np.int64)


def is_in(row: tuple[Any, ...], spans: list[LogSpan]) -> bool:
    return any(row[0] == span.partition and span.begin <= row[1] < span.end for span in spans)


def expected(story: Story) -> dict[tuple[str, str | None], int]:
    """Rows of a check. A watch counts what follows from a record of an aborted transaction with
    that record."""
    return Counter(
        (kind, row[-1])
        for kind, rows in story.found.items()
        if kind in WATCHED
        for row in rows
        if row[-1] != "aborted_read"
    )


@pytest.mark.parametrize("name", STORIES)
def test_a_watch_finds_what_a_check_finds(name: str) -> None:
    """Story: its own, in `STORIES`, whose rows a full check has. The watch folds its topics in
    slices of random lengths."""
    story = STORIES[name]
    made = history(*story.sink, **story.made)
    for seed in SEEDS:
        rows = WITHOUT_JOURNAL.get(name, expected(story))
        assert watched(made, random.Random(seed)) == rows, (seed, story.told)
