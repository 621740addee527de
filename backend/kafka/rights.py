"""What librdkafka's errors say about missing ACLs."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

RESOURCES = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster",
}
"""What a missing ACL is about, by the brokers' error."""
GROUP_ANSWER_S = 2.0
GROUP_PROBE = "topicproof"
"""A topic whose offset is asked only to reach the group's coordinator. It need not exist."""


def require_group(consumer: Consumer) -> None:
    """Raises KafkaException if the brokers do not let this client use the consumer's group.

    librdkafka then looks for the coordinator forever, and a commit hangs with it (its issue 5456).
    Only the consumer's queue shows what the brokers answered.
    """
    try:
        consumer.committed([TopicPartition(GROUP_PROBE, 0)], timeout=GROUP_ANSWER_S)
    except KafkaException:
        message = consumer.poll(0)
        error = message.error() if message is not None else None
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(error) from None
