"""The two headers that our sink writes on every record, so that each record says where it came
from.

`topicproof-lineage`      `<source topic>/<partition>/<offset>/<output index>`
`topicproof-transaction`  `<transactional id>/<sequence>/<attempt>/<task>/<total>`

Both are UTF-8 text in canonical form: parsing and formatting again gives the same text, or it is
not one of ours. The ledger reads them with Spark expressions; the functions here are the same rule
for everybody else.
"""

from __future__ import annotations

from typing import NamedTuple

LINEAGE_HEADER = "topicproof-lineage"
TRANSACTION_HEADER = "topicproof-transaction"
REASON_HEADER = "topicproof-reason"
"""Says, on a dead letter, why it is one."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Lineage(NamedTuple):
    """Which output of which input a record is."""

    topic: str
    partition: int
    offset: int
    output_index: int
    """Which of the input's outputs, counted from 0."""


class Transaction(NamedTuple):
    """Which transaction a record was produced in."""

    transactional_id: str
    sequence: int
    """Counts the transactions of this transactional id from 1; a replay has the sequence of what it
    replays."""
    attempt: int
    """Counts the tries of this sequence from 1."""
    task: str
    """A random token of the Spark task that produced it."""
    total: int
    """Records of the whole transaction over all sink partitions: a smaller count means that it is
    torn."""


def format_lineage(lineage: Lineage) -> bytes:
    return "{}/{}/{}/{}".format(*lineage).encode()


def parse_lineage(value: bytes | None) -> Lineage | None:
    """The lineage that a header's value spells, or None if it spells none."""
    parts = _parts(value, 4)
    if parts is None:
        return None
    topic, numbers = parts[0], _numbers(parts[1:], (INT_MAX, LONG_MAX, INT_MAX))
    return Lineage(topic, *numbers) if topic and numbers else None


def format_transaction(transaction: Transaction) -> bytes:
    """Raises ValueError when the transactional id or the task holds a slash, which could not be
    read back."""
    if "/" in transaction.transactional_id + transaction.task:
        raise ValueError(
            f"A slash in {transaction.transactional_id!r} or {transaction.task!r} cannot be read"
            " back."
        )
    return "{}/{}/{}/{}/{}".format(*transaction).encode()


def parse_transaction(value: bytes | None) -> Transaction | None:
    """The transaction that a header's value spells, or None if it spells none."""
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


def _numbers(texts: list[str], highest: tuple[int, ...]) -> list[int]:
    """The texts as numbers, or an empty list if one is not canonical: `+1`, `01` and ` 1` are none
    of ours."""
    if not all(text.isascii() and text.isdecimal() and str(int(text)) == text for text in texts):
        return []
    numbers = [int(text) for text in texts]
    return (
        numbers
        if all(number <= limit for number, limit in zip(numbers, highest, strict=True))
        else []
    )
