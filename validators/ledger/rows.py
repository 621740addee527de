"""The sink's records as rows: their columns, and how each row gets its fate, the outcome declared
in the journal and the place that its lineage points to.

A record's fate comes from the two readings and the last stable offset; its transaction's outcome
comes from the raw log and the journal. Neither is derived from the other, so they can contradict
each other.

Records are compared as sets of offsets (validators/offsets.py), so judging never shuffles all of
them by offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.facts.header_transactions import Outcomes
from topicproof.validators.facts.raw_log import RawLog, words_of_batches
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.offsets import bits, bound, holds, look_up, word
from topicproof.validators.readings import SourceLog

DECLARED_COLUMNS = (
    "transactional_id string, sequence long, attempt int, task string, outcome string, reason"
    " string"
)
"""The journal's transactions. `outcome` is what the worker was told, 'COMMITTED' or 'ABORTED';
anything else means unknown. `reason` says why the transaction was aborted. Attempt 0 is not a
transaction but a task that took over the transactional id."""

SINK_COLUMNS = (
    "partition int, offset long, timestamp timestamp, fate string, transactional boolean, outcome"
    " string, declared string, reason string, source_topic string, source_partition int,"
    " source_offset long, output_index int, place string, transactional_id string, sequence long,"
    " attempt int, task string, total long, visible boolean, content long, key_hash binary,"
    " value_hash binary, identified boolean, ambiguous boolean, waiting boolean, undecoded string,"
    " unreadable boolean, of_namesake boolean, is_letter boolean"
)
"""`transactional` and `outcome` come from the raw log: null if it was not heard; `outcome` is also
null if there is none. `declared` and `reason` come from the journal. `visible`: whether
read_committed saw this offset. `content`: a hash of what read_uncommitted saw there.

`key_hash`: a hash of the key, if order is per key or outputs are compared. `value_hash`: the
digest of the value, if a contract constrains it or outputs are compared. Both are null otherwise.

`identified`: whether the record holds an identity. `ambiguous`: whether several inputs share it.
`waiting`: whether a pending source record holds it too. By lineage, `identified` is always true and
the other two are always false.

`undecoded`: why the record cannot be decoded, if a contract names its fields; else null.

`unreadable`: whether its header is damaged, or of a later version; it may name a transaction, so
this matters by key too. `of_namesake`: whether it names another topic than the source, of the same
name, by its id; by key, always false.

`is_letter`: whether it is a dead letter. Its place is that of the input that it names, however many
outputs that input has. It needs no identity, and it is not decoded for the sink's terms.
"""

WORD_COLUMNS = (
    "partition int, word long, seen long, seen_count long, seen_content long, "
    "covered long, transactional long, stable long, unstable long"
)
"""The columns of `sink_words`."""

RAW_SETS = ("covered", "transactional", "stable", "unstable")
LINEAGE = ("source_partition", "source_offset", "output_index")
LINE = ("source_partition", "partition")

BROADCAST_ROWS_MAX = 100_000
"""A journal, or counts of outputs, of up to this many rows is broadcast to every task, so the
sink's records are not shuffled."""


class Place(StrEnum):
    """The place that a sink record's lineage points to."""

    INPUT = "INPUT"
    """An input of the judged range."""
    BEFORE = "BEFORE"
    """Below the judged range: trimmed from the source, or excluded on purpose."""
    AFTER = "AFTER"
    """An input above the judged range but below the source's high watermark: excluded on purpose,
    or not finished."""
    HOLE = "HOLE"
    """An offset where read_committed has no record: a marker, or compacted."""
    ABORTED = "ABORTED"
    """A record that was aborted in the source."""
    REMOVED = "REMOVED"
    """A record that compaction or retention removed from the source."""
    BEYOND = "BEYOND"
    """An input, but with an output index beyond its expected outputs."""
    NOWHERE = "NOWHERE"
    """No lineage, another topic, or a partition or offset that does not exist."""


REAL = (Place.INPUT, Place.BEFORE, Place.AFTER, Place.REMOVED)
"""Places of records with an input. Only such records can repeat one another or be in order."""


@dataclass(frozen=True)
class Declared:
    """The journal's account."""

    rows: DataFrame
    """With `DECLARED_COLUMNS`."""
    count: int
    transactional_ids: frozenset[str]
    outcomes: Outcomes
    """The outcomes in `rows`, by `outcomes_of`."""


def real() -> Column:
    """Whether a row of the sink is a committed record that has an input."""
    return (F.col("fate") == Fate.COMMITTED.value) & F.col("place").isin(
        *(place.value for place in REAL)
    )


def ordered(per_key: bool) -> Column:
    """Whether a row with an input is part of a line: its input is certain, and it has a key if
    order is per key."""
    certain = ~F.col("ambiguous") & ~F.col("waiting")
    return certain & F.col("key_hash").isNotNull() if per_key else certain


def known_aborted() -> Column:
    """Whether the raw log or the journal says that the transaction of a sink row was aborted."""
    by = [
        F.coalesce(F.col(witness) == Fate.ABORTED.value, F.lit(False))
        for witness in ("outcome", "declared")
    ]
    return by[0] | by[1]


def countable() -> Column:
    """Whether a sink row is an output or may become one: committed, or pending and not known to be
    aborted."""
    undecided = (F.col("fate") == Fate.PENDING.value) & ~known_aborted()
    return (F.col("fate") == Fate.COMMITTED.value) | undecided


def without_marker() -> Column:
    """Whether a sink row is a committed record whose transaction has no marker in the raw log."""
    endless = (
        (F.col("fate") == Fate.COMMITTED.value) & F.col("transactional") & F.col("outcome").isNull()
    )
    return F.coalesce(endless, F.lit(False))


def is_hidden() -> Column:
    """Whether the raw log commits a sink row that read_committed did not deliver."""
    stable = ~F.col("transactional") | (F.col("outcome") == Fate.COMMITTED.value)
    return F.coalesce(
        (F.col("fate") != Fate.PENDING.value) & ~F.col("visible") & stable, F.lit(False)
    )


def content() -> Column:
    """Hashes a record's content. The hash includes the offset, so swapping the contents of two
    offsets is noticed."""
    return F.xxhash64("offset", "key", "value", "headers")


def sink_words(committed: DataFrame, raw_log: RawLog | None, bounds: Bounds) -> DataFrame:
    """Returns sets of the sink's offsets by partition and word: what read_committed saw, and what
    the raw log says.

    `seen`, `seen_count` and `seen_content` (XOR of the content hashes); `covered`, `transactional`,
    `stable` and `unstable` as in `words_of_batches`, null without the raw log.
    """
    words = committed.groupBy("partition", word("offset").alias("word")).agg(
        bits("offset").alias("seen"),
        F.count("*").alias("seen_count"),
        F.bit_xor(content()).alias("seen_content"),
    )
    if raw_log is None:
        return words.withColumns({name: F.lit(None).cast("long") for name in RAW_SETS})
    return words.join(words_of_batches(raw_log, bounds), ["partition", "word"], "full")


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
    """Adds the outcome and reason declared in the journal; null if it declares none."""
    if declared is None:
        return records.withColumns(
            {column: F.lit(None).cast("string") for column in ("declared", "reason")}
        )
    name = ["transactional_id", "sequence", "attempt", "task"]
    is_final = F.col("outcome").isin(Fate.COMMITTED.value, Fate.ABORTED.value)
    outcomes = declared.rows.groupBy(*name).agg(
        F.collect_set(F.when(is_final, F.col("outcome"))).alias("said"),
        F.max(F.nullif("reason", F.lit(""))).alias("reason"),
    )
    # Contradictory entries for one transaction declare nothing.
    outcomes = outcomes.select(
        *name, F.when(F.size("said") == 1, F.get("said", F.lit(0))).alias("declared"), "reason"
    )
    return records.join(
        F.broadcast(outcomes) if declared.count <= BROADCAST_ROWS_MAX else outcomes, name, "left"
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
    """Adds `place`. `bounds` is the judged range, `read` the range that `source` was read from.
    `dense`: every offset in `read` is known to hold an input. `counts`: the number of outputs of
    each input, if not one. `most`: the maximum for any input, including inputs that were not read;
    None for no maximum."""
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
    place_of_input = F.when(offset >= lso, Place.AFTER.value).otherwise(Place.INPUT.value)
    if counts is not None:
        is_small = read.offsets <= BROADCAST_ROWS_MAX
        records = records.join(
            F.broadcast(counts) if is_small else counts,
            ["source_partition", "source_offset"],
            "left",
        )
        place_of_input = F.when(index >= F.col("expected"), Place.BEYOND.value).otherwise(
            place_of_input
        )
    if dense and source_log.aborted is None:
        return records.withColumn("place", place.otherwise(place_of_input))
    keys = [F.col("partition").alias("source_partition"), word("offset").alias("source_word")]
    records = records.withColumn("source_word", word("source_offset"))
    hole = F.lit(Place.HOLE.value)
    for name, reading in (
        ("inputs", source),
        ("lost", source_log.aborted),
        ("markers", source_log.markers),
    ):
        if reading is not None:
            offset_sets = reading.groupBy(*keys).agg(bits("offset").alias(name))
            records = look_up(
                records, offset_sets, ["source_partition", "source_word"], bounds.offsets
            )
    if source_log.markers is not None:
        # Neither a record nor a marker: the log has lost what was there.
        hole = F.when(holds("markers", "source_offset"), hole).otherwise(Place.REMOVED.value)
    place_in_read = F.when(holds("inputs", "source_offset"), place_of_input).otherwise(hole)
    return records.withColumn("place", place.otherwise(place_in_read))
