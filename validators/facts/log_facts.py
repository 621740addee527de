"""Facts derived from a raw log's batch headers alone, without looking at any record.

Only this module knows which batch belongs to which transaction, which marker ends a transaction,
and which batches are odd. Pages, fates, the balance, the kinds and the proof all rely on it.

Transactions follow one rule. Per partition and producer id, in offset order, data since the
previous marker belongs to the next marker. Epochs are never compared between data and markers: the
markers of Java clients, fences and timeouts carry the data's epoch + 1 (KIP-890). A control batch
whose type was lost in compaction ends no transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from topicproof.validators.finding import Bounds

BATCH_COLUMNS = (
    "partition int, base_offset long, last_offset long, count int, producer_id long, producer_epoch"
    " int, base_sequence int, transactional boolean, control string, first_timestamp long,"
    " max_timestamp long, size int, compression string, leader_epoch int"
)
"""The raw log's batches, one row each. `control` is null for data, 'COMMIT', 'ABORT', or 'OTHER' if
the type of a control batch was lost. Timestamps are in ms. `size` is in bytes as stored, compressed
and with the batch's header."""

FACT_COLUMNS = (
    "began long, outcome string, expected long, epoch_before int, hole boolean, stale boolean,"
    " second_end boolean, interleaved boolean"
)
"""Facts of a batch. `began` and `outcome` describe its transaction: the first offset of its data
and how it ended. Both are null outside a transaction.

`hole`: the sequence is not the `expected` one after the producer's previous batch in the same
epoch (KIP-98), although no offset between the two is gone. `stale`: an earlier batch has a higher
epoch, `epoch_before`. `second_end`: a COMMIT marker directly after the ABORT marker of its
producer's data. `interleaved`: it continues a transaction after a batch of another one.
"""

COMMITTED, ABORTED, OPEN, UNEXPLAINED = "COMMITTED", "ABORTED", "OPEN", "UNEXPLAINED"
"""Outcomes of a transaction. UNEXPLAINED: no marker, although it lies below the last stable
offset."""

TRANSACTION_COLUMNS = (
    "partition int, producer_id long, producer_epoch int, first_offset long, last_offset long,"
    " records long, bytes long, first_timestamp long, last_timestamp long, outcome string,"
    " marker_offset long, marker_timestamp long, marker_epoch int"
)
"""Transactions, one row per partition with data. Offsets, records and bytes (as stored) describe
the data; `producer_epoch` is that of the last data batch; timestamps are in ms."""

SEQUENCES = 2**31
"""A producer's sequence numbers in one epoch and partition run from 0 to the largest int32, then
wrap to 0 (KIP-98)."""

_ENDS = {"COMMIT": COMMITTED, "ABORT": ABORTED}
_NO_TRANSACTION = -1

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LogFacts:
    """The facts of one log."""

    batches: pd.DataFrame
    """`BATCH_COLUMNS`, `FACT_COLUMNS` and `transaction` (the row in `transactions`, or -1), by
    partition and offset."""
    transactions: pd.DataFrame
    """`TRANSACTION_COLUMNS`, by partition and first offset."""


def log_facts(batches: pa.Table, bounds: Bounds) -> LogFacts:
    """Derives the facts of `batches` (`BATCH_COLUMNS`) that were read within `bounds`."""
    rows, transactions = attributed(batches, bounds)
    of = rows["transaction"].where(rows["transaction"] >= 0)
    outcome = of.map(transactions["outcome"]).astype(object)
    began = of.map(transactions["first_offset"]).astype("Int64")
    return LogFacts(rows.assign(began=began, outcome=outcome, **_marks(rows)), transactions)


def attributed(batches: pa.Table, bounds: Bounds) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the batches by partition and offset, each with the row of its `transaction` (-1:
    none), and the transactions (`TRANSACTION_COLUMNS`)."""
    rows: pd.DataFrame = batches.to_pandas()
    rows = rows.sort_values(["partition", "base_offset"], kind="stable", ignore_index=True)
    rows["transaction"] = np.int64(_NO_TRANSACTION)
    ends = rows["control"].isin(list(_ENDS)).to_numpy(bool)
    in_one = rows["transactional"].to_numpy(bool) & (rows["control"].isna().to_numpy(bool) | ends)
    fold = rows[in_one].sort_values(["partition", "producer_id", "base_offset"], kind="stable")
    ends = ends[fold.index]
    starts = ~_same(fold["partition"], fold["producer_id"])
    starts[1:] |= ends[:-1]
    number = np.cumsum(starts) - 1
    data = ~ends & (fold["count"].to_numpy() > 0)
    has_data = np.bincount(number[data], minlength=int(starts.sum())) > 0
    transactions = _transactions(fold.assign(number=number), data, ends, has_data)
    unstable = transactions["first_offset"].to_numpy() >= lso_of(transactions["partition"], bounds)
    transactions.loc[(transactions["outcome"] == OPEN) & ~unstable, "outcome"] = UNEXPLAINED
    transactions = transactions.sort_values(["partition", "first_offset"], kind="stable")
    renumbered = np.full(len(has_data), _NO_TRANSACTION, np.int64)
    renumbered[transactions.index] = np.arange(len(transactions))
    rows.loc[fold.index, "transaction"] = renumbered[number]
    return rows, transactions.reset_index(drop=True)


def lso_of(partitions: pd.Series[int], bounds: Bounds) -> Ints:
    """Returns the last stable offset of each row's partition."""
    of = {partition.partition: partition.lso for partition in bounds.partitions}
    return np.asarray(partitions.map(of), np.int64)


def _transactions(fold: pd.DataFrame, data: Flags, ends: Flags, has_data: Flags) -> pd.DataFrame:
    """Builds the transactions that have data, indexed by their number in `fold`."""
    by_transaction = fold[data].groupby("number")
    marker = fold[ends].set_index("number")
    marker = marker[has_data[marker.index]]
    transactions = pd.DataFrame(
        {
            "partition": by_transaction["partition"].first(),
            "producer_id": by_transaction["producer_id"].first(),
            "producer_epoch": by_transaction["producer_epoch"].last(),
            "first_offset": by_transaction["base_offset"].first(),
            "last_offset": by_transaction["last_offset"].last(),
            "records": by_transaction["count"].sum().astype(np.int64),
            "bytes": by_transaction["size"].sum().astype(np.int64),
            "first_timestamp": by_transaction["first_timestamp"].min(),
            "last_timestamp": by_transaction["max_timestamp"].max(),
        }
    )
    transactions["outcome"] = marker["control"].map(_ENDS).reindex(transactions.index).fillna(OPEN)
    transactions["marker_offset"] = marker["base_offset"].astype("Int64")
    transactions["marker_timestamp"] = marker["max_timestamp"].astype("Int64")
    transactions["marker_epoch"] = marker["producer_epoch"].astype("Int64")
    return transactions


def _marks(rows: pd.DataFrame) -> dict[str, Any]:
    """Finds what is odd about each batch. `rows` are ordered by partition and offset."""
    partition, producer, epoch, base, last = (
        rows[name].to_numpy(np.int64)
        for name in ("partition", "producer_id", "producer_epoch", "base_offset", "last_offset")
    )
    data = rows["control"].isna().to_numpy(bool)
    writes = data & rows["transactional"].to_numpy(bool)
    # Offsets in no batch, accumulated from the first batch: equal counts mean that no gap lies
    # between.
    gone = np.zeros(len(rows), np.int64)
    gone[1:] = np.where(partition[1:] == partition[:-1], base[1:] - last[:-1] - 1, 0)
    gone = np.cumsum(gone)
    writer = _before(writes, _begins(~_same(rows["partition"])))
    by_producer = np.lexsort((base, producer, partition))
    rows_by_producer = rows.iloc[by_producer]
    begins = _begins(~_same(rows_by_producer["partition"], rows_by_producer["producer_id"]))

    at = np.arange(len(rows))
    has_previous, has_second = at - 1 >= begins, at - 2 >= begins
    previous, second = np.maximum(at - 1, 0), np.maximum(at - 2, 0)
    newest = _before(data[by_producer], begins)
    has_newest = newest >= 0
    sequence = rows_by_producer["base_sequence"].to_numpy(np.int64)
    width, gaps, epochs = (last - base + 1)[by_producer], gone[by_producer], epoch[by_producer]
    expected = (sequence[newest] + width[newest]) % SEQUENCES
    numbered = data[by_producer] & has_newest & (producer[by_producer] >= 0)
    hole = numbered & (epochs[newest] == epochs) & (gaps[newest] == gaps) & (sequence != expected)
    highest = _highest_before(epochs, data[by_producer], begins)
    aborts = (rows_by_producer["control"] == "ABORT").to_numpy(bool)
    commits = (rows_by_producer["control"] == "COMMIT").to_numpy(bool)
    second_end = commits & has_previous & aborts[previous] & (gaps[previous] == gaps)
    second_end &= has_second & data[by_producer][second]
    goes_on = writes[by_producer] & has_previous & data[by_producer][previous]
    other = (writer >= 0)[by_producer] & (producer[writer] != producer)[by_producer]
    back = np.empty(len(rows), np.int64)
    back[by_producer] = at
    numbers = {"expected": expected, "epoch_before": highest}
    flags = {
        "hole": hole,
        "stale": numbered & (epochs < highest),
        "second_end": second_end,
        "interleaved": goes_on & other,
    }
    return {
        **{
            name: pd.Series(values, dtype="Int64").mask(~has_newest)[back].array
            for name, values in numbers.items()
        },
        **{name: flag[back] for name, flag in flags.items()},
    }


def _same(*keys: pd.Series[Any]) -> Flags:
    """Marks rows with the same keys as the previous row; never the first row."""
    same = np.zeros(len(keys[0]), bool)
    same[1:] = np.all([key.to_numpy()[1:] == key.to_numpy()[:-1] for key in keys], axis=0)
    return same


def _begins(first: Flags) -> Ints:
    """Returns each row's first row of its group. `first` marks the first rows."""
    return np.asarray(np.maximum.accumulate(np.where(first, np.arange(first.size), 0)), np.int64)


def _before(marked: Flags, begins: Ints) -> Ints:
    """Returns, for each row, the last marked row before it in its group; -1 if there is none."""
    newest = np.full(marked.size, -1, np.int64)
    newest[1:] = np.maximum.accumulate(np.where(marked, np.arange(marked.size), -1))[:-1]
    return np.asarray(np.where(newest >= begins, newest, -1), np.int64)


def _highest_before(epochs: Ints, data: Flags, begins: Ints) -> Ints:
    """Returns, for each row, the highest epoch of earlier data in its group; at most -1 if there is
    none."""
    # Epochs are 16 bits wide, so group and epoch fit into one number that only grows.
    step = 2**17
    keys = np.where(data, epochs + 1, 0) + begins * step
    highest = np.zeros(epochs.size, np.int64)
    highest[1:] = np.maximum.accumulate(keys)[:-1]
    return np.asarray(np.maximum(highest - begins * step, 0) - 1, np.int64)
