"""A Kafka cluster's topics, groups and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka.admission import open_admin, require_admitted
from topicproof.backend.kafka.bounded import TIMEOUT_S, bounded, require_group
from topicproof.backend.kafka.client_configs import TRANSACTION_TIMEOUT_MS
from topicproof.backend.kafka.consumers import cluster_error, is_unreachable, offset_consumer
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.waiting import ask_until
from topicproof.validators.finding import Bounds, PartitionBounds

GONE_TIMEOUT_S = 30.0
HIDDEN_TIMEOUT_S = TRANSACTION_TIMEOUT_MS / 1000 + 30
"""How long an open transaction may hide a group's offset (KIP-447): until it times out, and its
coordinator, which looks every ten seconds, has aborted it. Only while brokers answer."""
ANY_ANSWER_S = 2.0
TXN_OFFSET_COMMIT = 28
TXN_OFFSET_COMMIT_VERSION_MIN = 3
Answer = TypeVar("Answer")
_NOT_READY_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._WAIT_COORD,
    # Offsets are committed by us as no member. As long as the group has one, they are refused.
    KafkaError.UNKNOWN_MEMBER_ID,
}
_EARLIEST = cast(OffsetSpec, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
_LATEST = cast(OffsetSpec, OffsetSpec.latest())  # type: ignore[no-untyped-call]
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

COUNTER = "counter"
"""Metadata of a committed offset that only counts: its group reads nothing there."""


@dataclass
class Cluster:
    """One cluster and its admin client."""

    address: Address

    def __post_init__(self) -> None:
        self.admin = open_admin(self.address)
        self.asking: dict[str, Consumer] = {}
        """Consumers by group."""
        self.made: set[str] = set()
        """Topics that exist because this object created them."""

    def check(self) -> None:
        """Raises ClusterError when no broker answers, or the brokers are too old for our
        transactions."""
        from topicproof.backend.kafka.log import rawlog  # late: the sink needs no kafka-python

        with rawlog.connect(self.address) as kafka:
            require_transactions(self.address, kafka.api_versions)

    def topics(self) -> list[str]:
        """Return the names of all topics except Kafka's own, sorted."""
        with self._translated():
            return sorted(set(self.admin.list_topics(timeout=TIMEOUT_S).topics) - INTERNAL_TOPICS)

    def partitions(self, topic: str) -> list[int]:
        """Raises TopicError when the topic does not exist."""

        def ask() -> list[int]:
            with self._translated():
                metadata = self.admin.list_topics(timeout=TIMEOUT_S).topics.get(topic)
            return [] if metadata is None else sorted(metadata.partitions)

        # A broker that has just started learns of a new topic later than the others.
        partitions = ask_until(ask, bool, GONE_TIMEOUT_S if topic in self.made else 0)
        if not partitions:
            raise self.address.missing(topic)
        return partitions

    def create_topic(
        self, topic: str, partitions: int, exists_ok: bool = False, **config: str
    ) -> None:
        """Create a topic with the cluster's default replication. Raises TopicError when it exists,
        unless `exists_ok`."""
        new = NewTopic(topic, partitions, config=config)
        with self._translated(f"creating topic {topic}", f"Create on topic {topic}"):
            try:
                self.admin.create_topics([new], operation_timeout=TIMEOUT_S)[topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                if not exists_ok:
                    raise TopicError(
                        f"Topic {topic} already exists. Choose another name, or delete it."
                    ) from error
                return
        _wait(
            lambda: self._ready(topic, partitions),
            f"Topic {topic} was created but has no leader yet",
        )
        self.made.add(topic)

    def add_partition(self, topic: str) -> None:
        """Add one partition to a topic, and wait until it has a leader."""
        count = len(self.partitions(topic)) + 1
        with self._translated(f"adding a partition to topic {topic}"):
            additions = [NewPartitions(topic, count)]
            self.admin.create_partitions(additions, operation_timeout=TIMEOUT_S)[topic].result()
        _wait(
            lambda: self._ready(topic, count),
            f"A partition was added to topic {topic} but has no leader yet",
        )

    def delete_topics(self, topics: Iterable[str]) -> list[str]:
        """Delete the topics that exist and wait until they are gone; returns their names."""
        existing = sorted(set(topics) & set(self.topics()))
        self.made.difference_update(existing)
        if existing:
            with self._translated("deleting topics", f"Delete on topic {existing[0]}"):
                for future in self.admin.delete_topics(
                    existing, operation_timeout=TIMEOUT_S
                ).values():
                    future.result()
            _wait(
                lambda: not set(existing) & set(self.topics()),
                "The topics were deleted but are still listed",
            )
        return existing

    def bounds(self, topic: str) -> Bounds:
        """Return every partition's log start, last stable offset and high watermark, requested in
        that order."""
        partitions = self.partitions(topic)
        start = self._offsets(topic, partitions, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)
        lso = self._offsets(topic, partitions, _LATEST, IsolationLevel.READ_COMMITTED)
        hw = self._offsets(topic, partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        return Bounds(topic, tuple(PartitionBounds(p, start[p], lso[p], hw[p]) for p in partitions))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offset of every partition that has one. Waits for offsets in
        an open transaction."""
        partitions = self.partitions(topic)

        def ask(consumer: Consumer) -> list[TopicPartition]:
            # New objects for each try: the client writes the answers into them.
            return consumer.committed(
                [TopicPartition(topic, p) for p in partitions], timeout=TIMEOUT_S
            )

        offsets = self._of_group(
            group, ask, f"reading the offsets of group {group}", f"Describe on group {group}"
        )
        return {each.partition: each.offset for each in offsets if each.offset != OFFSET_INVALID}

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], metadata: str = ""
    ) -> None:
        """Set the group's offsets, outside any transaction. Waits for members to leave the group.

        Raises ClusterError if a member stays, and when the client hangs. A new client must not
        retry: the first commit may still arrive after the second.
        """

        def ask(consumer: Consumer) -> list[TopicPartition]:
            commits = [
                TopicPartition(topic, p, offset, metadata=metadata)
                for p, offset in sorted(offsets.items())
            ]
            return consumer.commit(offsets=commits, asynchronous=False) or []

        right = f"Read on group {group} and topic {topic}"
        self._of_group(group, ask, f"committing offsets of group {group}", right, again=False)

    def delete_group(self, group: str, patience_s: float = 0) -> None:
        """Delete a group, if it exists. Waits `patience_s` for its members to leave: a dead one
        remains for its session timeout. Raises ClusterError."""

        def refusal() -> KafkaException | None:
            try:
                self.admin.delete_consumer_groups([group])[group].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                    return error
            return None

        def settled(error: KafkaException | None) -> bool:
            return error is None or error.args[0].code() != KafkaError.NON_EMPTY_GROUP

        with self._translated(f"deleting group {group}", f"Delete on group {group}"):
            refused = ask_until(refusal, settled, patience_s)
            if refused is not None:
                raise refused

    def _of_group(
        self,
        group: str,
        ask: Callable[[Consumer], list[TopicPartition]],
        doing: str,
        right: str,
        again: bool = True,
    ) -> list[TopicPartition]:
        """Read or commit the group's offsets through a consumer that is not a member. If `again`, a
        new consumer replaces a hung one."""

        # Not by the admin client: librdkafka 2.16 aborts the whole process when the admin client
        # cannot send a request to a coordinator (its issues 4605 and 3663, pull request 5397: an
        # assertion in rd_kafka_enq_once_del_source_return). It happened within seconds of every
        # kill, and with a coordinator that had just started.
        def once() -> list[TopicPartition]:
            try:
                if group not in self.asking:
                    asking = offset_consumer(self.address, group)
                    if self.address.client:
                        bounded(partial(require_group, asking))
                    self.asking[group] = asking
                return _without_errors(bounded(partial(ask, self.asking[group])))
            except TimeoutError as error:
                self.asking.pop(group, None)
                if not again:
                    raise ClusterError(
                        f"The Kafka client hung (while {doing}). Run this again."
                    ) from error
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
            except KafkaException as error:
                if is_unreachable(error):
                    # It may stick to a coordinator that is gone; a new consumer looks up the
                    # current one.
                    self.asking.pop(group, None)
                raise

        return self._retrying(once, doing, right, HIDDEN_TIMEOUT_S if again else GONE_TIMEOUT_S)

    def fence_and_abort(self, transactional_ids: Iterable[str]) -> None:
        """Fence the last holder of every id and abort its open transaction, so that no last stable
        offset waits for it. Raises ClusterError if the coordinator does not let this client."""

        def take_over(transactional_id: str) -> None:
            with (
                self._translated(
                    f"taking over transactional id {transactional_id}",
                    f"Write on transactional id {transactional_id}",
                ),
                TransactionalProducer(self.address, transactional_id),
            ):
                pass  # Entering calls init_transactions, which fences and aborts.

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(take_over, transactional_ids))

    def _ready(self, topic: str, partitions: int) -> bool:
        metadata = self.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        return len(metadata.partitions) == partitions and all(
            p.leader >= 0 for p in metadata.partitions.values()
        )

    def _offsets(
        self, topic: str, partitions: list[int], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[int, int]:
        def ask() -> dict[int, int]:
            futures = self.admin.list_offsets(
                {TopicPartition(topic, p): spec for p in partitions}, isolation_level=isolation
            )
            return {each.partition: future.result().offset for each, future in futures.items()}

        doing = f"asking for the offsets of {topic}"
        # A broker that has just started learns of a new topic later than the others.
        unknown = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT})
        return self._retrying(ask, doing, f"Describe on topic {topic}", also=unknown)

    def _retrying(
        self,
        ask: Callable[[], Answer],
        doing: str,
        right: str,
        patience_s: float = GONE_TIMEOUT_S,
        also: frozenset[int] = frozenset(),
    ) -> Answer:
        """Ask again while a broker is not ready yet: a coordinator loads, or a leader moves.
        `also`: further errors of a broker that is not ready.

        Also while one broker is silent and others answer: until the controller misses its
        heartbeat, clients are still directed to it.
        """
        retrying = Retrying(
            retry=retry_if_exception(
                lambda error: _not_ready(error, also) or (is_unreachable(error) and self.answers())
            ),
            stop=stop_after_delay(patience_s),
            wait=wait_exponential(0.05, max=1),
            reraise=True,
        )
        with self._translated(doing, right):
            return retrying(ask)

    def answers(self, topic: str | None = None, timeout_s: float = ANY_ANSWER_S) -> bool:
        """Return whether any broker answers now. It is asked for one topic only, if one is
        given."""
        try:
            self.admin.list_topics(topic, timeout=timeout_s)
        except KafkaException:
            return False
        return True

    @contextmanager
    def _translated(
        self, doing: str = "asking for its topics", right: str | None = None
    ) -> Iterator[None]:
        require_admitted(self.address)
        try:
            yield
        except KafkaException as error:
            raise cluster_error(error, self.address, doing, right) from error


def require_transactions(address: Address, spoken: Mapping[int, tuple[int, int]]) -> None:
    """Raises ClusterError unless transactions can carry consumer offsets with the group's metadata
    (KIP-447, TxnOffsetCommit version 3).

    `spoken` are a broker's API versions (lowest, highest) by API key.
    """
    if spoken.get(TXN_OFFSET_COMMIT, (0, -1))[1] < TXN_OFFSET_COMMIT_VERSION_MIN:
        raise ClusterError(
            f"The brokers at {address} are too old for transactions that carry consumer offsets "
            "(KIP-447): Apache Kafka 2.5 or later is needed."
        )


def _without_errors(partitions: list[TopicPartition]) -> list[TopicPartition]:
    for partition in partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)
    return partitions


def _not_ready(error: BaseException, also: frozenset[int] = frozenset()) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _NOT_READY_YET | also


def _wait(condition: Callable[[], bool], message: str) -> None:
    if not ask_until(condition, bool, GONE_TIMEOUT_S):
        raise ClusterError(f"{message} (after {GONE_TIMEOUT_S:.0f} s).")


def require_records(bounds: Bounds) -> None:
    """Raises TopicError when a read_committed consumer could read no record."""
    if all(p.lso <= p.start for p in bounds.partitions):
        raise TopicError(
            f"Topic {bounds.topic} holds no record that a read_committed consumer could read. Fill"
            " it first."
        )
