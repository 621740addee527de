"""A transaction has one outcome: its markers are all COMMIT or all ABORT.

Catalogue 12. Every partition that a transaction wrote to has one of its markers. The records'
headers tell which markers belong together: a producer id and epoch alone do not distinguish one
transaction from the next (KIP-98). Only groups of records that are exactly one transaction of the
raw log are compared, so copied headers cause no split.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.facts import header_transactions
from topicproof.validators.finding import Witness
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "fate_split"
TITLE = "Transactions with two outcomes"
QUESTION = "Does every transaction have the same outcome in all its partitions?"
UNIT = "transactions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("transaction that headers name", "transactions that headers name"),
    bad=Forms(
        "is committed in one partition and aborted in another",
        "are committed in one partition and aborted in another",
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transaction, at its first aborted record."""
    if not any(one.split for one in ledger.ids):
        return None
    one = Window.partitionBy(*header_transactions.NAME)
    stable, unstable = F.col("stable") > 0, F.col("unstable") > 0
    rows = ledger.named.where(F.col("producer_id").isNotNull()).withColumns(
        {
            "committed_in": F.array_sort(
                F.collect_set(F.when(stable, F.col("partition"))).over(one)
            ),
            "place": F.when(unstable, F.struct("partition", "offset")),
        }
    )
    rows = rows.withColumn("first_place", F.min("place").over(one))
    rows = rows.where((F.size("committed_in") > 0) & (F.col("place") == F.col("first_place")))
    where = F.array_join(F.col("committed_in").cast("array<string>"), ", ")
    why = F.format_string("Its transaction is aborted here, and committed in partition %s.", where)
    return evidence(rows, F.size("committed_in"), why)


def covered(ledger: Ledger) -> int:
    return sum(one.committed + one.aborted for one in ledger.ids)
