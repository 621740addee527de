"""A raw log in which nothing is odd: every offset is in a complete batch, and every batch is in a
transaction that has ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from topicproof.validators.facts.balance import Headers, count_headers
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, LogFacts
from topicproof.validators.finding import Bounds

Ints = npt.NDArray[np.int64]


MARKERS = ("COMMIT", "ABORT")


class RegularLog(NamedTuple):
    """A regular log. Arrays by batch are ordered by partition and offset."""

    headers: dict[int, Headers]
    ends: dict[str, int]
    partition: Ints
    base: Ints
    """The first offset of each batch."""
    transaction: Ints
    """The row in `transactions` of each batch; -1 for a marker."""
    transactions: pd.DataFrame
    """The raw log's transactions by number. first_offset and last_offset lie within the bounds;
    `stable` tells whether it committed."""


def regular_log(facts: LogFacts, bounds: Bounds) -> RegularLog | None:
    """Checks a log. None if anything is odd or pending, or if there is no transaction at all."""
    rows, transactions = facts.batches, facts.transactions
    if not len(transactions) or any(
        partition.lso != partition.hw for partition in bounds.partitions
    ):
        return None
    data = rows["control"].isna()
    whole = rows["count"] == rows["last_offset"] - rows["base_offset"] + 1
    has_transaction = rows["control"].isin(MARKERS) | (data & (rows["transaction"] >= 0))
    odd = rows["hole"] | rows["stale"] | rows["second_end"]
    usual = whole & has_transaction & rows["transactional"] & (rows["producer_id"] >= 0) & ~odd
    if not usual.all() or not _gapless(rows, bounds):
        return None
    ended = _ended(transactions, bounds)
    if ended is None:
        return None
    ends = ended["outcome"].value_counts().to_dict()
    return RegularLog(
        count_headers(facts, bounds),
        {str(end): int(count) for end, count in ends.items()},
        rows["partition"].to_numpy(np.int64),
        rows["base_offset"].to_numpy(np.int64),
        rows["transaction"].where(data, -1).to_numpy(np.int64),
        ended,
    )


def _gapless(rows: pd.DataFrame, bounds: Bounds) -> bool:
    """Whether batches cover each partition from start to end without a gap."""
    partition, base, last = (
        rows[name].to_numpy(np.int64) for name in ("partition", "base_offset", "last_offset")
    )
    if not np.isin(
        partition, [partition_bounds.partition for partition_bounds in bounds.partitions]
    ).all():
        return False
    for partition_bounds in bounds.partitions:
        number = partition_bounds.partition
        of_partition = slice(*np.searchsorted(partition, [number, number + 1]))
        if base[of_partition].size == 0:
            if partition_bounds.hw > partition_bounds.start:
                return False
            continue
        follows = base[of_partition][1:] == last[of_partition][:-1] + 1
        reaches = (
            base[of_partition][0] <= partition_bounds.start <= last[of_partition][0]
            and last[of_partition][-1] == partition_bounds.hw - 1
        )
        if not (reaches and follows.all()):
            return False
    return True


def _ended(transactions: pd.DataFrame, bounds: Bounds) -> pd.DataFrame | None:
    """Clips the transactions to the bounds; None if one has not ended or does not end within
    them."""
    places = pd.DataFrame(
        [(partition.partition, partition.start, partition.hw) for partition in bounds.partitions]
    )
    rows = transactions.merge(
        places.set_axis(["partition", "start", "hw"], axis=1), "left", "partition"
    )
    inside = (rows["last_offset"] >= rows["start"]) & (rows["last_offset"] < rows["hw"])
    if not (inside & rows["outcome"].isin((COMMITTED, ABORTED))).all():
        return None
    first = rows[["first_offset", "start"]].max(axis=1).astype(np.int64)
    return rows.assign(first_offset=first, stable=rows["outcome"] == COMMITTED)
