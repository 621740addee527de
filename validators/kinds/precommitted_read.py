"""No read_committed consumer receives a record before its transaction is committed.

Catalogue 15 and 18, Jepsen's `precommitted-read`. A reader polled the sink while it was written,
and asked for the last stable offset after each poll. What it received must lie below that offset
and be committed now. A record of an open transaction was read too early, whether the transaction
later committed or aborted.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators import polled
from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "precommitted_read"
TITLE = "Records read too early"
QUESTION = "Did a read_committed reader receive only records that were committed by then?"
UNIT = "records polled"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READER,),)
WORDS = Words(
    noun=Forms("polled record", "polled records"),
    bad=Forms("was received before it was committed", "were received before they were committed"),
    good=Forms("was committed when it was received", "were committed when they were received"),
)
TRAITS = Traits(
    next_step=(
        "Keep the segments of the partition, and report them to whoever maintains the broker: it"
        " delivered records of an open transaction at read_committed."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per record, however often it was received too early."""
    if ledger.accounts.polled is None:
        return None
    received = polled.records(ledger.accounts.polled, ledger.sink_bounds).groupBy(
        "partition", "offset"
    )
    early = received.agg(
        F.min_by("lso", "at_ms").alias("lso_then"),
        F.bool_or(F.col("offset") >= F.col("lso")).alias("above"),
    )
    rows = ledger.sink.join(early, ["partition", "offset"])
    rows = rows.where(F.col("above") | (F.col("fate") != Fate.COMMITTED.value))
    why = F.when(
        F.col("above"),
        F.format_string(
            "The reader received it while the last stable offset was %d: before its transaction"
            " was decided.",
            "lso_then",
        ),
    ).otherwise(F.format_string("The reader received it, and it is %s.", F.lower("fate")))
    return evidence(rows, F.when(F.col("fate") == Fate.COMMITTED.value, 0).otherwise(1), why)


def covered(ledger: Ledger) -> int:
    return ledger.accounts.polled.records if ledger.accounts.polled else 0
