"""A transaction has one outcome: its markers are all COMMIT or all ABORT.

Catalogue 12. Every partition that a transaction wrote to has one of its markers. Two things tell
which markers belong together:

- The records' headers. Only groups of records that are exactly one transaction of the raw log are
  compared, so copied headers cause no split.
- The epochs of transactions of version 2 (KIP-890): each transaction has an epoch of its own, and
  its markers carry the next one. Without headers, these are compared. Transactions of version 1
  share the epoch of their producer (KIP-98), and nothing in the log tells them apart. Only markers
  of the next epoch count, so no commit of version 1 does.
"""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import COLUMNS, evidence
from topicproof.validators.facts import header_transactions
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.offsets import partition_text
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import Forms, Words

NAME = "fate_split"
TITLE = "Transactions with two outcomes"
QUESTION = "Does every transaction have the same outcome in all its partitions?"
UNIT = "transactions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms(
        "transaction told apart by headers or epochs",
        "transactions told apart by headers or epochs",
    ),
    bad=Forms(
        "is committed in one partition and aborted in another",
        "are committed in one partition and aborted in another",
    ),
)
TRAITS = Traits(
    next_step=(
        "Keep the segments of these partitions, and look in the coordinator's log for a failover"
        " while the transaction ended; its outputs must be repaired by hand."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transaction, at its first aborted record."""
    return _of_headers(ledger) if ledger.counts.ids else _of_epochs(ledger)


def _of_epochs(ledger: Ledger) -> DataFrame | None:
    rows: list[tuple[object, ...]] = []
    for (producer, epoch), parts in _by_epoch(ledger):
        aborted = parts[parts["outcome"] == ABORTED]
        committed = sorted(parts.loc[parts["outcome"] == COMMITTED, "partition"].unique().tolist())
        if aborted.empty or not committed:
            continue
        first = aborted.sort_values(["partition", "first_offset"]).iloc[0]
        places = (f"{topic}-{number}" for topic, number in map(ledger.sink_bounds.place, committed))
        why = (
            f"The transaction of producer id {producer} and epoch {epoch} is aborted here, and"
            f" committed in {', '.join(places)}."
        )
        place = (int(first["partition"]), int(first["first_offset"]))
        rows.append((*place, None, None, None, None, None, None, len(committed), why))
    return frame_of(ledger.spark, rows, COLUMNS) if rows else None


def _by_epoch(ledger: Ledger) -> list[tuple[tuple[int, int], pd.DataFrame]]:
    """Returns the transactions of version 2, each with its partitions in the raw log."""
    if ledger.accounts.raw_log is None:
        return []
    parts = ledger.accounts.raw_log.facts.transactions
    transactions_v2 = parts[
        (parts["marker_epoch"] == parts["producer_epoch"] + 1).fillna(False).astype(bool)
    ]
    groups = transactions_v2.groupby(["producer_id", "producer_epoch"])
    return [
        ((int(rows["producer_id"].iloc[0]), int(rows["producer_epoch"].iloc[0])), rows)
        for _, rows in groups
    ]


def _of_headers(ledger: Ledger) -> DataFrame | None:
    if not any(transactional_id.split for transactional_id in ledger.counts.ids):
        return None
    of_transaction = Window.partitionBy(*header_transactions.NAME)
    stable, unstable = F.col("stable") > 0, F.col("unstable") > 0
    rows = ledger.frames.named.where(F.col("producer_id").isNotNull()).withColumns(
        {
            "committed_in": F.array_sort(
                F.collect_set(F.when(stable, F.col("partition"))).over(of_transaction)
            ),
            "place": F.when(unstable, F.struct("partition", "offset")),
        }
    )
    rows = rows.withColumn("first_place", F.min("place").over(of_transaction))
    rows = rows.where((F.size("committed_in") > 0) & (F.col("place") == F.col("first_place")))
    places = F.transform(
        "committed_in", lambda partition: partition_text(ledger.sink_bounds, partition)
    )
    why = F.format_string(
        "Its transaction is aborted here, and committed in %s.", F.array_join(places, ", ")
    )
    return evidence(rows, F.size("committed_in"), why)


def covered(ledger: Ledger) -> int:
    if not ledger.counts.ids:
        return len(_by_epoch(ledger))
    return sum(
        transactional_id.committed + transactional_id.aborted
        for transactional_id in ledger.counts.ids
    )
