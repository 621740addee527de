"""Records of a topic as this person may see them: a window, a search, a retry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import streamlit as st

from topicproof.app.session.access import note_look, page_identity
from topicproof.app.session.byte_budget import byte_budget
from topicproof.app.session.connection import decoders
from topicproof.app.session.page_masks import (
    hidden_fields,
    hides_our_headers,
    mask_records,
    require_unmasked,
)
from topicproof.app.shell.url_state import TopicsState
from topicproof.app.topic.snapshot import Snapshot, fingerprint, same_place
from topicproof.backend.address import Address
from topicproof.backend.formats.frames import schema_header
from topicproof.backend.kafka.browse.record_json import decode_of
from topicproof.backend.kafka.browse.records import Headers, Record, read_window
from topicproof.backend.kafka.browse.search import (
    ROWS_BYTES_MAX,
    Row,
    Search,
    Stop,
    key_first,
    offsets_at,
    search_all,
)
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

ATTEMPTS_FOLLOWED = 3


def records_in_window(
    settings: Settings, kafka: Services, snapshot: Snapshot, partition: int, first: int, count: int
) -> tuple[Record, ...]:
    """Returns the records of a window, as this person may see them; only the first ones if all
    would take too much memory (`read_window`)."""
    topic, last = snapshot.bounds.topic, first + count - 1
    note_look(settings, f"{topic}-{partition}, offsets {first} to {last}")
    return mask_records(
        hidden_fields(settings, topic),
        unmasked_records(settings, kafka, snapshot, partition, first, count),
    )


def unmasked_records(
    settings: Settings, kafka: Services, snapshot: Snapshot, partition: int, first: int, count: int
) -> tuple[Record, ...]:
    """Reads the records of a window once, and again when the fates of its offsets change. Nothing
    is masked."""
    mark = fingerprint(snapshot, partition, first, first + count)
    topic, address = snapshot.bounds.topic, Address(kafka.bootstrap, settings.client)

    def read() -> tuple[Record, ...]:
        facts = snapshot.bounds, snapshot.ranges
        with st.spinner("Reading the records at both levels…"):
            return tuple(read_window(address, topic, partition, first, count, *facts))

    key = ("window", kafka.bootstrap, topic, partition, first, count, mark)
    return byte_budget().get(key, read, size_of)


def size_of(records: Sequence[Record | Row]) -> int:
    """Returns the bytes of records in memory."""
    return sum(record.kept_bytes for record in records)


def search_results(
    settings: Settings,
    kafka: Services,
    snapshot: Snapshot,
    selection: TopicsState,
    on_progress: Callable[[int, int], None],
) -> dict[int, Search]:
    """Returns the result of the URL's search by partition. It is kept for the same person and
    search, as long as they see the same parts of records."""
    hidden, by = hidden_fields(settings, selection.topic), page_identity(settings)
    key = (
        "search",
        (by.issuer, by.subject, by.name),
        hidden,
        kafka.bootstrap,
        selection.topic,
        selection.partition,
        selection.offset,
        selection.time_ms,
        selection.until_ms,
        selection.wanted,
        selection.newest,
        snapshot.taken_at,
    )
    if selection.wanted.is_of_content:
        # Whether a record is found would tell what is masked in it.
        require_unmasked(settings, selection.topic)
    where = "all partitions" if selection.partition is None else f"partition {selection.partition}"
    note_look(settings, f"{selection.topic}, a search of {where}")

    def size(results: Mapping[int, Search]) -> int:
        return sum(size_of(result.rows) for result in results.values())

    results: dict[int, Search] = {}
    for turn in range(1 + selection.further):
        begin = _going_on(snapshot, selection, results) if turn else None
        if begin is not None and (not begin or fills_a_list(results)):
            break

        def masked_results(begin: dict[int, int | None] | None = begin) -> dict[int, Search]:
            unmasked = _search(settings, kafka, snapshot, selection, on_progress, begin)
            return {
                number: replace(result, rows=mask_records(hidden, result.rows))
                for number, result in unmasked.items()
            }

        # Each turn has an entry of its own: what was searched before is not searched again.
        places = None if begin is None else tuple(begin.items())
        results = _joined(results, byte_budget().get((*key, places), masked_results, size))
    return results


def fills_a_list(results: Mapping[int, Search]) -> bool:
    """Whether the records of a search take so much memory that no further turn of it is read."""
    return sum(result.kept_bytes for result in results.values()) > ROWS_BYTES_MAX


def _going_on(
    snapshot: Snapshot, selection: TopicsState, results: Mapping[int, Search]
) -> dict[int, int | None]:
    """Returns where the next turn of a search begins in each partition that is not searched to its
    end: first those that were not searched at all (None), or they might never be."""
    partitions = _partitions(snapshot, selection)
    unsearched = [number for number in partitions if number not in results]
    stopped = {
        number: results[number].reached
        for number in partitions
        if number in results and results[number].stop is not Stop.END
    }
    return {**dict.fromkeys(unsearched), **stopped}


def _partitions(snapshot: Snapshot, selection: TopicsState) -> list[int]:
    """Returns the partitions of a search, in its order."""
    if selection.partition is not None:
        return [selection.partition]
    return key_first(snapshot.bounds, selection.wanted.key)


def _joined(before: Mapping[int, Search], turn: Mapping[int, Search]) -> dict[int, Search]:
    """Returns the results of a search and of one more turn of it as one."""
    joined = dict(before)
    for number, result in turn.items():
        earlier = before.get(number)
        joined[number] = (
            result
            if earlier is None
            else replace(
                result,
                rows=earlier.rows + result.rows,
                first=earlier.first,
                unread_at=earlier.unread_at + result.unread_at,
            )
        )
    return joined


def _search(
    settings: Settings,
    kafka: Services,
    snapshot: Snapshot,
    selection: TopicsState,
    on_progress: Callable[[int, int], None],
    going_on: Mapping[int, int | None] | None,
) -> dict[int, Search]:
    """Searches one partition, or all of them, from where the selection begins or where it goes on.
    Nothing is masked."""
    address = Address(kafka.bootstrap, settings.client)
    bounds, formats = snapshot.bounds, decoders(settings)

    def text(value: bytes, headers: Headers) -> str | None:
        return formats.decode(value, bounds.topic, header=schema_header(headers, "value")).text

    partitions = _partitions(snapshot, selection)
    first, end = (
        None if at is None else offsets_at(address, bounds, partitions, at)
        for at in (selection.time_ms, selection.until_ms)
    )

    def begin(number: int) -> int:
        if selection.offset is not None:
            return selection.offset
        if first is not None:
            return first[number]
        p = snapshot.partition(number)
        return p.hw if selection.newest else p.start

    places = dict.fromkeys(partitions) if going_on is None else going_on
    return search_all(
        address,
        bounds,
        snapshot.ranges,
        selection.wanted,
        on_progress,
        newest=selection.newest,
        text=text if formats.configured else None,
        first={number: begin(number) if at is None else at for number, at in places.items()},
        end=end,
        decode=decode_of(formats, bounds.topic),
    )


def committed_retry(
    settings: Settings, kafka: Services, snapshot: Snapshot, aborted: Record
) -> int | None:
    """Finds the offset where the same output of the same input was committed after all, if one of
    the next transactions holds it."""
    if aborted.lineage is None or hides_our_headers(hidden_fields(settings, snapshot.bounds.topic)):
        # Masked lineage is the same for all records.
        return None
    for offset in same_place(snapshot.ranges, aborted.partition, aborted.offset, ATTEMPTS_FOLLOWED):
        for record in records_in_window(settings, kafka, snapshot, aborted.partition, offset, 1):
            if record.delivered and record.lineage == aborted.lineage:
                return offset
    return None
