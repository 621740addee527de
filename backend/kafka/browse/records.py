"""A window of one partition, offset by offset, at both isolation levels and with the raw log's
account.

An offset without a record is a row too: a marker, or a hole left by compaction or deletion.
"""

from __future__ import annotations

import codecs
import time
import unicodedata
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
from confluent_kafka import Message

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.formats.frames import SCHEMA_HEADERS
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.browse.explain import Account, Transaction, fate_of, why
from topicproof.backend.kafka.browse.readable import reader_limits, require_readable_spans
from topicproof.backend.kafka.client_configs import FetchLimits
from topicproof.backend.kafka.reading import (
    RECORD_BYTES,
    NotText,
    RecordBudget,
    as_bytes,
    content_bytes,
    headers_in,
    open_consumer,
    read_range,
)
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.lineage.compact import lineage_of, lineage_value, transaction_of
from topicproof.validators.lineage.headers import format_lineage

GRACE_S = 1.0
"""How long to wait for unexpected records once all expected ones have arrived."""
WINDOW_BYTES_MAX = 64_000_000
"""What the records of a window may take together. It ends before the first that does not fit."""
JOINERS = "\u200c\u200d"
TEXT_CHARACTERS = 200
ID_CHARACTERS = 100
"""Kept of a transactional id. A header has room for 65 kB, and one emoji in them makes that four
times as much memory."""

_UTF8_BYTES_MAX = 4

Headers = tuple[tuple[str, bytes | None], ...]
NAME_CHARACTERS = 249
"""Kept of a header's name. One may have 32 MB, in some hundred bytes of the log."""
HEADERS_MAX = 1_000
"""How many headers of a record are kept. Two bytes of the log are enough for one, and a record may
have 100,000 of them."""
UNREADABLE = "(headers that cannot be read: a name is not UTF-8)"
"""Stands for the headers of a record that librdkafka's Python client cannot give: any bytes may be
a name for Kafka."""


@dataclass(frozen=True)
class Record:
    """One offset of a partition: a record, a marker, or a hole."""

    partition: int
    offset: int
    timestamp_ms: int | None
    """None without a record."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    fate: Fate
    delivered: bool
    """Whether a read_committed consumer received it."""
    transaction: str | None
    """`<transactional id>/<sequence>, attempt <n>` from our header, else the producer; None outside
    transactions. An id is cut to `ID_CHARACTERS`."""
    why: str
    """Why a read_committed consumer does or does not receive this offset."""
    marker: bool = False
    """Whether it is a marker. Above the last stable offset its fate is PENDING nevertheless."""

    @property
    def kept_bytes(self) -> int:
        """What it takes in memory."""
        return RECORD_BYTES + content_bytes(self.key, self.value, self.headers)

    @property
    def lineage(self) -> str | None:
        """`topic/partition/offset/index` of the input of this record, if our sink wrote it. The
        header itself if it cannot be read."""
        lineage, value = lineage_of(self.headers), lineage_value(self.headers)
        if lineage is not None:
            value = format_lineage(lineage)
        return None if value is None else as_text(value)


def read_window(
    address: Address,
    topic: str,
    partition: int,
    first: int,
    count: int,
    bounds: Bounds,
    ranges: pd.DataFrame,
) -> list[Record]:
    """Return a `Record` for every offset of [first, first + count) that lies in the bounds, in
    offset order; only of the first offsets if their records take more than `WINDOW_BYTES_MAX`, and
    of one at least.

    `ranges` are the `fates.fate_ranges` of the same bounds. Each level has its own consumer, which
    reads up to the LSO or the high watermark. Raises TopicError when the partition is not in the
    bounds or its records were deleted meanwhile, ClusterError when the records do not arrive in
    time.
    """
    matches = [p for p in bounds.partitions if p.partition == partition]
    if not matches:
        raise TopicError(
            f"Topic {topic} has no partition {partition}; it has {len(bounds.partitions)}."
        )
    (p,) = matches
    low, end = max(first, p.start), min(first + count, p.hw)
    if low >= end:
        return []
    partition_ranges = ranges[ranges["partition"] == partition]
    accounts = _accounts(partition_ranges, low, end)
    require_readable_spans(address, topic, ranges, {partition: (low, end)})
    limits = reader_limits(ranges)

    def at_level(isolation: str, stop: int) -> _Level:
        everything = isolation == client_configs.READ_UNCOMMITTED
        due = {
            o
            for o, account in accounts.items()
            if account.held and (everything or account.fate == Fate.COMMITTED)
        }
        return _read(address, topic, isolation, partition, (low, stop), due, limits)

    with ThreadPoolExecutor(2) as pool:
        # At the same time: each mostly waits for the brokers.
        uncommitted = pool.submit(at_level, client_configs.READ_UNCOMMITTED, end)
        committed = pool.submit(at_level, client_configs.READ_COMMITTED, min(end, p.lso))
    levels = uncommitted.result(), committed.result()
    # Where the budget of one level ended, the other one may have gone on.
    cut = min((level.cut for level in levels if level.cut is not None), default=end)
    accounts = {offset: account for offset, account in accounts.items() if offset < cut}
    transactions = _transactions(
        partition_ranges, {account.transaction for account in accounts.values()}
    )
    return _records(
        partition, p.lso, accounts, transactions, levels[0].messages, levels[1].messages
    )


def is_printable(text: str, also: str = "") -> bool:
    """Whether a text can be shown as it is: printable characters, spaces of every script, the
    joiners of emoji and of Persian, and `also`. Not so: controls, and what turns the direction."""
    return text.isprintable() or all(
        character.isprintable()
        or character in also
        or character in JOINERS
        or unicodedata.category(character) == "Zs"
        for character in text
    )


def as_text(value: bytes | None, limit: int = TEXT_CHARACTERS) -> str:
    """Show bytes as text: UTF-8 if printable, else hexadecimal after `0x`. `…` marks a cut. Null is
    empty."""
    if value is None:
        return ""
    start = value[: _UTF8_BYTES_MAX * limit + 1]
    try:
        # Not final when cut: the cut may fall inside a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(value))
    except UnicodeDecodeError:
        text = ""
    if not is_printable(text, "\t\n\r") or (value and not text):
        text = "0x" + start[:limit].hex()
    return text if len(text) <= limit else text[:limit] + "…"


def _accounts(ranges: pd.DataFrame, low: int, end: int) -> dict[int, Account]:
    """Return the account of each offset of [low, end), from the ranges of one partition."""
    accounts = {}
    inside = ranges[(ranges["last_offset"] >= low) & (ranges["first_offset"] < end)]
    for row in pa.Table.from_pandas(inside, preserve_index=False).to_pylist():
        span = row["last_offset"] - row["first_offset"] + 1
        account = Account(
            fate=Fate(row["fate"]),
            control=row["control"],
            held=row["records"] == span,
            thinned=0 < row["records"] < span,
            transactional=row["transactional"],
            transaction=row["transaction"],
            producer_id=row["producer_id"],
        )
        for offset in range(max(row["first_offset"], low), min(row["last_offset"] + 1, end)):
            accounts[offset] = account
    return accounts


def _transactions(ranges: pd.DataFrame, numbers: Collection[int | None]) -> dict[int, Transaction]:
    """Return the transactions with an offset in the window."""
    transactions: dict[int, Transaction] = {}
    rows = ranges[ranges["transaction"].isin([number for number in numbers if number is not None])]
    for row in pa.Table.from_pandas(rows, preserve_index=False).to_pylist():
        earlier = transactions.get(row["transaction"])
        begun = earlier.first_offset if earlier else row["first_offset"]
        if row["control"] is None:
            transactions[row["transaction"]] = Transaction(begun, None, None)
        else:
            transactions[row["transaction"]] = Transaction(
                begun, row["first_offset"], row["control"]
            )
    return transactions


class _Level(NamedTuple):
    """What a consumer at one level received of a window."""

    messages: Mapping[int, Message]
    """By offset."""
    cut: int | None
    """The first offset that its budget had no room for; None if all are there."""


def _read(
    address: Address,
    topic: str,
    isolation: str,
    partition: int,
    span: tuple[int, int],
    due: set[int],
    limits: FetchLimits,
) -> _Level:
    """Read the records of [first, end), within half of `WINDOW_BYTES_MAX`. `due` are the offsets
    that must arrive.

    A consumer does not report markers and aborted records that it skips. So reading also ends when
    nothing more is due and a moment has passed.
    """
    messages: dict[int, Message] = {}
    missing = set(due)
    budget, cut = RecordBudget(WINDOW_BYTES_MAX // 2), None
    deadline = time.monotonic() + client_configs.REQUEST_TIMEOUT_MS / 1000
    with open_consumer(address, topic, isolation, limits) as consumer:
        for message in read_range(consumer, topic, {partition: span}):
            if message is not None:
                offset = message.offset() or 0
                shorten_headers(message)
                budget.hold(as_bytes(message.key()), as_bytes(message.value()), headers_of(message))
                if budget.is_spent and messages:
                    cut = offset
                    missing = {other for other in missing if other < offset}
                    break
                messages[offset] = message
                missing.discard(offset)
            if not missing:
                deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() > deadline:
                break
    if missing:
        raise ClusterError(
            f"{topic}-{partition} did not deliver offset {min(missing)} within"
            f" {client_configs.REQUEST_TIMEOUT_MS // 1000} s. Check that its broker answers, and"
            " read again."
        )
    return _Level(messages, cut)


def _records(
    partition: int,
    lso: int,
    accounts: Mapping[int, Account],
    transactions: Mapping[int, Transaction],
    uncommitted: Mapping[int, Message],
    committed: Mapping[int, Message],
) -> list[Record]:
    def name_of(offset: int) -> str | None:
        return _name(headers_of(uncommitted.get(offset) or committed.get(offset)))

    # A marker has no headers, so it takes the name from the records of its transaction.
    names: dict[int | None, str] = {
        account.transaction: name
        for offset, account in accounts.items()
        if account.transaction is not None and (name := name_of(offset))
    }
    records = []
    for offset, account in sorted(accounts.items()):
        message = uncommitted.get(offset) or committed.get(offset)
        headers = headers_of(message)
        fate = fate_of(account, message is not None)
        producer = f"producer {account.producer_id}" if account.transactional else None
        transaction = None if account.transaction is None else transactions[account.transaction]
        records.append(
            Record(
                partition=partition,
                offset=offset,
                timestamp_ms=None if message is None else message.timestamp()[1],
                key=None if message is None else as_bytes(message.key()),
                value=None if message is None else as_bytes(message.value()),
                headers=headers,
                fate=fate,
                delivered=offset in committed,
                transaction=name_of(offset) or names.get(account.transaction, producer),
                why=why(account, fate, transaction, offset in committed, message is not None, lso),
                marker=account.control is not None,
            )
        )
    return records


def _name(headers: Headers) -> str | None:
    """Describe the transaction in our header."""
    transaction = transaction_of(headers)
    return (
        None
        if transaction is None
        else f"{transaction.transactional_id[:ID_CHARACTERS]}/{transaction.sequence},"
        f" attempt {transaction.attempt}"
    )


def shorten_headers(message: Message) -> int:
    """Cut the names of a record's headers to `NAME_CHARACTERS`. Keep the first and the last of more
    than `HEADERS_MAX`, and between them those by which it is decoded. Returns the bytes that all of
    them took in memory."""
    headers = headers_of(message)
    size = content_bytes(None, None, headers)
    names_max = max((len(name) for name, _ in headers), default=0)
    left_out = len(headers) - HEADERS_MAX
    shortened = headers
    if left_out > 0:
        half = HEADERS_MAX // 2
        named = dict(headers[half:-half])  # Of a name that occurs twice, the last.
        schemas = [(name, named[name]) for name in SCHEMA_HEADERS.values() if name in named]
        note = (f"({left_out - len(schemas):,} headers between, not kept)", None)
        shortened = (*headers[:half], note, *schemas, *headers[-half:])
    if names_max > NAME_CHARACTERS:
        shortened = tuple((_cut_name(name), content) for name, content in shortened)
    if shortened is not headers:
        message.set_headers(list(shortened))
    return size


def _cut_name(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[:NAME_CHARACTERS]}…"


def headers_of(message: Message | None) -> Headers:
    """Return a message's headers in order; names may repeat."""
    if message is None:
        return ()
    try:
        return tuple((name, as_bytes(value)) for name, value in headers_in(message))
    except NotText:
        # It may be asked again.
        message.set_headers([(UNREADABLE, None)])
        return ((UNREADABLE, None),)
