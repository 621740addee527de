"""A transaction is committed as a whole or not at all.

Catalogue 11, Adya's `G1b`. The header of each record gives the number of records in its
transaction, over all partitions and all topics that it wrote to. A transaction is reported if some
of its records are committed, but not all. Only a run's journal shows that all its sinks are judged
together. Without one, the rest may lie in a topic that was not examined, so the shortfall is listed
and explained by `range`. A transaction without any committed record is not torn: if the journal
says that it was committed, its inputs are a gap. Records outside transactions are never torn: the
guarantees without transactions write the same headers.

The raw log alone does not tell how many records a transaction had. Without headers, a transaction
that is committed in one partition and aborted in another is found as a fate split, and one without
a marker in a partition by marker_accounting.

A transaction with a pending record is not judged. If part of a transaction may lie below the judged
start, or may have been compacted away, it is listed and explained by `range`. A partition cannot
hide a part below its start if it holds an earlier transaction of the same transactional id. A fate
split, a faulty marker or a faulty reading explains the others.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.expectation import RANGE
from topicproof.validators.facts import header_transactions
from topicproof.validators.finding import Witness
from topicproof.validators.kinds import (
    aborted_read,
    fate_split,
    reading_mismatch,
    wrong_attribution,
)
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "torn"
TITLE = "Transactions committed in part"
QUESTION = "Is every transaction committed as a whole or not at all?"
UNIT = "transactions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,), (Witness.RAW_LOG,))
WORDS = Words(
    noun=Forms("committed transaction named in headers", "committed transactions named in headers"),
    bad=Forms("is only partly committed", "are only partly committed"),
    good=Forms("is committed as a whole", "are committed as a whole"),
    outside=Forms(
        "has more records, by its header, than are committed here. The others may lie in another"
        " topic, below the judged start, or be compacted away, so this does not count",
        "have more records, by their headers, than are committed here. The others may lie in"
        " another topic, below the judged start, or be compacted away, so these do not count",
    ),
)
TRAITS = Traits(
    next_step=(
        "Look in the application for a send whose error is ignored before the commit: if one send"
        " fails, the transaction must be aborted."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transaction, at its first committed record."""
    if not any(transactional_id.torn for transactional_id in ledger.counts.ids):
        return None
    rows = parts(ledger)
    why = F.format_string(
        "Of the %d records of its transaction, %d %s committed.",
        "total_in_all",
        "committed_in_all",
        F.when(F.col("committed_in_all") == 1, "is").otherwise("are"),
    )
    return evidence(rows, F.col("missing"), why, F.col("cause"))


def parts(ledger: Ledger) -> DataFrame:
    """Returns the torn transactions, one row each: the columns of `named` at their first committed
    record, and committed_in_all, total_in_all, missing (records), first_of_all and last_of_all
    (inputs), cause."""
    of_transaction = Window.partitionBy(*header_transactions.NAME)
    rows = ledger.frames.named.withColumns(
        {
            "committed_in_all": F.sum("committed").over(of_transaction),
            "total_in_all": F.max("total").over(of_transaction),
            "pending_in_all": F.sum("pending").over(of_transaction),
            "first_of_all": F.min("first_input").over(of_transaction),
            "last_of_all": F.max("last_input").over(of_transaction),
            "stable_in_all": F.sum("stable").over(of_transaction),
            "unstable_in_all": F.sum("unstable").over(of_transaction),
            "strangers": F.count_if(F.col("producer_id").isNull()).over(of_transaction),
            "place": F.min(F.when(F.col("committed") > 0, F.struct("partition", "offset"))).over(
                of_transaction
            ),
        }
    )
    missing = F.col("total_in_all") - F.col("committed_in_all")
    rows = rows.withColumn("missing", missing).where(
        (F.col("place") == F.struct("partition", "offset"))
        & (F.col("committed_in_all") > 0)
        & (F.col("pending_in_all") == 0)
        & (missing > 0)
        & (F.col("stable_in_all") + F.col("unstable_in_all") > 0)
    )
    rows, cut = _with_cut(rows, ledger)
    stable, unstable = F.col("stable_in_all"), F.col("unstable_in_all")
    return rows.withColumn(
        "cause",
        F.when(F.col("strangers") > 0, wrong_attribution.NAME)
        .when((stable > 0) & (unstable > 0), fate_split.NAME)
        .when(unstable > 0, aborted_read.NAME)
        .when(stable > F.col("committed_in_all"), reading_mismatch.NAME)
        .when(F.lit(Witness.JOURNAL not in ledger.accounts.heard) | cut, RANGE),
    )


def _with_cut(rows: DataFrame, ledger: Ledger) -> tuple[DataFrame, Column]:
    """Tells whether the missing part may have existed: below the start of a partition, or
    compacted."""
    if any(partition.gone for partition in ledger.balance):
        return rows, F.lit(True)
    begun = [
        partition.partition for partition in ledger.sink_bounds.partitions if partition.start > 0
    ]
    if not begun:
        return rows, F.lit(False)
    named = ledger.frames.named.where(F.col("partition").isin(begun)).groupBy(
        "transactional_id", "partition"
    )
    # The struct makes Spark sort: names of one hash would take the square of their number.
    lowest = named.agg(F.min(F.struct("sequence")).alias("lowest"))
    lows = lowest.groupBy("transactional_id").agg(
        F.sort_array(F.collect_list("lowest.sequence")).alias("lows")
    )
    earlier = F.size(F.filter("lows", lambda low: low < F.col("sequence")))
    return rows.join(lows, "transactional_id", "left"), F.coalesce(earlier, F.lit(0)) < len(begun)


def covered(ledger: Ledger) -> int:
    """Counts transactions with a committed record, in a sink that has transactions at all."""
    return (
        sum(transactional_id.committed for transactional_id in ledger.counts.ids)
        if ledger.counts.ends
        else 0
    )
