"""Member: another consumer joins the run's group and owns the source's partitions.

The sink never joins the group. While the group has a member, Kafka refuses offsets that are
committed outside of transactions by anybody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import cluster_error, offset_consumer

JOINED_WITHIN_S = 30.0
POLL_S = 0.1


def join(cluster: Cluster, group: str, topic: str) -> Callable[[], str]:
    """Join the group and wait for partitions. Returns a function that leaves it.

    Raises ClusterError if the group gives it no partitions in time.
    """
    consumer = offset_consumer(cluster.address, group)
    deadline = time.monotonic() + JOINED_WITHIN_S
    try:
        consumer.subscribe([topic], on_assign=_own)
        while not consumer.assignment():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"Group {group} gave a new member no partition of {topic} within"
                    f" {JOINED_WITHIN_S:.0f} s."
                )
            consumer.poll(POLL_S)
        owned = len(consumer.assignment())
    except KafkaException as error:
        consumer.close()
        raise cluster_error(error, cluster.address, f"joining group {group}") from error
    except ClusterError:
        consumer.close()
        raise

    def leave() -> str:
        consumer.close()
        return f"a member of group {group} owned {owned} partitions of {topic}, and left"

    return leave


def _own(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Take the partitions, and read nothing from them."""
    consumer.assign(partitions)
    consumer.pause(partitions)
