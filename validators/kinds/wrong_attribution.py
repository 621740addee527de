"""A marker ends one transaction, with the outcome that its worker was told.

Catalogue 13, KAFKA-17754: a delayed EndTxn ends the next transaction of its producer. Then two
names lie between two markers of one producer, or the marker contradicts the journal. The marker was
meant for the name with the highest sequence; the others are reported. A name that had ended before
came too late, and is explained by `late_append`. If a producer id's headers name several
transactional ids, it holds a copy of another log. The transactions of that log are not this log's,
so it is left to `intruder`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence, together
from topicproof.validators.facts import header_transactions
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import fate_split, late_append
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "wrong_attribution"
TITLE = "Markers of another transaction"
QUESTION = (
    "Does every marker end the transaction that it was meant for, with the outcome that its worker"
    " was told?"
)
UNIT = "transactions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("transaction named in headers", "transactions named in headers"),
    bad=Forms(
        "is ended by a marker of another transaction or outcome",
        "are ended by markers of other transactions or outcomes",
    ),
)
TRAITS = Traits(
    next_step=(
        "Use transactions of version 2 (KIP-890, brokers and clients from Kafka 4.0 on): a delayed"
        " EndTxn ended a later transaction of the same producer."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    frames = (
        [_mixed(ledger)]
        if any(transactional_id.strangers for transactional_id in ledger.counts.ids)
        else []
    )
    frames += (
        [_misdeclared(ledger)]
        if any(transactional_id.misdeclared for transactional_id in ledger.counts.ids)
        else []
    )
    return together(frames)


def _mixed(ledger: Ledger) -> DataFrame:
    """Returns names that share a raw log transaction with a later name, each at its first record
    there."""
    assert ledger.accounts.raw_log is not None, "groups were compared with the raw log"
    name = F.struct(*header_transactions.NAME)
    rows = header_transactions.attributed(ledger.sink, ledger.accounts.raw_log, ledger.sink_bounds)
    rows = rows.where((F.col("ids") == 1) & (F.col("names") > 1) & (name != F.col("last_name")))
    why = F.format_string(
        "Its transaction was ended by the marker that was meant for transaction %d of %s (attempt"
        " %d), of the same producer.",
        *(F.col(f"last_name.{part}") for part in ("sequence", "transactional_id", "attempt")),
    )
    late = F.col("first_began") < F.col("began")
    return evidence(rows, F.col("records"), why, F.when(late, late_append.NAME))


def _misdeclared(ledger: Ledger) -> DataFrame:
    """Returns names whose marker contradicts the journal, each at its first record."""
    of_transaction = Window.partitionBy(*header_transactions.NAME)
    rows = ledger.frames.named.withColumn(
        "split",
        (F.sum("stable").over(of_transaction) > 0) & (F.sum("unstable").over(of_transaction) > 0),
    )
    committed = (F.col("unstable") > 0) & (F.col("declared") == Fate.COMMITTED.value)
    aborted = (F.col("stable") > 0) & (F.col("declared") == Fate.ABORTED.value)
    why = F.when(
        committed, "The journal says that its transaction was committed; its marker is ABORT."
    ).otherwise("The journal says that its transaction was aborted; its marker is COMMIT.")
    return evidence(
        rows.where(committed | aborted),
        F.col("records"),
        why,
        F.when(F.col("split"), fate_split.NAME),
    )


def covered(ledger: Ledger) -> int:
    return sum(
        transactional_id.committed + transactional_id.aborted + transactional_id.open
        for transactional_id in ledger.counts.ids
    )
