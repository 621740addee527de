"""The lineage of a window's records where it is packed: the first record of a pack, which has it,
may lie before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topicproof.validators.lineage.packs import HEADS, SEQUENCE_MASK, lay, parse_pack

PACKS_FOLLOWED = 20
"""How many packs of one transaction are read, from its first one on, to find one that reaches into
a window."""


class Head(NamedTuple):
    """What the headers of the first record of a pack say."""

    packed: bytes
    transaction: bytes | None


class Named(NamedTuple):
    """What headers of its own would say of a record."""

    lineage: bytes
    transaction: bytes | None


def name_packed(
    batches: pa.Table,
    heads: Mapping[int, Head],
    wanted: Collection[int],
    early: Mapping[int, int],
    read: Callable[[int], Head | None],
) -> dict[int, Named]:
    """By offset, what packs say of the `wanted` records of a window; those whose pack nobody knows
    are not among them.

    `batches`: those of the raw log of this partition. `heads`: the packs that begin in the window,
    by offset. `early`: by the first offset of each transaction that begins before the window, its
    first record there that is of an earlier pack. `read` gives the head at an offset, or None when
    there is none.
    """
    found = dict(heads)
    for begun, first in early.items():
        found |= _before(batches, begun, first, read)
    if not found:
        return {}
    (number,) = pc.unique(batches["partition"]).to_pylist()
    columns = [
        [number] * len(found),
        [*found],
        [one.packed for one in found.values()],
        [None] * len(found),
    ]
    segments, _ = lay(
        batches, pa.Table.from_arrays([pa.array(c) for c in columns], HEADS.names).cast(HEADS)
    )
    named = {}
    offsets = np.array(sorted({*wanted, *heads}), np.int64)
    for one in segments.to_pylist():
        head = found[one["head"]]
        pack = parse_pack(head.packed)
        assert pack is not None, "a pack that cannot be read has no segment"
        inside = offsets[
            (offsets >= one["first_offset"]) & (offsets <= one["last_offset"])
        ].tolist()
        for offset in inside:
            lineage = pack.lineage(one["position"] + offset - one["first_offset"])
            named[offset] = Named(lineage, head.transaction)
    return named


def _before(
    batches: pa.Table, begun: int, wanted: int, read: Callable[[int], Head | None]
) -> dict[int, Head]:
    """The last pack of a transaction that begins before the offset `wanted`, or nothing where it is
    too far."""
    at: int | None = begun
    last: dict[int, Head] = {}
    for _ in range(PACKS_FOLLOWED):
        head = read(at) if at is not None and at < wanted else None
        pack = None if head is None else parse_pack(head.packed)
        if at is None or head is None or pack is None:
            break
        last = {at: head}
        at = _behind(batches, at, pack.offsets.size)
    else:
        # There may be more between the last one that was read and the one that is wanted.
        return last if at is None or at >= wanted else {}
    return last


def _behind(batches: pa.Table, head: int, count: int) -> int | None:
    """The offset of the record that follows a pack of so many; None where no batch holds it."""
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
    wanted = number[0] + head - base[0] + count
    ahead = (wanted - number) & SEQUENCE_MASK
    holds = (producer == producer[0]) & (epoch == epoch[0]) & (ahead <= last - base)
    places = np.flatnonzero(holds)
    return int(base[places[0]] + ahead[places[0]]) if places.size else None
