"""No output is committed twice: each lineage occurs at one committed offset, over all partitions of
the sink.

Catalogue 1, Jepsen's `duplicate`. The rows are the later copies. If read_committed wrongly shows a
record of an aborted transaction, a repeat by that record is explained by `aborted_read`. If records
are matched by key and the source has lost some, the copy may be the output of a removed input:
explained by `source_removed`, unless both lie where validators/ledger/retained.py excludes that.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.expectation import PENDING
from topicproof.validators.facts.writers import with_writers, written
from topicproof.validators.finding import Witness
from topicproof.validators.kinds import aborted_read, source_removed
from topicproof.validators.kinds.matching import is_judged, is_pending, of_another
from topicproof.validators.kinds.traits import MATCHING_EACH, RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import known_aborted, real
from topicproof.validators.offsets import place_text
from topicproof.validators.sentences import Forms, Words

NAME = "duplicate"
TITLE = "Duplicates"
QUESTION = "Is every output committed at most once?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed record", "committed records"),
    bad=Forms("repeats a committed output", "repeat a committed output"),
    good=Forms("is the only copy of its output", "are the only copies of their outputs"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    shows_identity=True,
    premises=(*MATCHING_EACH, "outputs_alike"),
    next_step=(
        "Compare the writers of both copies. Commit the group's offset in the transaction of the"
        " outputs (sendOffsetsToTransaction), and let the broker fence one of two instances."
        " Consumers of the sink must drop the later copies: Kafka removes none."
    ),
)
FIRST_COPY = r"the first is at (\S+)-(\d+)@(\d+)\."
"""Finds the first copy's topic, partition and offset in a row's sentence."""


def find(ledger: Ledger) -> DataFrame | None:
    if not ledger.counts.repeats:
        return None
    rows = ledger.sink.join(ledger.repeats, ["partition", "offset"])
    subject = "This identity" if ledger.question.agreed.unique else "The output of this input"
    why = F.format_string(
        f"{subject} is committed %d times; the first is at %s.",
        "copies",
        place_text(ledger.sink_bounds, "first_partition", "first_offset"),
    )
    if ledger.counts.identities.repeated and not ledger.question.agreed.unique:
        rows = rows.join(_shared(ledger), ["source_partition", "source_offset"], "left")
        shared = F.format_string(
            "%d committed records hold this identity, and %d inputs do; the first is at %s.",
            "records",
            "inputs",
            place_text(ledger.sink_bounds, "first.partition", "first.offset"),
        )
        why = F.when(F.col("records").isNotNull(), shared).otherwise(why)
    # The raw log knows who wrote both copies. It quotes no header, which a mask may hide.
    rows = with_writers(rows, ledger.accounts.raw_log, "first_partition", "first_offset")
    cause = cause_of(ledger)
    may_be_of_removed = cause == source_removed.NAME
    alike = F.format_string(
        "%d committed records have this identity; the first is at %s.",
        "copies",
        place_text(ledger.sink_bounds, "first_partition", "first_offset"),
    )
    why = F.when(may_be_of_removed, alike).otherwise(why)
    doubt = F.when(
        may_be_of_removed,
        " One may be the output of a removed input that had the same identity; otherwise this one"
        " is a duplicate.",
    )
    has_writer = F.col("writer").isNotNull()
    first = F.when(has_writer, F.concat(F.lit(" That one is of "), written(), F.lit(".")))
    parts = (F.coalesce(part, F.lit("")) for part in (first, doubt))
    return evidence(rows, F.col("copies"), F.concat(why, *parts), cause)


def cause_of(ledger: Ledger) -> Column:
    """Returns what explains a later copy; null for a primary row."""
    cause = F.when(known_aborted(), aborted_read.NAME).when(is_pending(ledger), PENDING)
    judged_from = ledger.retained.judged_from
    copies = (("partition", "offset"), ("first_partition", "first_offset"))
    judged = [is_judged(judged_from, partition, offset) for partition, offset in copies]
    another = of_another(ledger, judged[0] & judged[1])
    return cause if another is None else cause.otherwise(another)


def _shared(ledger: Ledger) -> DataFrame:
    """Returns the inputs that share an identity: source_partition, source_offset, inputs and
    records (how many hold it), first (the place of the first such record)."""
    assert ledger.frames.identities is not None, "only inputs matched by key share an identity"
    keys = ledger.frames.identities().where(F.col("source_key").isNotNull() & ~F.col("pending"))
    inputs = keys.withColumn("inputs", F.count("*").over(Window.partitionBy("source_key")))
    inputs = inputs.where(F.col("inputs") > 1)
    places = ["source_partition", "source_offset"]
    records = ledger.sink.where(real() & F.col("ambiguous")).join(inputs, places)
    counts = records.groupBy("source_key").agg(
        F.count("*").alias("records"), F.min(F.struct("partition", "offset")).alias("first")
    )
    return inputs.join(counts, "source_key").select(*places, "inputs", "records", "first")


def covered(ledger: Ledger) -> int:
    """Counts committed records that have an input."""
    return sum(cell.committed for cell in ledger.matched)
