"""A read_committed consumer receives a partition's committed records one after the other, without
skips or repeats.

Catalogue 25, Jepsen's `poll-skip` and `nonmonotonic-poll`. A reader polled the sink while it was
written. It had no group, so nothing else moves its position. Between two records received in
succession there may be markers and aborted records, but no committed record, and the second must
lie after the first. A restarted session begins at the position that it reports. What lies beyond
the last record of a session was not polled, so it is neither right nor wrong.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.offsets import bound
from topicproof.validators.sentences import Forms, Words

NAME = "poll_skip"
TITLE = "Records skipped by a reader"
QUESTION = "Did a read_committed reader receive every committed record in turn?"
UNIT = "records polled"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READER,), (Witness.READ_COMMITTED,))
WORDS = Words(
    noun=Forms("polled record", "polled records"),
    bad=Forms("was skipped or came again", "were skipped or came again"),
    good=Forms("was received in turn", "were received in turn"),
)
TRAITS = Traits(
    next_step=(
        "Check again; if it repeats, report the client's and the broker's version: a consumer at"
        " read_committed skipped or repeated committed records."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row per skipped committed record, and one per step backwards, at the record it
    led to."""
    if ledger.accounts.polled is None:
        return None
    # Runs of one poll are in the order of receipt, which is not offset order if the reader went
    # backwards.
    turn = Window.partitionBy("session", "partition").orderBy("poll", "run")
    before = F.lag("last_offset").over(turn)
    steps = ledger.accounts.polled.runs.withColumn("before", before).where(
        F.col("before").isNotNull()
    )
    # Received evidence may name any offset: none makes more rows than the sink has.
    first = F.greatest(F.col("before") + 1, bound("partition", ledger.sink_bounds, "start"))
    last = F.least(F.col("first_offset"), bound("partition", ledger.sink_bounds, "hw")) - 1
    left_out = steps.where(first <= last).select(
        "partition", F.explode(F.sequence(first, last)).alias("offset")
    )
    sink = ledger.sink.where(F.col("fate") == Fate.COMMITTED.value)
    skipped = sink.join(left_out.distinct(), ["partition", "offset"], "left_semi")
    backwards = steps.where(F.col("first_offset") <= F.col("before")).select(
        "partition", F.col("first_offset").alias("offset"), "before"
    )
    backwards = ledger.sink.join(backwards.distinct(), ["partition", "offset"])
    back = F.format_string("The reader received it after offset %d: it went backwards.", "before")
    return evidence(
        skipped, F.lit(1), F.lit("The reader went past this record and did not receive it.")
    ).unionByName(evidence(backwards, F.lit(0), back))


def covered(ledger: Ledger) -> int:
    return ledger.accounts.polled.records if ledger.accounts.polled else 0
