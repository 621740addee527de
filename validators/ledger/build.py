"""Builds a ledger from what was read. Where a proof shows that nothing is odd, its counts are
enough; otherwise every record is examined."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from topicproof.validators.circumstances import NO_CIRCUMSTANCES, Circumstances
from topicproof.validators.finding import Bounds
from topicproof.validators.folded.fold import Folded
from topicproof.validators.in_parallel import in_parallel
from topicproof.validators.ledger.by_proof import counts_by_proof
from topicproof.validators.ledger.by_scan import counts_by_scan
from topicproof.validators.ledger.counts import Counts, count_decoded, doubts_of, empty_fields
from topicproof.validators.ledger.ledger import (
    NO_ACCOUNTS,
    Accounts,
    Ledger,
    LedgerInput,
    balances,
)
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings


def build_ledger(
    spark: SparkSession,
    question: Question,
    sink_bounds: Bounds,
    readings: Readings | Folded,
    evidence: str,
    accounts: Accounts = NO_ACCOUNTS,
    circumstances: Circumstances = NO_CIRCUMSTANCES,
    doubts: Sequence[str] = (),
) -> Ledger:
    """Builds the ledger of a sink and its source.

    All readings are read more than once, so keep them first. `evidence` is the URL of the folder
    for computed results; leftovers of an interrupted run are replaced. `circumstances` is what is
    known of the topics besides their records. `doubts` are further reasons, as clauses, not to
    trust the readings.

    Raises ReadingsNeeded if readings are folded and something is odd, or folded readings cannot
    answer the question.
    """
    began = time.monotonic()
    ledger_input = LedgerInput(
        spark=spark,
        question=question,
        sink_bounds=sink_bounds,
        readings=readings,
        accounts=accounts,
        circumstances=circumstances,
        evidence=evidence,
    )
    counts = counts_by_proof(ledger_input) or counts_by_scan(ledger_input)
    if isinstance(readings, Readings):
        counts, of_fields = _with_fields(counts, question, sink_bounds, readings)
        doubts = (*doubts, *of_fields)
    has_log = accounts.raw_log is not None
    balance = balances(sink_bounds, counts, has_log=has_log)
    return Ledger(
        spark=spark,
        question=question,
        sink_bounds=sink_bounds,
        accounts=accounts,
        circumstances=circumstances,
        readings=readings if isinstance(readings, Readings) else None,
        counts=counts,
        doubts=(
            *doubts,
            *doubts_of(counts.doubted, counts.inputs, balance, question.source),
        ),
        evidence=evidence,
        took_s=time.monotonic() - began,
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
