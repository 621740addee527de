"""Every expected output below the group's committed offset is committed, up to the last one.

Catalogue 8, Jepsen's `committed-too-far`. Inputs between the last one with a committed output and
the group's offset are never processed again. They are lost, and this kind explains their gaps. A
hole further down is a gap and tells nothing about the offset. Judged at rest and within the judged
range. Outputs that are still pending may or may not be lost; if all of them are pending, the row is
explained by `pending`. An offset beyond the end of the partition skips inputs yet to come, and one
beyond its last stable offset skips inputs of an open transaction, if that commits.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import COLUMNS, evidence, of_source, together
from topicproof.validators.expectation import PENDING
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import identity_repeated
from topicproof.validators.kinds.letter_repeated import pending_letters
from topicproof.validators.kinds.matching import of_group, untold, why_uncertain
from topicproof.validators.kinds.traits import MATCHING_EACH, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import known_aborted
from topicproof.validators.offsets import by_partition
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import Forms, Words

NAME = "offset_ahead"
TITLE = "Group offset ahead of the output"
QUESTION = "Is the last expected output below the group's offset committed?"
UNIT = "source partitions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("source partition", "source partitions"),
    bad=Forms(
        "has a group's offset ahead of its committed outputs",
        "have a group's offset ahead of their committed outputs",
    ),
    good=Forms(
        "has the last output that is expected below the group's offset",
        "have the last outputs that are expected below the group's offset",
    ),
)
TRAITS = Traits(
    shows_identity=True,
    premises=MATCHING_EACH,
    next_step=(
        "Stop all members of the group, then set its offset to the end of the partition"
        " (`kafka-consumer-groups.sh --reset-offsets --to-latest`), or to its first input without a"
        " committed output. Commit offsets in the transaction of the outputs, never before or"
        " outside it."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per source partition: of the partition as a whole if the offset lies beyond
    what can be read, otherwise at the first lost input."""
    frames = [frame for frame in (_beyond(ledger), _lost(ledger)) if frame is not None]
    return together(frames)


def _beyond(ledger: Ledger) -> DataFrame | None:
    if ledger.question.agreed.offsets is None:
        return None
    rows = untold(ledger)
    for partition in ledger.question.source.partitions:
        offset = ledger.question.agreed.offsets.get(partition.partition, 0)
        stable = ledger.circumstances.source_lso.get(partition.partition, partition.hw)
        if offset <= stable:
            continue
        if offset > partition.hw:
            end, cause = partition.hw, None
            skipped = "the next input is" if offset == end + 1 else "inputs to come are"
            why = f"and the partition ends at {end:,}: {skipped} skipped."
        else:
            end, cause = stable, PENDING
            why = f"and inputs from {end:,} on are pending: if they commit, they are skipped."
        place = (ledger.question.source.topic, partition.partition, None, None)
        why = f"{of_group(ledger)} is at offset {offset:,}, {why}"
        if cause is None and offset == end + 1:
            why += f" Off by one: the next record has the offset {end:,}."
        rows.append((None, None, *place, None, cause, offset - end, why))
    return frame_of(ledger.spark, rows, COLUMNS) if rows else None


def _lost(ledger: Ledger) -> DataFrame | None:
    ends = {bounds.partition: bounds.hw for bounds in ledger.question.source.partitions}
    offsets = {
        p: at for p, at in (ledger.question.agreed.offsets or {}).items() if at <= ends.get(p, at)
    }
    ahead = {
        partition: offset
        for partition, offset in offsets.items()
        if offset > ledger.after(partition)
    }
    if not ahead:
        return None
    after = by_partition(
        "source_partition", {partition: ledger.after(partition) for partition in ahead}
    )
    offset = by_partition("source_partition", ahead)
    lost = ledger.outputs.where(
        (F.col("source_offset") >= after) & (F.col("source_offset") < offset)
    )
    identity = ("source_partition", "source_offset", "output_index")
    open_ = ledger.sink.where((F.col("fate") == Fate.PENDING.value) & ~known_aborted())
    waiting = open_.select(*identity).distinct().withColumn("waiting", F.lit(True))
    lost = lost.select(*identity).distinct().join(waiting, list(identity), "left")
    if ledger.question.agreed.letters is not None:
        # Committed, the dead letter of an input stands for all of its outputs.
        lost = lost.join(pending_letters(ledger), ["source_partition", "source_offset"], "left")
        lost = lost.withColumn("waiting", F.coalesce("waiting", "has_pending_letter"))
    rows = lost.groupBy("source_partition").agg(
        F.min("source_offset").alias("source_offset"),
        F.count("*").alias("lost"),
        F.count("waiting").alias("waiting"),
    )
    undecided = F.col("lost") == F.col("waiting")
    is_by_one = (F.col("lost") == 1) & (F.col("waiting") == 0)
    by_one = " Only the last output below the group's offset is missing."
    why = F.format_string(
        "%s is at offset %d, and of the expected outputs from this input to there none is"
        " committed: %d lost, %d pending.%s",
        F.lit(of_group(ledger)),
        offset,
        F.col("lost") - F.col("waiting"),
        "waiting",
        F.when(is_by_one, by_one).otherwise(""),
    )
    rows = of_source(rows, ledger.question.source.topic).withColumn("output_index", F.lit(None))
    cause = F.when(undecided, PENDING)
    uncertain = (
        identity_repeated.NAME if ledger.counts.identities.repeated else why_uncertain(ledger)
    )
    return evidence(rows, F.col("lost"), why, cause.otherwise(F.lit(uncertain)))


def covered(ledger: Ledger) -> int:
    """Counts source partitions, if the group has an offset or should have one."""
    offsets = ledger.question.agreed.offsets
    if not offsets and (offsets is None or not ledger.counts.inputs.judged):
        return 0
    return len(ledger.question.source.partitions)
