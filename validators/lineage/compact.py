"""The header that names a record's input and its transaction in one binary value.

Header `topicproof`, big-endian. Its fields follow each other without gaps:

    1   version, 1
    16  topic id of the source; zeros if the sink may not ask for it
    4   partition of the input
    8   offset of the input
    4   index of the record among the input's outputs, from 0
    1   length of the source's name, then the name

and only of a record that was produced in a transaction:

    8   sequence of the transaction under its transactional id, from 1
    4   attempt of this sequence, from 1
    8   records of the whole transaction over all sink partitions
    8   token of the Spark task, ASCII
    2   length of the transactional id, then the id, in UTF-8

Numbers have a sign and are not negative. Nothing follows the last field. Any other value names
nothing: neither input nor transaction. The same is written down for other languages in
docs/INTERNALS.md, and in Spark expressions in validators/lineage/header_columns.py.

Records of earlier versions have two headers of text in its place (validators/lineage/headers.py).
A program may pass on the headers of its input, so a record may have all three. The last one counts.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    Lineage,
    Transaction,
    format_lineage,
    format_transaction,
    parse_lineage,
    parse_transaction,
)

COMPACT_HEADER = "topicproof"
VERSION = 1
NO_TOPIC_ID = bytes(16)
_PLACE = struct.Struct(">B16siqiB")
_TRANSACTION = struct.Struct(">qiq8sH")
INDEXED = struct.Struct(">qi")
"""Offset and output index: all that differs from record to record of one source and
transaction."""
PLACE_BYTES = _PLACE.size
TRANSACTION_BYTES = _TRANSACTION.size
BYTES_MAX = PLACE_BYTES + 249 + TRANSACTION_BYTES + 65_535
"""No valid header is longer."""
OFFSET_AT = 21
"""Bytes before the offset."""
TOPIC_NAME = "[a-zA-Z0-9._-]{1,249}"
"""Kafka allows no other name."""
TASK_TOKEN = "[!-.0-~]{8}"
"""Eight characters of ASCII that can be seen, and no slash."""

Headers = Iterable[tuple[str, bytes | None]]


class Origin(NamedTuple):
    """What the header of a record says."""

    lineage: Lineage
    topic_id: str | None
    """The id of the source, as Kafka's own tools print it; None if the header has none."""
    transaction: Transaction | None
    """None outside transactions."""


def format_place(topic_id: bytes, partition: int) -> bytes:
    """Returns what comes before `INDEXED`. Raises ValueError for an id that has not 16 bytes."""
    if len(topic_id) != len(NO_TOPIC_ID):
        raise ValueError(f"A topic id has 16 bytes, not {len(topic_id)}.")
    return struct.pack(">B16si", VERSION, topic_id, partition)


def format_topic(topic: str) -> bytes:
    """Returns the source's name with its length."""
    return struct.pack("B", len(topic)) + topic.encode()


def format_in_transaction(transaction: Transaction) -> bytes:
    """Returns what follows the source's name. Raises ValueError if it could not be read back."""
    name, task = transaction.transactional_id.encode(), transaction.task
    if b"/" in name or not name or not re.fullmatch(TASK_TOKEN, task):
        raise ValueError(
            f"The transactional id {transaction.transactional_id!r} or the task {task!r} cannot be"
            " read back."
        )
    numbers = transaction.sequence, transaction.attempt, transaction.total
    return _TRANSACTION.pack(*numbers, task.encode(), len(name)) + name


def format_compact(
    lineage: Lineage, topic_id: bytes = NO_TOPIC_ID, transaction: Transaction | None = None
) -> bytes:
    """Formats a whole header. Raises ValueError if it could not be read back."""
    return (
        format_place(topic_id, lineage.partition)
        + INDEXED.pack(lineage.offset, lineage.output_index)
        + format_topic(lineage.topic)
        + (b"" if transaction is None else format_in_transaction(transaction))
    )


def parse_compact(value: bytes | None) -> Origin | None:
    """Parses a header; None if it is not valid."""
    if value is None or len(value) < PLACE_BYTES:
        return None
    version, topic_id, partition, offset, index, length = _PLACE.unpack_from(value)
    end = PLACE_BYTES + length
    topic = value[PLACE_BYTES:end]
    if version != VERSION or min(partition, offset, index) < 0 or len(topic) < length:
        return None
    if not re.fullmatch(TOPIC_NAME.encode(), topic):
        return None
    transaction = None
    if len(value) > end and (transaction := _transaction_at(value, end)) is None:
        return None
    return Origin(
        Lineage(topic.decode(), partition, offset, index), printed_id(topic_id), transaction
    )


def printed_id(topic_id: bytes) -> str | None:
    """Returns a topic id as Kafka's own tools print it; None for zeros."""
    if not any(topic_id):
        return None
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def lineage_of(headers: Headers) -> Lineage | None:
    """Returns the input that a record's headers name, in either form."""
    last = _last(headers, LINEAGE_HEADER)
    if last is None:
        return None
    name, value = last
    if name == LINEAGE_HEADER:
        return parse_lineage(value)
    origin = parse_compact(value)
    return None if origin is None else origin.lineage


def transaction_of(headers: Headers) -> Transaction | None:
    """Returns the transaction that a record's headers name, in either form."""
    last = _last(headers, TRANSACTION_HEADER)
    if last is None:
        return None
    name, value = last
    if name == TRANSACTION_HEADER:
        return parse_transaction(value)
    origin = parse_compact(value)
    return None if origin is None else origin.transaction


def lineage_value(headers: Headers) -> bytes | None:
    """Returns the value of the header that names a record's input, in either form, readable or
    not. None without one."""
    last = _last(headers, LINEAGE_HEADER)
    return None if last is None else last[1]


def describe_compact(value: bytes | None) -> dict[str, str] | None:
    """Returns what a header names, as texts for people; None if it is not valid."""
    origin = parse_compact(value)
    if origin is None:
        return None
    texts = {"input": format_lineage(origin.lineage).decode()}
    if origin.topic_id is not None:
        texts["topic id"] = origin.topic_id
    if origin.transaction is not None:
        texts["transaction"] = format_transaction(origin.transaction).decode()
    return texts


def _last(headers: Headers, name_before: str) -> tuple[str, bytes | None] | None:
    """Returns the last header of either name, as in Kafka: a program may pass on its input's."""
    last = None
    for header in headers:
        if header[0] in (COMPACT_HEADER, name_before):
            last = header
    return last


def _transaction_at(value: bytes, at: int) -> Transaction | None:
    if len(value) < at + TRANSACTION_BYTES:
        return None
    sequence, attempt, total, task, length = _TRANSACTION.unpack_from(value, at)
    transactional_id = value[at + TRANSACTION_BYTES :]
    if (
        min(sequence, attempt, total) < 0
        or not re.fullmatch(TASK_TOKEN.encode(), task)
        or len(transactional_id) != length
        or not length
        or b"/" in transactional_id
    ):
        return None
    try:
        return Transaction(transactional_id.decode(), sequence, attempt, task.decode(), total)
    except UnicodeDecodeError:
        return None
