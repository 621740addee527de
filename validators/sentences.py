"""The wording of counts and durations: here and nowhere else, numbers agree with their nouns and
verbs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_OF_HEADER = re.compile(r"(.+)/(\d+)/(\d+)", re.DOTALL)
"""The transaction of a row of evidence, where the record's header names it."""


class Forms(NamedTuple):
    """A noun or a verb with its complements: for one thing, and for several or none."""

    one: str
    many: str

    def of(self, count: int) -> str:
        return self.one if count == 1 else self.many


class Words(NamedTuple):
    """The words of a kind's sentence. `noun` is what was examined, `bad` is said of what was
    found."""

    noun: Forms
    bad: Forms
    good: Forms | None = None
    """Said of all that was examined, if nothing was found; None: none of it is `bad`."""
    counted: Forms | None = None
    """What the findings count, if not what was examined."""
    outside: Forms | None = None
    """Said of what was found, if all of it lies outside the judged range."""


_ROWS = (
    ("committed record", "row"),
    ("committed output", "row"),
    ("expected output", "expected row"),
    ("is committed", "is in the table"),
    ("are committed", "are in the table"),
    ("copy of its output", "row of its input"),
    ("copies of their outputs", "rows of their inputs"),
)
"""Words about records of a topic, and about rows of a table."""


def of_rows(words: Words) -> Words:
    """Returns the words for a table."""

    def in_rows(forms: Forms) -> Forms:
        texts = list(forms)
        for record, row in _ROWS:
            texts = [text.replace(record, row) for text in texts]
        return Forms(*texts)

    parts = words._asdict().items()
    return words._replace(**{name: in_rows(forms) for name, forms in parts if forms is not None})


def sentence(words: Words, count: int, covered: int) -> str:
    """Returns the clause for `count` findings among `covered` examined things: `3 of 100 inputs
    lack ...`, `all 100 inputs have ...`, `none of 100 batches comes ...`."""
    examined = f"{covered:,} {words.noun.of(covered)}"
    if not count and words.good is not None:
        return f"{portion(covered, covered, words.noun)} {words.good.of(covered)}"
    if not count and covered == 1:
        return f"of {examined.rstrip(',')}, none {words.bad.one}"
    if not count:
        return f"none of {examined} {words.bad.one}"
    if words.counted is not None:
        return f"{counted(count, *words.counted)} {words.bad.of(count)}, among {examined}"
    return f"{portion(count, covered, words.noun)} {words.bad.of(count)}"


def portion(count: int, covered: int, noun: Forms) -> str:
    """`the only input`, `both inputs`, `all 3 inputs`, `2 of 3 inputs`; `count` is not 0."""
    if count != covered:
        return f"{count:,} of {covered:,} {noun.of(covered)}"
    if count == 1:
        return f"the only {noun.one}"
    return f"both {noun.many}" if count == 2 else f"all {count:,} {noun.many}"


def capitalized(text: str) -> str:
    """Returns the text with a capital as its first letter."""
    return f"{text[:1].upper()}{text[1:]}"


def lowered(text: str) -> str:
    """Returns the text with a small first letter."""
    return text[:1].lower() + text[1:]


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 input`, `1,234 inputs`."""
    return f"{count:,} {plural(count, noun) if nouns is None else Forms(noun, nouns).of(count)}"


def plural(count: int, noun: str) -> str:
    """Returns the noun, with an s unless there is one."""
    return noun if count == 1 else f"{noun}s"


def first_of(names: Sequence[str], limit: int) -> str:
    """`a`, `a and b`, `a, b and 7 more`: at most this many of the names."""
    further = len(names) - limit
    parts = [*names[:limit], f"{further:,} more"] if further > 0 else [*names]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def transaction_text(transaction: str) -> str:
    """Labels the parts of a row's transaction: `a-0/2/1` -> `transactional id a-0, transaction 2 of
    it, attempt 1`. What the logs tell of a transaction has its labels already."""
    parts = _OF_HEADER.fullmatch(transaction)
    if parts is None:
        return transaction
    transactional_id, sequence, attempt = parts.groups()
    return f"transactional id {transactional_id}, transaction {sequence} of it, attempt {attempt}"


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


def once_more(inputs: str) -> str:
    """Returns how to process these inputs again, and nothing else, without harm to the pipeline."""
    return (
        f"Process only {inputs} again, in a run of its own: with another transactional.id, because"
        " the pipeline's own would fence it; with these offsets assigned; and without a commit for"
        " the pipeline's group, which would move back and repeat what follows. The outputs will lie"
        " behind those of later inputs."
    )
