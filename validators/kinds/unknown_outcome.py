"""The log settles every transaction whose outcome the journal does not know.

Catalogue 33, Jepsen's `:info`. A commit timed out, or a worker died or was fenced midway. Then the
client does not know the outcome, and may assume neither commit nor abort. This is information: the
markers show the outcome. A transaction that is still open is explained by `pending`: its outcome is
unknown. One that left no record has nothing to settle.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence, records
from topicproof.validators.expectation import PENDING
from topicproof.validators.facts import header_transactions
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "unknown_outcome"
TITLE = "Outcomes settled by the log"
QUESTION = "What became of the transactions whose outcome the journal does not know?"
UNIT = "transactions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.JOURNAL,), (Witness.RAW_LOG,))
WORDS = Words(
    noun=Forms("transaction of the run", "transactions of the run"),
    bad=Forms("ended without its worker knowing", "ended without their workers knowing"),
)
TRAITS = Traits()

_FIRST = (
    "partition",
    "offset",
    "source_topic",
    "source_partition",
    "source_offset",
    "output_index",
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transaction, at its first record."""
    ids = [
        transactional_id.transactional_id
        for transactional_id in ledger.counts.ids
        if transactional_id.unknown
        and transactional_id.transactional_id in ledger.accounts.journaled
    ]
    if not ids:
        return None
    rows = (
        ledger.frames.named.where(F.col("transactional_id").isin(*ids))
        .groupBy(*header_transactions.NAME)
        .agg(
            F.min(F.struct(*_FIRST)).alias("first"),
            F.max("declared").alias("known"),
            *(
                F.sum(name).alias(name)
                for name in ("records", "committed", "pending", "stable", "unstable")
            ),
        )
        .where(F.col("known").isNull())
        .select("*", *(F.col(f"first.{name}").alias(name) for name in _FIRST))
    )
    open_, committed = F.col("pending") > 0, F.col("committed") > 0
    # The guarantees without transactions write the same headers.
    rows = rows.where(open_ | (F.col("stable") + F.col("unstable") > 0))
    end = (
        F.when(open_, "it is still open")
        .when(committed, "its markers say that it was committed")
        .otherwise("its markers say that it was aborted")
    )
    why = F.format_string(
        "The journal does not know how this transaction (%s) ended; %s.", records("records"), end
    )
    return evidence(
        rows, F.when(open_, 2).when(committed, 1).otherwise(0), why, F.when(open_, PENDING)
    )


def covered(ledger: Ledger) -> int:
    """Counts transactions of the journal's transactional ids, in a sink that has transactions at
    all."""
    if not ledger.counts.ends:
        return 0
    journaled = [
        transactional_id
        for transactional_id in ledger.counts.ids
        if transactional_id.transactional_id in ledger.accounts.journaled
    ]
    return sum(
        transactional_id.committed + transactional_id.aborted + transactional_id.open
        for transactional_id in journaled
    )
