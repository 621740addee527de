"""Durations for people: every age, timeout and time that is shown."""

from __future__ import annotations

from collections.abc import Callable

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS = ((DAY_MS, HOUR_MS), (HOUR_MS, MINUTE_MS), (MINUTE_MS, SECOND_MS))
"""Each unit with the next smaller one."""
_WORDS = {DAY_MS: "day", HOUR_MS: "hour", MINUTE_MS: "minute", SECOND_MS: "second"}
_SHORT = {DAY_MS: "d", HOUR_MS: "h", MINUTE_MS: "min", SECOND_MS: "s"}
_FINE = 10
"""From this many of a unit on, the smaller unit is left out."""


def in_words(ms: float) -> str:
    """Format for a sentence: `812 ms`, `2.3 s`, `45 s`, `1 minute 40 seconds`, `15 minutes`."""
    return _formatted(ms, lambda value, unit: f"{_WORDS[unit]}{'' if value == 1 else 's'}")


def brief(ms: float) -> str:
    """Format for a column: `812 ms`, `2.3 s`, `45 s`, `1 min 40 s`, `15 min`, `3 h`, `12 d`."""
    return _formatted(ms, lambda _value, unit: _SHORT[unit])


def _formatted(ms: float, name: Callable[[int, int], str]) -> str:
    if abs(ms) < SECOND_MS:
        return f"{ms:,.0f} ms"
    if round(abs(ms) / SECOND_MS) < MINUTE_MS // SECOND_MS:
        return f"{ms / SECOND_MS:.{int(abs(ms) < _FINE * SECOND_MS)}f} s"
    for unit, smaller in _STEPS:
        # Rounded first, so that 59 minutes 59.9 seconds are an hour.
        whole = round(abs(ms) / smaller) * smaller
        if whole >= unit:
            break
    count, rest = divmod(whole, unit)
    if count >= _FINE:
        count, rest = round(abs(ms) / unit), 0
    parts = ((count, unit), (rest // smaller, smaller))
    text = " ".join(f"{value:,} {name(value, part_unit)}" for value, part_unit in parts if value)
    return f"-{text}" if ms < 0 else text
