"""The fast path to a ledger's counts, compared with the full scan of each record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from topicproof.validators.finding import Guarantee
from topicproof.validators.judge import judge
from topicproof.validators.ledger import build as ways
from topicproof.validators.ledger.ledger import Ledger

COUNTED = (
    *(
        "sink_bounds",
        "heard",
        "headers",
        "ends",
        "hidden",
        "repeats_count",
        "inputs_count",
        "aborted_inputs",
    ),
    *(
        "journaled",
        "written_count",
        "writers",
        "outputs_count",
        "lines",
        "balance",
        "transactions",
        "doubts",
    ),
)


def rows(ledger: Ledger) -> list[tuple[Any, ...]]:
    found = ledger.named.collect()
    return sorted(
        (tuple(row[name] for name in sorted(ledger.named.columns)) for row in found), key=str
    )


def assert_the_same(short: Ledger, long: Ledger) -> None:
    assert short.sound, "this is about the short way"
    assert not long.sound
    for name in COUNTED:
        assert getattr(short, name) == getattr(long, name), name
    assert set(short.cells) == set(long.cells)
    assert sorted(short.ids) == sorted(long.ids)
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
        patch.setattr(ways, "_shortly", lambda _given: None)
        yield


def assert_both_ways_count_the_same(ledger: Callable[[], Ledger]) -> None:
    """`ledger` builds it again each time, with its own evidence."""
    short = ledger()
    with no_short_way():
        long = ledger()
    assert_the_same(short, long)
