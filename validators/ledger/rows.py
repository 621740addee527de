"""The sink's records as rows: which columns they have, how each gets its fate, the outcome that the
journal declares and the place that its lineage points to, and what is asked of a row.

A record's fate comes from the two readings and the last stable offset, its transaction's outcome
from the raw log and from the journal. Neither is derived from the other, so that they can
contradict each other.

Records are compared as sets of offsets (validators/offsets.py), so that judging never shuffles all
of them by offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from topicproof.validators.facts.journal import Outcomes
from topicproof.validators.facts.raw_log import RawLog, words_of_batches
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.offsets import bits, bound, holds, look_up, word
from topicproof.validators.source_log import SourceLog

DECLARED_COLUMNS = (
    "transactional_id string, sequence long, attempt int, task string, outcome string, reason"
    " string"
)
"""The journal's transactions: `outcome` is what the worker was told, 'COMMITTED' or 'ABORTED'; else
it is unknown. `reason` says why it was aborted. Attempt 0 is no transaction, but a task that took
the transactional id over."""

SINK_COLUMNS = (
    "partition int, offset long, timestamp timestamp, fate string, transactional boolean, outcome"
    " string, declared string, reason string, source_topic string, source_partition int,"
    " source_offset long, output_index int, place string, transactional_id string, sequence long,"
    " attempt int, task string, total long, visible boolean, content long, key_hash long,"
    " value_hash long, identified boolean, ambiguous boolean, waiting boolean"
)
"""`transactional` and `outcome` are the raw log's: null where it was not heard, `outcome` also
where there is none; `declared` and `reason` are the journal's. `visible`: whether read_committed
saw this offset; `content`: a hash of what read_uncommitted saw there. `key_hash`: of its key where
keys keep the order or outputs are compared with each other, `value_hash`: of its value where a
contract says what that must be or outputs are compared; else null. `identified`: whether it holds
what records are matched by, `ambiguous`: whether several inputs share that, `waiting`: whether a
pending record of the source holds it too; by lineage always the first and never the others."""

WORD_COLUMNS = (
    "partition int, word long, seen long, seen_count long, seen_content long, "
    "covered long, transactional long, stable long, unstable long"
)
"""`sink_words` says what they are."""

RAW_SETS = ("covered", "transactional", "stable", "unstable")
LINEAGE = ("source_partition", "source_offset", "output_index")
LINE = ("source_partition", "partition")

BROADCAST_ROWS_MAX = 100_000
"""A journal, or counts of outputs, up to this long are sent to every task: the sink's records are
not shuffled."""


class Place(StrEnum):
    """Where a sink record's lineage points."""

    INPUT = "INPUT"
    """To an input of the judged range."""
    BEFORE = "BEFORE"
    """Below the judged range: trimmed from the source, or left out on purpose."""
    AFTER = "AFTER"
    """To an input above the judged range, yet below the source's high watermark: left out on
    purpose, or not finished."""
    HOLE = "HOLE"
    """To an offset where read_committed has no record: a marker, or compacted."""
    ABORTED = "ABORTED"
    """To a record that was aborted in the source."""
    REMOVED = "REMOVED"
    """To a record that compaction or retention has removed from the source."""
    BEYOND = "BEYOND"
    """To an input, with an index that says of more outputs than it is expected to have."""
    NOWHERE = "NOWHERE"
    """No lineage, another topic, a partition or an offset that does not exist."""


REAL = (Place.INPUT, Place.BEFORE, Place.AFTER, Place.REMOVED)
"""Places of records that have an input; only these can repeat one another or stand in order."""


@dataclass(frozen=True)
class Declared:
    """What the journal tells."""

    rows: DataFrame
    """With `DECLARED_COLUMNS`."""
    count: int
    transactional_ids: frozenset[str]
    outcomes: Outcomes
    """What `rows` say, by `outcomes_of`."""


def real() -> Column:
    """Whether a row of the sink is a committed record that has an input."""
    return (F.col("fate") == Fate.COMMITTED.value) & F.col("place").isin(
        *(one.value for one in REAL)
    )


def ordered(per_key: bool) -> Column:
    """Whether a row that has an input stands in a line: its input is known for certain, and it has
    a key if that is what keeps the order."""
    certain = ~F.col("ambiguous") & ~F.col("waiting")
    return certain & F.col("key_hash").isNotNull() if per_key else certain


def known_aborted() -> Column:
    """Whether the raw log or the journal says that the transaction of a row of the sink was
    aborted."""
    by = [
        F.coalesce(F.col(witness) == Fate.ABORTED.value, F.lit(False))
        for witness in ("outcome", "declared")
    ]
    return by[0] | by[1]


def countable() -> Column:
    """Whether a row of the sink is an output or may become one: committed, or pending and not known
    to be aborted."""
    undecided = (F.col("fate") == Fate.PENDING.value) & ~known_aborted()
    return (F.col("fate") == Fate.COMMITTED.value) | undecided


def without_marker() -> Column:
    """Whether a row of the sink is a committed record of a transaction that no marker of the raw
    log ends."""
    endless = (
        (F.col("fate") == Fate.COMMITTED.value) & F.col("transactional") & F.col("outcome").isNull()
    )
    return F.coalesce(endless, F.lit(False))


def is_hidden() -> Column:
    """Whether the raw log commits a row of the sink that read_committed did not deliver."""
    stable = ~F.col("transactional") | (F.col("outcome") == Fate.COMMITTED.value)
    return F.coalesce(
        (F.col("fate") != Fate.PENDING.value) & ~F.col("visible") & stable, F.lit(False)
    )


def content() -> Column:
    """A hash of a record's content. The offset is in it, so that the contents of two offsets cannot
    be exchanged unnoticed."""
    return F.xxhash64("offset", "key", "value", "headers")


def sink_words(committed: DataFrame, raw_log: RawLog | None, bounds: Bounds) -> DataFrame:
    """Sets of the sink's offsets, by partition and word: what read_committed saw, and what the raw
    log says.

    `seen`, `seen_count` and `seen_content` (exclusive or of the contents); `covered`,
    `transactional`, `stable` and `unstable` of `words_of_batches`, null without the raw log.
    """
    seen = committed.groupBy("partition", word("offset").alias("word")).agg(
        bits("offset").alias("seen"),
        F.count("*").alias("seen_count"),
        F.bit_xor(content()).alias("seen_content"),
    )
    if raw_log is None:
        return seen.withColumns({name: F.lit(None).cast("long") for name in RAW_SETS})
    return seen.join(words_of_batches(raw_log, bounds), ["partition", "word"], "full")


def with_fates(
    uncommitted: DataFrame, words: DataFrame, bounds: Bounds, raw_log: bool
) -> DataFrame:
    """Adds fate, visible, content, transactional and outcome; drops the value."""
    records = uncommitted.withColumns({"content": content(), "word": word("offset")}).drop("value")
    sets = words.select(
        "partition", "word", "seen", *(F.col(name).alias(f"{name}_set") for name in RAW_SETS)
    )
    records = look_up(records, sets, ["partition", "word"], bounds.offsets)
    visible = holds("seen", "offset")
    pending = F.col("offset") >= bound("partition", bounds, "lso")
    fate = (
        F.when(pending, Fate.PENDING.value)
        .when(visible, Fate.COMMITTED.value)
        .otherwise(Fate.ABORTED.value)
    )
    covered = F.lit(raw_log) & holds("covered_set", "offset")
    outcome = F.when(holds("stable_set", "offset"), Fate.COMMITTED.value).when(
        holds("unstable_set", "offset"), Fate.ABORTED.value
    )
    return records.withColumns(
        {
            "visible": visible,
            "fate": fate,
            "transactional": F.when(covered, holds("transactional_set", "offset")),
            "outcome": outcome,
        }
    )


def with_declared(records: DataFrame, declared: Declared | None) -> DataFrame:
    """Adds the outcome that the journal declares and its reason; null where it says nothing."""
    if declared is None:
        return records.withColumns(
            {one: F.lit(None).cast("string") for one in ("declared", "reason")}
        )
    name = ["transactional_id", "sequence", "attempt", "task"]
    known = F.col("outcome").isin(Fate.COMMITTED.value, Fate.ABORTED.value)
    told = declared.rows.groupBy(*name).agg(
        F.collect_set(F.when(known, F.col("outcome"))).alias("said"),
        F.max(F.nullif("reason", F.lit(""))).alias("reason"),
    )
    # A journal that says two things of one transaction says nothing.
    told = told.select(
        *name, F.when(F.size("said") == 1, F.get("said", F.lit(0))).alias("declared"), "reason"
    )
    return records.join(
        F.broadcast(told) if declared.count <= BROADCAST_ROWS_MAX else told, name, "left"
    )


def with_places(
    records: DataFrame,
    source: DataFrame,
    bounds: Bounds,
    read: Bounds,
    dense: bool,
    counts: DataFrame | None,
    most: int | None,
    source_log: SourceLog,
) -> DataFrame:
    """Adds `place`. `bounds`: the judged range; `read`: what `source` was read of; `dense`: every
    offset of that is known to hold an input. `counts`: how many outputs each input has, where that
    is not one; `most`: how many any may have, also one that nobody has read; None for any
    number."""
    start, lso, hw = (bound("source_partition", bounds, name) for name in ("start", "lso", "hw"))
    offset, index = F.col("source_offset"), F.col("output_index")
    nowhere = (
        (F.col("source_topic") != bounds.topic) | start.isNull() | offset.isNull() | (offset >= hw)
    )
    place = F.when(nowhere, Place.NOWHERE.value)
    if source_log.aborted is not None:
        place = place.when(holds("lost", "source_offset"), Place.ABORTED.value)
    if most is not None:
        place = place.when(index >= most, Place.BEYOND.value)
    place = place.when(offset < start, Place.BEFORE.value)
    place = place.when(offset >= bound("source_partition", read, "lso"), Place.AFTER.value)
    there = F.when(offset >= lso, Place.AFTER.value).otherwise(Place.INPUT.value)
    if counts is not None:
        few = read.offsets <= BROADCAST_ROWS_MAX
        records = records.join(
            F.broadcast(counts) if few else counts, ["source_partition", "source_offset"], "left"
        )
        there = F.when(index >= F.col("expected"), Place.BEYOND.value).otherwise(there)
    if dense and source_log.aborted is None:
        return records.withColumn("place", place.otherwise(there))
    keys = [F.col("partition").alias("source_partition"), word("offset").alias("source_word")]
    records = records.withColumn("source_word", word("source_offset"))
    hole = F.lit(Place.HOLE.value)
    for name, reading in (
        ("inputs", source),
        ("lost", source_log.aborted),
        ("markers", source_log.markers),
    ):
        if reading is not None:
            held = reading.groupBy(*keys).agg(bits("offset").alias(name))
            records = look_up(records, held, ["source_partition", "source_word"], bounds.offsets)
    if source_log.markers is not None:
        # Neither a record nor a marker: the log has lost what was there.
        hole = F.when(holds("markers", "source_offset"), hole).otherwise(Place.REMOVED.value)
    found = F.when(holds("inputs", "source_offset"), there).otherwise(hole)
    return records.withColumn("place", place.otherwise(found))
