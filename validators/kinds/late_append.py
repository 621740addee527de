"""An ended transaction gets no more records.

Catalogue 14, KIP-890: a delayed Produce lands after the marker of its own transaction. It hangs, or
it becomes part of the producer's next transaction. The records' headers reveal it: if one partition
has a name in two transactions of the raw log, some records lie after their own marker. Copies of
another log are left to `intruder`, as in `wrong_attribution`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence, records
from topicproof.validators.facts import header_transactions
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "late_append"
TITLE = "Records after their marker"
QUESTION = "Are all records of a transaction before its own marker?"
UNIT = "transactions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("transaction named in headers", "transactions named in headers"),
    bad=Forms("has records after its own marker", "have records after their own markers"),
)
TRAITS = Traits(
    next_step=(
        "Use transactions of version 2 (KIP-890, brokers and clients from Kafka 4.0 on): a delayed"
        " Produce arrived after the end of its own transaction."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per transaction of the raw log with late records, at the first of them."""
    if ledger.accounts.raw_log is None or not any(
        transactional_id.strangers for transactional_id in ledger.counts.ids
    ):
        return None
    rows = header_transactions.attributed(ledger.sink, ledger.accounts.raw_log, ledger.sink_bounds)
    rows = rows.where((F.col("ids") == 1) & (F.col("first_began") < F.col("began")))
    was = F.when(F.col("records") == 1, "was").otherwise("were")
    why = F.format_string(
        "%s of its transaction %s appended after the transaction's own marker.",
        records("records"),
        was,
    )
    return evidence(rows, F.col("records"), why)


def covered(ledger: Ledger) -> int:
    return sum(
        transactional_id.committed + transactional_id.aborted + transactional_id.open
        for transactional_id in ledger.counts.ids
    )
