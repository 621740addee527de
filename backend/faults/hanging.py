"""Open: a foreign producer leaves a transaction open in every partition of the sink.

Nothing is lost by it, yet no read_committed consumer gets past its first record: the last stable offset stands still
until the transaction is aborted or expires. Its records bear no lineage of ours; aborted, nobody ever receives them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from backend.errors import ClusterError
from backend.kafka.cluster import Cluster, cluster_error
from backend.kafka.transaction import TransactionalProducer
from backend.settings import REQUEST_TIMEOUT_MS

TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
EXPIRED_WITHIN_S = 60.0
"""The coordinator looks for expired transactions every 10 s."""
LOOK_S = 0.1
FOREIGN_TIMEOUT_MS = 60_000


def leave_open(cluster: Cluster, topic: str, expires_after_s: int | None = None) -> Callable[[], str]:
    """Open the transaction; gives what ends it: an abort, or waiting until it has expired. That says in words how long
    the last stable offset stood still.

    Raises ClusterError when a partition does not take the record.
    """
    timeout_ms = FOREIGN_TIMEOUT_MS if expires_after_s is None else expires_after_s * 1000
    foreign = TransactionalProducer(cluster.bootstrap, cluster.client, f"{topic}-foreign", timeout_ms)
    try:
        foreign.__enter__()
        foreign.producer.begin_transaction()
        for partition in cluster.partitions(topic):
            foreign.producer.produce(topic, b"left open on purpose", partition=partition)
        foreign.flush()
    except KafkaException as error:
        raise cluster_error(error, cluster.bootstrap, f"leaving a transaction open in {topic}") from error

    def end() -> str:
        bounds = cluster.bounds(topic)
        withheld = sum(p.hw - p.lso for p in bounds.partitions)
        if expires_after_s is None:
            foreign.abort()
        foreign.__exit__(None, None, None)
        stood = {p.partition: p.lso for p in bounds.partitions}
        _wait_until_moved(cluster, topic, stood)
        how = "aborted" if expires_after_s is None else "expired"
        return f"it withheld {withheld} offsets of {topic}, and was {how}"

    return end


def _wait_until_moved(cluster: Cluster, topic: str, stood: dict[int, int]) -> None:
    deadline = time.monotonic() + EXPIRED_WITHIN_S
    while any(p.lso <= stood[p.partition] for p in cluster.bounds(topic).partitions):
        if time.monotonic() > deadline:
            raise ClusterError(f"The transaction left open in {topic} did not end within {EXPIRED_WITHIN_S:.0f} s.")
        time.sleep(LOOK_S)
