"""Records of a topic as this person may see them: a window, a search, a retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import streamlit as st

from topicproof.app.session.access import note_look, page_identity
from topicproof.app.session.byte_budget import byte_budget
from topicproof.app.session.connection import decoders
from topicproof.app.session.masking import (
    hidden_fields,
    hides_our_headers,
    mask_records,
    require_unmasked,
)
from topicproof.app.snapshot import Snapshot, fingerprint, same_place
from topicproof.app.url_state import TopicsState
from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.records import Record, read_window
from topicproof.backend.kafka.browse.search import Row, Search, offsets_at, search, search_all
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

ATTEMPTS_FOLLOWED = 3
RECORD_BYTES, HEADER_BYTES = 1_000, 200
"""What Python needs for one besides its payload, roughly."""


def records_in_window(
    settings: Settings, kafka: Services, seen: Snapshot, partition: int, first: int, count: int
) -> tuple[Record, ...]:
    """Returns the records of a window, as this person may see them."""
    topic, last = seen.bounds.topic, first + count - 1
    note_look(settings, f"{topic}-{partition}, offsets {first} to {last}")
    return mask_records(
        hidden_fields(settings, topic),
        unmasked_records(settings, kafka, seen, partition, first, count),
    )


def unmasked_records(
    settings: Settings, kafka: Services, seen: Snapshot, partition: int, first: int, count: int
) -> tuple[Record, ...]:
    """Reads the records of a window once, and again when the fates of its offsets change. Nothing
    is masked."""
    mark = fingerprint(seen, partition, first, first + count)
    topic, address = seen.bounds.topic, Address(kafka.bootstrap, settings.client)

    def read() -> tuple[Record, ...]:
        facts = seen.bounds, seen.ranges, seen.batches
        with st.spinner("Reading the records at both levels…"):
            return tuple(read_window(address, topic, partition, first, count, *facts))

    key = ("window", kafka.bootstrap, topic, partition, first, count, mark)
    return byte_budget().get(key, read, size_of)


def size_of(records: Sequence[Record | Row]) -> int:
    """Returns the bytes of records, of which the payloads are counted exactly."""
    return sum(
        RECORD_BYTES
        + len(record.key or b"")
        + len(record.value or b"")
        + sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in record.headers)
        for record in records
    )


def search_results(
    settings: Settings,
    kafka: Services,
    seen: Snapshot,
    look: TopicsState,
    told: Callable[[int, int], None],
) -> dict[int, Search]:
    """Returns the result of the URL's search by partition. It is kept for the same person and
    search, as long as they see the same parts of records."""
    hidden, by = hidden_fields(settings, look.topic), page_identity(settings)
    key = (
        "search",
        (by.issuer, by.subject, by.name),
        hidden,
        kafka.bootstrap,
        look.topic,
        look.partition,
        look.offset,
        look.time_ms,
        look.until_ms,
        look.wanted,
        look.newest,
        seen.taken_at,
    )
    if look.key or look.value or look.header:
        # Whether a record is found would tell what is masked in it.
        require_unmasked(settings, look.topic)
    where = "all partitions" if look.partition is None else f"partition {look.partition}"
    note_look(settings, f"{look.topic}, a search of {where}")

    def masked_results() -> dict[int, Search]:
        return {
            number: replace(result, rows=mask_records(hidden, result.rows))
            for number, result in _search(settings, kafka, seen, look, told).items()
        }

    def size(results: dict[int, Search]) -> int:
        return sum(size_of(result.rows) for result in results.values())

    results = byte_budget().get(key, masked_results, size)
    return dict(results)


def _search(
    settings: Settings,
    kafka: Services,
    seen: Snapshot,
    look: TopicsState,
    told: Callable[[int, int], None],
) -> dict[int, Search]:
    """Searches one partition, or all of them. Nothing is masked."""
    address = Address(kafka.bootstrap, settings.client)
    bounds, ranges, wanted = seen.bounds, seen.ranges, look.wanted
    formats = decoders(settings)

    def decode(value: bytes) -> str | None:
        return formats.decode(value, bounds.topic).text

    text = decode if formats.configured else None
    one = look.partition
    partitions = [p.partition for p in bounds.partitions] if one is None else [one]
    first, end = (
        None if at is None else offsets_at(address, bounds, partitions, at)
        for at in (look.time_ms, look.until_ms)
    )
    if one is None:
        return search_all(address, bounds, ranges, wanted, told, look.newest, text, first, end)
    p, begin = seen.partition(one), look.offset
    if begin is None:
        begin = first[one] if first is not None else p.hw if look.newest else p.start
    place = address, bounds, ranges, one, begin
    last = None if end is None else end[one]
    return {one: search(*place, wanted, told, look.newest, text=text, end=last)}


def committed_retry(
    settings: Settings, kafka: Services, seen: Snapshot, aborted: Record
) -> int | None:
    """Finds the offset where the same output of the same input was committed after all, if one of
    the next transactions holds it."""
    if aborted.lineage is None or hides_our_headers(hidden_fields(settings, seen.bounds.topic)):
        # Masked lineage is the same for all records.
        return None
    for offset in same_place(seen.ranges, aborted.partition, aborted.offset, ATTEMPTS_FOLLOWED):
        for record in records_in_window(settings, kafka, seen, aborted.partition, offset, 1):
            if record.delivered and record.lineage == aborted.lineage:
                return offset
    return None
