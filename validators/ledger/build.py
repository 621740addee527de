"""Builds a ledger from the readings. Where a proof shows that nothing is odd, the counts are
enough; otherwise every record is examined."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from topicproof.validators.circumstances import NO_CIRCUMSTANCES, Circumstances
from topicproof.validators.contract_terms import NOTHING_MORE, ContractTerms, compared_value, digest
from topicproof.validators.decoded import DECODED, undecoded
from topicproof.validators.expected import ONE_TO_ONE, Expect, Expected
from topicproof.validators.facts.balance import (
    Headers,
    Records,
    balance_of,
    balance_unheard,
    count_headers,
)
from topicproof.validators.facts.cell import Cell
from topicproof.validators.facts.header_transactions import TransactionalId, count_ids, named
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.fast_path.proof import NAMED_COLUMNS, Proof, prove
from topicproof.validators.finding import (
    Balance,
    Bounds,
    Order,
    PartitionBounds,
    Transactions,
    Witness,
)
from topicproof.validators.folded.fold import PIECES_MAX, Folded, estimated_pieces, fold
from topicproof.validators.folded.regular_log import regular_log
from topicproof.validators.in_parallel import in_parallel
from topicproof.validators.ledger.counts import (
    Doubt,
    Identities,
    Inputs,
    Keys,
    Values,
    count_alike,
    count_cells,
    count_decoded,
    count_doubts,
    count_ends,
    count_identities,
    count_inputs,
    count_keys,
    count_lines,
    count_lines_at_length,
    count_outputs,
    count_repeats,
    count_writers,
    doubts_of,
    empty_fields,
    outputs_produced,
    outputs_wanted,
    values_wanted,
    written_by,
)
from topicproof.validators.ledger.ledger import (
    HEADERS,
    NO_ACCOUNTS,
    Accounts,
    Ledger,
    ReadingsNeeded,
)
from topicproof.validators.ledger.rows import (
    SINK_COLUMNS,
    WORD_COLUMNS,
    Declared,
    content,
    countable,
    sink_words,
    with_declared,
    with_fates,
    with_places,
)
from topicproof.validators.lineage.identity import (
    Identity,
    identified,
    with_input,
    with_transaction,
)
from topicproof.validators.lineage.packed import count_lost, has_packs, unpacked
from topicproof.validators.merged_topics import with_numbered_input
from topicproof.validators.offsets import between
from topicproof.validators.readings import COLUMNS, column_names, frame_of, keep, union
from topicproof.validators.source_log import NOTHING_LOGGED, SourceLog

PACKED = (
    "lineage is packed, and only the raw log, which is missing, shows which input a record belongs"
    " to."
)
LOST = (
    "records without lineage, because the first record of their pack, which has it for all, is no"
    " longer in the topic or cannot be read"
)


def build_ledger(
    committed: DataFrame,
    uncommitted: DataFrame,
    source: DataFrame,
    sink_bounds: Bounds,
    source_bounds: Bounds,
    evidence: str,
    accounts: Accounts = NO_ACCOUNTS,
    identity: Identity = Identity.LINEAGE,
    expected: Expected = ONE_TO_ONE,
    agreed: ContractTerms = NOTHING_MORE,
    order: Order = Order.PER_SOURCE_PARTITION,
    doubts: Sequence[str] = (),
    packs: Path | None = None,
    circumstances: Circumstances = NO_CIRCUMSTANCES,
) -> Ledger:
    """Builds the ledger of a sink and its source.

    `committed` and `uncommitted` are readings of the sink, `source` is the read_committed reading
    of the source. All three are read more than once, so keep them first. `source_bounds` is the
    judged range: inputs from `start` up to, but not including, `lso`. `evidence` is the URL of the
    folder for computed results; leftovers of an interrupted run are replaced. `doubts` are further
    reasons, as clauses, not to trust the readings. `packs` is the folder with the pack positions,
    if the sink's lineage is packed (validators/lineage/packed.py). `circumstances` is what is known
    of the topics besides their records.
    """
    began = time.monotonic()
    given = _Given(
        *(
            committed,
            uncommitted,
            source,
            sink_bounds,
            source_bounds,
            evidence,
            accounts.raw_log,
            accounts.declared,
        ),
        *(identity, expected, agreed, order, accounts.source_log or NOTHING_LOGGED, packs),
        _read(source_bounds, circumstances),
    )
    found = _shortly(given) or _at_length(given)
    values = values_wanted(source, uncommitted, source_bounds, agreed)
    decoded, outputs = in_parallel(
        lambda: count_decoded(source, agreed.source_fields),
        lambda: count_decoded(uncommitted, agreed.sink_fields),
    )
    doubts = (
        *doubts,
        *empty_fields(source_bounds.topic, decoded),
        *empty_fields(sink_bounds.topic, outputs),
    )
    asked = _Asked(
        sink_bounds, source_bounds, evidence, expected, agreed, order, identity, circumstances
    )
    ledger = _ledger(source.sparkSession, found, asked, accounts, values, doubts, began)
    return replace(ledger, source=source, produced=uncommitted, inputs_decoded=decoded)


def proved_ledger(
    spark: SparkSession,
    folded: Folded,
    accounts: Accounts,
    sink_bounds: Bounds,
    source_bounds: Bounds,
    evidence: str,
    expected: Expected = ONE_TO_ONE,
    agreed: ContractTerms = NOTHING_MORE,
    doubts: Sequence[str] = (),
    circumstances: Circumstances = NO_CIRCUMSTANCES,
) -> Ledger:
    """Builds the ledger from folded readings (validators/folded/fold.py), for matching by lineage
    and order per source partition; otherwise like `build_ledger`. Raises ReadingsNeeded if
    something is odd or folded readings cannot answer the question."""
    began = time.monotonic()
    raw_log, declared, _, source_log, _ = accounts
    told = (
        agreed.value is not None
        or expected.count is not None
        or (source_log is not None and source_log.aborted)
    )
    log = None if raw_log is None or told else regular_log(raw_log.facts, sink_bounds)
    if raw_log is None or log is None:
        raise ReadingsNeeded
    outcomes = declared.outcomes if declared else None
    sound = prove(folded, log, raw_log.table, sink_bounds, source_bounds, outcomes)
    # A header may name the transaction that wrote an input.
    if sound is None or sound.headed:
        raise ReadingsNeeded

    def records() -> DataFrame:
        raise ReadingsNeeded

    found = _proved(sound, spark, source_bounds, expected.kind, records)
    line = Order.PER_SOURCE_PARTITION
    asked = _Asked(
        sink_bounds,
        source_bounds,
        evidence,
        expected,
        agreed,
        line,
        Identity.LINEAGE,
        circumstances,
    )
    return _ledger(spark, found, asked, accounts, None, doubts, began)


class _Asked(NamedTuple):
    """What to judge, and where."""

    sink_bounds: Bounds
    source_bounds: Bounds
    evidence: str
    expected: Expected
    agreed: ContractTerms
    order: Order
    identity: Identity
    circumstances: Circumstances


def _ledger(
    spark: SparkSession,
    found: _Counted,
    asked: _Asked,
    accounts: Accounts,
    values: Values | None,
    doubts: Sequence[str],
    began: float,
) -> Ledger:
    raw_log, declared = accounts.raw_log, accounts.declared
    bounds = asked.sink_bounds.partitions
    balance = tuple(
        _balance(one, found.cells, found.headers, raw_log is not None) for one in bounds
    )
    return Ledger(
        spark=spark,
        records=found.records,
        named=found.named,
        wanted=found.wanted,
        sink_bounds=asked.sink_bounds,
        source_bounds=asked.source_bounds,
        raw_log=raw_log,
        coordinator=accounts.coordinator,
        heard=accounts.heard(),
        cells=found.cells,
        headers=found.headers,
        ids=found.ids,
        ends=found.ends,
        sound=found.sound,
        hidden=found.hidden,
        repeats_count=found.repeats_count,
        missing=found.missing,
        inputs_count=found.inputs.judged,
        aborted_inputs=found.aborted_inputs,
        journaled=declared.transactional_ids if declared is not None else frozenset(),
        written=found.written,
        written_count=sum(found.writers.values()),
        writers=frozenset(found.writers),
        polled=accounts.polled,
        outputs_count=found.outputs_count,
        expected=asked.expected,
        agreed=asked.agreed,
        identity=asked.identity,
        circumstances=asked.circumstances,
        identified=found.identified,
        identities=found.identities,
        sink_keys=found.sink_keys,
        alike=found.alike,
        keys=found.keys,
        values=values,
        order=asked.order,
        lines=found.lines,
        balance=balance,
        transactions=_transactions(found.ids, found.ends),
        doubts=(
            *found.doubts,
            *doubts,
            *doubts_of(found.doubted, found.inputs, balance, asked.source_bounds),
        ),
        evidence=asked.evidence,
        took_s=time.monotonic() - began,
    )


class _Given(NamedTuple):
    """What to count."""

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
    agreed: ContractTerms
    order: Order
    source_log: SourceLog
    packs: Path | None
    read: Bounds
    """The range that `source` was read from; the judged range may end earlier."""

    @property
    def offsets(self) -> int:
        return self.sink_bounds.offsets + self.source_bounds.offsets

    @property
    def by_key(self) -> bool:
        return self.identity is Identity.KEY

    @property
    def aborted(self) -> DataFrame | None:
        return self.source_log.aborted

    @property
    def compared(self) -> bool:
        """Whether only their content distinguishes the outputs of one input."""
        return self.by_key and self.expected.kind is Expect.ONE_TO_MANY


class _Counted(NamedTuple):
    """The counts, named after the ledger's fields."""

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
    missing: int = 0
    aborted_inputs: int = 0
    identified: Identities = Identities()
    identities: Callable[[], DataFrame] | None = None
    sink_keys: Callable[[], DataFrame] | None = None
    alike: int = 0
    keys: Keys = Keys()
    doubted: Mapping[Doubt, int] = MappingProxyType({})
    doubts: tuple[str, ...] = ()


def _shortly(given: _Given) -> _Counted | None:
    """Counts a topic with the proof of validators/fast_path/proof.py. None if something is odd, or
    if more is asked: counts of outputs, matching by key, or another order."""
    expected = given.expected
    simple = given.identity is Identity.LINEAGE and given.aborted is None and expected.count is None
    if not simple or given.order is not Order.PER_SOURCE_PARTITION or given.raw_log is None:
        return None
    if given.agreed.sink_fields:
        # Folded readings do not tell which records cannot be decoded.
        return None
    log = regular_log(given.raw_log.facts, given.sink_bounds)
    if log is None or estimated_pieces(given.sink_bounds, log) > PIECES_MAX:
        return None
    source = given.source
    if given.read != given.source_bounds:
        source = source.where(between("partition", "offset", given.source_bounds, "lso"))
    folded = fold(given.committed, given.uncommitted, source, log, content(), given.offsets)
    outcomes = given.declared.outcomes if given.declared else None
    sound = prove(
        folded, log, given.raw_log.table, given.sink_bounds, given.source_bounds, outcomes
    )
    if sound is None:
        return None

    def records() -> DataFrame:
        whole, _ = _unpacked(given)
        inputs = count_inputs(given.source, given.source_bounds, given.read, None)
        return _keep_sink(whole, _keep_words(whole), inputs.dense, None)

    found = _proved(sound, given.source.sparkSession, given.source_bounds, expected.kind, records)
    written = written_by(given.source, given.source_bounds)
    return found._replace(
        wanted=(
            None
            if expected.kind is Expect.ZERO_OR_ONE
            else outputs_wanted(given.source, given.source_bounds, None)
        ),
        written=written,
        writers=count_writers(written) if sound.headed else {},
    )


def _proved(
    sound: Proof,
    spark: SparkSession,
    source_bounds: Bounds,
    expect: Expect,
    records: Callable[[], DataFrame],
) -> _Counted:
    """Turns a proof into counts, for inputs without headers."""
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
        lines=count_lines(sound.cells),
        sound=True,
    )


def _at_length(given: _Given) -> _Counted:
    """Counts any topic: examines each record together with everything known about it."""
    given, lost = _unpacked(given)
    _, uncommitted, source, sink_bounds, source_bounds, evidence, raw_log, *_ = given
    expected, aborted = given.expected, given.aborted
    # A record may be the output of an input that is not due, so those are counted too.
    counts = expected.counts(source, _whole(source_bounds))
    counts = counts if counts is None else keep(counts, f"{evidence}/expected", given.offsets)
    words, inputs, headers, ends, aborted_inputs, still_packed, held = in_parallel(
        lambda: _keep_words(given),
        lambda: count_inputs(source, source_bounds, given.read, counts),
        lambda: count_headers(raw_log.facts, sink_bounds) if raw_log else {},
        lambda: count_ends(raw_log, sink_bounds) if raw_log else {},
        lambda: aborted.count() if aborted is not None else 0,
        lambda: raw_log is None and has_packs(uncommitted),
        lambda: count_identities(*_identities(given, counts)) if given.by_key else Identities(),
    )
    # If an input has no identity, nothing tells whether its output exists.
    known, of_known = (source, counts) if not held.missing else _identifiable(given, counts)
    sink = _keep_sink(given, words, inputs.dense, counts)
    told = named(sink, raw_log, sink_bounds)
    any_number = counts is None and expected.kind is Expect.ZERO_OR_ONE
    per_key = given.order is Order.PER_KEY
    uncertain = held.repeated > 0 or (given.by_key and given.source_log.pending is not None)
    written = written_by(source, source_bounds)
    cells, compared, ids, (repeats_count, met), outputs_count, lines, writers, alike, keys = (
        in_parallel(
            lambda: count_cells(sink, headers, source_bounds.topic),
            lambda: count_doubts(sink, words, sink_bounds, raw_log is not None),
            lambda: count_ids(told),
            lambda: count_repeats(sink),
            lambda: _count_wanted(given, known, of_known, inputs, any_number, sink),
            lambda: count_lines_at_length(sink, per_key) if per_key or uncertain else None,
            lambda: count_writers(written) if inputs.headed else {},
            lambda: count_alike(sink, sink_bounds) if given.compared else 0,
            lambda: count_keys(sink, sink_bounds) if per_key else Keys(),
        )
    )
    return _Counted(
        records=lambda: sink,
        named=told,
        wanted=None if any_number else outputs_wanted(known, source_bounds, of_known),
        cells=cells,
        headers=headers,
        ids=ids,
        ends=ends,
        inputs=inputs,
        written=written,
        writers=writers,
        outputs_count=outputs_count,
        lines=count_lines(cells) if lines is None else lines,
        hidden=compared[1],
        repeats_count=repeats_count,
        missing=outputs_count - met,
        aborted_inputs=aborted_inputs,
        identified=held,
        identities=(lambda: _identities(given, counts)[0]) if given.by_key else None,
        sink_keys=(lambda: _sink_keys(given)) if given.by_key else None,
        alike=alike,
        keys=keys,
        doubted=compared[0],
        doubts=(*lost, *(PACKED,) * still_packed),
    )


def _identifiable(given: _Given, counts: DataFrame | None) -> tuple[DataFrame, DataFrame | None]:
    """Selects the inputs that hold an identity, with their counts."""
    known = given.source.where(given.agreed.match.of_source().isNotNull())
    if counts is None:
        return known, None
    places = known.select(
        F.col("partition").alias("source_partition"), F.col("offset").alias("source_offset")
    )
    return known, counts.join(places, ["source_partition", "source_offset"], "left_semi")


def _count_wanted(
    given: _Given,
    known: DataFrame,
    counts: DataFrame | None,
    inputs: Inputs,
    any_number: bool,
    sink: DataFrame,
) -> int:
    if any_number:
        return count_outputs(outputs_produced(sink))
    if known is given.source:
        return inputs.outputs
    return outputs_wanted(known, given.source_bounds, counts).count()


def _identities(given: _Given, counts: DataFrame | None) -> tuple[DataFrame, DataFrame | None]:
    """Returns the identities of the source's committed and pending records, and those of its
    aborted records. Leaves out committed records without an identity whose count of outputs is 0,
    such as tombstones: no output is theirs, so whatever is committed belongs to another input."""
    match, log = given.agreed.match, given.source_log
    pending, aborted = (
        None if one is None else identified(one, match) for one in (log.pending, log.aborted)
    )
    inputs = identified(given.source, match)
    if counts is not None:
        place = ["source_partition", "source_offset"]
        silent = counts.where(F.col("expected") == 0).select(*place, F.lit(True).alias("silent"))
        needless = F.col("source_key").isNull() & F.col("silent").isNotNull()
        inputs = inputs.join(silent, place, "left").where(~needless).drop("silent")
    every = union(
        inputs.withColumn("pending", F.lit(False)),
        None if pending is None else pending.withColumn("pending", F.lit(True)),
    )
    assert every is not None
    return every, aborted


def _sink_keys(given: _Given) -> DataFrame:
    return given.uncommitted.select(
        "partition", "offset", given.agreed.match.of_sink().alias("source_key")
    )


def _unpacked(given: _Given) -> tuple[_Given, tuple[str, ...]]:
    """Returns the same input with each packed record's own headers, kept as Parquet; adds a doubt
    if some headers are lost."""
    if given.packs is None:
        return given, ()
    packs, evidence = given.packs, given.evidence

    def whole(reading: DataFrame, name: str) -> DataFrame:
        columns = None if DECODED in reading.columns else COLUMNS
        return keep(unpacked(reading, packs), f"{evidence}/{name}", given.offsets, columns)

    committed, uncommitted = in_parallel(
        lambda: whole(given.committed, "committed"), lambda: whole(given.uncommitted, "uncommitted")
    )
    lost = count_lost(committed, packs)
    return given._replace(committed=committed, uncommitted=uncommitted), (
        f"{LOST}: {lost:,}.",
    ) * bool(lost)


def _keep_words(given: _Given) -> DataFrame:
    words = sink_words(given.committed, given.raw_log, given.sink_bounds)
    return keep(words, f"{given.evidence}/words", given.offsets, WORD_COLUMNS)


def _keep_sink(given: _Given, words: DataFrame, dense: bool, counts: DataFrame | None) -> DataFrame:
    """Keeps the sink's records with `SINK_COLUMNS`. `dense` and `counts` are as in
    `with_places`."""
    agreed, source, bounds = given.agreed, given.source, given.source_bounds
    hashed = {"held": agreed.match.of_sink(), "value_hash": _value_hash(given)}
    lost = undecoded() if agreed.sink_fields else F.lit(None).cast("string")
    hashed["undecoded"] = lost
    records = given.uncommitted.withColumns(hashed)
    records = with_fates(records, words, given.sink_bounds, given.raw_log is not None)
    records = with_declared(with_transaction(records), given.declared)
    if given.by_key:
        records = records.withColumn("countable", countable())
    records = with_input(
        records, source, bounds, given.identity, counts, agreed.match, given.source_log
    )
    if not given.by_key:
        certain = {"identified": F.lit(True), "ambiguous": F.lit(False), "waiting": F.lit(False)}
        records = records.withColumns(certain)
    records = with_numbered_input(records, bounds)
    records = with_places(
        *(records, source, bounds, given.read, dense, counts, given.expected.most),
        given.source_log,
    )
    kept = given.order is Order.PER_KEY or given.compared
    key_hash = digest(F.col("key")) if kept else F.lit(None).cast("binary")
    records = records.withColumn("key_hash", key_hash)
    names = column_names(SINK_COLUMNS)
    return keep(records.select(*names), f"{given.evidence}/sink", given.offsets, SINK_COLUMNS)


def _value_hash(given: _Given) -> Column:
    kept = given.agreed.value is not None or given.compared
    return digest(compared_value(given.agreed)) if kept else F.lit(None).cast("binary")


def _read(judged: Bounds, circumstances: Circumstances) -> Bounds:
    """Extends the judged range to the end of the source's reading."""
    ends = circumstances.source_lso
    return replace(
        judged,
        partitions=tuple(
            replace(one, lso=max(one.lso, ends.get(one.partition, one.lso)))
            for one in judged.partitions
        ),
    )


def _whole(bounds: Bounds) -> Bounds:
    """Moves each `lso` to the high watermark, so nothing at the end of a reading is left out."""
    return replace(bounds, partitions=tuple(replace(one, lso=one.hw) for one in bounds.partitions))


def _balance(
    bounds: PartitionBounds, cells: Sequence[Cell], headers: Mapping[int, Headers], raw_log: bool
) -> Balance:
    mine = [cell for cell in cells if cell.partition == bounds.partition]
    records = Records(
        **{name: sum(getattr(cell, name) for cell in mine) for name in Records._fields}
    )
    return (
        balance_of(bounds, records, headers.get(bounds.partition))
        if raw_log
        else balance_unheard(bounds, records)
    )


def _transactions(ids: Sequence[TransactionalId], ends: Mapping[str, int]) -> Transactions:
    """Counts transactions by outcome: from the records' headers, otherwise from the raw log, which
    counts a transaction once per partition."""
    if ids:
        committed, aborted, unfinished = (
            sum(getattr(one, end) for one in ids) for end in ("committed", "aborted", "open")
        )
        return Transactions(committed, aborted, unfinished, HEADERS)
    if ends:
        committed, aborted, unfinished = (
            ends.get(end, 0) for end in ("COMMITTED", "ABORTED", "OPEN")
        )
        return Transactions(committed, aborted, unfinished, Witness.RAW_LOG.value)
    return Transactions(None, None, None, None)
