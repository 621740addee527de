"""From readings to one table of the sink's records, each with its fate, its input and its transaction.

The readings are checked before anything is judged with them: every (partition, offset) once, the same content at both
levels, nothing that only read_committed sees. A violation is not a finding: it is a doubt, and the verdict is UNKNOWN.

A record's fate comes from the two readings and the last stable offset, its transaction's outcome from the raw log and
from the journal. Neither is derived from the other, so that they can contradict each other.

The balance says where every offset of the bounds went. Each term comes from a source of its own: records from the
readings, markers from the raw log's control batches, gone offsets from the batch headers, pending ones from the last
stable offset. What is left is unexplained, and must be 0. The one exception is a compacted batch that straddles the
start of the bounds: its header counts the records of both sides, so the reading decides within what the header allows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from validators.finding import Balance, Bounds, Fate, PartitionBounds, Transactions, Witness
from validators.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from validators.readings import keep

BATCH_COLUMNS = (
    "partition int, base_offset long, last_offset long, count int, producer_id long, producer_epoch int, "
    "base_sequence int, transactional boolean, control string, first_timestamp long, max_timestamp long, size int, "
    "compression string, leader_epoch int"
)
"""The raw log's `batches`: one row per record batch. `control` is null, 'COMMIT' or 'ABORT'; timestamps are in ms."""

TRANSACTION_COLUMNS = (
    "partition int, producer_id long, producer_epoch int, first_offset long, last_offset long, records long, "
    "outcome string, marker_offset long"
)
"""The raw log's `transactions`: one row per transaction and partition, offsets of its data, `outcome` 'COMMITTED',
'ABORTED' or 'OPEN'. Data and markers are folded per (partition, producer id) in offset order; epochs do not match:
the markers of Java clients, fences and timeouts carry the data's epoch + 1 (KIP-890)."""

DECLARED_COLUMNS = "transactional_id string, sequence long, attempt int, task string, outcome string"
"""The journal's transactions: `outcome` is what the worker was told, 'COMMITTED' or 'ABORTED'; else it is unknown."""

BROADCAST_ROWS_MAX = 100_000
"""A journal up to this long is sent to every task instead of shuffling the sink's records for it."""


class Identity(StrEnum):
    """How a sink record is matched with its input."""

    LINEAGE = "lineage"
    """By the header that our sink writes."""
    KEY = "key"
    """By key: its k-th occurrence in the sink, by (partition, offset), is that of the k-th in the source. Extra ones
    repeat the last. Two null keys are equal. With equal keys the missing one cannot be told: it is the last."""


class Place(StrEnum):
    """Where a sink record's lineage points."""

    INPUT = "INPUT"
    """To an input of the judged range."""
    BEFORE = "BEFORE"
    """Below the judged range: trimmed from the source, or left out on purpose."""
    AFTER = "AFTER"
    """Above the judged range, yet below the source's high watermark: left out on purpose, or not finished."""
    HOLE = "HOLE"
    """Into the judged range, to an offset where read_committed has no record: a marker, aborted or compacted."""
    NOWHERE = "NOWHERE"
    """No lineage, another topic, a partition or an offset that does not exist."""


REAL = (Place.INPUT, Place.BEFORE, Place.AFTER)
"""Places of records that have an input; only these can repeat one another or stand in order."""


@dataclass(frozen=True)
class RawLog:
    """What the brokers' log says of itself, with `BATCH_COLUMNS` and `TRANSACTION_COLUMNS`."""

    batches: DataFrame
    transactions: DataFrame


class Cell(NamedTuple):
    """Counts of one sink partition and one source partition. `source_partition` is None for records without input."""

    partition: int
    source_partition: int | None
    committed: int
    aborted: int
    pending: int
    never_transactional: int
    """Committed records that were in no transaction, by the raw log."""
    heard: int
    """Committed records whose transaction's outcome the raw log or the journal tells."""
    in_range: int
    """Committed records of an input in the judged range."""
    last_source_offset: int | None
    straddling: int
    """Records in a sparse batch that straddles the start of the bounds."""


@dataclass(frozen=True)
class Ledger:
    """Everything that is judged. The frames are Parquet already; the facts are counted already."""

    sink: DataFrame
    """One row per record of the read_uncommitted reading: partition, offset, timestamp, fate; transactional,
    producer_id, outcome (raw log, else null); declared (journal, else null); source_topic, source_partition,
    source_offset, output_index, place; transactional_id, sequence, attempt, task, total; copies, repeat,
    first_partition, first_offset (of committed records with an input: how many share this lineage, whether this is a
    later copy, and where the first one is)."""
    inputs: DataFrame
    """One row per input of the judged range: source_partition, source_offset."""
    sink_bounds: Bounds
    source_bounds: Bounds
    """The judged range: from `start` to `lso` of each partition; the source itself ends at `hw`."""
    heard: frozenset[Witness]
    cells: tuple[Cell, ...]
    inputs_count: int
    balance: tuple[Balance, ...]
    transactions: Transactions
    doubts: tuple[str, ...]
    """Why the readings cannot be trusted, in sentences; empty if they can."""
    evidence: str
    """URL of the folder where the frames are kept."""
    took_s: float

    @property
    def committed(self) -> int:
        return sum(cell.committed for cell in self.cells)

    @property
    def aborted(self) -> int:
        return sum(cell.aborted for cell in self.cells)

    @property
    def pending(self) -> int:
        """Offsets, not records: at and above the last stable offset nothing is settled."""
        return sum(one.hw - one.lso for one in self.sink_bounds.partitions)

    @property
    def matched(self) -> tuple[Cell, ...]:
        """The cells of records that have an input."""
        return tuple(cell for cell in self.cells if cell.source_partition is not None)


def build_ledger(
    committed: DataFrame,
    uncommitted: DataFrame,
    source: DataFrame,
    sink_bounds: Bounds,
    source_bounds: Bounds,
    evidence: str,
    raw_log: RawLog | None = None,
    declared: DataFrame | None = None,
    identity: Identity = Identity.LINEAGE,
) -> Ledger:
    """The ledger of a sink and its source.

    `committed` and `uncommitted` are the sink's readings, `source` is the source's read_committed reading; all three
    are read several times, so they should be kept ones. `source_bounds` is the judged range: an input counts from
    `start` to below `lso`. `evidence` is the URL of a folder for what is computed here.
    """
    began = time.monotonic()
    readings = _tally(committed, source, source_bounds)
    spans = _spans(raw_log, sink_bounds) if raw_log else None
    headers = _header_counts(raw_log, sink_bounds) if raw_log else {}
    records = _with_fates(committed, uncommitted, spans, sink_bounds)
    records = _with_transactions(records, declared)
    records = (
        _matched_by_key(records, source, source_bounds.topic) if identity is Identity.KEY else _with_lineage(records)
    )
    records = _with_places(records, source, source_bounds, readings.dense)
    sink = keep(_with_copies(records), f"{evidence}/sink")
    cells, doubts, visible = _count(sink, headers)
    balance = tuple(
        _balance(one, cells, headers.get(one.partition), raw_log is not None) for one in sink_bounds.partitions
    )
    heard = {Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED}
    heard |= ({Witness.RAW_LOG} if raw_log else set()) | ({Witness.JOURNAL} if declared is not None else set())
    return Ledger(
        sink=sink,
        inputs=_inputs(source, source_bounds),
        sink_bounds=sink_bounds,
        source_bounds=source_bounds,
        heard=frozenset(heard),
        cells=cells,
        inputs_count=readings.inputs,
        balance=balance,
        transactions=_transactions(sink, raw_log, sink_bounds),
        doubts=_doubts(doubts, readings.committed - visible, readings, balance),
        evidence=evidence,
        took_s=time.monotonic() - began,
    )


class Tally(NamedTuple):
    """What a first count of the readings says."""

    committed: int
    """Records of the sink's read_committed reading."""
    inputs: int
    """Records of the source in the judged range."""
    source_repeated: int
    dense: bool
    """Every offset of the judged range holds an input, so that a lineage in range needs no look at the source."""


def _tally(committed: DataFrame, source: DataFrame, bounds: Bounds) -> Tally:
    places = source.groupBy("partition", "offset").agg(F.count("*").alias("times"))
    judged = _between("partition", "offset", bounds)
    counted = places.agg(
        F.coalesce(F.count_if(judged), F.lit(0)).alias("inputs"), F.count_if(F.col("times") > 1).alias("repeated")
    )
    row = counted.crossJoin(committed.agg(F.count("*").alias("committed"))).collect()[0]
    width = sum(one.lso - one.start for one in bounds.partitions)
    return Tally(row["committed"], row["inputs"], row["repeated"], dense=row["inputs"] == width)


def _inputs(source: DataFrame, bounds: Bounds) -> DataFrame:
    return source.where(_between("partition", "offset", bounds)).select(
        F.col("partition").alias("source_partition"), F.col("offset").alias("source_offset")
    )


def _spans(raw_log: RawLog, bounds: Bounds) -> DataFrame:
    """One row per offset of a data batch: partition, offset, producer_id, transactional, outcome.

    A batch belongs to the last transaction of its producer that began at or below it, if that one reaches it.
    """
    at = F.greatest("base_offset", _bound("partition", bounds, "start")).alias("at")
    data = raw_log.batches.where(F.col("control").isNull() & (F.col("last_offset") >= F.col("base_offset")))
    plain = data.where(~F.col("transactional")).select(
        "partition", at, "last_offset", "producer_id", "transactional", F.lit(None).cast("string").alias("outcome")
    )
    batches = data.where("transactional").select(
        "partition", "producer_id", at, F.lit(1).alias("turn"), "last_offset", F.lit(None).cast("string").alias("known")
    )
    begins = raw_log.transactions.select(
        "partition",
        "producer_id",
        F.greatest("first_offset", _bound("partition", bounds, "start")).alias("at"),
        F.lit(0).alias("turn"),
        "last_offset",
        F.col("outcome").alias("known"),
    )
    so_far = Window.partitionBy("partition", "producer_id").orderBy("at", "turn")
    last = F.last(F.when(F.col("turn") == 0, F.struct("last_offset", "known")), ignorenulls=True).over(so_far)
    transactional = (
        batches.unionByName(begins)
        .withColumn("last", last)
        .where(F.col("turn") == 1)
        .select(
            "partition",
            "at",
            "last_offset",
            "producer_id",
            F.lit(True).alias("transactional"),
            F.when(F.col("last.last_offset") >= F.col("at"), F.col("last.known")).alias("outcome"),
        )
    )
    every = plain.unionByName(transactional).where(F.col("at") <= F.col("last_offset"))
    offsets = F.explode(F.sequence("at", "last_offset")).alias("offset")
    return every.select("partition", offsets, "producer_id", "transactional", "outcome")


def _with_fates(committed: DataFrame, uncommitted: DataFrame, spans: DataFrame | None, bounds: Bounds) -> DataFrame:
    """The read_uncommitted reading with fate, transactional, producer_id, outcome and doubt; without its value."""
    content = F.xxhash64("key", "value", "headers")
    seen = committed.select("partition", "offset", content.alias("seen"))
    records = uncommitted.withColumn("content", content).join(seen, ["partition", "offset"], "left")
    raw = F.lit(spans is not None)
    if spans is None:
        records = records.withColumns(
            {
                "producer_id": F.lit(None).cast("long"),
                "transactional": F.lit(None).cast("boolean"),
                "outcome": F.lit(None).cast("string"),
            }
        )
    else:
        records = records.join(spans, ["partition", "offset"], "left")
    lso = _bound("partition", bounds, "lso")
    settled = F.col("offset") < lso
    visible = F.col("seen").isNotNull()
    fate = F.when(~settled, Fate.PENDING.value).when(visible, Fate.COMMITTED.value).otherwise(Fate.ABORTED.value)
    times = F.count("*").over(Window.partitionBy("partition", "offset"))
    stable = ~F.col("transactional") | (F.col("outcome") == Fate.COMMITTED.value)
    inside = (F.col("offset") >= _bound("partition", bounds, "start")) & (
        F.col("offset") < _bound("partition", bounds, "hw")
    )
    doubt = (
        F.when(times > 1, Doubt.REPEATED.value)
        .when(visible & (F.col("seen") != F.col("content")), Doubt.UNEQUAL.value)
        .when(~F.coalesce(inside, F.lit(False)), Doubt.OUTSIDE.value)
        .when(visible & ~settled, Doubt.PAST_LSO.value)
        .when(raw & settled & F.col("transactional").isNull(), Doubt.UNCOVERED.value)
        .when(settled & ~visible & stable, Doubt.HIDDEN.value)
    )
    return records.withColumns({"fate": fate, "visible": visible, "doubt": doubt}).drop("value", "content", "seen")


def _with_transactions(records: DataFrame, declared: DataFrame | None) -> DataFrame:
    """Adds the header's transaction and, from the journal, `declared`; both null where nothing is known."""
    types = {"transactional_id": "string", "sequence": "long", "attempt": "int", "task": "string", "total": "long"}
    records = _with_header(records, TRANSACTION_HEADER, types)
    if declared is None:
        return records.withColumn("declared", F.lit(None).cast("string"))
    name = ["transactional_id", "sequence", "attempt", "task"]
    known = F.col("outcome").isin(Fate.COMMITTED.value, Fate.ABORTED.value)
    told = declared.groupBy(*name).agg(F.collect_set(F.when(known, F.col("outcome"))).alias("said"))
    # A journal that says two things of one transaction says nothing.
    told = told.select(*name, F.when(F.size("said") == 1, F.get("said", F.lit(0))).alias("declared"))
    short = declared.limit(BROADCAST_ROWS_MAX + 1).count() <= BROADCAST_ROWS_MAX
    return records.join(F.broadcast(told) if short else told, name, "left")


def _with_lineage(records: DataFrame) -> DataFrame:
    """Adds the header's lineage; all null where there is none or it is malformed."""
    types = {"source_topic": "string", "source_partition": "int", "source_offset": "long", "output_index": "int"}
    return _with_header(records, LINEAGE_HEADER, types)


def _with_header(records: DataFrame, header: str, types: Mapping[str, str]) -> DataFrame:
    """Adds the parts of a header, or nulls unless they spell its text again: the rule of validators/headers.py.

    Where a name occurs twice the last header counts: Kafka's own rule.
    """
    named = F.filter("headers", lambda one: one["key"] == header)
    records = records.withColumn("text", F.try_element_at(named, F.lit(-1))["value"].cast("string"))
    records = records.withColumn("parts", F.split("text", "/"))
    parts = {name: F.get("parts", F.lit(place)).try_cast(kind) for place, (name, kind) in enumerate(types.items())}
    filled = [F.col(name) != "" if kind == "string" else F.col(name) >= 0 for name, kind in types.items()]
    valid = reduce(Column.__and__, filled, F.concat_ws("/", *types) == F.col("text"))
    records = records.withColumns(parts).withColumn("valid", valid)
    return records.withColumns({name: F.when(F.col("valid"), F.col(name)) for name in types}).drop(
        "text", "parts", "valid"
    )


def _matched_by_key(records: DataFrame, source: DataFrame, topic: str) -> DataFrame:
    """Adds the lineage of the input with the same key and occurrence. Committed records come before pending ones."""
    countable = F.col("fate").isin(Fate.COMMITTED.value, Fate.PENDING.value)
    in_turn = Window.partitionBy("key", "countable").orderBy(F.col("fate") == Fate.PENDING.value, "partition", "offset")
    records = records.withColumn("countable", countable)
    records = records.withColumn("nth", F.when(F.col("countable"), F.row_number().over(in_turn)))
    inputs = source.select(
        F.col("key").alias("source_key"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.row_number().over(Window.partitionBy("key").orderBy("partition", "offset")).alias("source_nth"),
    )
    totals = source.groupBy(F.col("key").alias("total_key")).agg(F.count("*").alias("inputs_of_key"))
    records = records.join(totals, F.col("key").eqNullSafe(F.col("total_key")), "left")
    records = records.withColumn("nth", F.when(F.col("inputs_of_key") > 0, F.least("nth", "inputs_of_key")))
    same = F.col("key").eqNullSafe(F.col("source_key")) & (F.col("nth") == F.col("source_nth"))
    found = F.col("source_offset").isNotNull()
    return (
        records.join(inputs, same, "left")
        .withColumn("source_topic", F.when(found, F.lit(topic)))
        .withColumn("output_index", F.when(found, F.lit(0)))
        .drop("countable", "nth", "total_key", "inputs_of_key", "source_key", "source_nth")
    )


def _with_places(records: DataFrame, source: DataFrame, bounds: Bounds, dense: bool) -> DataFrame:
    """Adds `place`. `dense`: every offset of the judged range is known to hold an input."""
    start, lso, hw = (_bound("source_partition", bounds, name) for name in ("start", "lso", "hw"))
    offset = F.col("source_offset")
    place = (
        F.when((F.col("source_topic") != bounds.topic) | start.isNull() | offset.isNull(), Place.NOWHERE.value)
        .when(offset >= hw, Place.NOWHERE.value)
        .when(offset < start, Place.BEFORE.value)
        .when(offset >= lso, Place.AFTER.value)
        .otherwise(Place.INPUT.value)
    )
    real = F.col("place").isin(*(one.value for one in REAL)) & (F.col("fate") == Fate.COMMITTED.value)
    records = records.withColumn("place", place)
    # What has no input gets a key of its own, so that no task is left with all of them.
    records = records.withColumns(
        {
            "key_partition": F.when(real, F.col("source_partition")).otherwise(-1 - F.col("partition")),
            "key_offset": F.when(real, offset).otherwise(F.col("offset")),
            "key_index": F.when(real, F.col("output_index")).otherwise(-1),
        }
    )
    if dense:
        return records
    inputs = source.select(
        F.col("partition").alias("key_partition"), F.col("offset").alias("key_offset"), F.lit(True).alias("exists")
    ).distinct()
    hole = (F.col("place") == Place.INPUT.value) & (F.col("key_index") >= 0) & F.col("exists").isNull()
    return (
        records.join(inputs, ["key_partition", "key_offset"], "left")
        .withColumn("place", F.when(hole, Place.HOLE.value).otherwise(F.col("place")))
        .drop("exists")
    )


def _with_copies(records: DataFrame) -> DataFrame:
    """Adds copies, repeat, first_partition and first_offset: null for what has no input.

    The first copy is the earliest by timestamp, and within its partition by offset. One whose transaction is known to
    be aborted is never the first while there is another: the others did not repeat it.
    """
    alike = Window.partitionBy("key_partition", "key_offset", "key_index")
    real = (F.col("key_index") >= 0) & (F.col("place") != Place.HOLE.value)
    aborted = F.when(known_aborted(), 1).otherwise(0)
    records = records.withColumn("first", F.min(F.struct(aborted, "timestamp", "partition", "offset")).over(alike))
    here = F.col("partition") == F.col("first.partition")
    records = records.withColumn("first_here", F.min(F.when(here, F.struct(aborted, "offset"))).over(alike))
    repeat = ~here | (F.col("offset") != F.col("first_here.offset"))
    return records.withColumns(
        {
            "copies": F.when(real, F.count("*").over(alike)).cast("int"),
            "repeat": F.when(real, repeat),
            "first_partition": F.when(real, F.col("first.partition")),
            "first_offset": F.when(real, F.col("first_here.offset")),
        }
    ).select(*SINK_COLUMNS)


SINK_COLUMNS = (
    "partition",
    "offset",
    "timestamp",
    "fate",
    "transactional",
    "producer_id",
    "outcome",
    "declared",
    "source_topic",
    "source_partition",
    "source_offset",
    "output_index",
    "place",
    "transactional_id",
    "sequence",
    "attempt",
    "task",
    "total",
    "copies",
    "repeat",
    "first_partition",
    "first_offset",
    "visible",
    "doubt",
)


class Doubt(StrEnum):
    """Why a record makes the readings untrustworthy, as the rest of a sentence that begins with a count."""

    REPEATED = "records were delivered more than once by one reading"
    UNEQUAL = "records differ in content between read_committed and read_uncommitted"
    OUTSIDE = "records lie outside the bounds that were asked for"
    PAST_LSO = "records at or above the last stable offset were visible to read_committed"
    UNCOVERED = "records below the last stable offset are in no data batch of the raw log"
    HIDDEN = "records are committed by the raw log, yet invisible to read_committed"


def _count(sink: DataFrame, headers: Mapping[int, Headers]) -> tuple[tuple[Cell, ...], dict[Doubt, int], int]:
    """The cells, the doubtful records, and how many records read_committed saw: everything in one pass."""
    committed = F.col("fate") == Fate.COMMITTED.value
    real = committed & F.col("copies").isNotNull()
    straddled = {partition: one.straddle.last for partition, one in headers.items() if one.straddle}
    straddling = F.lit(False)
    for partition, last in straddled.items():
        straddling |= (F.col("partition") == partition) & (F.col("offset") <= last)
    known = F.col("outcome").isNotNull() | F.col("declared").isNotNull()
    counts = {
        "committed": committed,
        "aborted": F.col("fate") == Fate.ABORTED.value,
        "pending": F.col("fate") == Fate.PENDING.value,
        "never_transactional": committed & ~F.col("transactional"),
        "heard": committed & known,
        "in_range": real & (F.col("place") == Place.INPUT.value),
        "straddling": straddling,
        "visible": F.col("visible"),
        **{doubt.name: F.col("doubt") == doubt.value for doubt in Doubt},
    }
    cells = sink.groupBy("partition", F.when(real, F.col("source_partition")).alias("source_partition")).agg(
        F.max(F.when(real, F.col("source_offset"))).alias("last_source_offset"),
        *(F.count_if(condition).alias(name) for name, condition in counts.items()),
    )
    rows = cells.collect()
    doubts = {doubt: sum(row[doubt.name] for row in rows) for doubt in Doubt}
    return tuple(Cell(**{name: row[name] for name in Cell._fields}) for row in rows), doubts, _sum(rows, "visible")


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(row[name] for row in rows)


class Straddle(NamedTuple):
    """A sparse batch that begins below the bounds: how many of its offsets inside may be gone, by its header."""

    last: int
    width: int
    """Its offsets inside the bounds."""
    gone_min: int
    gone_max: int


class Headers(NamedTuple):
    """What the batch headers of one partition say of the offsets from `start` to below the last stable offset."""

    covered: int
    """Offsets that lie in some batch."""
    markers: int
    emptied: int
    """Offsets inside batches that hold nothing any more, without those of a straddling batch."""
    straddle: Straddle | None


def _header_counts(raw_log: RawLog, bounds: Bounds) -> dict[int, Headers]:
    start, lso = _bound("partition", bounds, "start"), _bound("partition", bounds, "lso")
    below = F.greatest("base_offset", start)
    above = F.least("last_offset", lso - 1)
    width = F.col("last_offset") - F.col("base_offset") + 1
    straddles = (F.col("base_offset") < start) & (F.col("count") < width)
    rows = (
        raw_log.batches.where(below <= above)
        .groupBy("partition")
        .agg(
            F.sum(above - below + 1).alias("covered"),
            F.sum(F.when(F.col("control").isNotNull(), F.col("count")).otherwise(0)).alias("markers"),
            F.sum(F.when(F.col("base_offset") < start, 0).otherwise(width - F.col("count"))).alias("emptied"),
            F.max(F.when(straddles, F.struct("last_offset", "base_offset", "count"))).alias("straddle"),
        )
        .collect()
    )
    starts = {one.partition: one.start for one in bounds.partitions}
    return {
        row["partition"]: Headers(
            row["covered"],
            row["markers"],
            row["emptied"],
            _straddle(row["straddle"], starts[row["partition"]]) if row["straddle"] else None,
        )
        for row in rows
    }


def _straddle(batch: Row, start: int) -> Straddle:
    width, empty = batch["last_offset"] - start + 1, batch["last_offset"] - batch["base_offset"] + 1 - batch["count"]
    return Straddle(batch["last_offset"], width, max(0, width - batch["count"]), min(width, empty))


def _balance(bounds: PartitionBounds, cells: Iterable[Cell], headers: Headers | None, heard: bool) -> Balance:
    mine = [cell for cell in cells if cell.partition == bounds.partition]
    committed, aborted = sum(cell.committed for cell in mine), sum(cell.aborted for cell in mine)
    pending = bounds.hw - bounds.lso
    rest = bounds.hw - bounds.start - committed - aborted - pending
    if not heard:
        # Nobody said what has no record; there can only be too little room for the records, never too much.
        return Balance(
            bounds.partition,
            bounds.hw - bounds.start,
            committed,
            aborted,
            pending,
            None,
            None,
            max(rest, 0),
            min(rest, 0),
            None,
        )
    headers = headers or Headers(0, 0, 0, None)
    gone = bounds.lso - bounds.start - headers.covered + headers.emptied
    if headers.straddle:
        left = headers.straddle.width - sum(cell.straddling for cell in mine)
        gone += min(max(left, headers.straddle.gone_min), headers.straddle.gone_max)
    return Balance(
        bounds.partition,
        bounds.hw - bounds.start,
        committed,
        aborted,
        pending,
        headers.markers,
        gone,
        None,
        rest - headers.markers - gone,
        sum(cell.never_transactional for cell in mine),
    )


def _transactions(sink: DataFrame, raw_log: RawLog | None, bounds: Bounds) -> Transactions:
    """How many transactions ended how: by the records' headers, else by the raw log, where one that wrote to three
    partitions counts three times."""
    fates = [F.bool_or(F.col("fate") == fate.value).alias(fate.value) for fate in (Fate.COMMITTED, Fate.PENDING)]
    named = sink.where(F.col("transactional_id").isNotNull())
    named = named.groupBy("transactional_id", "sequence", "attempt", "task").agg(*fates)
    end = F.when(F.col(Fate.COMMITTED.value), "COMMITTED").when(F.col(Fate.PENDING.value), "OPEN").otherwise("ABORTED")
    ends = named.select(F.lit(HEADERS).alias("told_by"), end.alias("outcome"))
    if raw_log:
        inside = (F.col("last_offset") >= _bound("partition", bounds, "start")) & (
            F.col("first_offset") < _bound("partition", bounds, "hw")
        )
        ends = ends.unionByName(
            raw_log.transactions.where(inside).select(F.lit(Witness.RAW_LOG.value).alias("told_by"), "outcome")
        )
    counts = {
        (row["told_by"], row["outcome"]): row["count"] for row in ends.groupBy("told_by", "outcome").count().collect()
    }
    witnesses = [told_by for told_by in (HEADERS, Witness.RAW_LOG.value) if any(told_by == key[0] for key in counts)]
    if not witnesses:
        return Transactions(None, None, None, None)
    committed, aborted, unfinished = (counts.get((witnesses[0], end), 0) for end in ("COMMITTED", "ABORTED", "OPEN"))
    return Transactions(committed, aborted, unfinished, witnesses[0])


HEADERS = "headers"
"""Who told of transactions, when it was the records themselves."""


def _doubts(found: Mapping[Doubt, int], unseen: int, readings: Tally, balance: Iterable[Balance]) -> tuple[str, ...]:
    """Why not to trust the readings, in sentences. `unseen`: records that only read_committed saw."""
    said = [f"{count:,} {doubt.value}." for doubt, count in found.items() if count]
    if unseen:
        said.append(f"{abs(unseen):,} records were visible to read_committed, but not to read_uncommitted.")
    if readings.source_repeated:
        said.append(f"{readings.source_repeated:,} source offsets were delivered more than once by one reading.")
    said += [
        f"Partition {one.partition}: {one.unexplained:,} of {one.offsets:,} offsets are unexplained."
        for one in balance
        if one.unexplained
    ]
    return tuple(said)


def known_aborted() -> Column:
    """Whether the raw log or the journal says that this record's transaction was aborted."""
    aborted = Fate.ABORTED.value
    return F.coalesce(F.col("outcome") == aborted, F.lit(False)) | F.coalesce(
        F.col("declared") == aborted, F.lit(False)
    )


def _bound(partition: str, bounds: Bounds, name: str) -> Column:
    """A bound of the row's partition. Null where the bounds lack the partition."""
    return by_partition(partition, {one.partition: getattr(one, name) for one in bounds.partitions})


def by_partition(partition: str, known: Mapping[int, int]) -> Column:
    """The number known of the row's partition, as an array look-up: no join. Null where nothing is known."""
    values = [F.lit(known.get(number)).cast("long") for number in range(max(known, default=-1) + 1)]
    return F.get(F.array(*values).cast("array<bigint>"), F.col(partition))


def _between(partition: str, offset: str, bounds: Bounds) -> Column:
    """Whether the offset lies in the judged range: from `start` to below `lso`."""
    inside = (F.col(offset) >= _bound(partition, bounds, "start")) & (F.col(offset) < _bound(partition, bounds, "lso"))
    return F.coalesce(inside, F.lit(False))
