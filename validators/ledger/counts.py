"""Counts of a source's inputs and a sink's rows, and reasons to distrust a reading.

The readings are checked before anything is judged with them: each (partition, offset) occurs once,
both levels show the same content, and read_committed sees nothing that read_uncommitted does not. A
violation is not a finding but a doubt, and makes the verdict UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window, functions as F

from topicproof.validators.columns import compared_columns
from topicproof.validators.contract_terms import ContractTerms, broken_text, compared_value, digest
from topicproof.validators.decoded import path_of, text_of, undecoded
from topicproof.validators.expected import COUNT_MAX, NUMBERED, outputs_of, record
from topicproof.validators.facts.balance import Headers
from topicproof.validators.facts.cell import Cell
from topicproof.validators.facts.header_transactions import (
    ID_CHARACTERS_MAX,
    IDS_MAX,
    NAME,
    TransactionalId,
)
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.finding import Balance, Bounds, Fate
from topicproof.validators.ledger.rows import (
    LINE,
    LINEAGE,
    Place,
    countable,
    is_hidden,
    known_aborted,
    ordered,
    real,
    without_marker,
)
from topicproof.validators.lineage.compact import COMPACT_HEADER
from topicproof.validators.lineage.identity import with_transaction
from topicproof.validators.offsets import between, bits, minus, word
from topicproof.validators.question import Question
from topicproof.validators.sentences import counted

OUTPUTS_MAX = 10_000_000
"""Outputs that counts may ask for beside any sink."""
OUTPUTS_PER_OFFSET = 10
"""Those that they may ask for, for each offset of the sink."""


class Letters(NamedTuple):
    """Counts of the dead letters."""

    records: int
    """Committed and pending dead letters."""
    named: int
    """Those of them that name a place, or hold an identity."""
    pending: int
    """Those of them that are pending."""
    inputs: int
    """Inputs of the judged range with a committed dead letter."""
    delivered: int
    """Inputs of the judged range with a committed output."""
    both: int
    """Inputs of the judged range with both."""


def without_letters(sink: DataFrame) -> DataFrame:
    return sink.where(~F.col("is_letter"))


def lettered_inputs(sink: DataFrame) -> DataFrame:
    """Returns the inputs of the judged range with a committed dead letter: source_partition,
    source_offset. `sink`: rows of a ledger's sink."""
    letters = sink.where(F.col("is_letter") & (F.col("fate") == Fate.COMMITTED.value))
    at_inputs = letters.where(F.col("place") == Place.INPUT.value)
    return at_inputs.select("source_partition", "source_offset").distinct()


def count_letters(sink: DataFrame, reading: DataFrame) -> Letters:
    """Counts dead letters. `reading`: partition, offset and is_named of each."""
    letters = sink.where(F.col("is_letter") & countable()).join(reading, ["partition", "offset"])
    records, named, pending = letters.agg(
        F.count("*"),
        F.count_if("is_named"),
        F.count_if(F.col("fate") == Fate.PENDING.value),
    ).collect()[0]
    committed = (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    outcomes = (
        sink.where(committed)
        .groupBy("source_partition", "source_offset")
        .agg(
            F.bool_or("is_letter").alias("has_letter"),
            F.bool_or(~F.col("is_letter")).alias("has_output"),
        )
    )
    inputs, delivered, both = outcomes.agg(
        F.count_if("has_letter"),
        F.count_if("has_output"),
        F.count_if(F.col("has_letter") & F.col("has_output")),
    ).collect()[0]
    return Letters(records, named, pending, inputs, delivered, both)


class Inputs(NamedTuple):
    """Counts from a first pass over the source."""

    judged: int
    """Records in the judged range."""
    repeated: int
    """Records that one reading delivered more than once."""
    dense: bool
    """Every offset that was read holds an input, so lineage that points there needs no look at the
    source."""
    outputs: int
    """Expected outputs by the contract's counts; without counts, one per input."""
    uncounted: int
    """Inputs without a valid count."""
    headed: int
    """Records with a header."""
    first_uncounted: tuple[int, int] | None = None
    """Partition and offset of the first input without a valid count."""
    aborted: int = 0
    """Aborted records in the judged range; 0 if the source's log was not heard."""
    excess: int = 0
    """Outputs that the counts ask for, if they are too many to look for."""


def excess_of(counts: DataFrame, sink: Bounds) -> int:
    """Returns how many outputs all counts together ask for, if that is more than is looked for:
    each becomes a row, and a producer chooses the fields that counts are made of."""
    outputs = int(counts.agg(F.coalesce(F.sum("expected"), F.lit(0))).collect()[0][0])
    return outputs if outputs > max(OUTPUTS_MAX, OUTPUTS_PER_OFFSET * sink.offsets) else 0


def count_inputs(
    source: DataFrame, bounds: Bounds, read: Bounds, counts: DataFrame | None
) -> Inputs:
    """Counts inputs in `bounds`, the judged range. `source` was read from `read`, which may extend
    further."""
    words = source.groupBy("partition", word("offset").alias("word")).agg(
        F.count_if(between("partition", "offset", bounds, "lso")).alias("judged"),
        F.count_if(between("partition", "offset", read, "lso")).alias("there"),
        (F.count("*") - F.bit_count(bits("offset"))).alias("repeated"),
        F.count_if(F.size("headers") > 0).alias("headed"),
    )
    names = ("judged", "there", "repeated", "headed")
    judged, present, repeated, headed = words.agg(
        *(F.coalesce(F.sum(name), F.lit(0)) for name in names)
    ).collect()[0]
    width = sum(partition.lso - partition.start for partition in read.partitions)
    dense = present == width and repeated == 0
    outputs, uncounted, first = judged, 0, None
    if counts is not None:
        due = counts.where(between("source_partition", "source_offset", bounds, "lso"))
        invalid = F.col("expected").isNull()
        row = due.agg(
            F.coalesce(F.sum("expected"), F.lit(0)),
            F.count_if(invalid),
            F.min(F.when(invalid, F.struct("source_partition", "source_offset"))),
        ).collect()[0]
        outputs, uncounted, first = row[0], row[1], None if row[2] is None else tuple(row[2])
    return Inputs(judged, repeated, dense, outputs, uncounted, headed, first)


def outputs_wanted(source: DataFrame, bounds: Bounds, counts: DataFrame | None) -> DataFrame:
    """Returns the outputs of the inputs that are due, from `counts` if given, otherwise from
    `source`."""
    if counts is not None:
        return outputs_of(counts.where(between("source_partition", "source_offset", bounds, "lso")))
    return source.where(between("partition", "offset", bounds, "lso")).select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.lit(0).alias("output_index"),
    )


class Values(NamedTuple):
    """The values that a contract requires, beside the actual records."""

    wanted: DataFrame
    """source_partition, source_offset, wanted (binary), wanted_hash, unknown (whether the input
    cannot be decoded, or gives a text that is not UTF-8, so that nothing tells the value)."""
    records: DataFrame
    """What is compared of the sink's records: partition, offset, value."""


def values_wanted(
    source: DataFrame, records: DataFrame, bounds: Bounds, agreed: ContractTerms
) -> Values | None:
    if agreed.value is None:
        return None
    inputs = source.where(between("partition", "offset", bounds, "lso"))
    broken = broken_text(agreed)
    required_value = F.expr(agreed.value).cast("string").cast("binary")
    if agreed.table is not None:
        required_value = compared_columns(required_value, agreed.table.types)
    required_value = F.when(~broken, required_value)
    unknown = (undecoded().isNotNull() if agreed.source_fields else F.lit(False)) | broken
    required = record(inputs, bounds).select(
        F.col(NUMBERED).alias("source_partition"),
        F.col("offset").alias("source_offset"),
        required_value.alias("wanted"),
        digest(required_value).alias("wanted_hash"),
        unknown.alias("unknown"),
    )
    outputs = records.select("partition", "offset", compared_value(agreed).alias("value"))
    return Values(required, outputs)


class DecodedCounts(NamedTuple):
    """Counts of a reading whose fields a contract names. All zero if it names none."""

    records: int = 0
    undecoded: int = 0
    empty: tuple[str, ...] = ()
    """The fields that no record holds, although some can be decoded."""


NOTHING_DECODED = DecodedCounts()


def count_decoded(reading: DataFrame, fields: Sequence[str]) -> DecodedCounts:
    if not fields:
        return NOTHING_DECODED
    columns = (F.count(text_of(field)) for field in fields)
    records, lost, *field_counts = reading.agg(
        F.count("*"), F.count(undecoded()), *columns
    ).collect()[0]
    empty = [path_of(field) for field, count in zip(fields, field_counts, strict=True) if not count]
    return DecodedCounts(records, lost, tuple(empty) if records > lost else ())


def outputs_produced(sink: DataFrame) -> DataFrame:
    """Returns the outputs that exist, whatever their fate: nothing tells whether the others were
    filtered out."""
    return sink.where(F.col("place") == Place.INPUT.value).select(*LINEAGE)


def count_outputs(outputs: DataFrame) -> int:
    words = outputs.groupBy("source_partition", word("source_offset").alias("word")).agg(
        F.bit_count(bits("source_offset")).alias("outputs")
    )
    return int(words.agg(F.coalesce(F.sum("outputs"), F.lit(0))).collect()[0][0])


def _lineage_words(sink: DataFrame) -> DataFrame:
    """Counts per word of lineages: records beyond the first of each lineage, and expected outputs
    that have a committed or pending record."""
    expected = F.col("place") == Place.INPUT.value
    pending = (F.col("fate") == Fate.PENDING.value) & ~known_aborted()
    return (
        sink.where(real() | (expected & pending))
        .groupBy("source_partition", "output_index", word("source_offset").alias("word"))
        .agg(
            (F.count_if(real()) - F.bit_count(bits("source_offset", real()))).alias("repeats"),
            F.bit_count(bits("source_offset", expected)).alias("met"),
        )
    )


def count_repeats(sink: DataFrame) -> tuple[int, int]:
    sums = (F.coalesce(F.sum(name), F.lit(0)) for name in ("repeats", "met"))
    row = _lineage_words(sink).agg(*sums).collect()[0]
    return int(row[0]), int(row[1])


REPEAT_COLUMNS = "partition int, offset long, copies long, first_partition int, first_offset long"
"""The columns of `later_copies`."""


def later_copies(sink: DataFrame) -> DataFrame:
    """Returns the later copies. Only words of lineages with repeats are examined record by record.

    The first copy is the earliest by timestamp and, within its partition, by offset. A copy from a
    transaction known to be aborted is first only if there is no other: the others did not repeat
    it.
    """
    records = _of_repeats(sink)
    alike = Window.partitionBy(*LINEAGE)
    aborted = F.when(known_aborted(), 1).otherwise(0)
    records = records.withColumn(
        "first", F.min(F.struct(aborted, "timestamp", "partition", "offset")).over(alike)
    )
    in_first_partition = F.col("partition") == F.col("first.partition")
    records = records.withColumn(
        "first_here", F.min(F.when(in_first_partition, F.struct(aborted, "offset"))).over(alike)
    )
    return records.select(
        "partition",
        "offset",
        F.count("*").over(alike).alias("copies"),
        F.col("first.partition").alias("first_partition"),
        F.col("first_here.offset").alias("first_offset"),
    ).where(
        (F.col("partition") != F.col("first_partition"))
        | (F.col("offset") != F.col("first_offset"))
    )


def first_unknown(sink: DataFrame) -> DataFrame:
    """Returns partition and offset of all copies of an output whose first copy is unknown: they lie
    in several partitions, and the earliest ones have the same timestamp. Programs that hand on the
    time of their input give the same time to every copy."""
    alike = Window.partitionBy(*LINEAGE)
    earliest = F.min("timestamp").over(alike)
    records = _of_repeats(sink).where(~known_aborted()).withColumn("earliest", earliest)
    early = F.when(F.col("timestamp") == F.col("earliest"), F.col("partition"))
    records = records.withColumn("places", F.size(F.collect_set(early).over(alike)))
    return records.where(F.col("places") > 1).select("partition", "offset")


def _of_repeats(sink: DataFrame) -> DataFrame:
    """Returns the records in words of lineages with repeats."""
    suspicious = _lineage_words(sink).where(F.col("repeats") > 0).drop("repeats", "met")
    records = sink.where(real()).withColumn("word", word("source_offset"))
    return records.join(suspicious, ["source_partition", "output_index", "word"], "left_semi")


def count_lines(cells: Sequence[Cell]) -> int:
    return sum(
        cell.source_partition is not None and cell.committed > 0 and not cell.letters
        for cell in cells
    )


def count_cells(sink: DataFrame, headers: Mapping[int, Headers], topic: str) -> tuple[Cell, ...]:
    """Counts the sink's rows by cell. `topic` is the source's name."""
    committed = F.col("fate") == Fate.COMMITTED.value
    straddling = F.lit(False)
    for partition, partition_headers in headers.items():
        if partition_headers.straddle:
            straddling |= (F.col("partition") == partition) & (
                F.col("offset") <= partition_headers.straddle.last
            )
    has_outcome = F.col("outcome").isNotNull() | F.col("declared").isNotNull()
    outside = F.coalesce(~F.col("transactional"), F.lit(False))
    counts = {
        "committed": committed,
        "aborted": F.col("fate") == Fate.ABORTED.value,
        "pending": F.col("fate") == Fate.PENDING.value,
        "never_transactional": committed & ~F.col("transactional"),
        "heard": committed & (has_outcome | outside),
        "unstable": committed & (F.col("outcome") == Fate.ABORTED.value),
        "straddling": straddling,
        "endless": without_marker(),
        "of_aborted": committed & (F.col("place") == Place.ABORTED.value),
        "at_inputs": committed & (F.col("place") == Place.INPUT.value),
        "of_source": (
            (F.col("fate") != Fate.ABORTED.value)
            & F.col("source_topic").eqNullSafe(F.lit(topic))
            & ~F.col("is_letter")
        ),
        "letters": F.col("is_letter") & countable(),
        "unidentified": countable() & ~F.col("identified"),
        "undecoded": countable() & F.col("undecoded").isNotNull(),
        "revoked": committed & known_aborted(),
    }
    cells = sink.groupBy(
        "partition", F.when(real(), F.col("source_partition")).alias("source_partition")
    ).agg(
        F.max(F.when(real(), F.col("source_offset"))).alias("last_source_offset"),
        *(F.count_if(condition).alias(name) for name, condition in counts.items()),
    )
    return tuple(Cell(**row.asDict()) for row in cells.collect())


def count_lines_at_length(sink: DataFrame, per_key: bool) -> int:
    """Counts lines like `count_lines`, when lines are per key or some records have no line; each of
    those records is then a line of its own."""
    row = (
        sink.where(real())
        .agg(
            F.count_distinct(F.when(ordered(per_key), F.struct(*LINE, *(("key_hash",) * per_key)))),
            F.count_if(~ordered(per_key)),
        )
        .collect()[0]
    )
    return int(row[0] + row[1])


class Identities(NamedTuple):
    """Counts of the identities that the source's records hold. All zero when records are matched by
    lineage."""

    records: int = 0
    """Committed and pending records of the source's reading."""
    missing: int = 0
    """Committed records without an identity."""
    repeated: int = 0
    """Records, of those in `records`, whose identity an earlier record also holds."""
    missing_elsewhere: int = 0
    """Pending and aborted records without an identity."""


NO_IDENTITIES = Identities()


def count_identities(source: DataFrame, aborted: DataFrame | None) -> Identities:
    """Counts identities. `source` is like the ledger's `identities`, `aborted` like
    `identified`."""
    of_one = source.groupBy("source_key").agg(
        F.count("*").alias("inputs"), F.count_if("pending").alias("waiting")
    )
    nothing = F.col("source_key").isNull()
    sums = {
        "records": F.col("inputs"),
        "missing": F.when(nothing, F.col("inputs") - F.col("waiting")),
        "repeated": F.when(~nothing, F.col("inputs") - 1),
        "missing_elsewhere": F.when(nothing, F.col("waiting")),
    }
    row = of_one.agg(
        *(F.coalesce(F.sum(column), F.lit(0)).alias(name) for name, column in sums.items())
    ).collect()[0]
    identities = Identities(**row.asDict())
    lost = 0 if aborted is None else aborted.where(nothing).count()
    return identities._replace(missing_elsewhere=identities.missing_elsewhere + lost)


def count_alike(sink: DataFrame, bounds: Bounds) -> int:
    return later_alike(sink, bounds).count()


def later_alike(sink: DataFrame, bounds: Bounds) -> DataFrame:
    """Returns partition and offset of each committed output that equals an earlier output of the
    same input in the same topic."""
    rows = sink.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    )
    topic = _topic(bounds)
    same = Window.partitionBy("source_partition", "source_offset", "key_hash", "value_hash", topic)
    rows = rows.withColumn("nth", F.row_number().over(same.orderBy("partition", "offset")))
    return rows.where(F.col("nth") > 1).drop("nth")


def _topic(bounds: Bounds) -> Column:
    """Returns the number of the topic that a row of the sink lies in, if there are several."""
    number = F.lit(0)
    for place, part in enumerate(bounds.parts):
        number = F.when(F.col("partition") >= part.first, F.lit(place)).otherwise(number)
    return number


class Keys(NamedTuple):
    """Counts of the keys whose order is promised, each once per source partition and topic."""

    all: int = 0
    spread: int = 0
    """Keys that lie in several partitions of the topic."""


NO_KEYS = Keys()


def count_keys(sink: DataFrame, bounds: Bounds) -> Keys:
    row = keys_of(sink, bounds).agg(F.count("*"), F.count_if(F.col("partitions") > 1)).collect()[0]
    return Keys(int(row[0]), int(row[1]))


def keys_of(sink: DataFrame, bounds: Bounds) -> DataFrame:
    """Returns the keys of one source partition's outputs in one topic: source_partition, key_hash,
    partitions (how many hold the key), partition and offset (of the first output)."""
    keyed = sink.where(real() & F.col("key_hash").isNotNull()).withColumn("topic", _topic(bounds))
    first = F.min(F.struct("partition", "offset")).alias("first")
    rows = keyed.groupBy("source_partition", "key_hash", "topic")
    keys = rows.agg(F.count_distinct("partition").alias("partitions"), first)
    return keys.select("*", "first.partition", "first.offset").drop("first")


class Doubt(StrEnum):
    """A reason not to trust the sink's readings: the start of a sentence that ends with a count."""

    REPEATED = "records delivered more than once by one reading of the sink"
    OUTSIDE = "records outside the bounds that were asked for"
    UNEQUAL = (
        "blocks of 64 offsets whose content differs between read_committed and read_uncommitted"
    )
    UNSEEN = "records visible to read_committed, but not to read_uncommitted"
    PAST_LSO = "records visible to read_committed at or above the last stable offset"
    UNCOVERED = "records below the last stable offset that are in no data batch of the raw log"
    IDS = (
        "transactional ids that headers name beyond what is told apart"
        f" ({IDS_MAX:,}, each of at most {ID_CHARACTERS_MAX:,} characters)"
    )
    UNREADABLE = f"records whose header {COMPACT_HEADER} is damaged, or of a later version"


class Compared(NamedTuple):
    """Figures of the sink's rows that are compared with each other, block by block."""

    doubted: dict[Doubt, int]
    hidden: int
    """Records that the raw log commits and read_committed did not deliver. They are a finding
    (reading_mismatch), not a doubt: the readings agree, and the raw log contradicts both."""
    of_namesake: int
    """Records of another topic of the source's name."""
    named: int
    """Records whose header names a transaction."""


def count_doubts(sink: DataFrame, words: DataFrame, bounds: Bounds, raw_log: bool) -> Compared:
    """Compares both readings and the raw log, one row per 64 offsets."""
    settled = F.col("fate") != Fate.PENDING.value
    records = sink.groupBy("partition", word("offset").alias("word")).agg(
        bits("offset").alias("found"),
        F.count("*").alias("found_count"),
        F.bit_xor(F.when(F.col("visible"), F.col("content"))).alias("found_content"),
        F.count_if(~between("partition", "offset", bounds, "hw")).alias(Doubt.OUTSIDE.name),
        F.count_if(~settled & F.col("visible")).alias(Doubt.PAST_LSO.name),
        F.count_if(F.lit(raw_log) & settled & F.col("transactional").isNull()).alias(
            Doubt.UNCOVERED.name
        ),
        F.count_if((F.col("fate") != Fate.ABORTED.value) & F.col("unreadable")).alias(
            Doubt.UNREADABLE.name
        ),
        F.count_if(is_hidden()).alias("hidden"),
        F.count_if("of_namesake").alias("of_namesake"),
        F.count("transactional_id").alias("named"),
    )
    unseen = minus(F.col("seen"), F.col("found"))
    repeated = reduce(
        Column.__add__,
        (
            F.coalesce(F.col(f"{side}_count") - F.bit_count(side), F.lit(0))
            for side in ("found", "seen")
        ),
    )
    # Repeated and missing offsets have a doubt of their own.
    unequal = (repeated == 0) & (unseen == 0) & (F.col("seen_content") != F.col("found_content"))
    counted = {
        Doubt.REPEATED: repeated,
        Doubt.UNSEEN: F.bit_count(unseen),
        Doubt.UNEQUAL: unequal.cast("int"),
        **{
            doubt: F.col(doubt.name)
            for doubt in (Doubt.OUTSIDE, Doubt.PAST_LSO, Doubt.UNCOVERED, Doubt.UNREADABLE)
        },
    }
    pairs = words.select("partition", "word", "seen", "seen_count", "seen_content").join(
        records, ["partition", "word"], "full"
    )
    sums = {doubt.name: count for doubt, count in counted.items()} | {
        name: F.col(name) for name in ("hidden", "of_namesake", "named")
    }
    row = pairs.agg(
        *(F.coalesce(F.sum(count), F.lit(0)).alias(name) for name, count in sums.items())
    ).collect()[0]
    doubted = {doubt: row[doubt.name] for doubt in Doubt if doubt in counted}
    return Compared(doubted, row["hidden"], row["of_namesake"], row["named"])


@dataclass(frozen=True)
class Frames:
    """What lies behind the figures. Computed only where a figure shows something odd."""

    records: Callable[[], DataFrame]
    """Returns the sink's records with `SINK_COLUMNS`. Raises ReadingsNeeded if there are only
    folded readings."""
    named: DataFrame
    """The transactions that the records' headers name, one row per partition, with the columns of
    validators/facts/header_transactions.py."""
    expected: DataFrame | None = None
    """The expected outputs, of inputs without a dead letter; None: as many as were produced."""
    written: DataFrame | None = None
    """The inputs whose headers name the transaction that wrote them: source_partition,
    source_offset, writer (a struct of NAME, validators/facts/header_transactions.py). None if there
    are none for certain."""
    identities: Callable[[], DataFrame] | None = None
    """Returns the source's committed and pending records with their identities: source_partition,
    source_offset, source_key (null: none), pending. Those that need no identity, because they have
    no output, are left out. None when matching by lineage."""
    sink_keys: Callable[[], DataFrame] | None = None
    """Returns the identities that the sink's records hold: partition, offset, source_key (null:
    none). Aborted records are matched with their inputs by these alone. None when matching by
    lineage."""


@dataclass(frozen=True)
class Counts:
    """The figures of a sink and its source. A proof and a scan give the same ones."""

    frames: Frames
    proved: bool
    """Whether a proof shows that nothing is odd (validators/fast_path/proof.py), so the lines are
    in order too, and nothing is repeated, hidden or doubted."""

    cells: tuple[Cell, ...]
    """The sink's records."""
    headers: Mapping[int, Headers]
    """Counts from the batch headers, by partition; empty if the raw log was not heard."""
    lines: int
    """Lines of committed records with an input; each line must be in order."""

    inputs: Inputs
    identities: Identities = NO_IDENTITIES
    decoded: DecodedCounts = NOTHING_DECODED
    """Counts of the inputs, if a contract names their fields."""
    writers: Mapping[str, int] = field(default_factory=dict)
    """The inputs that a transaction wrote, by transactional id."""

    ids: tuple[TransactionalId, ...] = ()
    """Summary of `frames.named` by transactional id."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """The raw log's transactions by outcome, each counted once per partition that it wrote to."""

    outputs: int = 0
    """Expected outputs, of inputs without a dead letter."""
    missing: int = 0
    """Expected outputs without a committed or pending record; 0 if `proved`, because a proof does
    not look for them."""
    repeats: int = 0
    """Records beyond the first of an output."""
    alike: int = 0
    """Committed outputs that equal an earlier output of the same input, if inputs have several
    outputs."""
    keys: Keys = NO_KEYS
    """All zero unless order is promised per key."""
    letters: Letters | None = None
    """None unless the contract names dead letters."""

    hidden: int = 0
    """Records that the raw log commits and read_committed did not deliver."""
    of_namesake: int = 0
    """Records of another topic of the source's name; 0 if `proved`."""
    doubted: Mapping[Doubt, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupCounts:
    """The figures of all groups, and the frames behind them."""

    due: int
    """Groups with an input in the judged range."""
    inputs: int
    """Inputs in the judged range that belong to a group."""
    ungrouped: int
    """Inputs in the judged range that belong to none."""
    outputs: int
    """Committed outputs."""
    in_sink: int
    """Groups with a committed output."""
    compared: int
    """Groups with both an input and an output."""
    nameless: int
    """Committed outputs that name no group."""
    faults: int
    """Groups that are not as they must be."""
    groups: DataFrame
    """One row for each group; kept as Parquet."""
    outputs_frame: DataFrame
    """One row for each committed output, as `_outputs` returns it. Lazy."""
    inputs_frame: DataFrame
    """One row for each input, as `_inputs` returns it. Lazy."""


OF_CONTRACT = "the contract's "
"""A doubt about the contract begins so; the others are about the readings."""
_TWICE = "records delivered more than once by the reading of the source"
_UNEXPLAINED = "unexplained offsets in "
OF_READINGS = (
    *(doubt.value for doubt in Doubt if doubt not in (Doubt.IDS, Doubt.UNREADABLE)),
    _TWICE,
    _UNEXPLAINED,
)
"""So begin doubts about the broker or its client: what they delivered contradicts itself."""


def doubts_of(
    counts: Counts, balance: Sequence[Balance], source: Bounds, sink: Bounds
) -> tuple[str, ...]:
    """Returns the reasons not to judge, as clauses: the readings cannot be trusted, or the contract
    does not say how many outputs an input has."""
    inputs = counts.inputs
    clauses = [f"{doubt.value}: {count:,}." for doubt, count in counts.doubted.items() if count]
    if inputs.repeated:
        clauses.append(f"{_TWICE}: {inputs.repeated:,}.")
    if inputs.excess:
        clauses.append(
            f"{OF_CONTRACT}`count` asks for {inputs.excess:,} outputs, and {OUTPUTS_MAX:,} are"
            f" looked for, or {OUTPUTS_PER_OFFSET} for each offset of the sink if that is more."
            " Correct it, or judge a shorter range."
        )
    elif inputs.first_uncounted is not None:
        topic, partition = source.place(inputs.first_uncounted[0])
        first = f"{topic}-{partition}@{inputs.first_uncounted[1]}"
        them = first if inputs.uncounted == 1 else f"the first is {first}"
        clauses.append(
            f"{OF_CONTRACT}`count` must give a whole number from 0 to {COUNT_MAX:,}, and gives"
            f" something else for {counted(inputs.uncounted, 'input')} ({them}). Correct it."
        )
    clauses += [
        f"{_UNEXPLAINED}{'-'.join(map(str, sink.place(partition_balance.partition)))}:"
        f" {partition_balance.unexplained:,} of {partition_balance.offsets:,}."
        for partition_balance in balance
        if partition_balance.unexplained
    ]
    return tuple(clauses)


def empty_fields(topic: str, decoded: DecodedCounts) -> tuple[str, ...]:
    """Returns a doubt if no record holds a field that the contract names. It may be misspelt, and
    then comparing nothing with nothing would hold."""
    names = ", ".join(decoded.empty)
    is_single = len(decoded.empty) == 1
    fields, its_name = ("field", "its name") if is_single else ("fields", "their names")
    verb = "is" if is_single else "are"
    return (
        f"{OF_CONTRACT}{fields} {names} {verb} in no decoded record of {topic}. Correct {its_name}"
        " in the contract, or leave out what no record holds.",
    ) * bool(names)


def nameless_letters(counts: Counts, question: Question) -> tuple[str, ...]:
    """Returns a doubt if no dead letter names an input as the contract says. Another program may
    have written them."""
    letters, term = counts.letters, question.agreed.letters
    if letters is None or term is None or not letters.records or letters.named:
        return ()
    of_all = "the only" if letters.records == 1 else f"none of the {letters.records:,}"
    noun, names = (
        ("dead letter", "does not name") if letters.records == 1 else ("dead letters", "names")
    )
    return (
        f"{OF_CONTRACT}`dead_letters` cannot be read: {of_all} {noun} in {term.topic} {names} its"
        f" input by {term.words}. Correct `origin`, or let the program write them.",
    )


def count_ends(raw_log: RawLog, bounds: Bounds) -> dict[str, int]:
    """Counts the transactions with data in the bounds, by outcome."""
    transactions = raw_log.facts.transactions
    start, hw = (
        transactions["partition"].map(
            {each.partition: getattr(each, end) for each in bounds.partitions}
        )
        for end in ("start", "hw")
    )
    is_inside = (transactions["last_offset"] >= start) & (transactions["first_offset"] < hw)
    return {
        str(outcome): int(count)
        for outcome, count in transactions.loc[is_inside, "outcome"].value_counts().items()
    }


def written_by(source: DataFrame, bounds: Bounds) -> DataFrame:
    inputs = source.where((F.size("headers") > 0) & between("partition", "offset", bounds, "lso"))
    return (
        with_transaction(inputs)
        .where(F.col("transactional_id").isNotNull())
        .select(
            F.col("partition").alias("source_partition"),
            F.col("offset").alias("source_offset"),
            F.struct(*NAME).alias("writer"),
        )
    )


def count_writers(written: DataFrame) -> dict[str, int]:
    """Counts the inputs that each transactional id wrote: of at most one more than `IDS_MAX`.

    The least writer of each makes Spark sort. Its hash of names is known to everybody, and names of
    one hash would take the square of their number.
    """
    name = F.substring("writer.transactional_id", 1, ID_CHARACTERS_MAX + 1)
    counts = written.groupBy(name).agg(F.count("*"), F.min("writer")).limit(IDS_MAX + 1)
    return {row[0]: row[1] for row in counts.collect()}
