"""How much of the log consists of aborted records, and which transactions wrote them.

Catalogue 22. This is information. Producers that ever abort leave aborted records; these take up
space and reading time until retention removes them. One row per transaction and partition, the
largest first, with the reason if the journal or the coordinators' log gives it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence, records
from topicproof.validators.facts.raw_log import inside
from topicproof.validators.facts.writers import NAME_MAX, names, reasons, time_text
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.offsets import bound, by_partition
from topicproof.validators.sentences import Forms, Words

NAME = "aborted_volume"
TITLE = "Aborted volume"
QUESTION = "How much of the log is aborted records, and why?"
UNIT = "transactions of a partition"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("transaction, counted per partition,", "transactions, counted per partition,"),
    bad=Forms("is aborted", "are aborted"),
)
TRAITS = Traits()


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.accounts.raw_log is None or not ledger.counts.ends.get(Fate.ABORTED.value):
        return None
    aborted = ledger.accounts.raw_log.transactions.where(inside(ledger.sink_bounds))
    aborted = aborted.where(F.col("outcome") == Fate.ABORTED.value).select(
        "partition",
        F.greatest("first_offset", bound("partition", ledger.sink_bounds, "start")).alias("offset"),
        F.col("records").alias("amount"),
        F.col("first_offset").alias("began"),
        F.col("producer_id").alias("producer"),
        F.col("marker_timestamp").alias("written_ms"),
    )
    rows = aborted.join(ledger.frames.named, ["partition", "offset"], "left")
    ids = names(ledger.accounts.raw_log).select(
        F.col("producer_id").alias("producer"), F.col("transactional_id").alias("name")
    )
    rows = rows.join(ids, "producer", "left")
    rows = rows.join(reasons(ledger.accounts.raw_log), ["partition", "began"], "left")
    name = F.concat(F.substring("name", 1, NAME_MAX), F.lit(", "))
    offsets = by_partition(
        "partition", {partition.partition: partition.offsets for partition in ledger.balance}
    )
    reason = F.when(
        F.col("declared") == Fate.ABORTED.value,
        F.coalesce("reason", F.lit("aborted by its worker")),
    )
    why = F.format_string(
        "%s of %sproducer id %d, %.1f %% of the partition's offsets: %s.",
        records("amount", "aborted"),
        F.coalesce(name, F.lit("")),
        "producer",
        100 * F.col("amount") / offsets,
        F.coalesce(
            reason,
            F.when(
                F.col("aborted_by").isNotNull(),
                F.concat_ws(" ", "aborted_by", time_text("written_ms")),
            ),
            F.lit("nothing tells why"),
        ),
    )
    return evidence(rows, F.col("amount"), why)


def covered(ledger: Ledger) -> int:
    return sum(ledger.counts.ends.values())
