"""The raw log: bounds and batch headers, as the broker stores them, over kafka-python's Fetch
requests.

Batch headers say what no consumer shows: who wrote a range, whether it was in a transaction, and
how each transaction ended (control batches). They are read without decoding a record, so a topic is
scanned at the speed of the network.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaAdminClient
from kafka.cluster import get_ip_port_afi
from kafka.errors import (
    AuthorizationError,
    InvalidTopicError,
    KafkaError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from topicproof.backend import settings
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError, UsageError
from topicproof.backend.kafka.log.batches import (
    ROW,
    SCHEMA,
    Headers,
    batch_positions,
    batch_rows,
    cut,
    require_crc,
    table,
)
from topicproof.validators.finding import Bounds, PartitionBounds

PARTITION_BYTES_MAX = 4_000_000
"""How much of one partition one response may carry; a larger single batch still comes whole
(KIP-74)."""
RESPONSE_BYTES_MAX = 8_000_000
"""Measured: larger responses are slower, because their memory is new each time."""
NEW_TOPIC_PATIENCE_S = 1.0
"""A topic made a moment ago may not be known to every broker yet; after this long it counts as
missing."""
RETRY_PAUSE_S = 0.1
FAILOVER_TIMEOUT_S = 20.0
"""How long a partition may be without a leader: a broker that was killed is missed only after its
session (9 s)."""
FETCH_VERSION_MIN = 5
"""The first version that gives the log start offset."""
FETCH_VERSION_MAX = 12
"""The last version that names topics by name; later ones ask for topic ids (KIP-516)."""
METADATA_VERSION_MIN = 4
"""The first version that can be told not to create the topic it asks about."""

UNCOMMITTED, COMMITTED = 0, 1
LATEST, EARLIEST = -1, -2


class DirectSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's connection, chosen by the scheme `direct`, with one difference: a socket that
    fails is closed."""

    SCHEMES = ("direct",)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


Answer = TypeVar("Answer")


def fetch_bounds(address: Address, topic: str) -> Bounds:
    """The topic's bounds at one moment: log start, LSO and HW of a partition come from one Fetch
    response.

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
) -> pa.Table:
    """One row (`batches.SCHEMA`) per record batch within the bounds, by partition and offset.
    Timestamps are in ms.

    `since` is an earlier table of the same topic: only what it lacks is read, and the whole is
    returned. A batch that reaches out of the bounds (after DeleteRecords the log may start inside a
    batch) is cut: its `base_offset`, `count` and `first_timestamp` describe only the records
    inside; `size` stays that of the stored batch. `check_crc` holds every batch that is read
    against its checksum (see `batches.require_crc` for what that costs).

    Raises TopicError for a missing topic or records in a format older than Kafka 0.11's,
    ClusterError otherwise.
    """
    with connect(address) as kafka:
        return kafka.scan(topic, bounds, since, check_crc)


@contextmanager
def connect(address: Address) -> Iterator[Connection]:
    """One client of the cluster for several questions. Raises ClusterError, also for what goes
    wrong inside."""
    # The library logs the bytes it receives, and every failed attempt; what matters reaches the
    # caller as an error.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    require_reachable(address.bootstrap)
    opened: list[Any] = []

    def keep(**config: object) -> Any:
        opened.append(KafkaNetClient(**config))
        return opened[0]

    try:
        try:
            admin = KafkaAdminClient(
                **settings.kafka_python_config(address), kafka_client=keep, proxy_url="direct://"
            )
        except BaseException:
            # The constructor starts a thread before it looks for a broker and would leave it
            # running.
            for each in opened:
                each.close()
            raise
        try:
            yield Connection(address, admin, opened[0])
        finally:
            admin.close()
    except KafkaError as error:
        raise cluster_error(address, error) from error


def require_reachable(bootstrap: str) -> None:
    """Open and close a connection to one of the addresses.

    Raises ClusterError saying what each of them did, UsageError for what is no address.

    The library tries a dead address for its whole time limit, says only that time was up, and
    leaves sockets open.
    """
    try:
        addresses = [get_ip_port_afi(address) for address in bootstrap.split(",")]
    except ValueError as error:
        raise UsageError(
            f"The address of Kafka, {bootstrap}, must be host:port, or several with commas."
        ) from error
    refused = []
    for host, port, _family in addresses:
        try:
            with socket.create_connection(
                (host, port), settings.REQUEST_TIMEOUT_MS / 1000 / len(addresses)
            ):
                return
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            refused.append(f"{host}:{port}: {reason}")
    raise ClusterError(
        f"No Kafka broker can be reached ({'; '.join(refused)}). Check the address and that the"
        " broker runs."
    )


def cluster_error(address: Address, error: KafkaError) -> ClusterError:
    """What happened, where, and what to do."""
    name = type(error).__name__
    details = f": {error.args[0]}" if error.args else ""
    if isinstance(error, SaslAuthenticationFailedError | AuthorizationError):
        return ClusterError(
            f"Kafka at {address} refused this client ({name}). "
            "Check the user and its rights in the client properties."
        )
    if error.retriable:
        return ClusterError(
            f"Kafka at {address} did not answer in time ({name}{details}). Check that its brokers"
            " run and that the client properties have the right security settings."
        )
    return ClusterError(f"Kafka at {address} refused the request ({name}: {error}).")


@dataclass(frozen=True)
class Connection:
    """An open client; made by `connect`. Its methods raise kafka-python's errors, which `connect`
    translates."""

    address: Address
    admin: Any
    """kafka-python's admin client, for the questions it already knows."""
    net: Any

    def bounds(self, topic: str) -> Bounds:
        """See `fetch_bounds`."""

        def ask() -> Bounds:
            leaders = self.leaders(topic)
            # A Fetch must name an offset that exists, and the high watermark always does.
            ends = self._offsets(topic, leaders, LATEST, UNCOMMITTED)
            found = self._fetch(topic, leaders, ends, partition_bytes=1)
            return Bounds(
                topic, tuple(_partition_bounds(found[partition]) for partition in sorted(found))
            )

        found = self.with_retries(ask)
        complete = all(p.start >= 0 and p.lso >= 0 for p in found.partitions)
        return found if complete else self.bounds_in_order(topic)

    def bounds_in_order(self, topic: str) -> Bounds:
        """The same from three questions, start, LSO, HW in that order, so that start <= LSO <= HW
        holds if all move.

        For a broker whose Fetch responses lack one of the three.
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
    ) -> pa.Table:
        """See `scan`. Of bounds that are `part_of` others, the batches that begin inside, cut only
        at those others'."""
        kept, spans = _missing(bounds, since)
        edges = {p.partition: (p.start, p.hw) for p in part_of.partitions} if part_of else {}
        parts: list[Headers] = []
        served = time.monotonic()
        while spans:
            got = self.with_retries(lambda: self._fetch_spans(topic, spans))
            for partition, answer in got.items():
                span = spans[partition][0]
                rows, reached = self._read(
                    topic, partition, span, edges.get(partition, span), answer, check_crc
                )
                if reached is None:
                    continue
                served = time.monotonic()
                parts.append(rows)
                # Whoever was served goes to the end of the queue: a response has room for a few
                # partitions only.
                queue = spans.pop(partition)
                queue[0] = (reached, queue[0][1])
                remaining = [span for span in queue if span[0] < span[1]]
                if remaining:
                    spans[partition] = remaining
            if not any(answer.records or answer.error_code for answer in got.values()):
                time.sleep(RETRY_PAUSE_S)
            if time.monotonic() - served > FAILOVER_TIMEOUT_S:
                partition, queue = next(iter(spans.items()))
                raise ClusterError(
                    f"Partition {partition} of {topic} at {self.address} gave nothing from offset"
                    f" {queue[0][0]} on, although its log ends at {queue[-1][1]}. Read the bounds"
                    " again."
                )
        return table(kept, parts)

    def leaders(self, topic: str) -> dict[int, int]:
        """The broker that leads each partition. Raises TopicError for a topic that does not
        exist."""
        deadline = time.monotonic() + NEW_TOPIC_PATIENCE_S
        while True:
            wanted = MetadataRequest.MetadataRequestTopic(name=topic)
            request = MetadataRequest(
                topics=[wanted], allow_auto_topic_creation=False, min_version=METADATA_VERSION_MIN
            )
            (answer,) = self.send({None: request})[None].topics
            error = for_code(answer.error_code)
            if not answer.error_code:
                for partition in answer.partitions:
                    if partition.leader_id < 0:
                        raise for_code(partition.error_code)(
                            f"partition {partition.partition_index} has no leader"
                        )
                return {
                    partition.partition_index: partition.leader_id
                    for partition in answer.partitions
                }
            if error is TopicAuthorizationFailedError:
                raise TopicError(
                    f"Kafka at {self.address} does not let this client see the topic {topic}. "
                    "Ask for the right to read and describe it."
                )
            missing = error in (UnknownTopicOrPartitionError, InvalidTopicError)
            if missing and (error is InvalidTopicError or time.monotonic() > deadline):
                raise TopicError(
                    f"There is no topic {topic} at {self.address}. Check its name; capital"
                    " letters count."
                )
            if not missing:
                raise error(f"metadata of {topic}")
            time.sleep(RETRY_PAUSE_S)

    def send(self, requests: Mapping[int | None, Any]) -> dict[int | None, Any]:
        """One request to each broker, all under way at once; None is any broker."""
        # There is no public way to send a request of one's own; the library's version is pinned.
        manager = self.net._manager

        async def send_all() -> dict[int | None, Any]:
            waiting = {
                node: manager.send(request, node_id=node) for node, request in requests.items()
            }
            return {node: await future for node, future in waiting.items()}

        answers: dict[int | None, Any] = manager.run(send_all)
        return answers

    def with_retries(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again while the cluster is between two leaders, or a coordinator is still loading."""
        retrying = Retrying(
            retry=retry_if_exception(_passing),
            stop=stop_after_delay(FAILOVER_TIMEOUT_S),
            wait=wait_fixed(RETRY_PAUSE_S),
            after=lambda _state: self._look_again(),
            reraise=True,
        )
        return retrying(ask)

    def _look_again(self) -> None:
        """Let the library ask for the brokers: a leader may be one that was not there when this
        client connected."""
        manager = self.net._manager

        async def request() -> None:
            manager.cluster.request_update()

        manager.run(request)

    def _offsets(
        self, topic: str, leaders: Mapping[int, int], at: int, isolation: int
    ) -> dict[int, int]:
        ask = ListOffsetsRequest.ListOffsetsTopic
        requests = {
            node: ListOffsetsRequest(
                isolation_level=isolation,
                topics=[
                    ask(
                        name=topic,
                        partitions=[
                            ask.ListOffsetsPartition(partition_index=p, timestamp=at)
                            for p in partitions
                        ],
                    )
                ],
                min_version=2,
            )
            for node, partitions in _by_leader(leaders, list(leaders)).items()
        }
        found = {}
        for answer in self.send(requests).values():
            for partition in answer.topics[0].partitions:
                if partition.error_code:
                    raise for_code(partition.error_code)(
                        f"offsets of {topic}-{partition.partition_index}"
                    )
                found[partition.partition_index] = partition.offset
        return found

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
        """One Fetch response a partition. Raises its error, except for an offset that is out of
        range."""
        ask = FetchRequest.FetchTopic
        requests = {
            node: FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=RESPONSE_BYTES_MAX,
                isolation_level=UNCOMMITTED,
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
        found = {}
        for answer in self.send(requests).values():
            if answer.error_code:
                raise for_code(answer.error_code)(f"fetch of {topic}")
            for partition in answer.responses[0].partitions:
                error = for_code(partition.error_code)
                if partition.error_code and error is not OffsetOutOfRangeError:
                    raise error(f"fetch of {topic}-{partition.partition_index}")
                found[partition.partition_index] = partition
        return found

    def _read(
        self,
        topic: str,
        partition: int,
        span: tuple[int, int],
        edges: tuple[int, int],
        answer: Any,
        check_crc: bool,
    ) -> tuple[Headers, int | None]:
        """The rows of one response that begin within the span, and the next offset to fetch (None:
        nothing was served).

        A batch that reaches out of the edges, which hold the span, is cut there, and begins where
        it is cut.
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
        for index in inside.tolist():
            if rows["base_offset"][index] < low or rows["last_offset"][index] >= high:
                rows[index] = cut(rows[index], data[positions[index] :], low, high, where)
        return rows[inside], max(reached, first)

    def _first_left(self, topic: str, partition: int, offset: int) -> int:
        """Where the log starts now that `offset` is no longer in it. Deleted offsets are gone,
        which is no error."""
        leaders = {partition: self.leaders(topic)[partition]}
        start = self._offsets(topic, leaders, EARLIEST, UNCOMMITTED)[partition]
        if start <= offset:
            raise ClusterError(
                f"The log of partition {partition} of {topic} at {self.address} became shorter"
                f" than offset {offset} while it was read (truncated, or the topic was made anew)."
                " Read the bounds again."
            )
        return start


def _passing(error: BaseException) -> bool:
    """Whether to ask again; a leader that this client has not heard of yet is one more reason."""
    return isinstance(error, KafkaError) and (
        error.retriable or isinstance(error, UnknownBrokerIdError)
    )


def _partition_bounds(answer: Any) -> PartitionBounds:
    if answer.error_code:
        # The high watermark of a moment ago is out of range: another leader was elected in between.
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
    found: dict[int | None, list[int]] = {}
    for partition in partitions:
        found.setdefault(leaders[partition], []).append(partition)
    return found


def _missing(
    bounds: Bounds, since: pa.Table | None
) -> tuple[pa.Table, dict[int, list[tuple[int, int]]]]:
    """What of `since` still holds within the bounds, and per partition the spans [first, end) to be
    read."""
    known = since if since is not None else SCHEMA.empty_table()
    kept = []
    spans: dict[int, list[tuple[int, int]]] = {}
    for p in bounds.partitions:
        rows = known.filter(pc.equal(known["partition"], p.partition))
        reached = pc.max(rows["last_offset"]).as_py() if rows.num_rows else None
        if reached is None or reached >= p.hw:
            # Beyond the high watermark: the topic was made anew, or these are other bounds. Nothing
            # known counts.
            wanted = [(p.start, p.hw)]
        else:
            inside = rows.filter(pc.greater_equal(rows["base_offset"], p.start))
            kept.append(inside)
            # A known batch across the new log start is read again, to be cut.
            whole_from = pc.min(inside["base_offset"]).as_py() if inside.num_rows else reached + 1
            wanted = [(p.start, whole_from), (max(reached + 1, p.start), p.hw)]
        wanted = [span for span in wanted if span[0] < span[1]]
        if wanted:
            spans[p.partition] = wanted
    return pa.concat_tables(kept) if kept else SCHEMA.empty_table(), spans
