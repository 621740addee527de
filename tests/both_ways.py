"""The fast path to a ledger's counts, compared with the full scan of each record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from topicproof.validators.finding import Guarantee
from topicproof.validators.judge import judge
from topicproof.validators.ledger import build as ways
from topicproof.validators.ledger.ledger import Ledger

COUNTED = (
    "sink_bounds",
    "accounts.heard",
    "accounts.journaled",
    "counts.headers",
    "counts.ends",
    "counts.hidden",
    "counts.repeats",
    "counts.inputs.judged",
    "counts.inputs.aborted",
    "counts.writers",
    "counts.outputs",
    "counts.lines",
    "balance",
    "transactions",
    "doubts",
)


def rows(ledger: Ledger) -> list[tuple[Any, ...]]:
    found = ledger.frames.named.collect()
    return sorted(
        (tuple(row[name] for name in sorted(ledger.frames.named.columns)) for row in found), key=str
    )


def assert_the_same(short: Ledger, long: Ledger) -> None:
    assert short.counts.proved, "this is about the short way"
    assert not long.counts.proved
    for name in COUNTED:
        assert attrgetter(name)(short) == attrgetter(name)(long), name
    assert set(short.counts.cells) == set(long.counts.cells)
    assert sorted(short.counts.ids) == sorted(long.counts.ids)
    assert rows(short) == rows(long)
    assert (
        short.sink.orderBy("partition", "offset").collect()
        == long.sink.orderBy("partition", "offset").collect()
    )
    reports = [replace(judge(one, Guarantee.EXACTLY_ONCE), took_s=0) for one in (short, long)]
    assert reports[0] == reports[1]


@contextmanager
def no_short_way() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "counts_by_proof", lambda _input: None)
        yield


def assert_both_ways_count_the_same(ledger: Callable[[], Ledger]) -> None:
    """`ledger` builds it again each time, with its own evidence."""
    short = ledger()
    with no_short_way():
        long = ledger()
    assert_the_same(short, long)
