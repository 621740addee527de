"""Every output that the inputs of the judged range must have is committed (validators/expected.py
says which).

Catalogue 2 and 3, Jepsen's `lost-write` and `unseen`. A hole has committed neighbours behind it;
the lost tail is what lies beyond the last committed output of its source partition, which a check
of neighbours can never see. An input whose output is still pending is explained by that: nothing is
known of it yet. One whose output the raw log commits, or the journal, is explained by the
contradiction: `reading_mismatch`, `wrong_attribution`. So is one that belongs to a transaction that
is committed in part: `torn`, and a lost tail below a group's committed offset: `offset_ahead`. A
sink that has lost records may have had it: `sink_removed`. A record without an identity may be it:
`identity_missing`, unless more outputs are missing than there are such records. It may also be on
its way, where the topics move and nothing tells what is due: `movement`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topicproof.validators.evidence import evidence, of_source, share
from topicproof.validators.expectation import PENDING
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import offset_ahead, reading_mismatch, torn, wrong_attribution
from topicproof.validators.kinds.matching import why_uncertain
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place, is_hidden, known_aborted
from topicproof.validators.offsets import bits, by_partition, holds, members, minus, word

NAME = "gap"
QUESTION = "Has every input its committed outputs?"
UNIT = "expected outputs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)

_NOT_THIS_ONE = (
    "A hole: this output is not committed, and others of its input or of later ones are."
)


def find(ledger: Ledger) -> DataFrame | None:
    if not ledger.repeats_count and ledger.at_inputs == ledger.outputs_count:
        # As many as there must be, each expected, and none twice: none can be missing.
        return None
    many = ledger.expected.kind is Expect.ONE_TO_MANY
    fate = F.col("fate")
    declared = (F.col("outcome") == Fate.ABORTED.value) & (
        F.col("declared") == Fate.COMMITTED.value
    )
    names = ["source_partition", "output_index", "word"]
    keys = (F.col("source_partition"), F.col("output_index"), word("source_offset").alias("word"))
    outputs = (
        ledger.sink.where(F.col("place") == Place.INPUT.value)
        .groupBy(*keys)
        .agg(
            bits("source_offset", fate == Fate.COMMITTED.value).alias("committed"),
            # At or above the last stable offset, but the raw log has its ABORT marker already:
            # nothing will come of it.
            bits("source_offset", (fate == Fate.PENDING.value) & ~known_aborted()).alias("pending"),
            bits("source_offset", (fate == Fate.ABORTED.value) | known_aborted()).alias("aborted"),
            bits("source_offset", is_hidden()).alias("hidden"),
            bits("source_offset", declared).alias("declared"),
        )
    )
    wanted = ledger.outputs.groupBy(*keys).agg(bits("source_offset").alias("wanted"))
    lacking = minus(F.col("wanted"), F.col("committed"))
    missing = (
        wanted.join(outputs, names, "left")
        .where(lacking != 0)
        .withColumn("source_offset", members("word", lacking))
    )
    after = {one.partition: ledger.after(one.partition) for one in ledger.source_bounds.partitions}
    tail = F.col("source_offset") >= by_partition("source_partition", after)
    pending, aborted = holds("pending", "source_offset"), holds("aborted", "source_offset")
    why = (
        F.when(pending, "Its output is pending: the transaction is still open.")
        .when(
            tail,
            "Lost tail: neither this input nor any later one of its partition has a committed"
            " output.",
        )
        .when(F.lit(many), _NOT_THIS_ONE)
        .otherwise(
            "A hole: later inputs of this partition have committed outputs, this one has none."
        )
    )
    offsets = ledger.agreed.offsets or {}
    uncertain = why_uncertain(ledger)
    hidden = holds("hidden", "source_offset")
    traces = (
        F.when(hidden, " The raw log commits its output, and read_committed did not deliver it.")
        .when(aborted, " Its output was aborted.")
        .otherwise("")
    )
    # Where an input has but one output, the input says it all.
    index = F.when(F.lit(many), F.col("output_index"))
    rows = of_source(missing, ledger.source_bounds.topic).withColumn("output_index", index)
    cause = (
        F.when(pending, PENDING)
        .when(hidden, reading_mismatch.NAME)
        .when(holds("declared", "source_offset"), wrong_attribution.NAME)
        .when(F.lit(uncertain is not None), F.lit(uncertain))
        .when(
            tail & (F.col("source_offset") < by_partition("source_partition", offsets)),
            offset_ahead.NAME,
        )
    )
    if any(one.torn for one in ledger.ids):
        rows = rows.join(_of_torn(ledger), ["source_partition", "source_offset"], "left")
        cause = F.coalesce(cause, F.when(F.col("torn"), torn.NAME))
    return evidence(rows, F.when(tail, 0).otherwise(1), F.concat(why, traces), cause)


def _of_torn(ledger: Ledger) -> DataFrame:
    """The inputs that torn transactions have or may have taken up: source_partition, source_offset,
    torn (true)."""
    rows = torn.parts(ledger).where(
        F.col("cause").isNull() & (F.col("first_source") == F.col("last_source"))
    )
    around = F.sequence(
        F.col("first_of_all") - F.col("missing"), F.col("last_of_all") + F.col("missing")
    )
    inputs = rows.select(
        F.col("first_source").alias("source_partition"), F.explode(around).alias("source_offset")
    )
    return inputs.distinct().withColumn("torn", F.lit(True))


def covered(ledger: Ledger) -> int:
    return ledger.outputs_count


def says(count: int, records: int) -> str:
    return share(count, records, "expected outputs", "are committed", "is missing", "are missing")
