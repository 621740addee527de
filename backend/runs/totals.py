"""Totals: a running total per account, in a stateful stage. One output per payment: the account's
total after it.

An account's payments are in one source partition, because they are keyed by it. They are added in
offset order, so each output depends on the input alone and not on Spark's batches.

A payment is JSON: `{"id": "p17", "account": "a3", "cents": 250, "at": "2026-01-01T00:00:17Z"}`. A
record with a missing field or a field of another type changes no total and has no output. A verdict
shows it as a gap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Window, functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.look import LookBudget, LookLimits
from topicproof.backend.kafka.reading import Spans, as_bytes, read_records
from topicproof.backend.sink.entries import HALF_PAIR, LONG_MAX

PAYMENT = "id string, account string, cents bigint, at timestamp"
PLACE = ["topic", "partition", "offset"]
# Not as text: PySpark 4 parses text with its default session, which is gone after a restart of its
# server.
OUTPUT = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
    ]
)
STATE = StructType([StructField("total", LongType())])
FIRST_PAYMENT_AT = datetime(2026, 1, 1, tzinfo=UTC)
ACCOUNTS = 20
CENTS_MAX = 1_000
TOTAL_BYTES_MAX, NAME_MAX = 10_000, 1_000
"""Bytes of a record of the sink, and characters of an account or of a payment's id."""
CENTS_EACH_MAX, TOTAL_MAX = 10**12, 10**18
"""Cents of a payment, and of an account. The sum of two million payments is within a long."""
RECORD_BYTES = 250
"""Memory that a record takes besides its text."""
END_LIMITS = LookLimits(records=2_000_000, size=600_000_000)
"""The most that a run at its end, or a command, reads of a sink."""
WRONG_MAX = 100
"""Wrong accounts that the history keeps by name: each page reads them with the run."""


def totals(rows: DataFrame, deduplicate_s: int | None = None) -> DataFrame:
    """Turn rows of Spark's Kafka source into rows for the stateful sink.

    `deduplicate_s`: drop a payment if its id occurred at most this many seconds earlier, by the
    payments' own time. Payments later than that are dropped too, because nobody can tell whether
    they are duplicates.
    """
    parsed = F.from_json(F.col("value").cast("string"), PAYMENT).alias("payment")
    payments = rows.select(*PLACE, parsed).select(*PLACE, "payment.*").dropna()
    if deduplicate_s is not None:
        payments = payments.withWatermark(
            "at", f"{deduplicate_s} seconds"
        ).dropDuplicatesWithinWatermark(["id"])
    return payments.groupBy("account").applyInPandasWithState(
        add_up, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout
    )


def add_up(
    key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Turn one account's new payments and its total so far into one output per payment."""
    # Sorted, because a shuffle delivers the blocks of a batch in any order.
    payments = pd.concat(list(frames)).sort_values(PLACE)
    before = state.get[0] if state.exists else 0
    after = payments["cents"].cumsum() + before
    state.update((int(after.iloc[-1]),))
    payment_totals = zip(payments["id"], payments["cents"], after, strict=True)
    yield payments[PLACE].assign(
        key=key[0].encode(),
        value=[
            total_text(identity, key[0], cents, total) for identity, cents, total in payment_totals
        ],
    )


def total_text(identity: str, account: str, cents: int, total: int) -> bytes:
    """Return an output's value."""
    return json.dumps(
        {"id": identity, "account": account, "cents": int(cents), "total": int(total)}
    ).encode()


def account(number: int) -> bytes:
    """Return the key of a fill's payment N."""
    return f"account-{number % ACCOUNTS}".encode()


def payment(number: int) -> bytes:
    """Return a fill's payment N. There is one per second, with repeating amounts."""
    at = FIRST_PAYMENT_AT + timedelta(seconds=number)
    cents = number * 37 % CENTS_MAX + 1
    text = {
        "id": str(number),
        "account": account(number).decode(),
        "cents": cents,
        "at": f"{at:%Y-%m-%dT%H:%M:%SZ}",
    }
    return json.dumps(text).encode()


def number(payment: bytes | None) -> bytes | None:
    """Return the N of a fill's payment as text; None for anything else."""
    try:
        fields = json.loads(payment or b"")
    except (ValueError, RecursionError):
        return None
    return str(fields["id"]).encode() if isinstance(fields, dict) and "id" in fields else None


@dataclass(frozen=True)
class Balance:
    """An account's total."""

    account: str
    cents: int
    payments: int
    due_cents: int
    """The account's correct total: each payment counts once, by its id."""

    @property
    def difference_cents(self) -> int:
        return self.cents - self.due_cents


@dataclass(frozen=True)
class Total:
    """A record of the sink: an account's total after a payment."""

    account: str
    identity: str
    cents: int
    total: int


@dataclass(frozen=True)
class SinkTotals:
    """What a reader took from a sink of totals."""

    balances: list[Balance]
    """Sorted by account."""
    foreign: int = 0
    """Records that are not totals. Whoever may write to the sink can put some there."""
    note: str = ""
    """That a part was read, in a sentence; empty if all was."""


def read_total(value: bytes | None) -> Total | None:
    """Parse a record of the sink; None for anything else than `total_text` writes, in its type or
    its size: what is read here is added up, kept in the history, and listed."""
    if value is None or len(value) > TOTAL_BYTES_MAX:
        return None
    try:
        fields = json.loads(value)
        total = Total(fields["account"], fields["id"], fields["cents"], fields["total"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    is_total = (
        _is_name(total.account)
        and _is_name(total.identity)
        and _is_amount(total.cents, CENTS_EACH_MAX)
        and _is_amount(total.total, TOTAL_MAX)
    )
    return total if is_total else None


def _is_name(value: object) -> bool:
    # JSON can name half of a surrogate pair, which no database takes.
    return isinstance(value, str) and len(value) <= NAME_MAX and HALF_PAIR.search(value) is None


def _is_amount(value: object, highest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= highest


def current_totals(cluster: Cluster, sink: str, *, budget: LookBudget) -> SinkTotals:
    """Read the last total of every account from a sink of ours, with the sum of its distinct
    payments, within a budget.

    Raises ClusterError; TopicError, also RecordTooLarge.
    """
    partitions = cluster.bounds(sink).partitions
    ends = {p.partition: (p.start, p.lso) for p in partitions}
    spans = _first_offsets(ends, budget.limits.records)
    balances: dict[str, Balance] = {}
    identities: set[tuple[str, str]] = set()
    foreign, is_whole = 0, spans == ends
    for message in read_records(cluster.address, sink, READ_COMMITTED, spans):
        if budget.is_spent:
            is_whole = False
            break
        value = as_bytes(message.value())
        budget.hold(None, value, RECORD_BYTES)
        total = read_total(value)
        if total is None:
            foreign += 1
            continue
        before = balances.get(total.account, Balance(total.account, 0, 0, 0))
        is_repeated = (total.account, total.identity) in identities
        identities.add((total.account, total.identity))
        due = before.due_cents + (0 if is_repeated else total.cents)
        balances[total.account] = Balance(total.account, total.total, before.payments + 1, due)
    note = (
        ""
        if is_whole
        else f"These are the totals after the first {budget.records:,} records of {sink}. One look"
        " is limited."
    )
    return SinkTotals([balances[account] for account in sorted(balances)], foreign, note)


def _first_offsets(ends: Spans, offsets_max: int) -> Spans:
    """Return the first offsets of each partition, so many in all. A small partition leaves its
    share to the others."""
    spans: dict[int, tuple[int, int]] = {}
    by_size = sorted(ends.items(), key=lambda item: item[1][1] - item[1][0])
    for position, (partition, (start, end)) in enumerate(by_size):
        share = offsets_max // (len(by_size) - position)
        spans[partition] = start, min(end, start + share)
        offsets_max -= spans[partition][1] - start
    return spans


def figures(totals: SinkTotals) -> dict[str, Any]:
    """Return what the history keeps of a run's totals, as fields of `RunResults`: the cents of
    error of the most wrong accounts, caused by duplicate payments. Nothing of a part."""
    if totals.note:
        return {}
    wrong = [balance for balance in totals.balances if balance.difference_cents]
    worst = sorted(wrong, key=lambda balance: -abs(balance.difference_cents))[:WRONG_MAX]
    cents = sum(balance.difference_cents for balance in wrong)
    return {
        "accounts": len(totals.balances),
        "wrong_by": {balance.account: balance.difference_cents for balance in worst},
        "wrong_accounts": len(wrong),
        "wrong_cents": max(-LONG_MAX, min(LONG_MAX, cents)),
        "foreign_totals": totals.foreign,
    }


def counts(reading: DataFrame, deduplicate_s: int | None) -> DataFrame | None:
    """Return the required outputs per payment, for the judge: partition, offset, count. None: one
    each."""
    if deduplicate_s is None:
        return None
    identity = F.from_json(F.col("value").cast("string"), PAYMENT)["id"]
    earlier = F.row_number().over(Window.partitionBy(identity).orderBy("partition", "offset"))
    return reading.select("partition", "offset", (earlier == 1).cast("long").alias("count"))
