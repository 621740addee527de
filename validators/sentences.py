"""The wording of counts: here and nowhere else, numbers agree with their nouns and verbs."""

from __future__ import annotations

import re
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


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 input`, `1,234 inputs`."""
    return f"{count:,} {plural(count, noun) if nouns is None else Forms(noun, nouns).of(count)}"


def plural(count: int, noun: str) -> str:
    """Returns the noun, with an s unless there is one."""
    return noun if count == 1 else f"{noun}s"


def transaction_text(transaction: str) -> str:
    """Labels the parts of a row's transaction: `a-0/2/1` -> `transactional id a-0, transaction 2 of
    it, attempt 1`. What the logs tell of a transaction has its labels already."""
    parts = _OF_HEADER.fullmatch(transaction)
    if parts is None:
        return transaction
    transactional_id, sequence, attempt = parts.groups()
    return f"transactional id {transactional_id}, transaction {sequence} of it, attempt {attempt}"
