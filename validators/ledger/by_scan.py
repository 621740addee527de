"""Counts a ledger by a scan: examines each record together with everything known about it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

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
    count_letters,
    count_lines,
    count_lines_at_length,
    count_outputs,
    count_repeats,
    count_writers,
    excess_of,
    lettered_inputs,
    outputs_produced,
    outputs_wanted,
    without_letters,
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
from topicproof.validators.lineage.headers import LINEAGE_HEADER
from topicproof.validators.lineage.identity import (
    Identity,
    Match,
    identified,
    with_input,
    with_transaction,
)
from topicproof.validators.offsets import with_numbered_input
from topicproof.validators.question import Question
from topicproof.validators.readings import column_names, in_parallel, keep, union

LINEAGE_MATCH = Match(sink=f"header:{LINEAGE_HEADER}")
"""What a dead letter names has been made its lineage (backend/judging/ledger_input.py)."""


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
    outputs, due_outputs, lettered = sink, sink, None
    if question.agreed.letters is not None:
        outputs, lettered = without_letters(sink), lettered_inputs(sink)
        # An input with a dead letter owes no output.
        due_outputs = outputs.join(lettered, lettered.columns, "left_anti")
    transactions = named(sink, raw_log, sink_bounds)
    any_number = counts is None and expected.kind is Expect.ZERO_OR_ONE
    per_key = question.order is Order.PER_KEY
    uncertain = identities.repeated > 0 or (
        question.by_key and ledger_input.source_log.pending is not None
    )
    written = written_by(source, source_bounds)
    (
        *(cells, compared, (repeats, met), outputs_count, lines, writers, alike, keys),
        letters,
    ) = in_parallel(
        lambda: count_cells(sink, headers, source_bounds.topic),
        lambda: count_doubts(sink, words, sink_bounds, raw_log is not None),
        lambda: _count_repeats(outputs, due_outputs),
        lambda: _count_wanted(
            ledger_input,
            identifiable,
            identifiable_counts,
            inputs,
            any_number,
            due_outputs,
            lettered,
        ),
        lambda: count_lines_at_length(outputs, per_key) if per_key or uncertain else None,
        lambda: count_writers(written) if inputs.headed else {},
        lambda: count_alike(outputs, sink_bounds) if question.compares_content else 0,
        lambda: count_keys(outputs, sink_bounds) if per_key else NO_KEYS,
        lambda: None if lettered is None else count_letters(sink, _letters_read(ledger_input)),
    )
    ids = count_ids(transactions) if compared.named else ()
    doubted_ids = max(beyond_limits(writers), beyond_limits([id_.transactional_id for id_ in ids]))
    frames = Frames(
        records=lambda: sink,
        named=transactions,
        expected=(
            None
            if any_number
            else _wanted(ledger_input, identifiable, identifiable_counts, lettered)
        ),
        written=written,
        identities=(lambda: _identities(ledger_input, counts)[0]) if question.by_key else None,
        sink_keys=(
            (lambda: _sink_keys(ledger_input))
            if question.by_key or (question.agreed.table and question.agreed.table.key)
            else None
        ),
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
        letters=letters,
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
    outputs: DataFrame,
    lettered: DataFrame | None,
) -> int:
    """Counts the outputs that are due. `outputs`: the records of the sink, of inputs without a dead
    letter. `lettered`: the inputs with one."""
    if any_number:
        return count_outputs(outputs_produced(outputs))
    if identifiable is ledger_input.records.inputs and lettered is None:
        return inputs.outputs
    return _wanted(ledger_input, identifiable, counts, lettered).count()


def _wanted(
    ledger_input: LedgerInput,
    identifiable: DataFrame,
    counts: DataFrame | None,
    lettered: DataFrame | None,
) -> DataFrame:
    """Returns the outputs that are due, as `outputs_wanted`, without those of inputs with a dead
    letter."""
    outputs = outputs_wanted(identifiable, ledger_input.question.source, counts)
    return outputs if lettered is None else outputs.join(lettered, lettered.columns, "left_anti")


def _count_repeats(outputs: DataFrame, due_outputs: DataFrame) -> tuple[int, int]:
    """Counts as `count_repeats`: repeats among all outputs, and which of those that are due are
    there."""
    repeats, met = count_repeats(outputs)
    return repeats, met if due_outputs is outputs else count_repeats(due_outputs)[1]


def _letters_read(ledger_input: LedgerInput) -> DataFrame:
    """Returns the reading of the dead letters: partition, offset, is_named (whether each names a
    place, or holds an identity)."""
    question = ledger_input.question
    letters, first = question.agreed.letters, question.first_of_letters(ledger_input.sink_bounds)
    assert letters is not None and first is not None, "asked only with dead letters"
    named_by = LINEAGE_MATCH if letters.headers is not None else Match(sink=letters.origin)
    reading = ledger_input.records.uncommitted.where(F.col("partition") >= first)
    return reading.select("partition", "offset", named_by.of_sink().isNotNull().alias("is_named"))


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
    """Returns what the sink's records hold; by the columns of a table's key where it has one, since
    people look for a row by these."""
    agreed = ledger_input.question.agreed
    has_key = agreed.table is not None and bool(agreed.table.key)
    identity = F.col("key") if has_key else agreed.match.of_sink()
    return ledger_input.records.uncommitted.select(
        "partition", "offset", identity.alias("source_key")
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
    agreed, url, offsets = question.agreed, ledger_input.evidence, ledger_input.offsets
    first = question.first_of_letters(ledger_input.sink_bounds)
    is_letter = F.lit(False) if first is None else F.col("partition") >= first
    hashed = {"held": agreed.match.of_sink(), "value_hash": _value_hash(question)}
    if agreed.letters is not None and agreed.letters.headers is None:
        held_by_letter = Match(sink=agreed.letters.origin).of_sink()
        hashed["held"] = F.when(is_letter, held_by_letter).otherwise(hashed["held"])
    lost = undecoded() if agreed.needs_decoded_sink else F.lit(None).cast("string")
    hashed["undecoded"] = F.when(~is_letter, lost)
    hashed["is_letter"] = is_letter
    records = ledger_input.records.uncommitted.withColumns(hashed)
    has_log = accounts.raw_log is not None
    records = with_fates(records, words, ledger_input.sink_bounds, has_log)
    records = with_declared(with_transaction(records), accounts.declared)
    needs_key_hash = question.order is Order.PER_KEY or question.compares_content
    key_hash = digest(F.col("key")) if needs_key_hash else F.lit(None).cast("binary")
    records = records.withColumns({"key_hash": key_hash, "countable": countable()})
    matched = _Matched(question.identity, counts, question.expected.most, dense)
    if agreed.letters is None:
        rows = _placed(ledger_input, records, matched)
        return keep(rows, f"{url}/sink", offsets, SINK_COLUMNS)
    by = Identity.KEY if agreed.letters.headers is None else Identity.LINEAGE
    letters = _placed(ledger_input, records.where("is_letter"), _Matched(by, None, None, dense))
    letters = letters.withColumn("identified", F.lit(True))
    letters = keep(letters, f"{url}/letters", offsets, SINK_COLUMNS)
    outputs = _placed(
        ledger_input, records.where("not is_letter"), matched, lettered_inputs(letters)
    )
    return keep(outputs.unionByName(letters), f"{url}/sink", offsets, SINK_COLUMNS)


class _Matched(NamedTuple):
    """How records are matched with inputs."""

    identity: Identity
    counts: DataFrame | None
    """As in `with_places`, and so are the next two."""
    most: int | None
    dense: bool


def _placed(
    ledger_input: LedgerInput,
    records: DataFrame,
    matched: _Matched,
    lettered: DataFrame | None = None,
) -> DataFrame:
    """Adds each record's input and place; the result has `SINK_COLUMNS`. `lettered`: the inputs
    with a dead letter, which are matched by key after all others."""
    question = ledger_input.question
    source, bounds = ledger_input.records.inputs, question.source
    by_key = matched.identity is Identity.KEY
    records = with_input(
        records,
        source,
        bounds,
        matched.identity,
        matched.counts,
        question.agreed.match,
        ledger_input.source_log,
        lettered,
    )
    never = F.lit(False)
    if by_key:
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
        dense=matched.dense,
        counts=matched.counts,
        most=matched.most,
        source_log=ledger_input.source_log,
    )
    return records.select(*column_names(SINK_COLUMNS))


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
