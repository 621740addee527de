"""Markers and transactions add up: each transaction below the last stable offset has one marker.

Catalogue 21. The balance already accounts for offsets that hold markers instead of records; a
remainder there is a doubt. This kind reports two other cases. A transaction below the last stable
offset has no marker (compaction dropped it, KAFKA-14055). Or a COMMIT marker directly follows an
ABORT marker of the same producer.

Other markers without data are normal: they belong to empty transactions, or to a restarted
coordinator that writes its markers again. If offsets are gone, data may have stood between two
markers, so these are not judged. A transaction without a marker whose records are visible is
explained by `resurrected`.

A limit: a client that is allowed to commit although all its writes to a partition failed leaves the
same two markers there, if it aborted its previous transaction. Java's and librdkafka's refuse that.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence, of_log, records, together
from topicproof.validators.facts.raw_log import inside, settled
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import resurrected
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import without_marker
from topicproof.validators.sentences import Forms, Words

NAME = "marker_accounting"
TITLE = "Markers that do not add up"
QUESTION = "Does every transaction below the last stable offset have exactly one marker?"
UNIT = "transactions and markers"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("transaction or marker", "transactions and markers"),
    bad=Forms("lacks its counterpart", "lack their counterparts"),
    good=Forms("has its counterpart", "have their counterparts"),
)
TRAITS = Traits(
    next_step=(
        "Look for compaction, a restore or an unclean leader election of this partition: a marker"
        " was lost, or written twice."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    frames: list[DataFrame] = []
    if ledger.accounts.raw_log is None:
        return None
    if ledger.counts.ends.get(Fate.UNEXPLAINED.value):
        endless = ledger.accounts.raw_log.transactions.where(inside(ledger.sink_bounds))
        endless = endless.where(F.col("outcome") == Fate.UNEXPLAINED.value).withColumn(
            "offset", F.col("first_offset")
        )
        visible = ledger.sink.where(without_marker()).select(
            "partition", "offset", F.lit(True).alias("shown")
        )
        endless = endless.join(visible, ["partition", "offset"], "left")
        why = F.format_string(
            "A transaction of producer id %d (%s) lies below the last stable offset, and no marker"
            " ends it.",
            "producer_id",
            records("records"),
        )
        cause = F.when(F.col("shown"), resurrected.NAME)
        frames.append(evidence(of_log(endless), F.col("records"), why, cause))
    whole = [partition.partition for partition in ledger.balance if not partition.gone]
    if ledger.marks("second_ends"):
        ends = ledger.accounts.raw_log.batches.where(
            settled(ledger.sink_bounds) & F.col("second_end")
        )
        ends = ends.where(F.col("partition").isin(whole)).withColumn("offset", F.col("base_offset"))
        why = F.format_string(
            "A COMMIT marker of producer id %d right after its ABORT marker: there is nothing left"
            " to commit.",
            "producer_id",
        )
        frames.append(evidence(of_log(ends), F.lit(0), why))
    return together(frames)


def covered(ledger: Ledger) -> int:
    return sum(ledger.counts.ends.values()) + ledger.marks("markers")
