"""Every committed record stems from an input of the source.

Catalogue 4. A phantom has no lineage, or its lineage points to one of these:

- another topic, or a partition or offset that does not exist;
- an offset where read_committed has nothing;
- an output index beyond those expected of the input (validators/expected.py).

If its input was aborted, it is explained by `aborted_input`; if pending in the source, by
`pending`; if removed by Kafka, by `source_removed`. A record whose input exists outside the judged
range is no phantom: the caller or the source's retention cut the range. It is listed, explained by
`range`, and so is a record before the judged part of a retained range. Matching by key cannot tell
whether there was an input that is gone now, or one without an identity: `source_removed`,
`identity_missing`. A dead letter that names no input is a phantom too.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.expectation import PENDING, RANGE
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import (
    aborted_input,
    identity_disjoint,
    identity_missing,
    source_removed,
)
from topicproof.validators.kinds.matching import among, is_judged, is_pending, of_another
from topicproof.validators.kinds.traits import MATCHING, RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.lineage.dead_letters import why_no_place
from topicproof.validators.sentences import Forms, Words

NAME = "phantom"
TITLE = "Outputs without an input"
QUESTION = "Does every committed record stem from an input?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed record", "committed records"),
    bad=Forms(
        "is no expected output of any judged input", "are no expected outputs of any judged input"
    ),
    good=Forms("is an expected output of an input", "are expected outputs of inputs"),
    outside=Forms(
        "is an output of an input outside the judged range, and does not count",
        "are outputs of inputs outside the judged range, and do not count",
    ),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    shows_identity=True,
    premises=MATCHING,
    next_step=(
        "Compare their writers with those of the expected outputs: the pipeline itself writes more"
        " than it should (or the contract's `count` is too low), or another program writes to the"
        " sink, or the pipeline reads another source; a contract can name several."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.at_inputs == ledger.committed:
        return None
    place = F.col("place")
    committed = (F.col("fate") == Fate.COMMITTED.value) & ~F.col("of_namesake")
    rows = ledger.sink.where(committed & (place != Place.INPUT.value))
    outside = place.isin(Place.BEFORE.value, Place.AFTER.value)
    removed = _is_of_removed(ledger)
    rows, nameless = _with_reason(rows, ledger)
    why = (
        F.when(F.col("is_letter") & F.col("source_offset").isNull(), nameless)
        .when(
            F.col("is_letter") & (place == Place.NOWHERE.value),
            f"This dead letter names a place that {ledger.question.source.topic} does not have.",
        )
        .when(removed, F.lit(_OF_REMOVED))
        .when(F.col("source_offset").isNull(), _unknown(ledger))
        .when(
            place == Place.HOLE.value,
            "Its lineage points to an offset where the source has no committed record.",
        )
        .when(place == Place.ABORTED.value, "Its input was aborted in the source.")
        .when(place == Place.BEFORE.value, "Its input lies before the judged range.")
        .when(
            is_pending(ledger),
            "Its input lies at or above the last stable offset of the source: no read_committed"
            " consumer receives it before the open transaction there ends.",
        )
        .when(place == Place.AFTER.value, "Its input lies beyond the judged range.")
        .when(
            place == Place.REMOVED.value,
            "Its input is no longer in the source: compaction or retention removed it.",
        )
        .when(
            (place == Place.BEYOND.value) & (F.col("output_index") == 0),
            "Its input must have no output: the contract's `count` is 0 for it.",
        )
        .when(
            place == Place.BEYOND.value,
            F.format_string(
                "It is output %d of its input, counted from 0, and fewer are expected.",
                "output_index",
            ),
        )
        .otherwise("Its lineage points to a place that the source does not have.")
    )
    accepted = RANGE if ledger.question.agreed.retained else source_removed.NAME
    cause = F.when(outside, F.when(is_pending(ledger), PENDING).otherwise(RANGE)).when(
        place == Place.REMOVED.value, accepted
    )
    retained = ledger.retained
    another = of_another(ledger, is_judged(retained.phantoms_from, "partition", "offset"))
    if another is not None:
        cause = cause.when(~F.col("identified"), identity_missing.NAME).when(removed, RANGE)
        cause = cause.when(another.isNotNull(), another)
    cause = cause.when(place == Place.ABORTED.value, aborted_input.NAME)
    if ledger.disjoint:
        cause = cause.when(~F.col("is_letter"), identity_disjoint.NAME)
    return evidence(rows, F.when(outside, 0).otherwise(1), why, cause)


def _with_reason(rows: DataFrame, ledger: Ledger) -> tuple[DataFrame, Column]:
    """Returns the rows with the headers of their records, if there are dead letters, and the
    sentence on one that names no input. It quotes no header."""
    letters = ledger.question.agreed.letters
    if letters is None:
        return rows, F.lit(None)
    reason = F.lit(f"no input of the source has the identity in its {letters.words}")
    if letters.headers is not None and ledger.readings is not None:
        headers = ledger.readings.uncommitted.select("partition", "offset", "headers")
        rows = rows.join(headers, ["partition", "offset"], "left")
        reason = why_no_place(letters.headers)
    return rows, F.concat(F.lit("This dead letter names no input: "), reason, F.lit("."))


def _unknown(ledger: Ledger) -> Column:
    """Formulates why no input is known for a record."""
    if not ledger.by_key and ledger.question.agreed.table is not None:
        topic = ledger.question.source.topic
        return F.lit(f"Its origin columns name no place that {topic} could have.")
    if not ledger.by_key:
        return F.lit(
            f"It has no lineage header that names an input of {ledger.question.source.topic}."
        )
    return F.when(F.col("identified"), "No input of the source has its identity.").otherwise(
        "No identity of it is known, and so no input."
    )


_OF_REMOVED = (
    "No input is left for this record. It lies before the first output of an input that the source"
    " still holds, so its input was removed."
)


def _is_of_removed(ledger: Ledger) -> Column:
    """Whether a record without an input lies before what is judged of a source that has lost
    records: by offset, or by time where its partition has no output of a retained input."""
    removed = ledger.circumstances.source_removed
    # It may be the output of an input without an identity, such as an aborted one.
    nameless = ledger.counts.identities.missing or ledger.counts.identities.missing_elsewhere
    applies = ledger.question.agreed.retained and ledger.by_key and removed and not nameless
    if not applies or any(removal.inside for removal in removed.values()):
        return F.lit(False)
    first = ledger.retained.matched_from
    older = F.lit(False)
    if ledger.readings is not None:
        # Whole microseconds: for a literal time Spark's client asks the server about a setting, and
        # through the first session of the thread, which may have ended.
        inputs = ledger.readings.inputs
        earliest = inputs.agg(F.unix_micros(F.min("timestamp"))).collect()[0][0]
        if earliest is not None:
            older = F.unix_micros("timestamp") < F.lit(earliest)
    earlier = F.when(among("partition", first), ~is_judged(first, "partition", "offset"))
    unmatched = F.col("source_topic").isNull() & F.col("identified") & ~F.col("waiting")
    before = unmatched & earlier.otherwise(older)
    # Removed inputs have no more outputs than there were offsets.
    most = ledger.question.expected.most
    committed = ledger.sink.where((F.col("fate") == Fate.COMMITTED.value) & before)
    if most is not None and committed.count() > most * sum(
        removal.below for removal in removed.values()
    ):
        return F.lit(False)
    return before


def covered(ledger: Ledger) -> int:
    return ledger.committed
