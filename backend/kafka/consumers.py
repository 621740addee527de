"""The consumers of confluent-kafka, and its errors as sentences. No other module makes a consumer,
so each one either reads records whose sizes are limited, or reads none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.bounded import RESOURCES
from topicproof.backend.kafka.client_configs import READ_COMMITTED, FetchLimits, consumer_config

GROUP = "topicproof"
"""Every consumer must name a group. Nothing is committed to this one, so the cluster never stores
it."""
_UNDECODABLE = {KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG}
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
}


def record_consumer(
    address: Address,
    isolation: str,
    limits: FetchLimits,
    group: str = GROUP,
    from_earliest: bool = False,
) -> Consumer:
    """Return a consumer that reads records. `limits` come from the sizes of what it will read
    (reading.py): the client decompresses whole responses, and stops at no size.

    `from_earliest`: begin with the first record left if the requested one was deleted.
    """
    reset = {"auto.offset.reset": "earliest"} if from_earliest else {}
    return Consumer({**consumer_config(address, group, isolation), **limits, **reset})


def offset_consumer(address: Address, group: str, isolation: str = READ_COMMITTED) -> Consumer:
    """Return a consumer for offsets and membership. It must not be assigned a partition, unless
    that is paused: nobody has measured what it would read."""
    return Consumer(consumer_config(address, group, isolation))


@contextmanager
def reading_errors(address: Address, topic: str) -> Iterator[None]:
    """Raise ClusterError for an error of the client that reads a topic."""
    try:
        yield
    except KafkaException as error:
        raise cluster_error(error, address, f"reading {topic}", f"Read on topic {topic}") from error


def cluster_error(
    error: KafkaException, address: Address, doing: str, right: str | None = None
) -> ClusterError:
    """Describe a client's error: unreachable, or refused with the broker's own words. `right` is
    the ACL that this needs: its operation and resource."""
    cause: KafkaError = error.args[0]
    if cause.code() in RESOURCES:
        return address.not_allowed(right or f"a right on {RESOURCES[cause.code()]} (while {doing})")
    if is_unreachable(error):
        return ClusterError(
            f"No Kafka broker answers at {address} (while {doing}). Check the address and that"
            " Kafka runs."
        )
    if cause.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
        return ClusterError(
            f"Kafka at {address} refused while {doing}: another consumer is a member of the group."
            " Stop the consumers of this group, and start this again."
        )
    return ClusterError(
        f"Kafka at {address} refused while {doing}: {cause.str()} ({cause.name()})."
    )


def is_undecodable(error: ClusterError) -> bool:
    """Return whether the client could not decode what a broker sent."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in _UNDECODABLE


def is_unreachable(error: BaseException) -> bool:
    """Return whether the client had no answer."""
    return isinstance(error, KafkaException) and error.args[0].code() in _UNREACHABLE
