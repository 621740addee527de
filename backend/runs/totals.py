"""Totals: a running total per account, the stateful stage. One output per payment: the account's
total after it.

An account's payments lie in one source partition (they are keyed by it), and are added in the order
of their offsets, so each output depends on the input alone and not on how Spark cuts the stream
into batches.

A payment is JSON: `{"id": "p17", "account": "a3", "cents": 250, "at": "2026-01-01T00:00:17Z"}`.
What is none (a field is missing or of another type) moves no total and has no output; a verdict
shows it as a gap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pandas as pd
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    REQUEST_TIMEOUT_MS,
    consumer_config,
)
from topicproof.backend.kafka.cluster import Cluster

PAYMENT = "id string, account string, cents bigint, at timestamp"
PLACE = ["topic", "partition", "offset"]
# Not as text: PySpark 4 parses text with its default session, and has none left once its server was
# restarted.
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
    """Rows of Spark's Kafka source -> rows for the stateful sink.

    `deduplicate_s`: a payment whose id came before, at most so many seconds of its own time ago, is
    dropped. Then one that is later than that is dropped too: nobody could say whether it came
    before.
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
    """One account's new payments, and its total so far -> an output for each."""
    # Sorted: a shuffle delivers the blocks of a batch in any order.
    payments = pd.concat(list(frames)).sort_values(PLACE)
    before = state.get[0] if state.exists else 0
    after = payments["cents"].cumsum() + before
    state.update((int(after.iloc[-1]),))
    told = zip(payments["id"], payments["cents"], after, strict=True)
    yield payments[PLACE].assign(
        key=key[0].encode(),
        value=[total_text(identity, key[0], cents, total) for identity, cents, total in told],
    )


def total_text(identity: str, account: str, cents: int, total: int) -> bytes:
    """An output's value."""
    return json.dumps(
        {"id": identity, "account": account, "cents": int(cents), "total": int(total)}
    ).encode()


def account(number: int) -> bytes:
    """The key of payment N of a fill."""
    return f"account-{number % ACCOUNTS}".encode()


def payment(number: int) -> bytes:
    """Payment N of a fill; one a second, in amounts that repeat."""
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
    """The N of a payment of a fill, as text; None for anything else."""
    try:
        found = json.loads(payment or b"")
    except ValueError:
        return None
    return str(found["id"]).encode() if isinstance(found, dict) and "id" in found else None


@dataclass(frozen=True)
class Balance:
    """An account's total."""

    account: str
    cents: int
    payments: int
    due_cents: int
    """What the account's payments come to when each is counted once, by its id."""

    @property
    def difference_cents(self) -> int:
        return self.cents - self.due_cents


def current_totals(cluster: Cluster, sink: str) -> list[Balance]:
    """The last total of every account in a sink of ours, by account, beside what its distinct
    payments come to.

    Raises ClusterError, TopicError.
    """
    left = {p.partition for p in cluster.bounds(sink).partitions}
    consumer = Consumer(consumer_config(cluster.address, f"{sink}-totals", READ_COMMITTED))
    consumer.assign([TopicPartition(sink, partition, OFFSET_BEGINNING) for partition in left])
    found: dict[str, Balance] = {}
    seen: set[tuple[str, str]] = set()
    try:
        while left:
            message = consumer.poll(REQUEST_TIMEOUT_MS / 1000)
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                raise ClusterError(
                    f"Topic {sink} could not be read{': ' + error.str() if error else ' in time'}."
                )
            if error is not None:
                left.discard(message.partition() or 0)
                continue
            told = json.loads(message.value() or b"")
            name, identity = told["account"], (told["account"], told["id"])
            before = found.get(name, Balance(name, 0, 0, 0))
            due = before.due_cents + (0 if identity in seen else told["cents"])
            seen.add(identity)
            found[name] = Balance(name, told["total"], before.payments + 1, due)
    except (KafkaException, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"Topic {sink} holds something else than totals, or cannot be read: {error}."
        ) from error
    finally:
        consumer.close()
    return [found[account] for account in sorted(found)]


def wrong_by(balances: Iterable[Balance]) -> dict[str, int]:
    """Cents of error per wrong account, caused by payments that came twice."""
    return {one.account: one.difference_cents for one in balances if one.difference_cents}


def counts(reading: DataFrame, deduplicate_s: int | None) -> DataFrame | None:
    """How many outputs each payment must have, for the judge: partition, offset, count. None: each
    has one."""
    if deduplicate_s is None:
        return None
    identity = F.from_json(F.col("value").cast("string"), PAYMENT)["id"]
    earlier = F.row_number().over(Window.partitionBy(identity).orderBy("partition", "offset"))
    return reading.select("partition", "offset", (earlier == 1).cast("long").alias("count"))
