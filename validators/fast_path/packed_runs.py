"""Pieces with packed lineage (validators/folded/offset_runs.py), cut to match the packs once all
packs are known.

Batch headers determine which pack an offset belongs to (validators/lineage/packs.py). Of the
records themselves, only the sets of their offsets are needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topicproof.validators.folded.offset_runs import (
    PIECES,
    all_of,
    begins_of,
    bit_of,
    first_of,
    members,
    widths,
)
from topicproof.validators.lineage.headers import Lineage, format_lineage
from topicproof.validators.lineage.packs import HEADS, lay, parse_pack, short_transactions
from topicproof.validators.offsets import WORD

PIECES_AT_ONCE = 16_384
"""Pieces that are expanded bit by bit at a time; they take about 100 MB."""

Ints = npt.NDArray[np.int64]


def by_partition(pieces: pa.Table, batches: pa.Table) -> Iterator[tuple[int, pa.Table | None]]:
    """Yields one partition after the other, at least one, with its pieces. They are cut so that all
    have lineage and a transaction name, using the raw log's batches. Yields None instead, and ends,
    where some records belong to no readable pack, or to a pack with second outputs: the proof does
    not cover those.

    A key spreads neighbouring inputs over all partitions, so cut pieces can be many: those of one
    partition are held at a time.
    """
    without = np.asarray(pieces["origin"].is_null(), bool)
    heads = _heads(pieces)
    segments, covered = None, not without.any()
    if heads.num_rows:
        segments, lost = lay(batches, heads)
        covered = not lost.num_rows
    places = np.asarray(pieces["partition"], np.int64)
    for number in np.unique(places).tolist() or [0]:
        rows = np.flatnonzero(places == number)
        table = None
        if covered and segments is None:
            table = pieces.take(pa.array(rows))
        elif covered:
            table = _cut(pieces, rows, without, _PackCutter(heads, segments, number))
        yield number, table
        if table is None:
            return


def _cut(
    pieces: pa.Table, rows: Ints, without: npt.NDArray[np.bool_], packs: _PackCutter
) -> pa.Table | None:
    tables = [pieces.take(pa.array(rows[~without[rows]]))]
    for first in range(0, rows.size, PIECES_AT_ONCE):
        some = rows[first : first + PIECES_AT_ONCE]
        cut = packs.cut(pieces.take(pa.array(some)), without[some])
        if cut is None:
            return None
        tables.extend(cut)
    return pa.concat_tables(tables)


def _heads(pieces: pa.Table) -> pa.Table:
    """Returns the first records of packs, each of which begins a piece."""
    heads = pieces.filter(pieces["packed"].is_valid())
    offsets = np.asarray(heads["word"], np.int64) * WORD + first_of(
        np.asarray(heads["bits"], np.int64)
    )
    return pa.table(
        {
            "partition": heads["partition"],
            "offset": offsets,
            "packed": heads["packed"],
            "transaction": short_transactions(heads["name"].cast(pa.binary())),
        }
    ).cast(HEADS)


class _PackCutter:
    """The packs of one partition."""

    def __init__(self, heads: pa.Table, segments: pa.Table, partition: int) -> None:
        heads, segments = (
            table.filter(pa.array(np.asarray(table["partition"]) == partition))
            for table in (heads, segments)
        )
        heads = heads.sort_by("offset")
        self.first, self.last, self.position = (
            np.asarray(segments[name], np.int64)
            for name in ("first_offset", "last_offset", "position")
        )
        self.head = np.searchsorted(
            np.asarray(heads["offset"], np.int64), np.asarray(segments["head"], np.int64)
        )
        self.packed, self.names = heads["packed"].to_pylist(), heads["transaction"].to_pylist()

    def cut(self, pieces: pa.Table, without: npt.NDArray[np.bool_]) -> list[pa.Table] | None:
        """Cuts the pieces `without` lineage into pieces that have lineage."""
        names_of = "partition", "word", "bits", "counted", "content", "transaction", "ordered"
        partition, word, bits, counted, content, transaction, ordered = (
            np.asarray(pieces[name], np.int64) for name in names_of
        )
        row, place = members(bits)
        offset = word[row] * WORD + place
        if not self.first.size:
            return None if without.any() else []
        segment = np.searchsorted(self.first, offset, "right") - 1
        inside = (segment >= 0) & (offset <= self.last[segment])
        # A record with its own lineage inside a pack would have it twice. A record that was read
        # twice fits no piece.
        if (inside != without[row]).any() or (
            np.bitwise_count(bits.view(np.uint64)) != counted
        ).any():
            return None
        row, place, offset, segment = (values[inside] for values in (row, place, offset, segment))
        if not row.size:
            return []
        used = np.zeros(self.head.size, bool)
        used[segment] = True
        heads, which = np.unique(self.head[used], return_inverse=True)
        packs = [
            pack for head in heads.tolist() if (pack := parse_pack(self.packed[head])) is not None
        ]
        names = [self.names[head] for head in heads.tolist()]
        if len(packs) < heads.size or None in names or any(pack.indices.any() for pack in packs):
            return None
        of = which[np.cumsum(used) - 1][segment]
        position = self.position[segment] + offset - self.first[segment]
        behind = np.cumsum([0, *(pack.offsets.size for pack in packs)])[of] + position
        at = np.concatenate([pack.offsets for pack in packs])[behind]
        sources = [format_lineage(Lineage(pack.topic, pack.partition, 0, 0)) for pack in packs]
        origins, source = np.unique(np.array(sources, object), return_inverse=True)
        origin = source[of]
        # Two packs of one transaction share a name.
        texts, same = np.unique(np.array(names, object), return_inverse=True)
        begins = begins_of(row, origin, at >> 6, same[of])
        rises = all_of(np.append(True, at[1:] > at[:-1]), begins)
        # A piece's content hash cannot be split, so the first piece cut from it keeps the hash.
        whole = np.append(True, row[begins][1:] != row[begins][:-1])
        columns = (
            *(
                partition[row[begins]],
                word[row[begins]],
                np.bitwise_or.reduceat(bit_of(place), begins),
            ),
            *(
                widths(begins, row.size),
                np.where(whole, content[row[begins]], 0),
                transaction[row[begins]],
            ),
            *(
                at[begins] >> 6,
                np.bitwise_or.reduceat(bit_of(at), begins),
                rises & ordered[row[begins]],
            ),
        )
        spelled = pa.array(origins.tolist(), pa.binary()).take(pa.array(origin[begins]))
        named = pa.array(texts.tolist(), pa.binary()).take(pa.array(same[of][begins]))
        nothing = pa.nulls(begins.size, pa.binary())
        return [
            pa.table(
                [*(pa.array(column) for column in columns), spelled, named, nothing], schema=PIECES
            )
        ]
