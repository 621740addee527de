"""Windows: payments per account and minute, by event time and by the clock.

One stateful stage with two outputs per payment; each is the count including it. By event time (the
payment's `at`) a count follows from the earlier payments in its source partition. The verdict
counts it again. By processing time it depends on when Spark's batch began, which no topic records.
Nobody can check it afterwards, so its value check is UNKNOWN. (A replayed batch keeps its original
time, so the outputs are still exactly-once.)

The state holds one number per account and minute of event time, and never expires.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import pandas as pd
from confluent_kafka import Message
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from topicproof.backend.history.run_state import StageVerdict
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.reading import (
    NotText,
    RecordBudget,
    as_bytes,
    headers_in,
    read_records,
)
from topicproof.backend.runs.totals import PAYMENT, PLACE
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.compact import lineage_of
from topicproof.validators.lineage.headers import Lineage

WINDOW_S = 60
BY_EVENT_TIME, BY_CLOCK = "by-event-time", "by-clock"
COUNTS_BYTES_MAX = 1_000_000_000
"""What the counts take with which outputs are compared: some 850,000 of them, or long names."""
TOO_MANY = StageVerdict(
    Outcome.UNKNOWN,
    f"The counts of all payments take more than {COUNTS_BYTES_MAX:,} bytes, so they were not"
    " counted again.",
)
NOT_RECOUNTED = StageVerdict(
    Outcome.UNKNOWN,
    "These counts depend on the clock when each batch began, which no topic records. So a recount"
    " is impossible. The verdict checks that each count is there once.",
)
OUTPUT = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("account", StringType()),
        StructField("event", BinaryType()),
        StructField("clock", BinaryType()),
    ]
)
STATE = StructType([StructField("counts", StringType())])
"""As JSON: counts by minute of event time, and the count of the clock's last minute by that
minute."""


def counts(rows: DataFrame) -> DataFrame:
    """Turn rows of Spark's Kafka source into one row per payment: its place, its account, and the
    values of the two outputs."""
    parsed = F.from_json(F.col("value").cast("string"), PAYMENT).alias("payment")
    seconds = F.col("at").cast("timestamp").cast("long").alias("event_s")
    # Unchanged when a batch is replayed: Spark stores it with the batch.
    clock = F.current_timestamp().cast("long").alias("clock_s")
    payments = rows.select(*PLACE, parsed).select(*PLACE, "payment.*").dropna()
    return (
        payments.select(*PLACE, "account", seconds, clock)
        .groupBy("account")
        .applyInPandasWithState(count_up, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout)
    )


def count_up(
    key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Turn one account's new payments and its counts so far into two values per payment."""
    payments = pd.concat(list(frames)).sort_values(PLACE)
    counts_so_far: dict[str, dict[str, int]] = (
        json.loads(state.get[0]) if state.exists else {"event": {}, "clock": {}}
    )
    values: dict[str, list[bytes]] = {"event": [], "clock": []}
    for event_s, clock_s in zip(payments["event_s"], payments["clock_s"], strict=True):
        for name, seconds in (("event", int(event_s)), ("clock", int(clock_s))):
            window = window_of(seconds)
            count = counts_so_far[name].get(window, 0) + 1
            if name == "clock" and count == 1:
                # Batches begin one after the other, so a past minute of the clock does not return.
                counts_so_far[name].clear()
            counts_so_far[name][window] = count
            values[name].append(count_text(key[0], window, count))
    state.update((json.dumps(counts_so_far),))
    yield payments[PLACE].assign(account=key[0], **values)


def window_of(seconds: int) -> str:
    """Return the start of the minute that contains a time."""
    return f"{datetime.fromtimestamp(seconds // WINDOW_S * WINDOW_S, UTC):%Y-%m-%dT%H:%M:%SZ}"


def count_text(account: str, window: str, count: int) -> bytes:
    """Return an output's value."""
    return json.dumps({"account": account, "window": window, "count": count}).encode()


def check_values(cluster: Cluster, topics: Mapping[str, str]) -> dict[str, StageVerdict]:
    """Check the counts, by the scenario's name of a sink.

    This process counts again from what a read_committed consumer receives. Raises ClusterError;
    TopicError, also RecordTooLarge.
    """
    due: dict[str, bytes] = {}
    counts_so_far: Counter[tuple[str, str]] = Counter()
    foreign, budget = 0, RecordBudget(COUNTS_BYTES_MAX)
    for message in _read(cluster, topics["payments"]):
        payment = _account_and_window(as_bytes(message.value()))
        if payment is None:
            foreign += 1
            continue
        counts_so_far[payment] += 1
        place = f"{message.topic()}/{message.partition()}/{message.offset()}"
        due[place] = count_text(*payment, counts_so_far[payment])
        budget.hold(place.encode(), due[place])
        if budget.is_spent:
            return {BY_EVENT_TIME: TOO_MANY, BY_CLOCK: NOT_RECOUNTED}
    looked_at = wrong = 0
    for message in _read(cluster, topics[BY_EVENT_TIME]):
        lineage = _lineage(message)
        place = "" if lineage is None else "{}/{}/{}".format(*lineage)
        looked_at += 1
        wrong += due.get(place) != message.value()
    holds = Outcome.UNKNOWN if not looked_at else Outcome.VIOLATED if wrong else Outcome.HOLDS
    why = f"{wrong:,} of {looked_at:,} counts differ from a recount of the payments."
    if foreign:
        why += f" Records of the source that the recount cannot read as payments: {foreign:,}."
    return {
        BY_EVENT_TIME: StageVerdict(holds, why),
        BY_CLOCK: NOT_RECOUNTED,
    }


def _account_and_window(value: bytes | None) -> tuple[str, str] | None:
    """Return a payment's account and minute; None for what is no payment. Whoever may write to the
    source can put anything there, and no record of theirs may take the run's verdict away."""
    try:
        payment = json.loads(value or b"")
        account, at = payment["account"], datetime.fromisoformat(payment["at"])
        window = window_of(int(at.timestamp()))
    except (ValueError, LookupError, TypeError, OverflowError, OSError, RecursionError):
        return None
    return (account, window) if isinstance(account, str) else None


def _lineage(message: Message) -> Lineage | None:
    try:
        return lineage_of((name, as_bytes(value)) for name, value in headers_in(message))
    except NotText:
        return None


def _read(cluster: Cluster, topic: str) -> Iterator[Message]:
    """Yield a topic's messages, partition by partition, in offset order."""
    for p in cluster.bounds(topic).partitions:
        yield from read_records(
            cluster.address, topic, READ_COMMITTED, {p.partition: (p.start, p.lso)}
        )
