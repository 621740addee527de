"""The identities of inputs, as far as they are remembered, in SQLite: which input holds each.

An identity is kept as a digest of 16 bytes in two numbers. Where several inputs share one, its k-th
output is that of the k-th of them, as a check counts.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topicproof.validators.increments.watched_pair import (
    MAYBE_REPEATED,
    NO_PARTITION,
    UNRESOLVED,
    SinkRows,
    WatchedPair,
    behind_first,
)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Unread = Callable[[], Set[tuple[int, int]] | None]
"""Returns the identities of inputs that are not read yet, as two numbers each; None if they cannot
be told: each may be one."""

SCHEMA = """
create table if not exists identity (
    pair text, high integer, low integer, partition integer, offset integer, seen_s integer,
    outputs integer, primary key (pair, high, low)) without rowid;
create table if not exists shared (
    pair text, high integer, low integer, nth integer, partition integer, offset integer,
    primary key (pair, high, low, nth)) without rowid;
create temp table wanted (row integer primary key, high integer, low integer);
"""
SLICES = 256
"""What is too old is deleted in so many slices, one at each look."""
FULL = 2**64
NO_DIGEST = bytes(16)


def digest(identity: bytes | None) -> bytes:
    """Return the digest of an identity, `NO_DIGEST` for none."""
    return NO_DIGEST if identity is None else hashlib.blake2b(identity, digest_size=16).digest()


def no_unread() -> Set[tuple[int, int]]:
    """Return no identity: every input is read."""
    return frozenset()


def numbers_of(digests: bytes | bytearray) -> tuple[Ints, Ints]:
    """Return digests, one behind the other, as two numbers each, both 0 for `NO_DIGEST`."""
    pairs = np.frombuffer(digests, ">i8").reshape(-1, 2).astype(np.int64)
    return pairs[:, 0], pairs[:, 1]


class FirstInput(NamedTuple):
    """The first input of an identity."""

    partition: int
    offset: int
    is_shared: bool
    """Whether other inputs have the same identity."""
    outputs: int
    """That were counted, of all these inputs."""


class Identities:
    """The identities of one pair. Written within the transaction of the pair's state."""

    def __init__(self, db: sqlite3.Connection, pair: str) -> None:
        self.db, self.pair = db, pair

    def add_inputs(
        self,
        pair: WatchedPair,
        partition: int,
        offsets: Ints,
        digests: bytes | bytearray,
        now_s: int,
    ) -> tuple[Ints, Ints]:
        """Note the inputs at some offsets of a source partition, by their digests. Returns the
        offsets of those that have an identity: nothing tells whether the others have an output.
        Also returns those of them whose output was read before, and counted as a copy of an earlier
        twin's."""
        high, low = numbers_of(digests)
        named = (high != 0) | (low != 0)
        pair.counts.nameless_inputs += int((~named).sum())
        shared, taken = self._add(high[named], low[named], partition, offsets[named], now_s)
        pair.counts.shared_identities += shared
        return offsets[named], taken

    def resolve_outputs(
        self, pair: WatchedPair, rows: SinkRows, *, is_source_read: bool, unread: Unread = no_unread
    ) -> SinkRows:
        """Return new rows of the sink with the places of their inputs, and look again for those of
        the rows that wait. Rows without an identity are counted and left out. A row that would
        repeat an output waits, too, if an input that is not read yet (`unread`) may be its own."""
        nameless = (rows.identity_high == 0) & (rows.identity_low == 0)
        pair.counts.nameless_outputs += int(nameless.sum())
        pair.counts.committed += int(nameless.sum())
        rows = rows.take(~nameless)
        decided = pair.are_decided(pair.held, is_source_read=is_source_read)
        is_looked_up = self._looked_up_again(pair.held, decided, unread)
        # Together: a waiting row holds back the new ones of its partition.
        waiting = pair.held.take(is_looked_up)
        together = self.resolve(
            SinkRows(*map(np.concatenate, zip(waiting, rows, strict=True))),
            np.concatenate((decided[is_looked_up], np.full(rows.size, is_source_read))),
            unread=unread,
        )
        columns = [column.copy() for column in pair.held]
        for column, answer in zip(columns, together, strict=True):
            column[is_looked_up] = answer[: waiting.size]
        pair.held = SinkRows(*columns)
        return together.take(np.arange(waiting.size, together.size))

    def resolve_held(self, pair: WatchedPair, unread: Unread = no_unread) -> SinkRows:
        """Return the rows that are held, each with the place of its input if that was read. None of
        them counts as an output yet. `unread`: see `resolve_outputs`."""
        held = pair.held
        decided = pair.are_decided(held, is_source_read=False)
        rows = self.resolve(held, np.ones(held.size, bool), is_counted=False)
        waits = (rows.source_partition == NO_PARTITION) & ~decided
        firsts = self._find(held.identity_high, held.identity_low)
        surplus = self._are_surplus(held.identity_high, held.identity_low, firsts, unread)
        surplus &= ~decided & (held.source_partition < 0)
        # Any of those with this identity may be the one that came last.
        keys = [*zip(held.identity_high.tolist(), held.identity_low.tolist(), strict=True)]
        repeated = {keys[at] for at in np.flatnonzero(surplus).tolist()}
        may_repeat = np.array([key in repeated for key in keys], bool)
        return rows._replace(
            source_partition=np.where(waits, UNRESOLVED, rows.source_partition),
            certain=np.where(may_repeat, MAYBE_REPEATED, rows.certain),
        )

    def _looked_up_again(self, held: SinkRows, decided: Flags, unread: Unread) -> Flags:
        """Mark the rows that are looked up again: the first of each partition, and those behind it
        if it waits no longer. A million may wait, and the source be read for long."""
        partitions, heads = np.unique(held.partition, return_index=True)
        high, low = held.identity_high[heads], held.identity_low[heads]
        firsts = self._find(high, low)
        waits = self._are_surplus(high, low, firsts, unread)
        waits |= ~np.isin(np.arange(heads.size), list(firsts))
        waits &= (held.source_partition[heads] < 0) & ~decided[heads]
        is_looked_up = ~np.isin(held.partition, partitions[waits])
        is_looked_up[heads] = True
        return is_looked_up

    def _add(
        self, high: Ints, low: Ints, partition: int, offsets: Ints, now_s: int
    ) -> tuple[int, Ints]:
        """Note identities. Returns how many an earlier input has too, and the offsets of inputs
        whose output was read before."""
        again = np.zeros(high.size, bool)
        again[list(self._find(high, low))] = True
        _, firsts = np.unique(np.stack((high, low)), axis=1, return_index=True)
        is_first = np.zeros(high.size, bool)
        is_first[firsts] = True
        new = is_first & ~again
        rows = zip(high[new].tolist(), low[new].tolist(), offsets[new].tolist(), strict=True)
        self.db.executemany(
            "insert into identity values (?, ?, ?, ?, ?, ?, 0)",
            ((self.pair, h, lo, partition, offset, now_s) for h, lo, offset in rows),
        )
        taken = [
            int(offsets[row])
            for row in np.flatnonzero(~new).tolist()
            if self._share(int(high[row]), int(low[row]), partition, int(offsets[row]), now_s)
        ]
        return int((~new).sum()), np.array(taken, np.int64)

    def resolve(
        self,
        rows: SinkRows,
        decided: Flags,
        *,
        is_counted: bool = True,
        unread: Unread = no_unread,
    ) -> SinkRows:
        """Return the rows with the places of their inputs, each partition's in their order.
        `decided`: the rows of which an identity that is not there is none of an input
        (`WatchedPair.are_decided`). `is_counted`: they are outputs, and not pending ones. `unread`:
        see `resolve_outputs`.

        A row behind one that waits gets no place and counts as no output yet. Until it is folded,
        an input with its identity may still come, and it is no copy before that.
        """
        open_rows = np.flatnonzero(
            (rows.source_partition < 0) & ((rows.identity_high != 0) | (rows.identity_low != 0))
        )
        high, low = rows.identity_high[open_rows], rows.identity_low[open_rows]
        partition, offset = rows.source_partition.copy(), rows.source_offset.copy()
        certain = rows.certain.copy()
        partition[open_rows] = np.where(decided[open_rows], NO_PARTITION, UNRESOLVED)
        firsts = self._find(high, low)
        # Their input is there: they do not wait for it.
        partition[open_rows[list(firsts)]] = NO_PARTITION
        if not decided[open_rows].all():
            may_repeat = ~decided[open_rows] & self._are_surplus(high, low, firsts, unread)
            partition[open_rows[may_repeat]] = UNRESOLVED
        is_held = behind_first(rows, partition == UNRESOLVED)
        firsts = {at: first for at, first in firsts.items() if not is_held[open_rows[at]]}
        ahead: Counter[tuple[int, int]] = Counter()
        for at, first in firsts.items():
            row, number, place = open_rows[at], first.partition, first.offset
            if first.is_shared:
                key = int(high[at]), int(low[at])
                number, place = self._next_shared(*key, ahead=ahead[key], is_counted=is_counted)
                ahead[key] += not is_counted
            partition[row], offset[row], certain[row] = number, place, not first.is_shared
        if is_counted:
            single = [at for at, first in firsts.items() if not first.is_shared]
            self.db.executemany(
                "update identity set outputs = outputs + 1 where pair = ? and high = ? and low = ?",
                ((self.pair, int(high[at]), int(low[at])) for at in single),
            )
        return rows._replace(source_partition=partition, source_offset=offset, certain=certain)

    def forget(self, pair: WatchedPair, turn: int, *, before_s: int, open_before_s: int) -> None:
        """Delete inputs in one slice of all, and count them: those that have their output and came
        before `before_s`, and those without one that came before `open_before_s`."""
        low = -FULL // 2 + (turn % SLICES) * (FULL // SLICES)
        where = "where pair = ? and high between ? and ?"
        place = (self.pair, low, low + FULL // SLICES - 1)
        for condition, before in (("outputs > 0", before_s), ("outputs = 0", open_before_s)):
            done = self.db.execute(
                f"delete from identity {where} and seen_s between 0 and ? and {condition}",
                (*place, before),
            )
            pair.counts.forgotten += done.rowcount
            pair.counts.forgotten_open += done.rowcount * (condition == "outputs = 0")
        # Those that several inputs share, by the last of these.
        old = f"{where} and seen_s < 0 and -seen_s <= ?"
        for high, lo in self.db.execute(
            f"select high, low from identity {old}", (*place, min(before_s, open_before_s))
        ).fetchall():
            key = (self.pair, high, lo)
            of_key = "where pair = ? and high = ? and low = ?"
            self.db.execute(f"delete from identity {of_key}", key)
            done = self.db.execute(f"delete from shared {of_key}", key)
            pair.counts.forgotten += done.rowcount
            pair.counts.forgotten_open += done.rowcount

    def _find(self, high: Ints, low: Ints) -> dict[int, FirstInput]:
        """Return the first input of each identity that is known, by its row."""
        self.db.execute("delete from wanted")
        self.db.executemany(
            "insert into wanted values (?, ?, ?)",
            zip(range(high.size), high.tolist(), low.tolist(), strict=True),
        )
        rows = self.db.execute(
            "select w.row, i.partition, i.offset, i.seen_s < 0, i.outputs from wanted w"
            " join identity i on i.pair = ? and i.high = w.high and i.low = w.low",
            (self.pair,),
        )
        return {
            row: FirstInput(partition, offset, bool(shared), outputs)
            for row, partition, offset, shared, outputs in rows
        }

    def _are_surplus(
        self, high: Ints, low: Ints, firsts: Mapping[int, FirstInput], unread: Unread
    ) -> Flags:
        """Mark the rows for which no input is left that was read, but one that is not read yet may
        be theirs. `firsts`: see `_find`."""
        surplus = np.zeros(high.size, bool)
        keys = [*zip(high.tolist(), low.tolist(), strict=True)]
        outputs: Counter[tuple[int, int]] = Counter()
        for at, first in sorted(firsts.items()):
            key = keys[at]
            count = first.outputs + outputs[key]
            outputs[key] += 1
            surplus[at] = count > ((self._last_shared(*key) or 0) if first.is_shared else 0)
        if not surplus.any():
            return surplus
        identities = unread()
        if identities is not None:
            for at in np.flatnonzero(surplus).tolist():
                surplus[at] = keys[at] in identities
        return surplus

    def _share(self, high: int, low: int, partition: int, offset: int, now_s: int) -> bool:
        """Note one more input of an identity. Returns whether its output was read before."""
        key = (self.pair, high, low)
        where = "where pair = ? and high = ? and low = ?"
        *first, outputs = self.db.execute(
            f"select partition, offset, outputs from identity {where}", key
        ).fetchone()
        last = self._last_shared(high, low)
        if last is None:
            self.db.execute("insert into shared values (?, ?, ?, 0, ?, ?)", (*key, *first))
        # One with several inputs is marked by the sign.
        self.db.execute(f"update identity set seen_s = ? {where}", (-max(1, now_s), *key))
        nth = 1 if last is None else last + 1
        values = (*key, nth, partition, offset)
        self.db.execute("insert into shared values (?, ?, ?, ?, ?, ?)", values)
        return bool(outputs > nth)

    def _last_shared(self, high: int, low: int) -> int | None:
        """Return the number of the last input of an identity that several inputs share, from 0 on;
        None if none do. Not counted: a million inputs may share one identity."""
        row = self.db.execute(
            "select nth from shared where pair = ? and high = ? and low = ? order by nth desc"
            " limit 1",
            (self.pair, high, low),
        ).fetchone()
        return None if row is None else int(row[0])

    def _next_shared(self, high: int, low: int, *, ahead: int, is_counted: bool) -> tuple[int, int]:
        """Return the input of the next output of an identity that several inputs share, behind
        `ahead` further ones."""
        key = (self.pair, high, low)
        where = "where pair = ? and high = ? and low = ?"
        (outputs,) = self.db.execute(f"select outputs from identity {where}", key).fetchone()
        if is_counted:
            self.db.execute(f"update identity set outputs = outputs + 1 {where}", key)
        number, place = self.db.execute(
            f"select partition, offset from shared {where} and nth <= ? order by nth desc limit 1",
            (*key, outputs + ahead),
        ).fetchone()
        return int(number), int(place)
