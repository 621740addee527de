"""The group's committed offset lies beyond every input whose output is committed.

Catalogue 9. Otherwise the next start processes these inputs again and commits their outputs a
second time: the offset was not committed in the transaction of the output. If topics move, the
offsets are read again after the sink's bounds were taken. A partition without a committed offset of
the group is unknown: `no_offset`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.evidence import COLUMNS
from topicproof.validators.expectation import MOVEMENT
from topicproof.validators.finding import Witness
from topicproof.validators.kinds import identity_missing, identity_repeated, source_removed
from topicproof.validators.kinds.matching import of_group, untold
from topicproof.validators.kinds.traits import MATCHING_EACH, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import Forms, Words

NAME = "offset_behind"
TITLE = "Group offset behind the output"
QUESTION = "Does the group's offset lie beyond every input whose output is committed?"
UNIT = "source partitions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("source partition", "source partitions"),
    bad=Forms(
        "has a group's offset before inputs whose outputs are committed",
        "have a group's offset before inputs whose outputs are committed",
    ),
    good=Forms(
        "has a group's offset beyond its committed outputs",
        "have a group's offset beyond their committed outputs",
    ),
)
TRAITS = Traits(
    shows_identity=True,
    premises=MATCHING_EACH,
    next_step=(
        "Before the pipeline starts again, while no member runs, set the group's offset to the one"
        " after the last input with a committed output (`kafka-consumer-groups.sh --reset-offsets"
        " --to-offset`). Commit offsets in the transaction of the outputs, not after it."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per source partition, at the first input that would be processed again."""
    rows: list[tuple[object, ...]] = []
    offsets = ledger.question.agreed.offsets
    if offsets is None:
        return None
    if ledger.circumstances.offsets_after is not None:
        offsets = ledger.circumstances.offsets_after
    cause = _uncertain(ledger)
    for bounds in ledger.question.source.partitions:
        partition, offset = bounds.partition, offsets.get(bounds.partition)
        after = ledger.after(partition)
        if offset is not None and offset < after:
            why = (
                f"{of_group(ledger)} is at offset {offset:,}, and the input at offset"
                f" {after - 1:,} has its output: it would be processed again."
            )
            if offset == after - 1:
                why += (
                    " Off by one: a group must commit the offset after the last processed record,"
                    " not that record's own."
                )
            place = (ledger.question.source.topic, partition, offset, None)
            rows.append((None, None, *place, None, cause, after - offset, why))
    rows += untold(ledger)
    return frame_of(ledger.spark, rows, COLUMNS) if rows else None


def _uncertain(ledger: Ledger) -> str | None:
    """Returns why another input may be the last one with a committed output, or why the group may
    have moved on."""
    if ledger.counts.identities.repeated:
        return identity_repeated.NAME
    if ledger.circumstances.moving and ledger.circumstances.offsets_after is None:
        return MOVEMENT
    if ledger.by_key and ledger.source_incomplete:
        return source_removed.NAME
    return (
        identity_missing.NAME
        if ledger.counts.identities.missing or ledger.counts.identities.missing_elsewhere
        else None
    )


def covered(ledger: Ledger) -> int:
    """Counts source partitions, if a group is named."""
    return 0 if ledger.question.agreed.offsets is None else len(ledger.question.source.partitions)
