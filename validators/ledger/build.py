"""Builds a ledger from what was read. Where a proof shows that nothing is odd, its counts are
enough; otherwise every record is examined."""

from __future__ import annotations

import time
from dataclasses import replace

from topicproof.validators.finding import Bounds
from topicproof.validators.ledger.by_proof import counts_by_proof
from topicproof.validators.ledger.by_scan import counts_by_scan
from topicproof.validators.ledger.counts import (
    Counts,
    count_decoded,
    doubts_of,
    empty_fields,
    nameless_letters,
)
from topicproof.validators.ledger.group_totals import count_groups
from topicproof.validators.ledger.ledger import Ledger, LedgerInput, balances
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings, in_parallel


def build_ledger(ledger_input: LedgerInput) -> Ledger:
    """Builds the ledger of a sink and its source.

    Raises ReadingsNeeded if readings are folded and something is odd, or folded readings cannot
    answer the question.
    """
    began = time.monotonic()
    question, sink_bounds = ledger_input.question, ledger_input.sink_bounds
    readings, doubts = ledger_input.readings, tuple(ledger_input.doubts)
    counts = counts_by_proof(ledger_input) or counts_by_scan(ledger_input)
    aggregate = question.agreed.aggregate
    groups = None if aggregate is None else count_groups(ledger_input, aggregate)
    if isinstance(readings, Readings):
        counts, of_fields = _with_fields(counts, question, sink_bounds, readings)
        doubts += of_fields
    doubts += nameless_letters(counts, question)
    has_log = ledger_input.accounts.raw_log is not None
    balance = balances(sink_bounds, counts, has_log=has_log)
    return Ledger(
        spark=ledger_input.spark,
        question=question,
        sink_bounds=sink_bounds,
        accounts=ledger_input.accounts,
        circumstances=ledger_input.circumstances,
        readings=readings if isinstance(readings, Readings) else None,
        counts=counts,
        doubts=doubts + doubts_of(counts, balance, question.source, sink_bounds),
        evidence=ledger_input.evidence,
        took_s=time.monotonic() - began,
        groups=groups,
    )


def _with_fields(
    counts: Counts, question: Question, sink_bounds: Bounds, readings: Readings
) -> tuple[Counts, tuple[str, ...]]:
    """Adds how many inputs were decoded. Also returns the doubts about fields that no record
    holds."""
    agreed = question.agreed
    inputs, outputs = in_parallel(
        lambda: count_decoded(readings.inputs, agreed.source_fields),
        lambda: count_decoded(readings.uncommitted, agreed.sink_fields),
    )
    doubts = (
        *empty_fields(question.source.topic, inputs),
        *empty_fields(sink_bounds.topic, outputs),
    )
    return replace(counts, decoded=inputs), doubts
