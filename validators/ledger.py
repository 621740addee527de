"""From readings to one table of the sink's records, each with its fate, its input and its transaction.

The readings are checked before anything is judged with them: every (partition, offset) once, the same content at both
levels, nothing that only read_committed sees. A violation is not a finding: it is a doubt, and the verdict is UNKNOWN.

A record's fate comes from the two readings and the last stable offset, its transaction's outcome from the raw log and
from the journal. Neither is derived from the other, so that they can contradict each other.

Records are compared as sets of offsets (validators/offsets.py), so that judging never shuffles all of them by offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, reduce
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from validators.agreed import Agreed
from validators.balance import (
    Headers,
    RawLog,
    Records,
    balance_of,
    balance_unheard,
    count_headers,
    words_of_batches,
)
from validators.cell import Cell
from validators.coordinator import Coordinator
from validators.expected import Expect, Expected, outputs_of, record
from validators.finding import Balance, Bounds, Fate, Order, PartitionBounds, Transactions, Witness
from validators.identity import Identity, with_input, with_transaction
from validators.joined import with_numbered_input
from validators.named import NAME, TransactionalId, count_ids, named
from validators.offsets import between, bits, bound, holds, look_up, minus, word
from validators.packed import count_lost, has_packs, unpacked
from validators.polled import Polled
from validators.readings import COLUMNS, frame_of, keep
from validators.sound import NAMED_COLUMNS, Folded, Outcomes, Sound, fold, prove, together
from validators.sound_log import SoundLog, sound_log

DECLARED_COLUMNS = "transactional_id string, sequence long, attempt int, task string, outcome string, reason string"
"""The journal's transactions: `outcome` is what the worker was told, 'COMMITTED' or 'ABORTED'; else it is unknown.
`reason` says why it was aborted. Attempt 0 is no transaction, but a task that took the transactional id over."""

ONE_TO_ONE = Expected()
NOTHING_MORE = Agreed()

BROADCAST_ROWS_MAX = 100_000
"""A journal, or counts of outputs, up to this long are sent to every task: the sink's records are not shuffled."""


class Place(StrEnum):
    """Where a sink record's lineage points."""

    INPUT = "INPUT"
    """To an input of the judged range."""
    BEFORE = "BEFORE"
    """Below the judged range: trimmed from the source, or left out on purpose."""
    AFTER = "AFTER"
    """Above the judged range, yet below the source's high watermark: left out on purpose, or not finished."""
    HOLE = "HOLE"
    """Into the judged range, to an offset where read_committed has no record: a marker, or compacted."""
    ABORTED = "ABORTED"
    """To a record of the judged range that was aborted in the source."""
    BEYOND = "BEYOND"
    """To an input of the judged range, with an index that says of more outputs than it is expected to have."""
    NOWHERE = "NOWHERE"
    """No lineage, another topic, a partition or an offset that does not exist."""


class ReadingsNeeded(Exception):
    """Something is odd, or more is asked than folded readings tell: each record has to be looked at."""


REAL = (Place.INPUT, Place.BEFORE, Place.AFTER)
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


@dataclass(frozen=True)
class SourceLog:
    """What the source's own log tells of its judged range."""

    aborted: DataFrame | None
    """Its aborted records, as a reading; None when it has none."""


@dataclass(frozen=True)
class Ledger:
    """Everything that is judged. The facts are counted; the frames are computed where they are used, which is where the
    facts show something odd."""

    spark: SparkSession
    records: Callable[[], DataFrame]
    """Gives `sink`. Raises ReadingsNeeded where only folded readings are there."""
    named: DataFrame
    """The transactions that the records' headers name, one row a partition: the columns of validators/named.py."""
    wanted: DataFrame | None
    """`outputs`; None: as many as were produced."""
    sink_bounds: Bounds
    source_bounds: Bounds
    """The judged range: from `start` to `lso` of each partition; the source itself ends at `hw`."""
    raw_log: RawLog | None
    """The sink's; None when it was not heard. Rows by batch and by transaction, so far fewer than records."""
    coordinator: Coordinator | None
    """None when it was not heard."""
    heard: frozenset[Witness]
    cells: tuple[Cell, ...]
    headers: Mapping[int, Headers]
    """What the batch headers say, by partition; empty when the raw log was not heard."""
    ids: tuple[TransactionalId, ...]
    """Of `named`, by transactional id."""
    ends: Mapping[str, int]
    """The raw log's transactions by outcome, each once a partition that it wrote to."""
    sound: bool
    """Whether it was proved that nothing is odd (validators/sound.py), so that the lines stand in order too."""
    hidden: int
    """Records that the raw log commits and read_committed did not deliver."""
    repeats_count: int
    inputs_count: int
    aborted_inputs: int
    """Records of the judged range that were aborted in the source; 0 where its log was not heard."""
    journaled: frozenset[str]
    """The transactional ids that the journal names."""
    written: DataFrame | None
    """The inputs whose headers name the transaction that wrote them: source_partition, source_offset, writer (a struct
    of validators/named.py, NAME); None where it is known that there are none."""
    written_count: int
    writers: frozenset[str]
    """The transactional ids of `written`."""
    polled: Polled | None
    """What a concurrent reader received; None when there was none."""
    outputs_count: int
    """How many outputs must be there."""
    expected: Expected
    agreed: Agreed
    values: DataFrame | None
    """What the contract says of values: source_partition, source_offset, wanted_hash; None when it says nothing."""
    order: Order
    lines: int
    """In how many lines the committed records with an input must each stand in order."""
    balance: tuple[Balance, ...]
    transactions: Transactions
    doubts: tuple[str, ...]
    """Why the readings cannot be trusted, in clauses; empty if they can."""
    evidence: str
    """URL of the folder where the frames are kept."""
    took_s: float

    @cached_property
    def sink(self) -> DataFrame:
        """One row per record of the read_uncommitted reading, with `SINK_COLUMNS`; Parquet."""
        return self.records()

    @cached_property
    def repeats(self) -> DataFrame:
        """The later copies among the committed records with an input: partition, offset, copies (how many there are in
        all), first_partition, first_offset (where the first one is); Parquet."""
        offsets = self.sink_bounds.offsets + self.source_bounds.offsets
        return keep(_repeats(self.sink), f"{self.evidence}/repeats", offsets)

    @property
    def outputs(self) -> DataFrame:
        """The outputs that must be there, of the inputs of the judged range: source_partition, source_offset,
        output_index. A row may occur twice."""
        return _produced(self.sink) if self.wanted is None else self.wanted

    @property
    def committed(self) -> int:
        return sum(cell.committed for cell in self.cells)

    def after(self, partition: int) -> int:
        """The source offset behind the last input of the partition with a committed output; 0 when there is none."""
        mine = [cell.last_source_offset for cell in self.matched if cell.source_partition == partition]
        return max((one + 1 for one in mine if one is not None), default=0)

    @property
    def aborted(self) -> int:
        return sum(cell.aborted for cell in self.cells)

    @property
    def pending(self) -> int:
        """Offsets, not records: at and above the last stable offset nothing is settled."""
        return sum(one.hw - one.lso for one in self.sink_bounds.partitions)

    def marks(self, name: str) -> int:
        """A count of the batch headers (a field of Headers), over all partitions."""
        return sum(getattr(one, name) for one in self.headers.values())

    @property
    def at_inputs(self) -> int:
        return sum(cell.at_inputs for cell in self.cells)

    @property
    def matched(self) -> tuple[Cell, ...]:
        """The cells of records that have an input."""
        return tuple(cell for cell in self.cells if cell.source_partition is not None)


SINK_COLUMNS = (
    "partition int, offset long, timestamp timestamp, fate string, "
    "transactional boolean, outcome string, declared string, reason string, "
    "source_topic string, source_partition int, source_offset long, output_index int, place string, "
    "transactional_id string, sequence long, attempt int, task string, total long, "
    "visible boolean, content long, key_hash long, value_hash long"
)
"""`transactional` and `outcome` are the raw log's: null where it was not heard, `outcome` also where there is none;
`declared` and `reason` are the journal's. `visible`: whether read_committed saw this offset; `content`: a hash of what
read_uncommitted saw there. `key_hash`: of its key where keys keep the order, `value_hash`: of its value where a
contract says what that must be; else null."""

WORD_COLUMNS = (
    "partition int, word long, seen long, seen_count long, seen_content long, "
    "covered long, transactional long, stable long, unstable long"
)
"""`_words` says what they are."""


def build_ledger(
    committed: DataFrame,
    uncommitted: DataFrame,
    source: DataFrame,
    sink_bounds: Bounds,
    source_bounds: Bounds,
    evidence: str,
    raw_log: RawLog | None = None,
    declared: Declared | None = None,
    identity: Identity = Identity.LINEAGE,
    coordinator: Coordinator | None = None,
    expected: Expected = ONE_TO_ONE,
    agreed: Agreed = NOTHING_MORE,
    order: Order = Order.PER_SOURCE_PARTITION,
    source_log: SourceLog | None = None,
    polled: Polled | None = None,
    doubts: Sequence[str] = (),
    packs: Path | None = None,
) -> Ledger:
    """The ledger of a sink and its source.

    `committed` and `uncommitted` are the sink's readings, `source` is the source's read_committed reading; all three
    are read more than once, so they should be kept ones. `source_bounds` is the judged range: an input counts from
    `start` to below `lso`. `evidence` is the URL of a folder for what is computed
    here; what an interrupted judging left there is replaced. `doubts`: why else not to trust the readings,
    in clauses. `packs`: where the sink's lineage is packed, the folder that says where (validators/packed.py).
    """
    began = time.monotonic()
    given = _Given(
        *(committed, uncommitted, source, sink_bounds, source_bounds, evidence, raw_log, declared, identity, expected),
        *(agreed, order, source_log.aborted if source_log else None, packs),
    )
    found = _shortly(given) or _at_length(given)
    others = _Others(raw_log, declared, coordinator, source_log, polled)
    values = _values(source, source_bounds, agreed)
    asked = _Asked(sink_bounds, source_bounds, evidence, expected, agreed, order)
    return _ledger(source.sparkSession, found, asked, others, values, doubts, began)


def proved_ledger(
    spark: SparkSession,
    folded: Folded,
    log: SoundLog,
    raw_log: RawLog,
    sink_bounds: Bounds,
    source_bounds: Bounds,
    evidence: str,
    declared: Declared | None = None,
    coordinator: Coordinator | None = None,
    expected: Expected = ONE_TO_ONE,
    agreed: Agreed = NOTHING_MORE,
    source_log: SourceLog | None = None,
    polled: Polled | None = None,
    doubts: Sequence[str] = (),
) -> Ledger:
    """The ledger of folded readings (validators/sound.py, `fold`), for matching by lineage and order per source
    partition; else as `build_ledger`. Raises ReadingsNeeded where something is odd, or more is asked than they tell."""
    began = time.monotonic()
    outcomes = declared.outcomes if declared else None
    told = agreed.value is not None or expected.count is not None or (source_log is not None and source_log.aborted)
    sound = None if told else prove(folded, log, raw_log.tables[0], sink_bounds, source_bounds, outcomes)
    # A header may name the transaction that wrote an input.
    if sound is None or sound.headed:
        raise ReadingsNeeded

    def records() -> DataFrame:
        raise ReadingsNeeded

    found = _proved(sound, spark, source_bounds, expected.kind, records)
    others = _Others(raw_log, declared, coordinator, source_log, polled)
    asked = _Asked(sink_bounds, source_bounds, evidence, expected, agreed, Order.PER_SOURCE_PARTITION)
    return _ledger(spark, found, asked, others, None, doubts, began)


class _Others(NamedTuple):
    """Who else is heard beside the readings; None who is not."""

    raw_log: RawLog | None
    declared: Declared | None
    coordinator: Coordinator | None
    source_log: SourceLog | None
    polled: Polled | None

    def heard(self) -> frozenset[Witness]:
        witnesses = Witness.RAW_LOG, Witness.JOURNAL, Witness.COORDINATOR, Witness.SOURCE_LOG, Witness.READER
        told = {witness for witness, account in zip(witnesses, self, strict=True) if account is not None}
        return frozenset(told | {Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED})


class _Asked(NamedTuple):
    """What is to be judged, and where."""

    sink_bounds: Bounds
    source_bounds: Bounds
    evidence: str
    expected: Expected
    agreed: Agreed
    order: Order


def _ledger(
    spark: SparkSession,
    found: _Counted,
    asked: _Asked,
    others: _Others,
    values: DataFrame | None,
    doubts: Sequence[str],
    began: float,
) -> Ledger:
    raw_log, declared = others.raw_log, others.declared
    bounds = asked.sink_bounds.partitions
    balance = tuple(_balance(one, found.cells, found.headers, raw_log is not None) for one in bounds)
    return Ledger(
        spark=spark,
        records=found.records,
        named=found.named,
        wanted=found.wanted,
        sink_bounds=asked.sink_bounds,
        source_bounds=asked.source_bounds,
        raw_log=raw_log,
        coordinator=others.coordinator,
        heard=others.heard(),
        cells=found.cells,
        headers=found.headers,
        ids=found.ids,
        ends=found.ends,
        sound=found.sound,
        hidden=found.hidden,
        repeats_count=found.repeats_count,
        inputs_count=found.inputs.judged,
        aborted_inputs=found.aborted_inputs,
        journaled=declared.transactional_ids if declared is not None else frozenset(),
        written=found.written,
        written_count=sum(found.writers.values()),
        writers=frozenset(found.writers),
        polled=others.polled,
        outputs_count=found.outputs_count,
        expected=asked.expected,
        agreed=asked.agreed,
        values=values,
        order=asked.order,
        lines=found.lines,
        balance=balance,
        transactions=_transactions(found.ids, found.ends),
        doubts=(*found.doubts, *doubts, *_doubts(found.doubted, found.inputs, balance)),
        evidence=asked.evidence,
        took_s=time.monotonic() - began,
    )


class _Given(NamedTuple):
    """What is counted."""

    committed: DataFrame
    uncommitted: DataFrame
    source: DataFrame
    sink_bounds: Bounds
    source_bounds: Bounds
    evidence: str
    raw_log: RawLog | None
    declared: Declared | None
    identity: Identity
    expected: Expected
    agreed: Agreed
    order: Order
    aborted: DataFrame | None
    """The source's aborted records, where there are any."""
    packs: Path | None

    @property
    def offsets(self) -> int:
        return self.sink_bounds.offsets + self.source_bounds.offsets


class _Counted(NamedTuple):
    """What was counted, by fields of the ledger."""

    records: Callable[[], DataFrame]
    named: DataFrame
    wanted: DataFrame | None
    cells: tuple[Cell, ...]
    headers: Mapping[int, Headers]
    ids: tuple[TransactionalId, ...]
    ends: Mapping[str, int]
    inputs: Inputs
    written: DataFrame | None
    writers: Mapping[str, int]
    outputs_count: int
    lines: int
    sound: bool = False
    hidden: int = 0
    repeats_count: int = 0
    aborted_inputs: int = 0
    doubted: Mapping[Doubt, int] = MappingProxyType({})
    doubts: tuple[str, ...] = ()


def _shortly(given: _Given) -> _Counted | None:
    """The counts of a topic in which nothing is odd, by validators/sound.py. None where something is, or where more is
    expected than that each input has an output of its own, in order."""
    expected = given.expected
    simple = given.identity is Identity.LINEAGE and given.aborted is None and expected.count is None
    if not simple or given.order is not Order.PER_SOURCE_PARTITION or given.raw_log is None:
        return None
    log = sound_log(*given.raw_log.tables, given.sink_bounds)
    if log is None:
        return None
    folded = fold(given.committed, given.uncommitted, given.source, log, content(), given.offsets)
    outcomes = given.declared.outcomes if given.declared else None
    sound = prove(folded, log, given.raw_log.tables[0], given.sink_bounds, given.source_bounds, outcomes)
    if sound is None:
        return None

    def records() -> DataFrame:
        whole, _ = _unpacked(given)
        inputs = _count_inputs(given.source, given.source_bounds, None)
        return _keep_sink(whole, _keep_words(whole), inputs.dense, None)

    found = _proved(sound, given.source.sparkSession, given.source_bounds, expected.kind, records)
    written = _written(given.source, given.source_bounds)
    return found._replace(
        wanted=None if expected.kind is Expect.ZERO_OR_ONE else _wanted(given.source, given.source_bounds, None),
        written=written,
        writers=_count_writers(written) if sound.headed else {},
    )


def _proved(
    sound: Sound, spark: SparkSession, source_bounds: Bounds, expect: Expect, records: Callable[[], DataFrame]
) -> _Counted:
    """What was proved of inputs that have no headers."""
    width = sum(one.lso - one.start for one in source_bounds.partitions)
    return _Counted(
        records=records,
        named=frame_of(spark, sound.named, NAMED_COLUMNS),
        wanted=None,
        cells=sound.cells,
        headers=sound.headers,
        ids=sound.ids,
        ends=sound.ends,
        inputs=Inputs(sound.inputs, 0, sound.inputs == width, sound.inputs, 0, sound.headed),
        written=None,
        writers={},
        outputs_count=sound.produced if expect is Expect.ZERO_OR_ONE else sound.inputs,
        lines=_count_lines(sound.cells),
        sound=True,
    )


def _at_length(given: _Given) -> _Counted:
    """The counts of any topic: each record is looked at, with everything that is known of it beside it."""
    given, lost = _unpacked(given)
    _, uncommitted, source, sink_bounds, source_bounds, evidence, raw_log, *_ = given
    expected, aborted = given.expected, given.aborted
    counts = expected.counts(source, source_bounds)
    counts = counts if counts is None else keep(counts, f"{evidence}/expected", given.offsets)
    words, inputs, headers, ends, aborted_inputs, still_packed = together(
        lambda: _keep_words(given),
        lambda: _count_inputs(source, source_bounds, counts),
        lambda: count_headers(raw_log, sink_bounds) if raw_log else {},
        lambda: _count_ends(raw_log, sink_bounds) if raw_log else {},
        lambda: aborted.count() if aborted is not None else 0,
        lambda: raw_log is None and has_packs(uncommitted),
    )
    sink = _keep_sink(given, words, inputs.dense, counts)
    told = named(sink, raw_log, sink_bounds)
    any_number = counts is None and expected.kind is Expect.ZERO_OR_ONE
    by_key = given.order is Order.PER_KEY
    written = _written(source, source_bounds)
    cells, compared, ids, repeats_count, outputs_count, keyed, writers = together(
        lambda: _count_cells(sink, headers),
        lambda: _count_doubts(sink, words, sink_bounds, raw_log is not None),
        lambda: count_ids(told),
        lambda: _count_repeats(sink),
        lambda: _count_outputs(_produced(sink)) if any_number else inputs.outputs,
        lambda: sink.where(real()).select(*LINE, "key_hash").distinct().count() if by_key else 0,
        lambda: _count_writers(written) if inputs.headed else {},
    )
    return _Counted(
        records=lambda: sink,
        named=told,
        wanted=None if any_number else _wanted(source, source_bounds, counts),
        cells=cells,
        headers=headers,
        ids=ids,
        ends=ends,
        inputs=inputs,
        written=written,
        writers=writers,
        outputs_count=outputs_count,
        lines=keyed if by_key else _count_lines(cells),
        hidden=compared[1],
        repeats_count=repeats_count,
        aborted_inputs=aborted_inputs,
        doubted=compared[0],
        doubts=(*lost, *(PACKED,) * still_packed),
    )


PACKED = "lineage is packed, and only the raw log, which was not heard, tells whose it is."


LOST = (
    "records without lineage, because the first record of their pack, which has it for all, is no longer in the topic "
    "or cannot be read"
)


def _unpacked(given: _Given) -> tuple[_Given, tuple[str, ...]]:
    """The same with headers of its own for each record, kept; and a doubt where some have none any more."""
    if given.packs is None:
        return given, ()
    packs, evidence = given.packs, given.evidence

    def whole(reading: DataFrame, name: str) -> DataFrame:
        return keep(unpacked(reading, packs), f"{evidence}/{name}", given.offsets, COLUMNS)

    committed, uncommitted = together(
        lambda: whole(given.committed, "committed"), lambda: whole(given.uncommitted, "uncommitted")
    )
    lost = count_lost(committed, packs)
    return given._replace(committed=committed, uncommitted=uncommitted), (f"{LOST}: {lost:,}.",) * bool(lost)


def _keep_words(given: _Given) -> DataFrame:
    words = _words(given.committed, given.raw_log, given.sink_bounds)
    return keep(words, f"{given.evidence}/words", given.offsets, WORD_COLUMNS)


def _keep_sink(given: _Given, words: DataFrame, dense: bool, counts: DataFrame | None) -> DataFrame:
    """The sink's records, with `SINK_COLUMNS`. `dense` and `counts` as in `_with_places`."""
    agreed, source, bounds, aborted = given.agreed, given.source, given.source_bounds, given.aborted
    records = given.uncommitted.withColumns({"held": agreed.match.of_sink(), "value_hash": _value_hash(agreed)})
    records = _with_fates(records, words, given.sink_bounds, given.raw_log is not None)
    records = _with_declared(with_transaction(records), given.declared)
    records = with_input(records, source, bounds.topic, given.identity, counts, agreed.match, aborted)
    records = with_numbered_input(records, bounds)
    records = _with_places(records, source, bounds, dense, counts, aborted)
    by_key = given.order is Order.PER_KEY
    records = records.withColumn("key_hash", F.xxhash64("key") if by_key else F.lit(None).cast("long"))
    names = [column.split()[0] for column in SINK_COLUMNS.split(", ")]
    return keep(records.select(*names), f"{given.evidence}/sink", given.offsets, SINK_COLUMNS)


def _count_lines(cells: Sequence[Cell]) -> int:
    return sum(cell.source_partition is not None and cell.committed > 0 for cell in cells)


def real() -> Column:
    """Whether a row of the sink is a committed record that has an input."""
    return (F.col("fate") == Fate.COMMITTED.value) & F.col("place").isin(*(one.value for one in REAL))


def known_aborted() -> Column:
    """Whether the raw log or the journal says that the transaction of a row of the sink was aborted."""
    by = [F.coalesce(F.col(witness) == Fate.ABORTED.value, F.lit(False)) for witness in ("outcome", "declared")]
    return by[0] | by[1]


def without_marker() -> Column:
    """Whether a row of the sink is a committed record of a transaction that no marker of the raw log ends."""
    endless = (F.col("fate") == Fate.COMMITTED.value) & F.col("transactional") & F.col("outcome").isNull()
    return F.coalesce(endless, F.lit(False))


def is_hidden() -> Column:
    """Whether the raw log commits a row of the sink that read_committed did not deliver."""
    stable = ~F.col("transactional") | (F.col("outcome") == Fate.COMMITTED.value)
    return F.coalesce((F.col("fate") != Fate.PENDING.value) & ~F.col("visible") & stable, F.lit(False))


class Inputs(NamedTuple):
    """What a first count of the source says."""

    judged: int
    """Records in the judged range."""
    repeated: int
    """Records that one reading delivered more than once."""
    dense: bool
    """Every offset of the judged range holds an input, so that a lineage in range needs no look at the source."""
    outputs: int
    """How many outputs their counts say; where there are none, one each."""
    uncounted: int
    """Inputs without a valid count."""
    headed: int
    """Records with a header."""


def _count_inputs(source: DataFrame, bounds: Bounds, counts: DataFrame | None) -> Inputs:
    words = source.groupBy("partition", word("offset").alias("word")).agg(
        F.count_if(between("partition", "offset", bounds, "lso")).alias("judged"),
        (F.count("*") - F.bit_count(bits("offset"))).alias("repeated"),
        F.count_if(F.size("headers") > 0).alias("headed"),
    )
    names = ("judged", "repeated", "headed")
    judged, repeated, headed = words.agg(*(F.coalesce(F.sum(name), F.lit(0)) for name in names)).collect()[0]
    width = sum(one.lso - one.start for one in bounds.partitions)
    dense = judged == width and repeated == 0
    outputs, uncounted = judged, 0
    if counts is not None:
        said = counts.agg(F.coalesce(F.sum("expected"), F.lit(0)), F.count_if(F.col("expected").isNull()))
        outputs, uncounted = said.collect()[0]
    return Inputs(judged, repeated, dense, outputs, uncounted, headed)


def _value_hash(agreed: Agreed) -> Column:
    return F.lit(None).cast("long") if agreed.value is None else F.xxhash64("value")


def _values(source: DataFrame, bounds: Bounds, agreed: Agreed) -> DataFrame | None:
    if agreed.value is None:
        return None
    inputs = source.where(between("partition", "offset", bounds, "lso"))
    wanted = F.expr(agreed.value).cast("string").cast("binary")
    return record(inputs, bounds.topic).select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.xxhash64(wanted).alias("wanted_hash"),
    )


def _wanted(source: DataFrame, bounds: Bounds, counts: DataFrame | None) -> DataFrame:
    if counts is not None:
        return outputs_of(counts)
    return source.where(between("partition", "offset", bounds, "lso")).select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.lit(0).alias("output_index"),
    )


def _produced(sink: DataFrame) -> DataFrame:
    """The outputs that there are, whatever became of them: nobody knows whether the others were filtered out."""
    return sink.where(F.col("place") == Place.INPUT.value).select(*LINEAGE)


def _count_outputs(outputs: DataFrame) -> int:
    words = outputs.groupBy("source_partition", word("source_offset").alias("word")).agg(
        F.bit_count(bits("source_offset")).alias("outputs")
    )
    return int(words.agg(F.coalesce(F.sum("outputs"), F.lit(0))).collect()[0][0])


def content() -> Column:
    """A hash of a record's content. The offset is in it, so that the contents of two offsets cannot be exchanged
    unnoticed."""
    return F.xxhash64("offset", "key", "value", "headers")


def _words(committed: DataFrame, raw_log: RawLog | None, bounds: Bounds) -> DataFrame:
    """Sets of the sink's offsets, by partition and word: what read_committed saw, and what the raw log says.

    `seen`, `seen_count` and `seen_content` (exclusive or of the contents); `covered`, `transactional`, `stable` and
    `unstable` of `words_of_batches`, null without the raw log.
    """
    seen = committed.groupBy("partition", word("offset").alias("word")).agg(
        bits("offset").alias("seen"),
        F.count("*").alias("seen_count"),
        F.bit_xor(content()).alias("seen_content"),
    )
    if raw_log is None:
        return seen.withColumns({name: F.lit(None).cast("long") for name in RAW_SETS})
    return seen.join(words_of_batches(raw_log, bounds), ["partition", "word"], "full")


RAW_SETS = ("covered", "transactional", "stable", "unstable")


def _with_fates(uncommitted: DataFrame, words: DataFrame, bounds: Bounds, raw_log: bool) -> DataFrame:
    """Adds fate, visible, content, transactional and outcome; drops the value."""
    records = uncommitted.withColumns({"content": content(), "word": word("offset")}).drop("value")
    sets = words.select("partition", "word", "seen", *(F.col(name).alias(f"{name}_set") for name in RAW_SETS))
    records = look_up(records, sets, ["partition", "word"], bounds.offsets)
    visible = holds("seen", "offset")
    pending = F.col("offset") >= bound("partition", bounds, "lso")
    fate = F.when(pending, Fate.PENDING.value).when(visible, Fate.COMMITTED.value).otherwise(Fate.ABORTED.value)
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


def _with_declared(records: DataFrame, declared: Declared | None) -> DataFrame:
    """Adds the outcome that the journal declares and its reason; null where it says nothing."""
    if declared is None:
        return records.withColumns({one: F.lit(None).cast("string") for one in ("declared", "reason")})
    name = ["transactional_id", "sequence", "attempt", "task"]
    known = F.col("outcome").isin(Fate.COMMITTED.value, Fate.ABORTED.value)
    told = declared.rows.groupBy(*name).agg(
        F.collect_set(F.when(known, F.col("outcome"))).alias("said"),
        F.max(F.nullif("reason", F.lit(""))).alias("reason"),
    )
    # A journal that says two things of one transaction says nothing.
    told = told.select(*name, F.when(F.size("said") == 1, F.get("said", F.lit(0))).alias("declared"), "reason")
    return records.join(F.broadcast(told) if declared.count <= BROADCAST_ROWS_MAX else told, name, "left")


def _with_places(
    records: DataFrame,
    source: DataFrame,
    bounds: Bounds,
    dense: bool,
    counts: DataFrame | None,
    aborted: DataFrame | None,
) -> DataFrame:
    """Adds `place`. `dense`: every offset of the judged range is known to hold an input. `counts`: how many outputs
    each of them has, where that is not one. `aborted`: the source's aborted records, where there are any."""
    start, lso, hw = (bound("source_partition", bounds, name) for name in ("start", "lso", "hw"))
    offset = F.col("source_offset")
    nowhere = (F.col("source_topic") != bounds.topic) | start.isNull() | offset.isNull() | (offset >= hw)
    place = (
        F.when(nowhere, Place.NOWHERE.value)
        .when(offset < start, Place.BEFORE.value)
        .when(offset >= lso, Place.AFTER.value)
    )
    index = F.col("output_index")
    if counts is None:
        there = F.when(index >= 1, Place.BEYOND.value).otherwise(Place.INPUT.value)
    else:
        few = bounds.offsets <= BROADCAST_ROWS_MAX
        records = records.join(F.broadcast(counts) if few else counts, ["source_partition", "source_offset"], "left")
        there = F.when(index >= F.col("expected"), Place.BEYOND.value).otherwise(Place.INPUT.value)
    if dense:
        return records.withColumn("place", place.otherwise(there))
    keys = [F.col("partition").alias("source_partition"), word("offset").alias("source_word")]
    records = records.withColumn("source_word", word("source_offset"))
    hole = F.lit(Place.HOLE.value)
    for name, reading in (("inputs", source), ("lost", aborted)):
        if reading is not None:
            held = reading.groupBy(*keys).agg(bits("offset").alias(name))
            records = look_up(records, held, ["source_partition", "source_word"], bounds.offsets)
    if aborted is not None:
        hole = F.when(holds("lost", "source_offset"), Place.ABORTED.value).otherwise(hole)
    found = F.when(holds("inputs", "source_offset"), there).otherwise(hole)
    return records.withColumn("place", place.otherwise(found))


LINEAGE = ("source_partition", "source_offset", "output_index")
LINE = ("source_partition", "partition")


def _lineage_words(sink: DataFrame) -> DataFrame:
    """How many records each word of lineages has beyond one each."""
    return (
        sink.where(real())
        .groupBy("source_partition", "output_index", word("source_offset").alias("word"))
        .agg((F.count("*") - F.bit_count(bits("source_offset"))).alias("repeats"))
    )


def _count_repeats(sink: DataFrame) -> int:
    return int(_lineage_words(sink).agg(F.coalesce(F.sum("repeats"), F.lit(0))).collect()[0][0])


def _repeats(sink: DataFrame) -> DataFrame:
    """The later copies. Only words of lineages that have some are looked at record by record.

    The first copy is the earliest by timestamp, and within its partition by offset. One whose transaction is known to
    be aborted is never the first while there is another: the others did not repeat it.
    """
    suspicious = _lineage_words(sink).where(F.col("repeats") > 0).drop("repeats")
    records = sink.where(real()).withColumn("word", word("source_offset"))
    records = records.join(suspicious, ["source_partition", "output_index", "word"], "left_semi")
    alike = Window.partitionBy(*LINEAGE)
    aborted = F.when(known_aborted(), 1).otherwise(0)
    records = records.withColumn("first", F.min(F.struct(aborted, "timestamp", "partition", "offset")).over(alike))
    here = F.col("partition") == F.col("first.partition")
    records = records.withColumn("first_here", F.min(F.when(here, F.struct(aborted, "offset"))).over(alike))
    return records.select(
        "partition",
        "offset",
        F.count("*").over(alike).alias("copies"),
        F.col("first.partition").alias("first_partition"),
        F.col("first_here.offset").alias("first_offset"),
    ).where((F.col("partition") != F.col("first_partition")) | (F.col("offset") != F.col("first_offset")))


def _count_cells(sink: DataFrame, headers: Mapping[int, Headers]) -> tuple[Cell, ...]:
    committed = F.col("fate") == Fate.COMMITTED.value
    straddling = F.lit(False)
    for partition, one in headers.items():
        if one.straddle:
            straddling |= (F.col("partition") == partition) & (F.col("offset") <= one.straddle.last)
    known = F.col("outcome").isNotNull() | F.col("declared").isNotNull()
    counts = {
        "committed": committed,
        "aborted": F.col("fate") == Fate.ABORTED.value,
        "pending": F.col("fate") == Fate.PENDING.value,
        "never_transactional": committed & ~F.col("transactional"),
        "heard": committed & known,
        "unstable": committed & (F.col("outcome") == Fate.ABORTED.value),
        "straddling": straddling,
        "endless": without_marker(),
        "of_aborted": committed & (F.col("place") == Place.ABORTED.value),
        "at_inputs": committed & (F.col("place") == Place.INPUT.value),
        "revoked": committed & known_aborted(),
    }
    cells = sink.groupBy("partition", F.when(real(), F.col("source_partition")).alias("source_partition")).agg(
        F.max(F.when(real(), F.col("source_offset"))).alias("last_source_offset"),
        *(F.count_if(condition).alias(name) for name, condition in counts.items()),
    )
    return tuple(Cell(**row.asDict()) for row in cells.collect())


class Doubt(StrEnum):
    """Why the readings of the sink cannot be trusted, as the beginning of a sentence that ends with a count."""

    REPEATED = "records delivered more than once by one reading of the sink"
    OUTSIDE = "records outside the bounds that were asked for"
    UNEQUAL = "blocks of 64 offsets whose content differs between read_committed and read_uncommitted"
    UNSEEN = "records visible to read_committed, but not to read_uncommitted"
    PAST_LSO = "records visible to read_committed at or above the last stable offset"
    UNCOVERED = "records below the last stable offset that are in no data batch of the raw log"


def _count_doubts(sink: DataFrame, words: DataFrame, bounds: Bounds, raw_log: bool) -> tuple[dict[Doubt, int], int]:
    """Both readings and the raw log side by side, one row for 64 offsets; and how many records are hidden, which is no
    doubt but a finding (reading_mismatch): the readings agree with each other, and the raw log contradicts both."""
    settled = F.col("fate") != Fate.PENDING.value
    records = sink.groupBy("partition", word("offset").alias("word")).agg(
        bits("offset").alias("found"),
        F.count("*").alias("found_count"),
        F.bit_xor(F.when(F.col("visible"), F.col("content"))).alias("found_content"),
        F.count_if(~between("partition", "offset", bounds, "hw")).alias(Doubt.OUTSIDE.name),
        F.count_if(~settled & F.col("visible")).alias(Doubt.PAST_LSO.name),
        F.count_if(F.lit(raw_log) & settled & F.col("transactional").isNull()).alias(Doubt.UNCOVERED.name),
        F.count_if(is_hidden()).alias("hidden"),
    )
    unseen = minus(F.col("seen"), F.col("found"))
    repeated = reduce(
        Column.__add__,
        (F.coalesce(F.col(f"{one}_count") - F.bit_count(one), F.lit(0)) for one in ("found", "seen")),
    )
    # Offsets that are repeated or missing have a doubt of their own.
    unequal = (repeated == 0) & (unseen == 0) & (F.col("seen_content") != F.col("found_content"))
    counted = {
        Doubt.REPEATED: repeated,
        Doubt.UNSEEN: F.bit_count(unseen),
        Doubt.UNEQUAL: unequal.cast("int"),
        **{one: F.col(one.name) for one in (Doubt.OUTSIDE, Doubt.PAST_LSO, Doubt.UNCOVERED)},
    }
    pairs = words.select("partition", "word", "seen", "seen_count", "seen_content").join(
        records, ["partition", "word"], "full"
    )
    sums = {**{one.name: count for one, count in counted.items()}, "hidden": F.col("hidden")}
    row = pairs.agg(*(F.coalesce(F.sum(count), F.lit(0)).alias(name) for name, count in sums.items())).collect()[0]
    return {doubt: row[doubt.name] for doubt in Doubt}, row["hidden"]


def _doubts(found: Mapping[Doubt, int], inputs: Inputs, balance: Sequence[Balance]) -> tuple[str, ...]:
    """Why not to trust the readings, in clauses."""
    said = [f"{doubt.value}: {count:,}." for doubt, count in found.items() if count]
    if inputs.repeated:
        said.append(f"records delivered more than once by the reading of the source: {inputs.repeated:,}.")
    if inputs.uncounted:
        said.append(f"inputs without a valid count of expected outputs: {inputs.uncounted:,}.")
    said += [
        f"unexplained offsets in partition {one.partition}: {one.unexplained:,} of {one.offsets:,}."
        for one in balance
        if one.unexplained
    ]
    return tuple(said)


def _balance(bounds: PartitionBounds, cells: Sequence[Cell], headers: Mapping[int, Headers], raw_log: bool) -> Balance:
    mine = [cell for cell in cells if cell.partition == bounds.partition]
    records = Records(**{name: sum(getattr(cell, name) for cell in mine) for name in Records._fields})
    return balance_of(bounds, records, headers.get(bounds.partition)) if raw_log else balance_unheard(bounds, records)


HEADERS = "headers"
"""Who told of transactions, when it was the records themselves."""


def _count_ends(raw_log: RawLog, bounds: Bounds) -> dict[str, int]:
    rows = raw_log.transactions.where(inside(bounds)).groupBy("outcome").count().collect()
    return {row["outcome"]: row["count"] for row in rows}


def _written(source: DataFrame, bounds: Bounds) -> DataFrame:
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


def _count_writers(written: DataFrame) -> dict[str, int]:
    """How many inputs each transactional id wrote."""
    rows = written.groupBy("writer.transactional_id").count().collect()
    return {row[0]: row[1] for row in rows}


def inside(bounds: Bounds) -> Column:
    """Whether a transaction of the raw log has data in the bounds."""
    start, hw = bound("partition", bounds, "start"), bound("partition", bounds, "hw")
    return (F.col("last_offset") >= start) & (F.col("first_offset") < hw)


def _transactions(ids: Sequence[TransactionalId], ends: Mapping[str, int]) -> Transactions:
    """How many ended how: by the records' headers, else by the raw log, which counts each once a partition."""
    if ids:
        committed, aborted, unfinished = (
            sum(getattr(one, end) for one in ids) for end in ("committed", "aborted", "open")
        )
        return Transactions(committed, aborted, unfinished, HEADERS)
    if ends:
        committed, aborted, unfinished = (ends.get(end, 0) for end in ("COMMITTED", "ABORTED", "OPEN"))
        return Transactions(committed, aborted, unfinished, Witness.RAW_LOG.value)
    return Transactions(None, None, None, None)
