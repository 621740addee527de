"""Records of other transactions lie between the records of one.

Catalogue 17, Jepsen's `int-send-skip` and `G0`. This is information. Transactions of different
producers take turns in a partition's log, and Kafka never promised to keep them apart. A
read_committed consumer sees them in the order of offsets, not of commits. One row per transaction
and partition.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.facts.raw_log import settled
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.offsets import bound
from topicproof.validators.sentences import Forms, Words

NAME = "interleaving"
TITLE = "Interleaved transactions"
QUESTION = "Which transactions have records of other transactions between their own?"
UNIT = "transactions of a partition"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("transaction, counted per partition,", "transactions, counted per partition,"),
    bad=Forms("has records of others between its own", "have records of others between their own"),
)
TRAITS = Traits()


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.accounts.raw_log is None or not ledger.marks("interleaved"):
        return None
    again = ledger.accounts.raw_log.batches.where(
        settled(ledger.sink_bounds) & F.col("interleaved")
    )
    began = F.greatest("began", bound("partition", ledger.sink_bounds, "start"))
    counted = again.groupBy("partition", began.alias("offset"), "producer_id").agg(
        F.count("*").alias("times")
    )
    rows = counted.withColumnRenamed("producer_id", "writer").join(
        ledger.frames.named, ["partition", "offset"], "left"
    )
    why = F.format_string(
        "Records of other transactions lie in %d place%s between the records of this transaction"
        " (producer id %d).",
        "times",
        F.when(F.col("times") == 1, "").otherwise("s"),
        "writer",
    )
    return evidence(rows, F.col("times"), why)


def covered(ledger: Ledger) -> int:
    return sum(ledger.counts.ends.values())
