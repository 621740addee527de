"""Open: a foreign producer leaves a transaction open in every partition of the sink.

It loses nothing, but no read_committed consumer gets past its first record. The last stable offset
does not move until the transaction is aborted or expires. Its records have no lineage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import REQUEST_TIMEOUT_MS
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import cluster_error
from topicproof.backend.kafka.transaction import TransactionalProducer

TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
EXPIRED_WITHIN_S = 60.0
"""The coordinator looks for expired transactions every 10 s."""
LOOK_S = 0.1
FOREIGN_TIMEOUT_MS = 60_000
LONGEST_TIMEOUT_MS = 900_000
"""The longest timeout that brokers allow by default (`transaction.max.timeout.ms`)."""


def leave_open(
    cluster: Cluster,
    topic: str,
    expires_after_s: int | None = None,
    timeout_ms: int = FOREIGN_TIMEOUT_MS,
) -> Callable[[], str]:
    """Open the transaction. Returns a function that aborts it, or waits for its expiry, and
    describes how much it withheld. If this process is killed, the coordinator aborts it after
    `timeout_ms`.

    Raises ClusterError when a partition does not take the record.
    """
    if expires_after_s is not None:
        timeout_ms = expires_after_s * 1000
    # Reports of successful deliveries give its records' offsets. Other producers turn these reports
    # off.
    every = {"delivery_report_only_error": False}
    foreign = TransactionalProducer(cluster.address, f"{topic}-foreign", timeout_ms, **every)
    opened: dict[int, int] = {}
    """Offset of the open transaction's record, by partition."""

    def delivered(error: KafkaError | None, message: Message) -> None:
        foreign.heard(error, message)
        if error is None:
            opened[message.partition() or 0] = message.offset() or 0

    try:
        foreign.__enter__()
        foreign.producer.begin_transaction()
        for partition in cluster.partitions(topic):
            foreign.producer.produce(
                topic, b"left open on purpose", partition=partition, on_delivery=delivered
            )
        foreign.flush()
    except KafkaException as error:
        raise cluster_error(
            error, cluster.address, f"leaving a transaction open in {topic}"
        ) from error

    def end() -> str:
        # Only from the open record on: another transaction withholds what lies before it. If it has
        # already expired, it withheld at least its own records.
        stands = [
            p for p in cluster.bounds(topic).partitions if p.lso <= opened.get(p.partition, -1)
        ]
        withheld = max(len(opened), sum(p.hw - opened[p.partition] for p in stands))
        if expires_after_s is None:
            foreign.abort()
        foreign.__exit__(None, None, None)
        _wait_until_released(cluster, topic, opened)
        how = "aborted" if expires_after_s is None else "expired"
        return f"it withheld {withheld:,} offsets of {topic}, and was {how}"

    return end


def _wait_until_released(cluster: Cluster, topic: str, opened: Mapping[int, int]) -> None:
    """Wait until the last stable offset has passed the open transaction's record everywhere."""
    deadline = time.monotonic() + EXPIRED_WITHIN_S
    while any(p.lso <= opened.get(p.partition, -1) for p in cluster.bounds(topic).partitions):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"The transaction left open in {topic} did not end within {EXPIRED_WITHIN_S:.0f} s."
            )
        time.sleep(LOOK_S)
