"""Counts a ledger by the proof that nothing is odd (validators/fast_path/proof.py). Only this file
decides whether a proof is tried: before the topics are read, once their raw log is known, and on
the readings."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from topicproof.validators.expected import Expect
from topicproof.validators.facts.header_transactions import beyond_limits
from topicproof.validators.facts.log_facts import LogFacts
from topicproof.validators.fast_path.proof import NAMED_COLUMNS, Proof, prove
from topicproof.validators.finding import Bounds, Order
from topicproof.validators.folded.fold import PIECES_MAX, Folded, estimated_pieces, fold
from topicproof.validators.folded.regular_log import RegularLog, regular_log
from topicproof.validators.ledger.by_scan import keep_sink, keep_words
from topicproof.validators.ledger.counts import (
    Counts,
    Doubt,
    Frames,
    Inputs,
    count_inputs,
    count_lines,
    count_writers,
    outputs_wanted,
    written_by,
)
from topicproof.validators.ledger.ledger import LedgerInput
from topicproof.validators.ledger.rows import content
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.offsets import between
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings, frame_of


def is_provable(question: Question, *, folded: bool) -> bool:
    """Whether a proof can answer the question. It tells no counts of outputs, no matching by key,
    no other order, no dead letters, no aggregates, and not which records cannot be decoded.
    `folded`: there are no records whose values could be compared."""
    agreed = question.agreed
    return (
        question.identity is Identity.LINEAGE
        and question.expected.count is None
        and question.order is Order.PER_SOURCE_PARTITION
        and not agreed.sink_fields
        and agreed.letters is None
        and agreed.aggregate is None
        and not (folded and agreed.needs_records)
    )


def provable_log(
    facts: LogFacts, sink_bounds: Bounds, *, aborted_inputs: bool
) -> RegularLog | None:
    """Returns the sink's raw log if a proof can rest on it. `aborted_inputs`: the source has
    aborted records, which a proof does not know."""
    log = None if aborted_inputs else regular_log(facts, sink_bounds)
    if log is None or estimated_pieces(sink_bounds, log) > PIECES_MAX:
        return None
    return log


def counts_by_proof(ledger_input: LedgerInput) -> Counts | None:
    """Counts topics in which nothing is odd; None if something is, or if a proof cannot answer the
    question. Folds the readings, unless they are folded already."""
    question, raw_log = ledger_input.question, ledger_input.accounts.raw_log
    is_folded = isinstance(ledger_input.readings, Folded)
    if raw_log is None or not is_provable(question, folded=is_folded):
        return None
    aborted = ledger_input.source_log.aborted is not None
    log = provable_log(raw_log.facts, ledger_input.sink_bounds, aborted_inputs=aborted)
    if log is None:
        return None
    declared = ledger_input.accounts.declared
    proof = prove(
        _folded(ledger_input, log),
        log,
        ledger_input.sink_bounds,
        question.source,
        declared.outcomes if declared else None,
        ledger_input.source_ids,
    )
    # A header may name the transaction that wrote an input, and folded readings hold none.
    if proof is None or (is_folded and proof.headed):
        return None
    return _counts(ledger_input, proof)


def _folded(ledger_input: LedgerInput, log: RegularLog) -> Folded:
    readings, judged = ledger_input.readings, ledger_input.question.source
    if isinstance(readings, Folded):
        return readings
    inputs = readings.inputs
    if ledger_input.range_read != judged:
        inputs = inputs.where(between("partition", "offset", judged, "lso"))
    return fold(
        readings.committed, readings.uncommitted, inputs, log, content(), ledger_input.offsets
    )


def _counts(ledger_input: LedgerInput, proof: Proof) -> Counts:
    question, readings = ledger_input.question, ledger_input.readings
    source, any_number = question.source, question.expected.kind is Expect.ZERO_OR_ONE
    width = sum(partition.lso - partition.start for partition in source.partitions)

    def records() -> DataFrame:
        readings = ledger_input.records.inputs
        inputs = count_inputs(readings, source, ledger_input.range_read, None)
        return keep_sink(ledger_input, keep_words(ledger_input), inputs.dense, None)

    frames = Frames(records, frame_of(ledger_input.spark, proof.named, NAMED_COLUMNS))
    counts = Counts(
        frames=frames,
        proved=True,
        cells=proof.cells,
        headers=proof.headers,
        lines=count_lines(proof.cells),
        inputs=Inputs(
            judged=proof.inputs,
            repeated=0,
            dense=proof.inputs == width,
            outputs=proof.inputs,
            uncounted=0,
            headed=proof.headed,
        ),
        ids=proof.ids,
        ends=proof.ends,
        outputs=proof.produced if any_number else proof.inputs,
    )
    return counts if isinstance(readings, Folded) else _with_inputs(counts, question, readings)


def _with_inputs(counts: Counts, question: Question, readings: Readings) -> Counts:
    """Adds what only the source's records show."""
    inputs, source = readings.inputs, question.source
    any_number = question.expected.kind is Expect.ZERO_OR_ONE
    written = written_by(inputs, source)
    frames = replace(
        counts.frames,
        expected=None if any_number else outputs_wanted(inputs, source, None),
        written=written,
    )
    writers = count_writers(written) if counts.inputs.headed else {}
    doubted_ids = beyond_limits(writers)
    return replace(
        counts,
        frames=frames,
        writers={} if doubted_ids else writers,
        doubted={Doubt.IDS: doubted_ids},
    )
