"""Counts a ledger by a scan: examines each record together with everything known about it."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.contract_terms import compared_value, digest
from topicproof.validators.decoded import undecoded
from topicproof.validators.expected import Expect
from topicproof.validators.facts.balance import count_headers
from topicproof.validators.facts.header_transactions import beyond_limits, count_ids, named
from topicproof.validators.finding import Bounds, Order
from topicproof.validators.incarnations import names_namesake
from topicproof.validators.ledger.counts import (
    NO_IDENTITIES,
    NO_KEYS,
    Counts,
    Doubt,
    Frames,
    Inputs,
    count_alike,
    count_cells,
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
    excess_of,
    outputs_produced,
    outputs_wanted,
    written_by,
)
from topicproof.validators.ledger.ledger import LedgerInput
from topicproof.validators.ledger.rows import (
    SINK_COLUMNS,
    WORD_COLUMNS,
    countable,
    sink_words,
    with_declared,
    with_fates,
    with_places,
)
from topicproof.validators.lineage.identity import identified, with_input, with_transaction
from topicproof.validators.offsets import with_numbered_input
from topicproof.validators.question import Question
from topicproof.validators.readings import column_names, in_parallel, keep, union


def counts_by_scan(ledger_input: LedgerInput) -> Counts:
    """Counts any topic: examines each record together with everything known about it."""
    question, sink_bounds = ledger_input.question, ledger_input.sink_bounds
    source, source_bounds, expected = (
        ledger_input.records.inputs,
        question.source,
        question.expected,
    )
    raw_log, aborted = ledger_input.accounts.raw_log, ledger_input.source_log.aborted
    # A record may be the output of an input that is not due, so those are counted too.
    counts = expected.counts(source, _whole(source_bounds))
    counts = (
        counts
        if counts is None
        else keep(counts, f"{ledger_input.evidence}/expected", ledger_input.offsets)
    )
    excess = 0 if counts is None else excess_of(counts, sink_bounds)
    if counts is not None and excess:
        # Nothing is judged then.
        counts = counts.withColumn("expected", F.lit(None).cast("int"))
    words, inputs, headers, ends, aborted_inputs, identities = in_parallel(
        lambda: keep_words(ledger_input),
        lambda: count_inputs(source, source_bounds, ledger_input.range_read, counts),
        lambda: count_headers(raw_log.facts, sink_bounds) if raw_log else {},
        lambda: count_ends(raw_log, sink_bounds) if raw_log else {},
        lambda: aborted.count() if aborted is not None else 0,
        lambda: (
            count_identities(*_identities(ledger_input, counts))
            if question.by_key
            else NO_IDENTITIES
        ),
    )
    # If an input has no identity, nothing tells whether its output exists.
    identifiable, identifiable_counts = (
        (source, counts) if not identities.missing else _identifiable(ledger_input, counts)
    )
    sink = keep_sink(ledger_input, words, inputs.dense, counts)
    transactions = named(sink, raw_log, sink_bounds)
    any_number = counts is None and expected.kind is Expect.ZERO_OR_ONE
    per_key = question.order is Order.PER_KEY
    uncertain = identities.repeated > 0 or (
        question.by_key and ledger_input.source_log.pending is not None
    )
    written = written_by(source, source_bounds)
    cells, compared, ids, (repeats, met), outputs_count, lines, writers, alike, keys = in_parallel(
        lambda: count_cells(sink, headers, source_bounds.topic),
        lambda: count_doubts(sink, words, sink_bounds, raw_log is not None),
        lambda: count_ids(transactions),
        lambda: count_repeats(sink),
        lambda: _count_wanted(
            ledger_input, identifiable, identifiable_counts, inputs, any_number, sink
        ),
        lambda: count_lines_at_length(sink, per_key) if per_key or uncertain else None,
        lambda: count_writers(written) if inputs.headed else {},
        lambda: count_alike(sink, sink_bounds) if question.compares_content else 0,
        lambda: count_keys(sink, sink_bounds) if per_key else NO_KEYS,
    )
    doubted_ids = max(beyond_limits(writers), beyond_limits([id_.transactional_id for id_ in ids]))
    frames = Frames(
        records=lambda: sink,
        named=transactions,
        expected=(
            None if any_number else outputs_wanted(identifiable, source_bounds, identifiable_counts)
        ),
        written=written,
        identities=(lambda: _identities(ledger_input, counts)[0]) if question.by_key else None,
        sink_keys=(lambda: _sink_keys(ledger_input)) if question.by_key else None,
    )
    return Counts(
        frames=frames,
        proved=False,
        cells=cells,
        headers=headers,
        lines=count_lines(cells) if lines is None else lines,
        inputs=inputs._replace(aborted=aborted_inputs, excess=excess),
        identities=identities,
        writers={} if doubted_ids else writers,
        ids=() if doubted_ids else ids,
        ends=ends,
        outputs=outputs_count,
        missing=outputs_count - met,
        repeats=repeats,
        alike=alike,
        keys=keys,
        hidden=compared.hidden,
        of_namesake=compared.of_namesake,
        doubted=compared.doubted | {Doubt.IDS: doubted_ids},
    )


def _identifiable(
    ledger_input: LedgerInput, counts: DataFrame | None
) -> tuple[DataFrame, DataFrame | None]:
    """Selects the inputs that hold an identity, with their counts."""
    inputs = ledger_input.records.inputs.where(
        ledger_input.question.agreed.match.of_source().isNotNull()
    )
    if counts is None:
        return inputs, None
    places = inputs.select(
        F.col("partition").alias("source_partition"), F.col("offset").alias("source_offset")
    )
    return inputs, counts.join(places, ["source_partition", "source_offset"], "left_semi")


def _count_wanted(
    ledger_input: LedgerInput,
    identifiable: DataFrame,
    counts: DataFrame | None,
    inputs: Inputs,
    any_number: bool,
    sink: DataFrame,
) -> int:
    if any_number:
        return count_outputs(outputs_produced(sink))
    if identifiable is ledger_input.records.inputs:
        return inputs.outputs
    return outputs_wanted(identifiable, ledger_input.question.source, counts).count()


def _identities(
    ledger_input: LedgerInput, counts: DataFrame | None
) -> tuple[DataFrame, DataFrame | None]:
    """Returns the identities of the source's committed and pending records, and those of its
    aborted records. Leaves out committed records without an identity whose count of outputs is 0,
    such as tombstones: no output is theirs, so whatever is committed belongs to another input."""
    match, log = ledger_input.question.agreed.match, ledger_input.source_log
    pending, aborted = (
        None if records is None else identified(records, match)
        for records in (log.pending, log.aborted)
    )
    inputs = identified(ledger_input.records.inputs, match)
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


def _sink_keys(ledger_input: LedgerInput) -> DataFrame:
    return ledger_input.records.uncommitted.select(
        "partition", "offset", ledger_input.question.agreed.match.of_sink().alias("source_key")
    )


def keep_words(ledger_input: LedgerInput) -> DataFrame:
    words = sink_words(
        ledger_input.records.committed, ledger_input.accounts.raw_log, ledger_input.sink_bounds
    )
    return keep(words, f"{ledger_input.evidence}/words", ledger_input.offsets, WORD_COLUMNS)


def keep_sink(
    ledger_input: LedgerInput, words: DataFrame, dense: bool, counts: DataFrame | None
) -> DataFrame:
    """Keeps the sink's records with `SINK_COLUMNS`. `dense` and `counts` are as in
    `with_places`."""
    question, accounts = ledger_input.question, ledger_input.accounts
    agreed, source, bounds = question.agreed, ledger_input.records.inputs, question.source
    hashed = {"held": agreed.match.of_sink(), "value_hash": _value_hash(question)}
    lost = undecoded() if agreed.sink_fields else F.lit(None).cast("string")
    hashed["undecoded"] = lost
    records = ledger_input.records.uncommitted.withColumns(hashed)
    has_log = accounts.raw_log is not None
    records = with_fates(records, words, ledger_input.sink_bounds, has_log)
    records = with_declared(with_transaction(records), accounts.declared)
    if question.by_key:
        records = records.withColumn("countable", countable())
    records = with_input(
        records,
        source,
        bounds,
        question.identity,
        counts,
        agreed.match,
        ledger_input.source_log,
    )
    never = F.lit(False)
    if question.by_key:
        records = records.withColumn("of_namesake", never)
    else:
        of_namesake = names_namesake(ledger_input.source_ids)
        certain = {"identified": F.lit(True), "ambiguous": never, "waiting": never}
        records = records.withColumns({**certain, "of_namesake": of_namesake})
    records = with_numbered_input(records, bounds)
    records = with_places(
        records,
        source,
        bounds,
        read=ledger_input.range_read,
        dense=dense,
        counts=counts,
        most=question.expected.most,
        source_log=ledger_input.source_log,
    )
    needs_key_hash = question.order is Order.PER_KEY or question.compares_content
    key_hash = digest(F.col("key")) if needs_key_hash else F.lit(None).cast("binary")
    records = records.withColumn("key_hash", key_hash)
    names = column_names(SINK_COLUMNS)
    return keep(
        records.select(*names), f"{ledger_input.evidence}/sink", ledger_input.offsets, SINK_COLUMNS
    )


def _value_hash(question: Question) -> Column:
    needs_value_hash = question.agreed.value is not None or question.compares_content
    return (
        digest(compared_value(question.agreed)) if needs_value_hash else F.lit(None).cast("binary")
    )


def _whole(bounds: Bounds) -> Bounds:
    """Moves each `lso` to the high watermark, so nothing at the end of a reading is left out."""
    return replace(
        bounds,
        partitions=tuple(replace(partition, lso=partition.hw) for partition in bounds.partitions),
    )
