"""Packed lineage of a window's records. The first record of a pack holds it, and may lie before the
window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topicproof.validators.lineage.packs import HEADS, SEQUENCE_MASK, lay, parse_pack

PACKS_FOLLOWED = 20
"""How many packs of a transaction are read, starting with its first, to find the one that reaches
into a window."""


class Head(NamedTuple):
    """The headers of the first record of a pack."""

    packed: bytes
    transaction: bytes | None


class Named(NamedTuple):
    """What a record's own headers would contain."""

    lineage: bytes
    transaction: bytes | None


def name_packed(
    batches: pa.Table,
    heads: Mapping[int, Head],
    unnamed: Collection[int],
    early: Mapping[int, int],
    read: Callable[[int], Head | None],
) -> dict[int, Named]:
    """Return the packed lineage of the `unnamed` records of a window by offset, without those whose
    pack is unknown.

    `batches` are the partition's, from the raw log. `heads` are the packs that begin in the window,
    by offset. `early` concerns transactions that begin before the window. It maps the first offset
    of each to its first record in the window that belongs to an earlier pack. `read` returns the
    head at an offset, or None.
    """
    packs = dict(heads)
    for begun, first in early.items():
        packs |= _before(batches, begun, first, read)
    if not packs:
        return {}
    (number,) = pc.unique(batches["partition"]).to_pylist()
    columns = [
        [number] * len(packs),
        [*packs],
        [each.packed for each in packs.values()],
        [None] * len(packs),
    ]
    segments, _ = lay(
        batches, pa.Table.from_arrays([pa.array(c) for c in columns], HEADS.names).cast(HEADS)
    )
    named = {}
    offsets = np.array(sorted({*unnamed, *heads}), np.int64)
    for each in segments.to_pylist():
        head = packs[each["head"]]
        pack = parse_pack(head.packed)
        assert pack is not None, "a pack that cannot be read has no segment"
        inside = offsets[
            (offsets >= each["first_offset"]) & (offsets <= each["last_offset"])
        ].tolist()
        for offset in inside:
            lineage = pack.lineage(each["position"] + offset - each["first_offset"])
            named[offset] = Named(lineage, head.transaction)
    return named


def _before(
    batches: pa.Table, begun: int, offset: int, read: Callable[[int], Head | None]
) -> dict[int, Head]:
    """Return the last pack of a transaction that begins before `offset`; empty if that pack is
    too far away."""
    at: int | None = begun
    last: dict[int, Head] = {}
    for _ in range(PACKS_FOLLOWED):
        head = read(at) if at is not None and at < offset else None
        pack = None if head is None else parse_pack(head.packed)
        if at is None or head is None or pack is None:
            break
        last = {at: head}
        at = _behind(batches, at, pack.offsets.size)
    else:
        # More packs may lie between the last one read and `offset`.
        return last if at is None or at >= offset else {}
    return last


def _behind(batches: pa.Table, head: int, count: int) -> int | None:
    """Return the offset of the record after a pack of `count`; None if no batch holds it."""
    data = batches.filter(
        pc.and_(pc.is_null(batches["control"]), pc.greater_equal(batches["last_offset"], head))
    )
    base, last = (
        np.asarray(data["base_offset"], np.int64),
        np.asarray(data["last_offset"], np.int64),
    )
    number = np.asarray(data["base_sequence"], np.int64)
    producer, epoch = np.asarray(data["producer_id"]), np.asarray(data["producer_epoch"])
    if not base.size or base[0] > head:
        return None
    sequence = number[0] + head - base[0] + count
    ahead = (sequence - number) & SEQUENCE_MASK
    holds = (producer == producer[0]) & (epoch == epoch[0]) & (ahead <= last - base)
    places = np.flatnonzero(holds)
    return int(base[places[0]] + ahead[places[0]]) if places.size else None
