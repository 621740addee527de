"""Only the pipeline writes to its sink.

Catalogue 24. Judged only if records carry transaction headers: then the pipeline owns the sink.
Three sorts of batches are reported: those in no transaction, those of a producer id that wrote none
of these headers, and those of a producer id whose headers name several transactional ids. A
producer has one transactional id, so the last are copies of another log. In a log without any
transaction, the pipeline itself writes outside transactions (at_least_once), so a batch tells
nothing.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence, of_log, records
from topicproof.validators.facts.raw_log import settled
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "intruder"
TITLE = "Foreign batches in the sink"
QUESTION = "Was everything in the sink written by its own pipeline?"
UNIT = "batches"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("batch", "batches"),
    bad=Forms("was not written by the pipeline", "were not written by the pipeline"),
    good=Forms("was written by the pipeline", "were written by the pipeline"),
)
TRAITS = Traits(
    next_step=(
        "If another program may write to this topic, nothing is wrong; otherwise take away its"
        " right to write (`kafka-acls.sh`)."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.accounts.raw_log is None or not ledger.counts.ends or not _suspicious(ledger):
        return None
    data = ledger.accounts.raw_log.batches.where(
        settled(ledger.sink_bounds) & F.col("control").isNull() & (F.col("count") > 0)
    )
    first = ledger.question.first_of_letters(ledger.sink_bounds)
    if first is not None:
        # Other producers write the dead letters, usually outside of transactions.
        data = data.where(F.col("partition") < first)
    owners = _owners(ledger)
    rows = data.join(owners, "producer_id", "left").withColumn("offset", F.col("base_offset"))
    ids = F.coalesce("ids", F.lit(0))
    why = (
        F.when(
            ~F.col("transactional"), F.format_string("%s outside transactions.", records("count"))
        )
        .when(
            ids == 0,
            F.format_string(
                "%s of producer id %d, which writes none of the pipeline's headers.",
                records("count"),
                "producer_id",
            ),
        )
        .otherwise(
            F.format_string(
                "%s of producer id %d, whose headers name %d transactional ids: copies of another"
                " log.",
                records("count"),
                "producer_id",
                "ids",
            )
        )
    )
    return evidence(of_log(rows.where(~F.col("transactional") | (ids != 1))), F.col("count"), why)


def _suspicious(ledger: Ledger) -> bool:
    total = sum(cell.committed + cell.aborted + cell.pending for cell in ledger.counts.cells)
    named = sum(transactional_id.records for transactional_id in ledger.counts.ids)
    strange = (
        total != named
        or any(transactional_id.strangers for transactional_id in ledger.counts.ids)
        or ledger.marks("plain") > 0
    )
    return named > 0 and strange


def _owners(ledger: Ledger) -> DataFrame:
    """Returns producer ids that wrote our headers: producer_id, ids (number of transactional ids).

    The first record of a name lies in the last batch that begins at or below it, so no record is
    touched.
    """
    assert ledger.accounts.raw_log is not None, "asked only with the raw log"
    batches = ledger.accounts.raw_log.batches.where(
        F.col("control").isNull() & F.col("transactional")
    )
    begins = batches.select(
        "partition",
        F.col("base_offset").alias("at"),
        F.lit(0).alias("turn"),
        "producer_id",
        "last_offset",
    ).withColumn("transactional_id", F.lit(None).cast("string"))
    names = ledger.frames.named.select(
        "partition", F.col("offset").alias("at"), F.lit(1).alias("turn"), "transactional_id"
    )
    so_far = Window.partitionBy("partition").orderBy("at", "turn")
    batch = F.last(
        F.when(F.col("turn") == 0, F.struct("producer_id", "last_offset")), ignorenulls=True
    ).over(so_far)
    rows = begins.unionByName(names, allowMissingColumns=True).withColumn("batch", batch)
    rows = rows.where((F.col("turn") == 1) & (F.col("batch.last_offset") >= F.col("at")))
    return rows.groupBy(F.col("batch.producer_id").alias("producer_id")).agg(
        F.count_distinct("transactional_id").alias("ids")
    )


def covered(ledger: Ledger) -> int:
    """Counts data batches, in a sink with transactions whose records carry our headers."""
    return ledger.marks("batches") if ledger.counts.ids and ledger.counts.ends else 0
