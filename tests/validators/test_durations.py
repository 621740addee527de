"""Durations as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from topicproof.validators.sentences import brief, in_words


@pytest.mark.parametrize(
    ("ms", "words", "short"),
    [
        (0, "0 ms", "0 ms"),
        (812, "812 ms", "812 ms"),
        (2_300, "2.3 s", "2.3 s"),
        (45_000, "45 s", "45 s"),
        (59_600, "1 minute", "1 min"),
        (125_000, "2 minutes 5 seconds", "2 min 5 s"),
        (896_800, "15 minutes", "15 min"),
        (3_599_900, "1 hour", "1 h"),
        (12_000_000, "3 hours 20 minutes", "3 h 20 min"),
        (90_000_000, "1 day 1 hour", "1 d 1 h"),
        (12 * 86_400_000, "12 days", "12 d"),
        (-120_000, "-2 minutes", "-2 min"),
    ],
)
def test_a_duration_has_one_or_two_units(ms: int, words: str, short: str) -> None:
    """Story: somebody reads how old a transaction is. Nobody divides 896.8 s by 60."""
    assert (in_words(ms), brief(ms)) == (words, short)


@given(st.integers(60_000, 10**12))
def test_no_duration_is_off_by_more_than_its_last_unit(ms: int) -> None:
    """Story: any age at all. It has at most two units, and is right to half of the smaller one."""
    sizes = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000}
    parts = brief(ms).replace(",", "").split()
    units = parts[1::2]
    assert len(units) <= 2
    value = sum(int(n) * sizes[unit] for n, unit in zip(parts[::2], units, strict=True))
    last = list(sizes.values())[list(sizes).index(units[0]) + 1] if len(units) == 1 else None
    room = sizes[units[-1]] if last is None or int(parts[0]) >= 10 else last
    assert abs(value - ms) <= room / 2
