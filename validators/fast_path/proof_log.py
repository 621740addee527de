"""A raw log in which nothing is odd: every offset in a whole batch, every batch in a transaction
that has ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from topicproof.validators.facts.balance import Headers
from topicproof.validators.facts.marks import SEQUENCES
from topicproof.validators.finding import Bounds

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
MARKERS = ("COMMIT", "ABORT")
OUTCOMES = ("COMMITTED", "ABORTED")


class SoundLog(NamedTuple):
    """Arrays by batch are in the order of partitions and offsets."""

    headers: dict[int, Headers]
    ends: dict[str, int]
    partition: Ints
    base: Ints
    """The first offset of each batch."""
    transaction: Ints
    """The row of `transactions` that each batch belongs to; -1 for a marker."""
    transactions: pd.DataFrame
    """The raw log's, by number: first_offset and last_offset lie within the bounds, `stable` says
    which committed."""


def sound_log(batches: pa.Table, transactions: pa.Table, bounds: Bounds) -> SoundLog | None:
    """None where anything is odd, or pending, or where there is no transaction at all."""
    if not transactions.num_rows or any(one.lso != one.hw for one in bounds.partitions):
        return None
    log = _Batches.of(batches)
    if log is None or not _whole(log, bounds):
        return None
    interleaved = _interleaved(log)
    ended = _ended(transactions, bounds)
    if interleaved is None or ended is None:
        return None
    of = _attributed(log, ended, bounds)
    if of is None:
        return None
    headers = {}
    for one in bounds.partitions:
        own = log.partition == one.partition
        if own.any():
            data, mixed = int((own & log.data).sum()), int((own & interleaved).sum())
            markers = int(own.sum()) - data
            headers[one.partition] = Headers(
                one.hw - one.start, markers, 0, None, data, data, 0, 0, 0, 0, mixed
            )
    ends = ended["outcome"].value_counts().to_dict()
    return SoundLog(
        headers,
        {str(end): int(count) for end, count in ends.items()},
        log.partition,
        log.base,
        of,
        ended,
    )


class _Batches(NamedTuple):
    partition: Ints
    base: Ints
    last: Ints
    producer: Ints
    epoch: Ints
    sequence: Ints
    data: Flags
    aborts: Flags

    @staticmethod
    def of(batches: pa.Table) -> _Batches | None:
        """By partition and offset. None where records are gone from a batch, or were in no
        transaction."""
        control = batches["control"]
        data = np.asarray(pc.is_null(control), bool)
        known = np.asarray(pc.is_in(control, pa.array(MARKERS)), bool)
        names = (
            "partition",
            "base_offset",
            "last_offset",
            "producer_id",
            "producer_epoch",
            "base_sequence",
        )
        columns = [np.asarray(batches[name], np.int64) for name in names]
        count, transactional = (
            np.asarray(batches["count"], np.int64),
            np.asarray(batches["transactional"], bool),
        )
        whole = count == columns[2] - columns[1] + 1
        if not (whole & transactional & (data | known) & (columns[3] >= 0)).all():
            return None
        order = np.lexsort((columns[1], columns[0]))
        aborts = np.asarray(pc.fill_null(pc.equal(control, "ABORT"), False), bool)
        partition, base, last, producer, epoch, sequence = (column[order] for column in columns)
        return _Batches(
            partition, base, last, producer, epoch, sequence, data[order], aborts[order]
        )


def _whole(log: _Batches, bounds: Bounds) -> bool:
    """Whether the batches follow each other from the start of each partition to its end."""
    if not np.isin(log.partition, [one.partition for one in bounds.partitions]).all():
        return False
    for one in bounds.partitions:
        own = slice(*np.searchsorted(log.partition, [one.partition, one.partition + 1]))
        base, last = log.base[own], log.last[own]
        if not base.size:
            if one.hw > one.start:
                return False
            continue
        follows = base[1:] == last[:-1] + 1
        if not (base[0] <= one.start <= last[0] and last[-1] == one.hw - 1 and follows.all()):
            return False
    return True


def _interleaved(log: _Batches) -> Flags | None:
    """Which batches go on with a transaction behind a batch of another one. None where
    validators/facts/marks.py finds anything else."""
    own = np.lexsort((log.base, log.producer, log.partition))
    follows = np.append(False, _same(log.partition[own], log.producer[own]))
    data, before = log.data[own], np.roll(log.data[own], 1)
    markers = follows & ~data & ~before
    if (markers & np.roll(log.aborts[own], 1) & ~log.aborts[own]).any():
        return None
    # Each batch of data beside the last one before it of the same producer in the same partition.
    rows = own[data]
    same = _same(log.partition[rows], log.producer[rows])
    epoch, sequence, width = log.epoch[rows], log.sequence[rows], (log.last - log.base + 1)[rows]
    next_one = (sequence[:-1] + width[:-1]) % SEQUENCES
    skips = (epoch[1:] == epoch[:-1]) & (sequence[1:] != next_one)
    if (same & (skips | (epoch[1:] < epoch[:-1]))).any():
        return None
    goes_on = np.zeros(own.size, bool)
    goes_on[own] = follows & data & before
    newest = np.maximum.accumulate(np.where(log.data, np.arange(own.size), -1))
    writer = np.full(own.size, -1, np.int64)
    writer[1:] = np.where(newest[:-1] >= 0, log.producer[newest[:-1]], -1)
    return np.asarray(goes_on & (writer != log.producer), bool)


def _same(*keys: Ints) -> Flags:
    """Which rows have the same keys as the ones before them; of all but the first."""
    return np.asarray(np.all([key[1:] == key[:-1] for key in keys], axis=0), bool)


def _ended(transactions: pa.Table, bounds: Bounds) -> pd.DataFrame | None:
    """The transactions with what lies of them in the bounds; None where one has not ended, or lies
    elsewhere."""
    found: pd.DataFrame = transactions.to_pandas()
    places = pd.DataFrame([(one.partition, one.start, one.hw) for one in bounds.partitions])
    found = found.merge(places.set_axis(["partition", "start", "hw"], axis=1), "left", "partition")
    inside = (found["last_offset"] >= found["start"]) & (found["last_offset"] < found["hw"])
    if not (inside & found["outcome"].isin(OUTCOMES)).all():
        return None
    first = found[["first_offset", "start"]].max(axis=1).astype(np.int64)
    return found.assign(first_offset=first, stable=found["outcome"] == OUTCOMES[0])


def _attributed(log: _Batches, transactions: pd.DataFrame, bounds: Bounds) -> Ints | None:
    """The transaction of each batch: the last one of its producer that began at or below it. None
    where a batch of data is of none."""
    starts = pd.Series({one.partition: one.start for one in bounds.partitions}, dtype=np.int64)
    at = np.maximum(log.base, starts.reindex(log.partition).to_numpy(np.int64))
    rows = pd.DataFrame(
        {"partition": log.partition, "producer_id": log.producer, "at": at, "last": log.last}
    )
    rows = rows[log.data].sort_values("at", kind="stable")
    begins = transactions[["partition", "producer_id", "first_offset", "last_offset"]].astype(
        np.int64
    )
    begins = begins.assign(number=np.arange(len(begins))).sort_values("first_offset", kind="stable")
    merged = pd.merge_asof(
        rows, begins, left_on="at", right_on="first_offset", by=["partition", "producer_id"]
    )
    if not (merged["last_offset"] >= merged["last"]).all():
        return None
    found = np.full(log.base.size, -1, np.int64)
    found[rows.index.to_numpy()] = merged["number"].to_numpy(np.int64)
    return found
