"""Inputs and transactions of records as text, and the two headers of earlier versions that hold it.

`topicproof-lineage`      `<source topic>/<partition>/<offset>/<output index>`
`topicproof-transaction`  `<transactional id>/<sequence>/<attempt>/<task>/<total>`

Both are UTF-8 text in canonical form: if parsing and formatting changes the text, it is not one of
ours. Versions after 0.3.0 write one binary header in their place (validators/lineage/compact.py).
What it says is the same text everywhere behind the place where it is read.
"""

from __future__ import annotations

from typing import NamedTuple

LINEAGE_HEADER = "topicproof-lineage"
TRANSACTION_HEADER = "topicproof-transaction"
REASON_HEADER = "topicproof-reason"
"""The reason, on a dead letter."""
PACKED_HEADER = "topicproof-packed"
"""The lineage of many records, on the first of them. Earlier versions wrote it. It is not read any
more, only recognized: its records are not without lineage."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Lineage(NamedTuple):
    """The input and output index of a record."""

    topic: str
    partition: int
    offset: int
    output_index: int
    """The record's index among the input's outputs, counted from 0."""


class Transaction(NamedTuple):
    """The transaction that a record was produced in."""

    transactional_id: str
    sequence: int
    """Number of the transaction under this transactional id, counted from 1. A replay keeps the
    sequence of the original."""
    attempt: int
    """Number of the try of this sequence, counted from 1."""
    task: str
    """A random token of the Spark task that produced the record."""
    total: int
    """Records of the whole transaction over all sink partitions; fewer records mean a torn
    transaction."""


def format_lineage(lineage: Lineage) -> bytes:
    return "{}/{}/{}/{}".format(*lineage).encode()


def parse_lineage(value: bytes | None) -> Lineage | None:
    """Parses a lineage header; None if it is not valid."""
    parts = _parts(value, 4)
    if parts is None:
        return None
    topic, numbers = parts[0], _numbers(parts[1:], (INT_MAX, LONG_MAX, INT_MAX))
    return Lineage(topic, *numbers) if topic and numbers else None


def format_transaction(transaction: Transaction) -> bytes:
    """Formats a transaction. Raises ValueError if the transactional id or the task contains a
    slash, which could not be parsed."""
    if "/" in transaction.transactional_id + transaction.task:
        raise ValueError(
            f"A slash in {transaction.transactional_id!r} or {transaction.task!r} cannot be read"
            " back."
        )
    return "{}/{}/{}/{}/{}".format(*transaction).encode()


def parse_transaction(value: bytes | None) -> Transaction | None:
    """Parses a transaction header; None if it is not valid."""
    parts = _parts(value, 5)
    if parts is None:
        return None
    transactional_id, sequence, attempt, task, total = parts
    numbers = _numbers([sequence, attempt, total], (LONG_MAX, INT_MAX, LONG_MAX))
    if not transactional_id or not task or not numbers:
        return None
    return Transaction(transactional_id, numbers[0], numbers[1], task, numbers[2])


def _parts(value: bytes | None, count: int) -> list[str] | None:
    try:
        parts = (value or b"").decode().split("/")
    except UnicodeDecodeError:
        return None
    return parts if len(parts) == count else None


def _canonical(text: str) -> bool:
    # Longer texts are no offsets, and Python refuses to convert thousands of digits.
    short = len(text) <= len(str(LONG_MAX))
    return short and text.isascii() and text.isdecimal() and str(int(text)) == text


def _numbers(texts: list[str], highest: tuple[int, ...]) -> list[int]:
    """Parses canonical numbers; an empty list if one is not canonical: we never write `+1`, `01` or
    ` 1`."""
    if not all(map(_canonical, texts)):
        return []
    numbers = [int(text) for text in texts]
    return (
        numbers
        if all(number <= limit for number, limit in zip(numbers, highest, strict=True))
        else []
    )
