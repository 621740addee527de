"""The producer ids and epochs that wrote for a transactional id, and what they mean.

Catalogue 28. This is information. A transactional id keeps its producer id. Its epoch rises with
every takeover, fence or timeout (transaction version 1), or with every transaction (version 2,
KIP-890). A new producer id means that the epochs were used up, or that the coordinator had
forgotten the id.

Transactional ids come from the records' headers. If no header names one, as in topics of other
programs, they come from the coordinators' log.
"""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import Row, evidence, of_transactions
from topicproof.validators.facts.writers import NAME_MAX
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "identity_change"
TITLE = "Changes of producer identity"
QUESTION = "Which transactional ids changed their producer id or epoch, and why?"
UNIT = "transactional ids"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("transactional id", "transactional ids"),
    bad=Forms("changed its producer id or epoch", "changed their producer ids or epochs"),
)
TRAITS = Traits()

EPOCHS_USED_UP = 32_766
"""The last epoch that a coordinator assigns before it takes a new producer id: the largest int16
minus one."""
_USED_UP = "the epochs of the old one were used up"
_FORGOTTEN = "the coordinator had forgotten the transactional id (it expires unused)"
_ONE_EACH = "one epoch for each (transaction version 2, or a new start before each)"
_TAKEOVERS = "takeovers, fences or timeouts (transaction version 1)"


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transactional id whose epoch changed, and one per new producer id, at its
    first record."""
    if not ledger.counts.ids:
        return of_transactions(ledger.spark, _by_coordinators(ledger))
    if not any(transactional_id.changed for transactional_id in ledger.counts.ids):
        return None
    epoch = F.col("producer_epoch")
    first = (
        "partition",
        "offset",
        "source_topic",
        "source_partition",
        "source_offset",
        "output_index",
        "attempt",
    )
    rows = (
        ledger.frames.named.where(F.col("producer_id").isNotNull())
        .groupBy("transactional_id", "producer_id")
        .agg(
            F.min(F.struct("sequence", *first)).alias("first"),
            F.count_distinct("sequence", "attempt", "task").alias("names"),
            F.count_distinct(epoch).alias("epochs"),
            F.min(epoch).alias("first_epoch"),
            F.max(epoch).alias("last_epoch"),
        )
        .select("*", *(F.col(f"first.{name}").alias(name) for name in ("sequence", *first)))
    )
    in_turn = Window.partitionBy("transactional_id").orderBy("sequence", "producer_id")
    rows = rows.withColumns(
        {
            "id_before": F.lag("producer_id").over(in_turn),
            "epoch_before": F.lag("last_epoch").over(in_turn),
        }
    )
    new = F.col("id_before").isNotNull()
    moved = F.format_string("New producer id %d after %d", "producer_id", "id_before")
    spent = F.col("epoch_before") >= EPOCHS_USED_UP
    why = (
        F.when(new & spent, F.concat(moved, F.lit(f": {_USED_UP}.")))
        .when(new, F.concat(moved, F.lit(f": {_FORGOTTEN}.")))
        .otherwise(
            F.format_string(
                "Producer id %d went from epoch %d to %d in %d transactions: %s.",
                "producer_id",
                "first_epoch",
                "last_epoch",
                "names",
                F.when(F.col("epochs") >= F.col("names"), _ONE_EACH).otherwise(_TAKEOVERS),
            )
        )
    )
    return evidence(rows.where(new | (F.col("epochs") > 1)), F.when(new, 1).otherwise(0), why)


def _by_coordinators(ledger: Ledger) -> list[Row]:
    """Returns the rows of the transactional ids that the coordinators' log names. They are few, so
    no Spark job is needed."""
    rows: list[Row] = []
    for name, transactions in _named_transactions(ledger).groupby("transactional_id", sort=True):
        before = None
        firsts = transactions.groupby("producer_id")["first_timestamp"].min().sort_values()
        for producer in firsts.index:
            of_producer = transactions[transactions["producer_id"] == producer]
            in_turn = of_producer.sort_values(["first_timestamp", "partition", "first_offset"])
            first = in_turn.iloc[0]
            epochs = of_producer["producer_epoch"]
            if before is not None:
                spent = before[1] >= EPOCHS_USED_UP
                reason = _USED_UP if spent else _FORGOTTEN
                why = f"{name}: new producer id {producer} after {before[0]}: {reason}."
            else:
                # The raw log counts a transaction once for each partition that it wrote to.
                of_partition = of_producer.groupby("partition")["producer_epoch"]
                count = max(int(of_partition.size().max()), epochs.nunique())
                is_each = bool((of_partition.size() == of_partition.nunique()).all())
                why = (
                    f"{name}: producer id {producer} went from epoch {epochs.min()} to"
                    f" {epochs.max()} in at least {count:,} transactions:"
                    f" {_ONE_EACH if is_each else _TAKEOVERS}."
                )
            if before is not None or epochs.nunique() > 1:
                place = (int(first["partition"]), int(first["first_offset"]))
                rows.append(Row(*place, str(name), None, int(before is not None), why))
            before = (producer, int(epochs.max()))
    return rows


def _named_transactions(ledger: Ledger) -> pd.DataFrame:
    """Returns the raw log's transactions with their transactional ids, those that are known."""
    if ledger.accounts.raw_log is None:
        return pd.DataFrame(columns=["transactional_id"])
    transactions = ledger.accounts.raw_log.facts.transactions
    ids = ledger.accounts.raw_log.attribution.transactional_ids
    names = transactions["producer_id"].map(
        {producer: name[:NAME_MAX] for producer, name in ids.items()}
    )
    return transactions.assign(transactional_id=names).dropna(subset=["transactional_id"])


def covered(ledger: Ledger) -> int:
    return len(ledger.counts.ids) or int(_named_transactions(ledger)["transactional_id"].nunique())
