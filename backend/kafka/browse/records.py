"""A window of one partition, record by record, at both isolation levels, with what the raw log
knows about each offset.

An offset that holds no record is a row too: a marker, or a hole that compaction or deletion left.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from topicproof.backend import settings
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka.browse.unpack import Head, Named, name_packed
from topicproof.backend.kafka.reading import as_bytes, open_consumer, read_range
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    parse_transaction,
)
from topicproof.validators.lineage.packs import PACKED_HEADER

GRACE_S = 1.0
"""How long to listen for records that must not come, once all that must come are there."""
TEXT_CHARACTERS = 200

_UTF8_BYTES_MAX = 4

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Record:
    """One offset of a partition: a record, a marker, or a hole."""

    partition: int
    offset: int
    timestamp_ms: int | None
    """None where no record is."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    fate: Fate
    delivered: bool
    """It came at read_committed."""
    transaction: str | None
    """`<transactional id>/<sequence>, attempt <n>` where our header says so, else the producer;
    None outside of any."""
    why: str
    """Why a read_committed consumer gets this offset, or does not."""
    packed: bytes | None = None
    """Its lineage, where that is in a header of another record."""

    @property
    def lineage(self) -> str | None:
        """`topic/partition/offset/index` of the input that our sink made this record from."""
        found = self.packed or _header(self.headers, LINEAGE_HEADER)
        return None if found is None else as_text(found)


@dataclass(frozen=True)
class _Transaction:
    """What the raw log knows of one transaction on one partition."""

    first_offset: int
    marker_offset: int | None
    control: str | None
    """COMMIT or ABORT; None when no marker is in the bounds."""


@dataclass(frozen=True)
class _Place:
    """What the raw log knows of one offset."""

    fate: Fate
    control: str | None
    held: bool
    """A record must be here."""
    thinned: bool
    """Compaction left some records of the batch: one of them may be here."""
    transactional: bool
    transaction: int | None
    producer_id: int | None


def read_window(
    address: Address,
    topic: str,
    partition: int,
    first: int,
    count: int,
    bounds: Bounds,
    ranges: pd.DataFrame,
    batches: pa.Table | None = None,
) -> list[Record]:
    """A `Record` for every offset of [first, first + count) that lies in the bounds, in offset
    order.

    `ranges` are the `fates.fate_ranges` of the same bounds. Both levels are read, each by a
    consumer of its own, never past the LSO or the high watermark. `batches` are the raw log's:
    without them, lineage that is packed is not known. Raises TopicError when the partition is not
    in the bounds or its records were deleted in the meantime, ClusterError when the records do not
    come in time.
    """
    found = [p for p in bounds.partitions if p.partition == partition]
    if not found:
        raise TopicError(
            f"Topic {topic} has no partition {partition}; it has {len(bounds.partitions)}."
        )
    (p,) = found
    low, end = max(first, p.start), min(first + count, p.hw)
    if low >= end:
        return []
    own = ranges[ranges["partition"] == partition]
    places = _places(own, low, end)

    def at_level(isolation: str, stop: int) -> dict[int, Message]:
        everything = isolation == settings.READ_UNCOMMITTED
        due = {
            o
            for o, place in places.items()
            if place.held and (everything or place.fate == Fate.COMMITTED)
        }
        return _read(address, topic, isolation, partition, (low, stop), due)

    with ThreadPoolExecutor(2) as pool:
        # Side by side: each waits for the brokers most of its time.
        uncommitted = pool.submit(at_level, settings.READ_UNCOMMITTED, end)
        committed = pool.submit(at_level, settings.READ_COMMITTED, min(end, p.lso))
    transactions = _transactions(own, {place.transaction for place in places.values()})
    named: dict[int, Named] = {}
    if batches is not None:

        def read_head(offset: int) -> Head | None:
            level, span = settings.READ_UNCOMMITTED, (offset, offset + 1)
            there = _read(address, topic, level, partition, span, set())
            return _head(headers_of(there.get(offset)))

        named = _named(
            _of_window(batches, partition, transactions, low, end),
            low,
            places,
            transactions,
            uncommitted.result(),
            read_head,
        )
    return _records(
        partition, p.lso, places, transactions, uncommitted.result(), committed.result(), named
    )


def _of_window(
    batches: pa.Table, partition: int, transactions: Mapping[int, _Transaction], low: int, end: int
) -> pa.Table:
    """The batches of the window and of the transactions that reach into it."""
    first = min((one.first_offset for one in transactions.values()), default=low)
    own = batches.filter(pc.equal(batches["partition"], partition))
    return own.filter(
        pc.and_(
            pc.greater_equal(own["last_offset"], min(first, low)), pc.less(own["base_offset"], end)
        )
    )


def _named(
    batches: pa.Table,
    low: int,
    places: Mapping[int, _Place],
    transactions: Mapping[int, _Transaction],
    messages: Mapping[int, Message],
    read_head: Callable[[int], Head | None],
) -> dict[int, Named]:
    """What packs say of the window's records that say nothing of themselves."""
    heads: dict[int, Head] = {}
    wanted: list[int] = []
    early: dict[int, int] = {}
    begun: set[int] = set()
    """The transactions of which a pack begins in the window."""
    for offset, message in sorted(messages.items()):
        place, headers = places.get(offset), headers_of(message)
        transaction = place.transaction if place else None
        if transaction is None:
            continue
        head = _head(headers)
        if head is not None:
            heads[offset] = head
            begun.add(transaction)
        elif _header(headers, LINEAGE_HEADER) is None:
            wanted.append(offset)
            first = transactions[transaction].first_offset
            if transaction not in begun and first < low:
                early.setdefault(first, offset)
    return name_packed(batches, heads, wanted, early, read_head)


def _head(headers: Headers) -> Head | None:
    packed = _header(headers, PACKED_HEADER)
    return None if packed is None else Head(packed, _header(headers, TRANSACTION_HEADER))


def as_text(value: bytes | None, limit: int = TEXT_CHARACTERS) -> str:
    """Bytes for a person: UTF-8 text where they are that, else hexadecimal after `0x`; `…` stands
    for what is cut.

    Null is the empty text.
    """
    if value is None:
        return ""
    start = value[: _UTF8_BYTES_MAX * limit + 1]
    try:
        # Not final where it is cut: the cut may fall inside a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(value))
    except UnicodeDecodeError:
        text = ""
    if not all(character.isprintable() or character in "\t\n\r" for character in text) or (
        value and not text
    ):
        text = "0x" + start[:limit].hex()
    return text if len(text) <= limit else text[:limit] + "…"


def _places(own: pd.DataFrame, low: int, end: int) -> dict[int, _Place]:
    """What the ranges of one partition say of each offset of [low, end)."""
    places = {}
    inside = own[(own["last_offset"] >= low) & (own["first_offset"] < end)]
    for row in pa.Table.from_pandas(inside, preserve_index=False).to_pylist():
        span = row["last_offset"] - row["first_offset"] + 1
        place = _Place(
            fate=Fate(row["fate"]),
            control=row["control"],
            held=row["records"] == span,
            thinned=0 < row["records"] < span,
            transactional=row["transactional"],
            transaction=row["transaction"],
            producer_id=row["producer_id"],
        )
        for offset in range(max(row["first_offset"], low), min(row["last_offset"] + 1, end)):
            places[offset] = place
    return places


def _transactions(own: pd.DataFrame, wanted: Collection[int | None]) -> dict[int, _Transaction]:
    """Where the transactions begin and end that have something in the window."""
    found: dict[int, _Transaction] = {}
    rows = own[own["transaction"].isin([number for number in wanted if number is not None])]
    for row in pa.Table.from_pandas(rows, preserve_index=False).to_pylist():
        known = found.get(row["transaction"])
        begun = known.first_offset if known else row["first_offset"]
        if row["control"] is None:
            found[row["transaction"]] = _Transaction(begun, None, None)
        else:
            found[row["transaction"]] = _Transaction(begun, row["first_offset"], row["control"])
    return found


def _read(
    address: Address,
    topic: str,
    isolation: str,
    partition: int,
    span: tuple[int, int],
    due: set[int],
) -> dict[int, Message]:
    """The records of [first, end), by offset. `due` are the offsets that must come.

    A consumer is told of no marker and no aborted record that it skips. So reading also ends when
    nothing more is due and a moment has passed.
    """
    found: dict[int, Message] = {}
    missing = set(due)
    deadline = time.monotonic() + settings.REQUEST_TIMEOUT_MS / 1000
    with open_consumer(address, topic, isolation) as consumer:
        for message in read_range(consumer, topic, {partition: span}):
            if message is not None:
                offset = message.offset() or 0
                found[offset] = message
                missing.discard(offset)
            if not missing:
                deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() > deadline:
                break
    if missing:
        raise ClusterError(
            f"{topic}-{partition} did not deliver offset {min(missing)} within"
            f" {settings.REQUEST_TIMEOUT_MS // 1000} s. Check that its broker answers, and read"
            " again."
        )
    return found


def _records(
    partition: int,
    lso: int,
    places: Mapping[int, _Place],
    transactions: Mapping[int, _Transaction],
    uncommitted: Mapping[int, Message],
    committed: Mapping[int, Message],
    named: Mapping[int, Named],
) -> list[Record]:
    def name_of(offset: int) -> str | None:
        message, packed = uncommitted.get(offset) or committed.get(offset), named.get(offset)
        return _name(headers_of(message), packed.transaction if packed else None)

    # A marker has no headers; it is named as the records of its transaction are.
    names: dict[int | None, str] = {
        place.transaction: name
        for offset, place in places.items()
        if place.transaction is not None and (name := name_of(offset))
    }
    records = []
    for offset, place in sorted(places.items()):
        message = uncommitted.get(offset) or committed.get(offset)
        headers = headers_of(message)
        fate = _fate(place, message is not None)
        producer = f"producer {place.producer_id}" if place.transactional else None
        transaction = None if place.transaction is None else transactions[place.transaction]
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
                transaction=name_of(offset) or names.get(place.transaction, producer),
                why=_why(place, fate, transaction, offset in committed, message is not None, lso),
                packed=named[offset].lineage if offset in named else None,
            )
        )
    return records


def _fate(place: _Place, came: bool) -> Fate:
    """The fate of one offset, where the range leaves a question or a reading contradicts it."""
    if place.fate not in (Fate.COMMITTED, Fate.ABORTED) or came:
        return place.fate
    return Fate.UNEXPLAINED if place.held else Fate.GONE


def _why(
    place: _Place,
    fate: Fate,
    transaction: _Transaction | None,
    delivered: bool,
    came: bool,
    lso: int,
) -> str:
    """One sentence: why a read_committed consumer gets the offset, or does not."""
    marker = transaction.marker_offset if transaction else None
    at = f" (marker at {marker:,})" if marker is not None else ""
    if place.control is not None and (fate in (Fate.MARKER, Fate.PENDING)):
        ends = (
            f" for the transaction that began at {transaction.first_offset:,}"
            if transaction
            else ""
        )
        kind = {"COMMIT": "A commit marker", "ABORT": "An abort marker"}.get(
            place.control, "A control record"
        )
        return f"{kind}{ends}; no consumer ever gets one."
    if delivered != (fate == Fate.COMMITTED):
        said = "got it" if delivered else "did not get it"
        return (
            f"The raw log says {fate.lower()}{at}, but a read_committed consumer {said}: one of"
            " them is wrong."
        )
    if fate == Fate.COMMITTED:
        return (
            f"Delivered: its transaction committed{at}."
            if place.transactional
            else "Delivered: it is in no transaction."
        )
    if fate == Fate.ABORTED:
        return f"Not delivered: its transaction was aborted{at}."
    if fate == Fate.UNEXPLAINED:
        return (
            f"Below the last stable offset {lso:,}, but no marker says how its transaction ended."
            if came or not place.held
            else (
                "The batch headers said that a record is here, but no consumer got it: read the"
                " bounds again."
            )
        )
    if fate == Fate.GONE or not (came or place.held):
        return "Nothing is here any more: compacted or deleted."
    return _why_pending(place, transaction, at, lso)


def _why_pending(place: _Place, transaction: _Transaction | None, at: str, lso: int) -> str:
    behind = f"the open transaction that holds the last stable offset at {lso:,}"
    if not place.transactional:
        return f"Not yet: it is in no transaction, but waits behind {behind}."
    if transaction is None or transaction.control is None:
        return f"Not yet: its transaction is open; the last stable offset is {lso:,}."
    if transaction.control == "COMMIT":
        return f"Not yet: its transaction committed{at}, but it waits behind {behind}."
    return f"Never: its transaction was aborted{at}; until then it waits behind {behind}."


def _name(headers: Headers, packed: bytes | None) -> str | None:
    """The transaction of our header, which may be that of the record's pack, for a person."""
    found = parse_transaction(packed or _header(headers, TRANSACTION_HEADER))
    return (
        None
        if found is None
        else f"{found.transactional_id}/{found.sequence}, attempt {found.attempt}"
    )


def _header(headers: Headers, wanted: str) -> bytes | None:
    return next((value for name, value in headers if name == wanted), None)


def headers_of(message: Message | None) -> Headers:
    """A message's headers in their order, which may repeat a name."""
    found = (message.headers() if message is not None else None) or []
    return tuple(
        (name, as_bytes(value))
        for name, value in (found.items() if isinstance(found, dict) else found)
    )
