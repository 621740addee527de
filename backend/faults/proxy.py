"""A TCP proxy between a client and its brokers that understands Kafka's requests, and can hurt
chosen ones.

A client that is given the proxy's address stays on it: broker addresses in the answers to Metadata
and FindCoordinator are rewritten to listeners of the proxy, one a broker, made as they become
known. Nothing else is changed. Requests are told apart by their header (length, api key, version,
correlation id); a Produce also by its topic. What a rule strikes is counted, so that a fault can
prove that it fired.

Connections must be plaintext: through TLS no proxy can see. Addresses that an answer carries beside
an error (KIP-951) are left alone, so a client may leave the proxy when a partition's leader moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar

from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from kafka.protocol.producer import ProduceRequest

from topicproof.backend.errors import ClusterError, SetupError

HOST = "127.0.0.1"
METADATA = int(MetadataResponse.API_KEY)
FIND_COORDINATOR = int(FindCoordinatorResponse.API_KEY)
SEVERAL_COORDINATORS = 4
"""From this version on FindCoordinator answers about several at once."""
START_TIMEOUT_S = 10.0
_HEADER = struct.Struct(">hhi")
"""api key, version, correlation id"""
_LENGTH = struct.Struct(">i")
Answer = TypeVar("Answer")


class Api(IntEnum):
    """The requests that can be hurt."""

    PRODUCE = 0
    OFFSET_COMMIT = 8
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class How(StrEnum):
    """What may become of a request."""

    LOST = "lost"
    """It never arrives, and the connection breaks."""
    UNANSWERED = "unanswered"
    """It arrives; its answer is lost, and the connection breaks."""
    LATE = "late"
    """It and everything behind it waits."""
    OVERTAKEN = "overtaken"
    """The next one of its kind on this connection passes it."""
    GHOST = "ghost"
    """The connection breaks; the request arrives all the same, when nobody waits for it any
    more."""


@dataclass
class Rule:
    """Hurt requests of one kind from now on: the first `times` of them."""

    api: Api
    how: How
    times: int = 1
    topic: str | None = None
    """Produce only: to this topic."""
    seconds: float = 2.0
    """How long LATE and GHOST wait at most, and OVERTAKEN for somebody to pass it."""
    heard: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called at every strike, in the proxy's thread."""
    struck: int = 0
    """How many it has hurt."""
    released: threading.Event = field(default_factory=threading.Event, repr=False)
    """Ends the waiting of what is late, overtaken or a ghost."""
    settled: int = 0
    """How many of those that it had to wait for have been sent, or need no more."""

    def hits(self, api: int, version: int, frame: bytes) -> bool:
        if api != self.api or self.struck >= self.times:
            return False
        return self.topic is None or self.topic in _topics(version, frame)


class Proxy:
    """The proxy of one cluster, in a thread of its own: `with Proxy(bootstrap) as proxy`, then
    `proxy.bootstrap`."""

    def __init__(self, bootstrap: str) -> None:
        self.upstream = [
            (host, int(port))
            for host, _, port in (one.rpartition(":") for one in bootstrap.split(","))
        ]
        self.rules: list[Rule] = []
        self.failure: Exception | None = None
        """What this proxy itself could not do; raised on leaving it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._open: asyncio.Event
        self._listeners: dict[tuple[str, int], socket.socket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[socket.socket] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        """Of all connections that are open, to clients and to brokers."""

    def __enter__(self) -> Self:
        """Raises SetupError when it cannot listen."""
        self._thread.start()
        try:
            self._call(self._start())
        except OSError as error:
            self.__exit__(None, None, None)
            raise SetupError(f"The proxy cannot listen on {HOST}: {error.strerror}.") from error
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self.failure is not None and error is None:
            raise self.failure

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self._port(broker)}" for broker in self.upstream)

    def arm(self, rule: Rule) -> Rule:
        """Hurt what the rule says, from the next request on."""
        self.rules.append(rule)
        return rule

    def isolate(self) -> None:
        """No byte passes in either direction; connections stay open, as behind a broken switch."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        """Everything passes again, what was held back first."""
        self.rules.clear()
        self._loop.call_soon_threadsafe(self._open.set)

    def _call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        done: Future[Answer] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(START_TIMEOUT_S)

    async def _start(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        for broker in self.upstream:
            self._listen(broker)

    async def _stop(self) -> None:
        for listener in self._listeners.values():
            self._loop.remove_reader(listener)
            listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        writers = list(self._writers)
        for writer in writers:
            # Closing would wait until a client that reads no more has read the rest.
            writer.transport.abort()
        await asyncio.gather(
            *tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True
        )
        for client in self._clients:
            # A task that was cancelled before its first step has not taken its client over.
            client.close()

    def _listen(self, broker: tuple[str, int]) -> int:
        """The port that stands for a broker; made when it is heard of for the first time."""
        if broker not in self._listeners:
            # Not asyncio's own server, which forgets a connection that it accepted right before it
            # was closed.
            listener = self._listeners[broker] = socket.create_server((HOST, 0))
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener, broker)
        return self._port(broker)

    def _port(self, broker: tuple[str, int]) -> int:
        return int(self._listeners[broker].getsockname()[1])

    def _accept(self, listener: socket.socket, broker: tuple[str, int]) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = listener.accept()
            client.setblocking(False)
            self._clients.add(client)
            self._spawn(_Connection(self, broker).serve(client))

    async def _connect(self, **to: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(**to)
        self._writers.add(writer)
        return reader, writer

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        """End a connection when what was written to it has been read."""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._writers.discard(writer)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _struck(self, api: int, version: int, frame: bytes) -> Rule | None:
        """The rule that hurts this request, which counts as one of its times."""
        rule = next((rule for rule in self.rules if rule.hits(api, version, frame)), None)
        if rule is not None:
            rule.struck += 1
            rule.heard()
        return rule

    async def _rewritten(self, api: int, version: int, frame: bytes) -> bytes:
        """An answer with the brokers' addresses replaced by ours. Raises ClusterError for a version
        unknown to us."""
        kind = MetadataResponse if api == METADATA else FindCoordinatorResponse
        if version > kind.max_version:
            raise ClusterError(f"The proxy cannot read version {version} of {kind.name}.")
        answer: Any = kind.decode(frame, version=version, header=True)
        if kind is MetadataResponse:
            named = answer.brokers
        else:
            named = answer.coordinators if version >= SEVERAL_COORDINATORS else [answer]
        for one in named:
            if one.host and one.port > 0:
                one.host, one.port = HOST, self._listen((one.host, one.port))
        return bytes(answer.encode(header=True))


class _Connection:
    """A client's connection and ours to the broker it stands for."""

    def __init__(self, proxy: Proxy, broker: tuple[str, int]) -> None:
        self.proxy = proxy
        self.broker = {"host": broker[0], "port": broker[1]}
        self.awaited: dict[int, tuple[int, int]] = {}
        """By correlation id, api key and version of requests whose answers must be rewritten."""
        self.swallowed: set[int] = set()
        self.held: tuple[Rule, asyncio.Task[None]] | None = None
        """A request that waits to be overtaken."""

    async def serve(self, accepted: socket.socket) -> None:
        """Until either side ends the connection, or a rule does."""
        client = await self.proxy._connect(sock=accepted)
        self.proxy._clients.discard(accepted)
        try:
            await self.proxy._open.wait()
            upstream = await self.proxy._connect(**self.broker)
        except OSError:
            await self.proxy._close(client[1])
            return
        pumps = [
            asyncio.create_task(self._requests(client[0], upstream[1])),
            asyncio.create_task(self._answers(upstream[0], client[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for ended in await asyncio.gather(*pumps, return_exceptions=True):
                if isinstance(ended, Exception) and not isinstance(ended, OSError):
                    self.proxy.failure = ended
            await asyncio.gather(self.proxy._close(client[1]), self.proxy._close(upstream[1]))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (frame := await _frame(reader)) is not None:
            await self.proxy._open.wait()
            api, version, correlation = _HEADER.unpack_from(frame)
            if api in (METADATA, FIND_COORDINATOR):
                self.awaited[correlation] = (api, version)
            rule = self.proxy._struck(api, version, frame)
            if rule is None:
                await _send(writer, frame)
                if self.held is not None and api == self.held[0].api:
                    # At once: a broker takes the requests of a connection in their order, and a
                    # client that wants no answers may end the connection behind its last one.
                    self.held[0].released.set()
                    await self.held[1]
                    self.held = None
            elif rule.how is How.LOST:
                return
            elif rule.how is How.GHOST:
                self.proxy._spawn(self._haunt(frame, rule))
                return
            elif rule.how is How.UNANSWERED:
                self.swallowed.add(correlation)
                await _send(writer, frame)
            elif rule.how is How.OVERTAKEN:
                self.held = rule, self.proxy._spawn(self._later(writer, frame, rule))
            else:
                await self._later(writer, frame, rule)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (frame := await _frame(reader)) is not None:
            await self.proxy._open.wait()
            (correlation,) = _LENGTH.unpack_from(frame)
            if correlation in self.swallowed:
                return
            known = self.awaited.pop(correlation, None)
            await _send(
                writer, frame if known is None else await self.proxy._rewritten(*known, frame)
            )

    async def _later(self, writer: asyncio.StreamWriter, frame: bytes, rule: Rule) -> None:
        await _waited(rule)
        with contextlib.suppress(OSError):
            await _send(writer, frame)
        rule.settled += 1

    async def _haunt(self, frame: bytes, rule: Rule) -> None:
        """Deliver a request on a connection of its own, and wait for the answer that nobody
        hears."""
        await _waited(rule)
        try:
            reader, writer = await self.proxy._connect(**self.broker)
            await _send(writer, frame)
            await _frame(reader)
            await self.proxy._close(writer)
        except OSError:
            pass  # The broker is gone, and the ghost with it.
        rule.settled += 1


async def _waited(rule: Rule) -> None:
    """Until the rule is released, or its time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + rule.seconds
    while not rule.released.is_set() and loop.time() < deadline:
        await asyncio.sleep(0.005)


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """One request or answer without its length; None at the end of the connection."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(_LENGTH.pack(len(frame)) + frame)
    await writer.drain()


def _topics(version: int, frame: bytes) -> set[str]:
    """The topics that a Produce request names."""
    request: Any = ProduceRequest.decode(frame, version=version, header=True)
    return {one.name for one in request.topic_data}
