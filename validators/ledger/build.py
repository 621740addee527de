"""Builds a ledger from the readings. Where a proof shows that nothing is odd, the counts are
enough; otherwise every record is examined."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from topicproof.validators.circumstances import NO_CIRCUMSTANCES, Circumstances
from topicproof.validators.contract_terms import NOTHING_MORE, ContractTerms, compared_value, digest
from topicproof.validators.decoded import undecoded
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
from topicproof.validators.merged_topics import with_numbered_input
from topicproof.validators.offsets import between
from topicproof.validators.readings import column_names, frame_of, keep, union
from topicproof.validators.source_log import NOTHING_LOGGED, SourceLog


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
    circumstances: Circumstances = NO_CIRCUMSTANCES,
) -> Ledger:
    """Builds the ledger of a sink and its source.

    `committed` and `uncommitted` are readings of the sink, `source` is the read_committed reading
    of the source. All three are read more than once, so keep them first. `source_bounds` is the
    judged range: inputs from `start` up to, but not including, `lso`. `evidence` is the URL of the
    folder for computed results; leftovers of an interrupted run are replaced. `doubts` are further
    reasons, as clauses, not to trust the readings. `circumstances` is what is known of the topics
    besides their records.
    """
    began = time.monotonic()
    ledger_input = _LedgerInput(
        committed=committed,
        uncommitted=uncommitted,
        source=source,
        sink_bounds=sink_bounds,
        source_bounds=source_bounds,
        evidence=evidence,
        raw_log=accounts.raw_log,
        declared=accounts.declared,
        identity=identity,
        expected=expected,
        agreed=agreed,
        order=order,
        source_log=accounts.source_log or NOTHING_LOGGED,
        read=_read(source_bounds, circumstances),
    )
    counts = _shortly(ledger_input) or _at_length(ledger_input)
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
    judge_input = _JudgeInput(
        sink_bounds=sink_bounds,
        source_bounds=source_bounds,
        evidence=evidence,
        expected=expected,
        agreed=agreed,
        order=order,
        identity=identity,
        circumstances=circumstances,
    )
    ledger = _ledger(source.sparkSession, counts, judge_input, accounts, values, doubts, began)
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
    needs_readings = (
        agreed.value is not None
        or expected.count is not None
        or (source_log is not None and source_log.aborted)
    )
    log = None if raw_log is None or needs_readings else regular_log(raw_log.facts, sink_bounds)
    if raw_log is None or log is None:
        raise ReadingsNeeded
    outcomes = declared.outcomes if declared else None
    sound = prove(folded, log, sink_bounds, source_bounds, outcomes)
    # A header may name the transaction that wrote an input.
    if sound is None or sound.headed:
        raise ReadingsNeeded

    def records() -> DataFrame:
        raise ReadingsNeeded

    counts = _proved(sound, spark, source_bounds, expected.kind, records)
    judge_input = _JudgeInput(
        sink_bounds=sink_bounds,
        source_bounds=source_bounds,
        evidence=evidence,
        expected=expected,
        agreed=agreed,
        order=Order.PER_SOURCE_PARTITION,
        identity=Identity.LINEAGE,
        circumstances=circumstances,
    )
    return _ledger(spark, counts, judge_input, accounts, None, doubts, began)


class _JudgeInput(NamedTuple):
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
    counts: _LedgerCounts,
    judge_input: _JudgeInput,
    accounts: Accounts,
    values: Values | None,
    doubts: Sequence[str],
    began: float,
) -> Ledger:
    raw_log, declared = accounts.raw_log, accounts.declared
    bounds = judge_input.sink_bounds.partitions
    balance = tuple(
        _balance(partition, counts.cells, counts.headers, raw_log is not None)
        for partition in bounds
    )
    return Ledger(
        spark=spark,
        records=counts.records,
        named=counts.named,
        wanted=counts.wanted,
        sink_bounds=judge_input.sink_bounds,
        source_bounds=judge_input.source_bounds,
        raw_log=raw_log,
        coordinator=accounts.coordinator,
        heard=accounts.heard(),
        cells=counts.cells,
        headers=counts.headers,
        ids=counts.ids,
        ends=counts.ends,
        sound=counts.sound,
        hidden=counts.hidden,
        repeats_count=counts.repeats_count,
        missing=counts.missing,
        inputs_count=counts.inputs.judged,
        aborted_inputs=counts.aborted_inputs,
        journaled=declared.transactional_ids if declared is not None else frozenset(),
        written=counts.written,
        written_count=sum(counts.writers.values()),
        writers=frozenset(counts.writers),
        polled=accounts.polled,
        outputs_count=counts.outputs_count,
        expected=judge_input.expected,
        agreed=judge_input.agreed,
        identity=judge_input.identity,
        circumstances=judge_input.circumstances,
        identified=counts.identified,
        identities=counts.identities,
        sink_keys=counts.sink_keys,
        alike=counts.alike,
        keys=counts.keys,
        values=values,
        order=judge_input.order,
        lines=counts.lines,
        balance=balance,
        transactions=_transactions(counts.ids, counts.ends),
        doubts=(
            *doubts,
            *doubts_of(counts.doubted, counts.inputs, balance, judge_input.source_bounds),
        ),
        evidence=judge_input.evidence,
        took_s=time.monotonic() - began,
    )


class _LedgerInput(NamedTuple):
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


class _LedgerCounts(NamedTuple):
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


def _shortly(ledger_input: _LedgerInput) -> _LedgerCounts | None:
    """Counts a topic with the proof of validators/fast_path/proof.py. None if something is odd, or
    if more is asked: counts of outputs, matching by key, or another order."""
    expected = ledger_input.expected
    simple = (
        ledger_input.identity is Identity.LINEAGE
        and ledger_input.aborted is None
        and expected.count is None
    )
    if (
        not simple
        or ledger_input.order is not Order.PER_SOURCE_PARTITION
        or ledger_input.raw_log is None
    ):
        return None
    if ledger_input.agreed.sink_fields:
        # Folded readings do not tell which records cannot be decoded.
        return None
    log = regular_log(ledger_input.raw_log.facts, ledger_input.sink_bounds)
    if log is None or estimated_pieces(ledger_input.sink_bounds, log) > PIECES_MAX:
        return None
    source = ledger_input.source
    if ledger_input.read != ledger_input.source_bounds:
        source = source.where(between("partition", "offset", ledger_input.source_bounds, "lso"))
    folded = fold(
        ledger_input.committed,
        ledger_input.uncommitted,
        source,
        log,
        content(),
        ledger_input.offsets,
    )
    outcomes = ledger_input.declared.outcomes if ledger_input.declared else None
    sound = prove(
        folded,
        log,
        ledger_input.sink_bounds,
        ledger_input.source_bounds,
        outcomes,
    )
    if sound is None:
        return None

    def records() -> DataFrame:
        inputs = count_inputs(
            ledger_input.source, ledger_input.source_bounds, ledger_input.read, None
        )
        return _keep_sink(ledger_input, _keep_words(ledger_input), inputs.dense, None)

    counts = _proved(
        sound, ledger_input.source.sparkSession, ledger_input.source_bounds, expected.kind, records
    )
    written = written_by(ledger_input.source, ledger_input.source_bounds)
    return counts._replace(
        wanted=(
            None
            if expected.kind is Expect.ZERO_OR_ONE
            else outputs_wanted(ledger_input.source, ledger_input.source_bounds, None)
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
) -> _LedgerCounts:
    """Turns a proof into counts, for inputs without headers."""
    width = sum(partition.lso - partition.start for partition in source_bounds.partitions)
    return _LedgerCounts(
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


def _at_length(ledger_input: _LedgerInput) -> _LedgerCounts:
    """Counts any topic: examines each record together with everything known about it."""
    _, _, source, sink_bounds, source_bounds, evidence, raw_log, *_ = ledger_input
    expected, aborted = ledger_input.expected, ledger_input.aborted
    # A record may be the output of an input that is not due, so those are counted too.
    counts = expected.counts(source, _whole(source_bounds))
    counts = (
        counts if counts is None else keep(counts, f"{evidence}/expected", ledger_input.offsets)
    )
    words, inputs, headers, ends, aborted_inputs, identities = in_parallel(
        lambda: _keep_words(ledger_input),
        lambda: count_inputs(source, source_bounds, ledger_input.read, counts),
        lambda: count_headers(raw_log.facts, sink_bounds) if raw_log else {},
        lambda: count_ends(raw_log, sink_bounds) if raw_log else {},
        lambda: aborted.count() if aborted is not None else 0,
        lambda: (
            count_identities(*_identities(ledger_input, counts))
            if ledger_input.by_key
            else Identities()
        ),
    )
    # If an input has no identity, nothing tells whether its output exists.
    identifiable, identifiable_counts = (
        (source, counts) if not identities.missing else _identifiable(ledger_input, counts)
    )
    sink = _keep_sink(ledger_input, words, inputs.dense, counts)
    transactions = named(sink, raw_log, sink_bounds)
    any_number = counts is None and expected.kind is Expect.ZERO_OR_ONE
    per_key = ledger_input.order is Order.PER_KEY
    uncertain = identities.repeated > 0 or (
        ledger_input.by_key and ledger_input.source_log.pending is not None
    )
    written = written_by(source, source_bounds)
    cells, compared, ids, (repeats_count, met), outputs_count, lines, writers, alike, keys = (
        in_parallel(
            lambda: count_cells(sink, headers, source_bounds.topic),
            lambda: count_doubts(sink, words, sink_bounds, raw_log is not None),
            lambda: count_ids(transactions),
            lambda: count_repeats(sink),
            lambda: _count_wanted(
                ledger_input, identifiable, identifiable_counts, inputs, any_number, sink
            ),
            lambda: count_lines_at_length(sink, per_key) if per_key or uncertain else None,
            lambda: count_writers(written) if inputs.headed else {},
            lambda: count_alike(sink, sink_bounds) if ledger_input.compared else 0,
            lambda: count_keys(sink, sink_bounds) if per_key else Keys(),
        )
    )
    return _LedgerCounts(
        records=lambda: sink,
        named=transactions,
        wanted=None
        if any_number
        else outputs_wanted(identifiable, source_bounds, identifiable_counts),
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
        identified=identities,
        identities=(lambda: _identities(ledger_input, counts)[0]) if ledger_input.by_key else None,
        sink_keys=(lambda: _sink_keys(ledger_input)) if ledger_input.by_key else None,
        alike=alike,
        keys=keys,
        doubted=compared[0],
    )


def _identifiable(
    ledger_input: _LedgerInput, counts: DataFrame | None
) -> tuple[DataFrame, DataFrame | None]:
    """Selects the inputs that hold an identity, with their counts."""
    inputs = ledger_input.source.where(ledger_input.agreed.match.of_source().isNotNull())
    if counts is None:
        return inputs, None
    places = inputs.select(
        F.col("partition").alias("source_partition"), F.col("offset").alias("source_offset")
    )
    return inputs, counts.join(places, ["source_partition", "source_offset"], "left_semi")


def _count_wanted(
    ledger_input: _LedgerInput,
    identifiable: DataFrame,
    counts: DataFrame | None,
    inputs: Inputs,
    any_number: bool,
    sink: DataFrame,
) -> int:
    if any_number:
        return count_outputs(outputs_produced(sink))
    if identifiable is ledger_input.source:
        return inputs.outputs
    return outputs_wanted(identifiable, ledger_input.source_bounds, counts).count()


def _identities(
    ledger_input: _LedgerInput, counts: DataFrame | None
) -> tuple[DataFrame, DataFrame | None]:
    """Returns the identities of the source's committed and pending records, and those of its
    aborted records. Leaves out committed records without an identity whose count of outputs is 0,
    such as tombstones: no output is theirs, so whatever is committed belongs to another input."""
    match, log = ledger_input.agreed.match, ledger_input.source_log
    pending, aborted = (
        None if records is None else identified(records, match)
        for records in (log.pending, log.aborted)
    )
    inputs = identified(ledger_input.source, match)
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


def _sink_keys(ledger_input: _LedgerInput) -> DataFrame:
    return ledger_input.uncommitted.select(
        "partition", "offset", ledger_input.agreed.match.of_sink().alias("source_key")
    )


def _keep_words(ledger_input: _LedgerInput) -> DataFrame:
    words = sink_words(ledger_input.committed, ledger_input.raw_log, ledger_input.sink_bounds)
    return keep(words, f"{ledger_input.evidence}/words", ledger_input.offsets, WORD_COLUMNS)


def _keep_sink(
    ledger_input: _LedgerInput, words: DataFrame, dense: bool, counts: DataFrame | None
) -> DataFrame:
    """Keeps the sink's records with `SINK_COLUMNS`. `dense` and `counts` are as in
    `with_places`."""
    agreed, source, bounds = ledger_input.agreed, ledger_input.source, ledger_input.source_bounds
    hashed = {"held": agreed.match.of_sink(), "value_hash": _value_hash(ledger_input)}
    lost = undecoded() if agreed.sink_fields else F.lit(None).cast("string")
    hashed["undecoded"] = lost
    records = ledger_input.uncommitted.withColumns(hashed)
    records = with_fates(records, words, ledger_input.sink_bounds, ledger_input.raw_log is not None)
    records = with_declared(with_transaction(records), ledger_input.declared)
    if ledger_input.by_key:
        records = records.withColumn("countable", countable())
    records = with_input(
        records,
        source,
        bounds,
        ledger_input.identity,
        counts,
        agreed.match,
        ledger_input.source_log,
    )
    if not ledger_input.by_key:
        certain = {"identified": F.lit(True), "ambiguous": F.lit(False), "waiting": F.lit(False)}
        records = records.withColumns(certain)
    records = with_numbered_input(records, bounds)
    records = with_places(
        records,
        source,
        bounds,
        read=ledger_input.read,
        dense=dense,
        counts=counts,
        most=ledger_input.expected.most,
        source_log=ledger_input.source_log,
    )
    needs_key_hash = ledger_input.order is Order.PER_KEY or ledger_input.compared
    key_hash = digest(F.col("key")) if needs_key_hash else F.lit(None).cast("binary")
    records = records.withColumn("key_hash", key_hash)
    names = column_names(SINK_COLUMNS)
    return keep(
        records.select(*names), f"{ledger_input.evidence}/sink", ledger_input.offsets, SINK_COLUMNS
    )


def _value_hash(ledger_input: _LedgerInput) -> Column:
    needs_value_hash = ledger_input.agreed.value is not None or ledger_input.compared
    return (
        digest(compared_value(ledger_input.agreed))
        if needs_value_hash
        else F.lit(None).cast("binary")
    )


def _read(judged: Bounds, circumstances: Circumstances) -> Bounds:
    """Extends the judged range to the end of the source's reading."""
    ends = circumstances.source_lso
    return replace(
        judged,
        partitions=tuple(
            replace(partition, lso=max(partition.lso, ends.get(partition.partition, partition.lso)))
            for partition in judged.partitions
        ),
    )


def _whole(bounds: Bounds) -> Bounds:
    """Moves each `lso` to the high watermark, so nothing at the end of a reading is left out."""
    return replace(
        bounds,
        partitions=tuple(replace(partition, lso=partition.hw) for partition in bounds.partitions),
    )


def _balance(
    bounds: PartitionBounds, cells: Sequence[Cell], headers: Mapping[int, Headers], raw_log: bool
) -> Balance:
    partition_cells = [cell for cell in cells if cell.partition == bounds.partition]
    records = Records(
        **{name: sum(getattr(cell, name) for cell in partition_cells) for name in Records._fields}
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
            sum(getattr(transactional_id, end) for transactional_id in ids)
            for end in ("committed", "aborted", "open")
        )
        return Transactions(committed, aborted, unfinished, HEADERS)
    if ends:
        committed, aborted, unfinished = (
            ends.get(end, 0) for end in ("COMMITTED", "ABORTED", "OPEN")
        )
        return Transactions(committed, aborted, unfinished, Witness.RAW_LOG.value)
    return Transactions(None, None, None, None)
