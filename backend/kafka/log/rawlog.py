"""The raw log: bounds and batch headers as the broker stores them, read with kafka-python's Fetch
requests.

Batch headers show what no consumer shows: the producer of a range, whether it was in a transaction,
and how each transaction ended (control batches). No record is decoded, so a scan runs at network
speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka import TopicPartition
from kafka.errors import (
    InvalidTopicError,
    KafkaError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.protocol.consumer import FetchRequest, IsolationLevel, OffsetSpec
from kafka.protocol.metadata import MetadataRequest
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.log.batches import (
    ROW,
    SCHEMA,
    Headers,
    batch_positions,
    batch_rows,
    cut,
    cut_unread,
    require_crc,
    table,
)
from topicproof.backend.kafka.log.client import open_client
from topicproof.backend.kafka.log.inflation import (
    UnreadableBatch,
    inflated_sizes,
    not_whole,
    refusals,
    unreadable,
)
from topicproof.backend.waiting import ask_until
from topicproof.validators.finding import Bounds, PartitionBounds

PARTITION_BYTES_MAX = 4_000_000
"""Maximum bytes of one partition in a response; a larger single batch still comes whole
(KIP-74)."""
RESPONSE_BYTES_MAX = 8_000_000
"""Larger responses measured slower, because each one needs fresh memory."""
BATCHES_MAX = 20_000_000
"""Batches of one topic that are examined: about 10 GB, 500 bytes each at the peak."""
NEW_TOPIC_PATIENCE_S = 1.0
"""A new topic may be unknown to some brokers; after this long it counts as missing."""
RETRY_PAUSE_S = 0.1
FAILOVER_TIMEOUT_S = 20.0
"""How long a partition may have no leader. A killed broker goes unnoticed for its session of 9
s."""
FETCH_VERSION_MIN = 5
"""The first version with the log start offset."""
FETCH_VERSION_MAX = 12
"""The last version that names topics; later ones use topic ids (KIP-516)."""
METADATA_VERSION_MIN = 4
"""The first version that can ask about a topic without creating it."""

UNCOMMITTED, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
LATEST, EARLIEST = OffsetSpec.LATEST, OffsetSpec.EARLIEST

Answer = TypeVar("Answer")


def fetch_bounds(address: Address, topic: str) -> Bounds:
    """Return the topic's bounds at one moment: log start, LSO and HW of a partition come from one
    Fetch response.

    Raises TopicError for a topic that does not exist, ClusterError when no broker answers.
    """
    with connect(address) as kafka:
        return kafka.bounds(topic)


def scan(
    address: Address,
    topic: str,
    bounds: Bounds,
    since: pa.Table | None = None,
    check_crc: bool = False,
    readable: bool = False,
) -> pa.Table:
    """Return one row (`batches.SCHEMA`) per record batch within the bounds, by partition and
    offset. Timestamps are in ms.

    `since` is an earlier table of the same topic: only missing batches are read, but all are
    returned. A batch that crosses the bounds is cut: after DeleteRecords the log may start inside a
    batch. Then `base_offset`, `count` and `first_timestamp` describe only the records inside, but
    `size` the stored batch. `check_crc` verifies the checksum of every batch read
    (`batches.require_crc` has the cost). `readable`: refuse what would exhaust a reader's memory
    (inflation.py).

    Raises TopicError for a missing topic, for more than `BATCHES_MAX` batches, or for records in a
    format older than Kafka 0.11's, ClusterError otherwise.
    """
    with connect(address) as kafka:
        return kafka.scan(topic, bounds, since, check_crc, readable=readable)


@contextmanager
def connect(
    address: Address, new_topic_patience_s: float = NEW_TOPIC_PATIENCE_S
) -> Iterator[Connection]:
    """Open one client of the cluster for several questions. `new_topic_patience_s`: how long a
    broker may not know a topic yet. Raises ClusterError, also for errors inside the block."""
    with open_client(address) as (admin, net):
        yield Connection(address, admin, net, new_topic_patience_s)


@dataclass(frozen=True)
class Connection:
    """An open client; made by `connect`. Its methods raise kafka-python's errors, which `connect`
    translates."""

    address: Address
    admin: Any
    """kafka-python's admin client."""
    net: Any
    new_topic_patience_s: float = NEW_TOPIC_PATIENCE_S

    @property
    def api_versions(self) -> dict[int, tuple[int, int]]:
        """The versions (lowest, highest) that the brokers offer of each request, by API key."""
        # The admin client's own method raises ValueError for a key that is newer than the library.
        spoken: dict[int, tuple[int, int]] = self.net._manager.broker_version_data.api_versions
        return spoken

    def bounds(self, topic: str) -> Bounds:
        """See `fetch_bounds`."""

        def ask() -> Bounds:
            leaders = self.leaders(topic)
            # A Fetch must name a valid offset, and the high watermark always is one.
            ends = self._offsets(topic, leaders, LATEST, UNCOMMITTED)
            answers = self._fetch(topic, leaders, ends, partition_bytes=1)
            return Bounds(
                topic, tuple(_partition_bounds(answers[partition]) for partition in sorted(answers))
            )

        bounds = self.with_retries(ask)
        complete = all(p.start >= 0 and p.lso >= 0 for p in bounds.partitions)
        return bounds if complete else self.bounds_in_order(topic)

    def bounds_in_order(self, topic: str) -> Bounds:
        """Return the same bounds by three requests, for brokers whose Fetch responses lack one of
        the three.

        The order is start, LSO, HW, so that start <= LSO <= HW holds even if all three move.
        """

        def ask() -> Bounds:
            leaders = self.leaders(topic)
            starts = self._offsets(topic, leaders, EARLIEST, UNCOMMITTED)
            stable = self._offsets(topic, leaders, LATEST, COMMITTED)
            ends = self._offsets(topic, leaders, LATEST, UNCOMMITTED)
            return Bounds(
                topic,
                tuple(PartitionBounds(p, starts[p], stable[p], ends[p]) for p in sorted(leaders)),
            )

        return self.with_retries(ask)

    def scan(
        self,
        topic: str,
        bounds: Bounds,
        since: pa.Table | None = None,
        check_crc: bool = False,
        part_of: Bounds | None = None,
        readable: bool = False,
        batches_max: int | None = None,
        on_unreadable: Callable[[UnreadableBatch], None] | None = None,
    ) -> pa.Table:
        """See `scan`. `batches_max`: fewer than `BATCHES_MAX`. With `part_of`, `bounds` are a part
        of it. Then only batches that begin in `bounds` are returned, and they are cut only at the
        edges of `part_of`. `on_unreadable` gets each batch that `readable` refuses; the scan goes
        on then."""
        existing, spans = missing_spans(bounds, since)
        edges = {p.partition: (p.start, p.hw) for p in part_of.partitions} if part_of else {}
        parts: list[Headers] = []
        scanned, batches_max = len(existing), batches_max or BATCHES_MAX
        served = time.monotonic()
        while spans:
            got = self.with_retries(lambda: self._fetch_spans(topic, spans))
            for partition, answer in got.items():
                span = spans[partition][0]
                rows, reached = self._read(
                    topic,
                    partition,
                    span,
                    edges=edges.get(partition, span),
                    answer=answer,
                    check_crc=check_crc,
                    readable=readable,
                    on_unreadable=on_unreadable,
                )
                if reached is None:
                    continue
                # A broker that repeats the same batch for ever serves nothing.
                served = time.monotonic() if reached > span[0] else served
                parts.append(rows)
                scanned += len(rows)
                if scanned > batches_max:
                    raise self.address.too_large(topic, batches_max)
                # A partition that was served goes to the end of the queue: a response has room for
                # only a few partitions.
                queue = spans.pop(partition)
                queue[0] = (reached, queue[0][1])
                remaining = [span for span in queue if span[0] < span[1]]
                if remaining:
                    spans[partition] = remaining
            if not any(answer.records or answer.error_code for answer in got.values()):
                time.sleep(RETRY_PAUSE_S)
            if time.monotonic() - served > FAILOVER_TIMEOUT_S:
                partition, queue = next(iter(spans.items()))
                raise self._not_served(topic, partition, (queue[0][0], queue[-1][1]))
        return table(existing, parts)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the broker that leads each partition. Raises TopicError for a topic that does not
        exist."""
        (topic_metadata,) = self.metadata(topic).topics
        for partition in topic_metadata.partitions:
            if partition.leader_id < 0:
                raise for_code(partition.error_code)(
                    f"partition {partition.partition_index} has no leader"
                )
        return {
            partition.partition_index: partition.leader_id
            for partition in topic_metadata.partitions
        }

    def metadata(self, topic: str) -> Any:
        """Return the Metadata response for one topic. Raises TopicError for a topic that does not
        exist."""

        def ask() -> Any:
            return self._metadata([MetadataRequest.MetadataRequestTopic(name=topic)])

        def is_known(answer: Any) -> bool:
            return for_code(answer.topics[0].error_code) is not UnknownTopicOrPartitionError

        answer = ask_until(ask, is_known, self.new_topic_patience_s, RETRY_PAUSE_S)
        error = for_code(answer.topics[0].error_code)
        if error is TopicAuthorizationFailedError:
            raise self.address.not_allowed(f"Describe on topic {topic}")
        if error in (UnknownTopicOrPartitionError, InvalidTopicError):
            raise self.address.missing(topic)
        if answer.topics[0].error_code:
            raise error(f"metadata of {topic}")
        return answer

    def metadata_of_all(self) -> Any:
        """Return the Metadata response for all topics."""
        return self._metadata(None)

    def _metadata(self, topics: Sequence[Any] | None) -> Any:
        """Return the Metadata response. Only this function asks for one, and it creates no
        topic."""
        request = MetadataRequest(
            topics=topics, allow_auto_topic_creation=False, min_version=METADATA_VERSION_MIN
        )
        return self.send({None: request})[None]

    def send(self, requests: Mapping[int | None, Any]) -> dict[int | None, Any]:
        """Send one request to each broker, all at the same time; None means any broker."""
        # No public method sends a given request; the library's version is pinned.
        manager = self.net._manager

        async def send_all() -> dict[int | None, Any]:
            waiting = {
                node: manager.send(request, node_id=node) for node, request in requests.items()
            }
            return {node: await future for node, future in waiting.items()}

        answers: dict[int | None, Any] = manager.run(send_all)
        return answers

    def ask_coordinators(
        self, groups: Collection[str], request: Callable[[list[str]], Any]
    ) -> list[Any]:
        """Send each group coordinator one request about its groups; return the responses."""
        # No public method finds coordinators.
        nodes = self.net._manager.run(self.admin._find_coordinator_ids, list(groups))
        by_node: dict[int | None, list[str]] = {}
        for group, node in nodes.items():
            by_node.setdefault(node, []).append(group)
        requests = {node: request(names) for node, names in by_node.items()}
        return list(self.send(requests).values())

    def with_retries(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again while a leader moves or a coordinator loads.

        Raises ClusterError if an answer has a word that is newer than the library, such as a state.
        """
        retrying = Retrying(
            retry=retry_if_exception(_passing),
            stop=stop_after_delay(FAILOVER_TIMEOUT_S),
            wait=wait_fixed(RETRY_PAUSE_S),
            after=lambda _state: self._look_again(),
            reraise=True,
        )
        try:
            return retrying(ask)
        except ValueError as error:
            raise ClusterError(
                f"Kafka at {self.address} is newer than this client: {error}."
            ) from error

    def _look_again(self) -> None:
        """Let the library refresh its list of brokers: a leader may be newer than this client."""
        manager = self.net._manager

        async def request() -> None:
            manager.cluster.request_update()

        manager.run(request)

    def _offsets(
        self, topic: str, partitions: Iterable[int], at: OffsetSpec, level: IsolationLevel
    ) -> dict[int, int]:
        places = dict.fromkeys((TopicPartition(topic, p) for p in partitions), at)
        answers = self.admin.list_partition_offsets(places, isolation_level=level)
        return {partition.partition: each.offset for partition, each in answers.items()}

    def _fetch_spans(
        self, topic: str, spans: Mapping[int, Sequence[tuple[int, int]]]
    ) -> dict[int, Any]:
        starts = {partition: queue[0][0] for partition, queue in spans.items()}
        return self._fetch(topic, self.leaders(topic), starts, PARTITION_BYTES_MAX)

    def _fetch(
        self,
        topic: str,
        leaders: Mapping[int, int],
        offsets: Mapping[int, int],
        partition_bytes: int,
    ) -> dict[int, Any]:
        """Fetch one response for each partition. Raises its error, unless the offset is out of
        range; ClusterError for a missing ACL."""
        ask = FetchRequest.FetchTopic
        requests = {
            node: FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=RESPONSE_BYTES_MAX,
                isolation_level=UNCOMMITTED.value,
                topics=[
                    ask(
                        topic=topic,
                        partitions=[
                            ask.FetchPartition(
                                partition=p,
                                fetch_offset=offsets[p],
                                partition_max_bytes=partition_bytes,
                            )
                            for p in partitions
                        ],
                    )
                ],
                min_version=FETCH_VERSION_MIN,
                max_version=FETCH_VERSION_MAX,
            )
            for node, partitions in _by_leader(leaders, list(offsets)).items()
        }
        by_partition = {}
        for answer in self.send(requests).values():
            if answer.error_code:
                raise for_code(answer.error_code)(f"fetch of {topic}")
            for partition in answer.responses[0].partitions:
                error = for_code(partition.error_code)
                if error is TopicAuthorizationFailedError:
                    raise self.address.not_allowed(f"Read on topic {topic}")
                if partition.error_code and error is not OffsetOutOfRangeError:
                    raise error(f"fetch of {topic}-{partition.partition_index}")
                by_partition[partition.partition_index] = partition
        return by_partition

    def _read(
        self,
        topic: str,
        partition: int,
        span: tuple[int, int],
        edges: tuple[int, int],
        answer: Any,
        check_crc: bool,
        readable: bool,
        on_unreadable: Callable[[UnreadableBatch], None] | None,
    ) -> tuple[Headers, int | None]:
        """Return the rows of one response that begin within the span, and the next offset to fetch
        (None if nothing was served).

        The edges contain the span. A batch that crosses an edge is cut there, and begins at the
        cut.
        """
        first, end = span
        if answer.error_code:
            return np.empty(0, ROW), self._first_left(topic, partition, first)
        data, where = memoryview(answer.records or b""), f"{topic}-{partition}"
        positions = batch_positions(data, where)
        if not positions:
            return np.empty(0, ROW), None
        if check_crc:
            require_crc(data, positions, where)
        rows = batch_rows(data, positions, partition)
        reached = int(rows["last_offset"][-1]) + 1
        low, high = edges
        begins = np.maximum(rows["base_offset"], low)
        inside = np.flatnonzero((begins >= first) & (begins < end) & (rows["last_offset"] >= low))
        rows["inflated"] = inflated_sizes(data, positions, rows)
        reasons: dict[int, Exception] = {}
        if readable:
            at = [positions[index] for index in inside]
            for number, error in refusals(rows[inside], data, at, topic):
                if on_unreadable is None:
                    raise error
                reasons[int(inside[number])] = error
        for index in inside.tolist():
            if rows["base_offset"][index] < low or rows["last_offset"][index] >= high:
                row = rows[index]
                try:
                    if index not in reasons:
                        row = cut(row, data[positions[index] :], low, high, where)
                except ClusterError as error:
                    # Small ones are not examined, and their headers alone are no reason to decode.
                    if on_unreadable is None:
                        raise
                    reasons[index] = not_whole(row, topic, error)
                rows[index] = cut_unread(row, low, high) if index in reasons else row
            if on_unreadable is not None and index in reasons:
                on_unreadable(unreadable(rows[index], reasons[index]))
        return rows[inside], max(reached, first)

    def stored_batches(
        self, topic: str, partition: int, span: tuple[int, int]
    ) -> Iterator[tuple[Any, memoryview]]:
        """Yield the row (`ROW`, never cut) and the bytes of each stored batch that reaches into the
        offsets [first, end) of a partition. Raises as `scan`."""
        first, end = span
        served = time.monotonic()
        while first < end:
            ask = partial(self._fetch_spans, topic, {partition: [(first, end)]})
            answer = self.with_retries(ask)[partition]
            reached = first
            if answer.error_code:
                reached = self._first_left(topic, partition, first)
            data = memoryview(answer.records or b"")
            positions = batch_positions(data, f"{topic}-{partition}")
            if positions:
                rows = batch_rows(data, positions, partition)
                rows["inflated"] = inflated_sizes(data, positions, rows)
                for row, position in zip(rows, positions, strict=True):
                    if row["last_offset"] >= first and row["base_offset"] < end:
                        yield row, data[position : position + int(row["size"])]
                reached = int(rows["last_offset"][-1]) + 1
            if reached > first:
                first, served = reached, time.monotonic()
            elif time.monotonic() - served > FAILOVER_TIMEOUT_S:
                raise self._not_served(topic, partition, (first, end))
            else:
                time.sleep(RETRY_PAUSE_S)

    def _not_served(self, topic: str, partition: int, span: tuple[int, int]) -> ClusterError:
        return ClusterError(
            f"Partition {partition} of {topic} at {self.address} returned nothing from offset"
            f" {span[0]} on, although its log ends at {span[1]}. Try again."
        )

    def _first_left(self, topic: str, partition: int, offset: int) -> int:
        """Return the log start if `offset` was deleted. Deleted offsets are not an error."""
        start = self._offsets(topic, [partition], EARLIEST, UNCOMMITTED)[partition]
        if start <= offset:
            raise ClusterError(
                f"The log of partition {partition} of {topic} at {self.address} became shorter"
                f" than offset {offset} while it was read: it was truncated, or the topic was"
                " recreated. Try again."
            )
        return start


def _passing(error: BaseException) -> bool:
    """Return whether to ask again. An unknown leader counts: it may be newer than this client."""
    return isinstance(error, KafkaError) and (
        error.retriable or isinstance(error, UnknownBrokerIdError)
    )


def _partition_bounds(answer: Any) -> PartitionBounds:
    if answer.error_code:
        # The high watermark is out of range: another leader was elected since.
        raise OffsetNotAvailableError(f"bounds of partition {answer.partition_index}")
    return PartitionBounds(
        answer.partition_index,
        answer.log_start_offset,
        answer.last_stable_offset,
        answer.high_watermark,
    )


def _by_leader(
    leaders: Mapping[int, int], partitions: Sequence[int]
) -> dict[int | None, list[int]]:
    by_leader: dict[int | None, list[int]] = {}
    for partition in partitions:
        by_leader.setdefault(leaders[partition], []).append(partition)
    return by_leader


def missing_spans(
    bounds: Bounds, since: pa.Table | None
) -> tuple[pa.Table, dict[int, list[tuple[int, int]]]]:
    """Return the rows of `since` that are still valid within the bounds, and per partition the
    spans [first, end) to read."""
    existing = since if since is not None else SCHEMA.empty_table()
    valid = []
    spans: dict[int, list[tuple[int, int]]] = {}
    for p in bounds.partitions:
        rows = existing.filter(pc.equal(existing["partition"], p.partition))
        reached = pc.max(rows["last_offset"]).as_py() if rows.num_rows else None
        if reached is None or reached >= p.hw:
            # Beyond the high watermark: the topic was recreated, or the bounds differ.
            missing = [(p.start, p.hw)]
        else:
            inside = rows.filter(pc.greater_equal(rows["base_offset"], p.start))
            valid.append(inside)
            # A known batch that crosses the new log start is read again and cut.
            whole_from = pc.min(inside["base_offset"]).as_py() if inside.num_rows else reached + 1
            missing = [(p.start, whole_from), (max(reached + 1, p.start), p.hw)]
        missing = [span for span in missing if span[0] < span[1]]
        if missing:
            spans[p.partition] = missing
    return pa.concat_tables(valid) if valid else SCHEMA.empty_table(), spans
