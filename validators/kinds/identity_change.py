"""The producer ids and epochs that wrote for a transactional id, and what they mean.

Catalogue 28. This is information. A transactional id keeps its producer id. Its epoch rises with
every takeover, fence or timeout (transaction version 1), or with every transaction (version 2,
KIP-890). A new producer id means that the epochs were used up, or that the coordinator had
forgotten the id.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Witness
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

EPOCHS_USED_UP = 32_766
"""The last epoch that a coordinator assigns before it takes a new producer id: the largest int16
minus one."""


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transactional id whose epoch changed, and one per new producer id, at its
    first record."""
    if not any(one.changed for one in ledger.ids):
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
        ledger.named.where(F.col("producer_id").isNotNull())
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
        F.when(new & spent, F.concat(moved, F.lit(": the epochs of the old one were used up.")))
        .when(
            new,
            F.concat(
                moved,
                F.lit(": the coordinator had forgotten the transactional id (it expires unused)."),
            ),
        )
        .otherwise(
            F.format_string(
                "Producer id %d went from epoch %d to %d in %d transactions: %s.",
                *("producer_id", "first_epoch", "last_epoch", "names"),
                F.when(
                    F.col("epochs") >= F.col("names"),
                    "one each (transaction version 2, or a session each)",
                ).otherwise("takeovers, fences or timeouts (transaction version 1)"),
            )
        )
    )
    return evidence(rows.where(new | (F.col("epochs") > 1)), F.when(new, 1).otherwise(0), why)


def covered(ledger: Ledger) -> int:
    return len(ledger.ids)
