"""Whole transactions of a topic, assembled from their parts on each partition
(`fates.transactions`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, OPEN, UNEXPLAINED

SPLIT = "SPLIT"
"""A transaction that was committed on one partition and aborted on another."""

OVER_PARTITIONS_COLUMNS = (
    "producer_id",
    "producer_epoch",
    "partitions",
    "first_offset_by_partition",
    "last_offset_by_partition",
    "records",
    "bytes",
    "begin_ms",
    "end_ms",
    "outcome",
)


def over_partitions(transactions: pd.DataFrame) -> pd.DataFrame:
    """Return one row (`OVER_PARTITIONS_COLUMNS`) per transaction of the topic, by begin. The input
    is the table of `transactions`.

    `partitions`, `first_offset_by_partition` and `last_offset_by_partition` are tuples in the same
    order, by partition. `begin_ms` is the first timestamp of the data. `end_ms` is the timestamp of
    the last marker, a nullable Int64: null unless the transaction has ended everywhere.

    The parts of a transaction share producer id and epoch. A marker of the next epoch (KIP-890: of
    a Java client, a fence or a timeout) ends its epoch, so all parts of the epoch belong together.
    Otherwise one epoch holds many transactions (librdkafka), and time decides. The coordinator lets
    a transaction write only after every marker of the previous one, and writes the markers of one
    transaction at nearly the same time. So parts are taken in the order of their markers. A part
    starts the next transaction if its partition already has a part. It also does if it began after
    the first marker, or closer to it than its own marker is. A part without a marker may have been
    hanging for long, so it joins ended parts only if their data overlap in time.

    Headers alone cannot always separate two transactions of one epoch that share no partition. A
    commit returns before its markers are written, so the next data may be some ms older than the
    markers. Writers may set timestamps, and clocks may differ. Then two transactions may count as
    one (SPLIT if they ended differently), or one as two. Parts in other topics, and deleted or
    compacted parts, are unknown.
    """
    order = transactions.assign(
        marker=transactions["marker_timestamp"].astype("Float64").fillna(np.inf).astype(float)
    )
    order = order.sort_values(
        ["producer_id", "producer_epoch", "marker", "partition"], kind="stable"
    )
    rows = order.assign(number=_numbers(order)).sort_values(["number", "partition"], kind="stable")
    by_number = rows.groupby("number")
    table = pd.DataFrame(
        {
            "producer_id": by_number["producer_id"].first(),
            "producer_epoch": by_number["producer_epoch"].first(),
            "records": by_number["records"].sum(),
            "bytes": by_number["bytes"].sum(),
            "begin_ms": by_number["first_timestamp"].min(),
            "end_ms": (
                by_number["marker_timestamp"]
                .max()
                .where(by_number["marker_timestamp"].count() == by_number.size())
            ),
            "outcome": _outcomes(rows),
        }
    )
    cuts = np.flatnonzero(np.diff(rows["number"].to_numpy())) + 1
    for name, values in (
        ("partitions", rows["partition"]),
        ("first_offset_by_partition", rows["first_offset"]),
        ("last_offset_by_partition", rows["last_offset"]),
    ):
        parts = np.split(values.to_numpy(), cuts) if len(rows) else []
        table[name] = pd.Series([tuple(part.tolist()) for part in parts], table.index, dtype=object)
    table = table.sort_values(["begin_ms", "producer_id"], kind="stable", ignore_index=True)
    return table[list(OVER_PARTITIONS_COLUMNS)]


def _numbers(order: pd.DataFrame) -> list[int]:
    """Number the transaction of each part. The parts are sorted by producer id, epoch and
    marker."""
    # A part's data are older than its marker. If timestamps disagree, the writer's clock is ahead.
    ahead = (order["last_timestamp"] - order["marker"]).clip(lower=0)
    ahead = ahead.groupby([order["producer_id"], order["producer_epoch"]]).transform("max")
    numbers: list[int] = []
    last_of_epoch = (order["marker_epoch"] > order["producer_epoch"]).fillna(False)
    number, of, partitions, complete = -1, None, set[int](), False
    first_marker, oldest, newest = np.inf, np.inf, -np.inf
    for producer, epoch, partition, first, last, marker, ends_epoch in zip(
        order["producer_id"],
        order["producer_epoch"],
        order["partition"],
        order["first_timestamp"] - ahead,
        order["last_timestamp"] - ahead,
        order["marker"],
        last_of_epoch,
        strict=True,
    ):
        if marker == np.inf > first_marker:
            apart = first > newest or last < oldest or last > first_marker
        else:
            apart = marker - first_marker > first_marker - first
        if of != (producer, epoch) or partition in partitions or (apart and not complete):
            number, of, partitions = number + 1, (producer, epoch), set()
            first_marker, oldest, newest = marker, first, last
        partitions.add(partition)
        oldest, newest = min(oldest, first), max(newest, last)
        complete = bool(ends_epoch)
        numbers.append(number)
    return numbers


def _outcomes(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return the outcome of each number: SPLIT if its partitions contradict each other, else an
    outcome that is not known yet before a known one."""
    has = {
        name: (rows["outcome"] == name).groupby(rows["number"]).any()
        for name in (COMMITTED, ABORTED)
    }
    waits = {
        name: (rows["outcome"] == name).groupby(rows["number"]).any()
        for name in (OPEN, UNEXPLAINED)
    }
    outcomes = np.select(
        [has[COMMITTED] & has[ABORTED], waits[UNEXPLAINED], waits[OPEN], has[ABORTED]],
        [SPLIT, UNEXPLAINED, OPEN, ABORTED],
        COMMITTED,
    )
    return pd.Series(outcomes, has[COMMITTED].index, dtype=object)
