"""Attempts: a source in which every transaction was aborted once before it committed.

A read_uncommitted consumer of it processes inputs that were never committed.
"""

from __future__ import annotations

from confluent_kafka import KafkaException

from topicproof.backend.kafka.cluster import Cluster, cluster_error
from topicproof.backend.kafka.transaction import TransactionalProducer


def fill_with_attempts(cluster: Cluster, topic: str, records: int, per_transaction: int) -> None:
    """Append the integers below `records`, as text in key and value. Raises ClusterError,
    SinkError."""
    try:
        with TransactionalProducer(cluster.address, f"{topic}-fill") as producer:
            for first in range(0, records, per_transaction):
                numbers = range(first, min(first + per_transaction, records))
                producer.producer.begin_transaction()
                _produce(producer, topic, numbers)
                producer.flush()
                producer.abort()
                with producer.transaction():
                    _produce(producer, topic, numbers)
    except KafkaException as error:
        raise cluster_error(error, cluster.address, f"filling {topic}") from error


def _produce(producer: TransactionalProducer, topic: str, numbers: range) -> None:
    for number in numbers:
        text = str(number).encode()
        producer.produce([(topic, text, text, [])])
