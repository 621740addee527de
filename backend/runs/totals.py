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

import pandas as pd
from pyspark.sql import DataFrame, Window, functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.reading import read_records

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
    except ValueError:
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


def current_totals(cluster: Cluster, sink: str) -> list[Balance]:
    """Read the last total of every account from a sink of ours, with the sum of its distinct
    payments. Sorted by account.

    Raises ClusterError; TopicError, also RecordTooLarge.
    """
    spans = {p.partition: (p.start, p.lso) for p in cluster.bounds(sink).partitions}
    balances: dict[str, Balance] = {}
    identities: set[tuple[str, str]] = set()
    for message in read_records(cluster.address, sink, READ_COMMITTED, spans):
        try:
            fields = json.loads(message.value() or b"")
            name, identity, cents = fields["account"], fields["id"], fields["cents"]
            before = balances.get(name, Balance(name, 0, 0, 0))
            due = before.due_cents + (0 if (name, identity) in identities else cents)
            identities.add((name, identity))
            balances[name] = Balance(name, fields["total"], before.payments + 1, due)
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(
                f"Topic {sink} holds records that are not totals: {error}."
            ) from error
    return [balances[account] for account in sorted(balances)]


def wrong_by(balances: Iterable[Balance]) -> dict[str, int]:
    """Return the cents of error per wrong account, caused by duplicate payments."""
    return {
        balance.account: balance.difference_cents
        for balance in balances
        if balance.difference_cents
    }


def counts(reading: DataFrame, deduplicate_s: int | None) -> DataFrame | None:
    """Return the required outputs per payment, for the judge: partition, offset, count. None: one
    each."""
    if deduplicate_s is None:
        return None
    identity = F.from_json(F.col("value").cast("string"), PAYMENT)["id"]
    earlier = F.row_number().over(Window.partitionBy(identity).orderBy("partition", "offset"))
    return reading.select("partition", "offset", (earlier == 1).cast("long").alias("count"))
