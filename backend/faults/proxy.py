"""A TCP proxy between clients and brokers that understands Kafka's requests and damages chosen
ones.

A client that is given the proxy's address stays on it. In answers to Metadata and FindCoordinator,
the proxy replaces each broker's address with its own listener for that broker. It changes nothing
else. It counts the strikes of each rule, so that a fault can prove that it fired.

A *ghost* (KAFKA-17754) is a request that arrives although its connection broke. Its producer has
meanwhile repeated it and gone on. The proxy delivers it when it does the most harm: when the next
transaction of the same transactional id has written, before the producer hears of that.

Any user of the machine may connect. Requests of processes of other users than this one and root
pass unharmed: else they would use up the strikes that a run has planned for itself.

Connections must be plaintext. The proxy does not rewrite addresses that accompany an error in an
answer (KIP-951), so a client may leave the proxy when a partition's leader moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from topicproof.backend.errors import ClusterError, SetupError
from topicproof.backend.faults.requests import (
    FIND_COORDINATOR,
    METADATA,
    Api,
    UndecodableError,
    decoded,
    errors,
    read_request,
    topics,
    transactional_id,
)
from topicproof.backend.services import local_servers
from topicproof.backend.services.local_servers import HOST
from topicproof.backend.services.processes import client_is_of

SEVERAL_COORDINATORS = 4
"""The first version of FindCoordinator that answers about several coordinators at once."""
START_TIMEOUT_S = 10.0
ARRIVAL_TIMEOUT_S = 5.0
_HEADER = struct.Struct(">hhi")
"""api key, version, correlation id"""
_LENGTH = struct.Struct(">i")
FRAME_MIN, FRAME_MAX = _LENGTH.size, 128 * 2**20
"""Bytes of a request or answer. The smallest answer is a correlation id alone; no broker of a test
or run takes a request of more than Kafka's `socket.request.max.bytes`, 100 MiB."""
PENDING_BYTES_MAX = 4 * FRAME_MAX
"""Bytes of all requests and answers on their way: any user of the machine may connect, and announce
the largest on each connection."""
AWAITED_MAX = 1_000
"""Requests of a connection whose answers are to be rewritten. Clients send a few at a time."""
NONE_CAME = "No client of the proxy has written: does the program use the proxy's bootstrap?"
IN_NEXT = "when the next transaction had written"
"""When most ghosts arrive, in the journal's words."""
Answer = TypeVar("Answer")


class How(StrEnum):
    """What can happen to a request."""

    LOST = "lost"
    """It never arrives, and the connection breaks."""
    UNANSWERED = "unanswered"
    """It arrives; its answer is lost, and the connection breaks."""
    LATE = "late"
    """The request and everything behind it wait."""
    OVERTAKEN = "overtaken"
    """The next request of its kind on this connection passes it."""
    GHOST = "ghost"
    """The connection breaks, but the request arrives in the next transaction."""


@dataclass
class Rule:
    """Damages the next `times` requests of one kind."""

    api: Api
    how: How
    times: int = 1
    topic: str | None = None
    """Produce only: requests to this topic."""
    seconds: float = 2.0
    """How long LATE and GHOST wait at most, and how long OVERTAKEN waits for a request to pass
    it."""
    writer: str | None = None
    """Only requests whose transactional id ends with this text."""
    aborts: bool = False
    """EndTxn only: requests that abort."""
    heard: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called at every strike, in the proxy's thread."""
    arrived: Callable[[str], None] = field(default=lambda _said: None, repr=False)
    """Called at every arrival of a ghost, in the proxy's thread, with the broker's answer."""
    struck: int = 0
    """Number of requests that it has hit."""
    released: threading.Event = field(default_factory=threading.Event, repr=False)
    """Ends the waiting of requests that are late, overtaken or ghosts."""
    settled: int = 0
    """How many of these have been sent or no longer need to be."""

    def hits(self, api: int, version: int, frame: bytes) -> bool:
        if api != self.api or self.struck >= self.times:
            return False
        if self.topic is None and self.writer is None and not self.aborts:
            return True
        # Parsed last, because most requests pass: parsing all of them would slow the client.
        request = read_request(api, version, frame)
        return (
            (self.topic is None or self.topic in topics(request))
            and (self.writer is None or (transactional_id(request) or "").endswith(self.writer))
            and not (self.aborts and request.committed)
        )


_ENDS = frozenset({Api.END_TXN, Api.INIT_PRODUCER_ID, Api.OFFSET_COMMIT})
"""The answer to one of these ends a transaction, or its counterpart without transactions."""


class _Part(Enum):
    """How a request of a ghost's producer relates to the ghost."""

    ENDS = auto()
    """It ends the ghost's transaction."""
    MEETS = auto()
    """It belongs to the next transaction. Its answer waits until the ghost has arrived."""
    FOLLOWS = auto()
    """It waits until the ghost has arrived."""


@dataclass
class _Ghost:
    """A request that is still on its way while its producer goes on."""

    rule: Rule
    writer: str | None
    """Its transactional id."""
    answered: bool
    """Whether the broker answers it."""
    ended: bool = False
    """Whether its transaction has ended."""
    met: bool = False
    """Whether the next transaction has written."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def part(self, api: int, version: int, frame: bytes) -> _Part | None:
        """Return how a request relates to this ghost; None if it does not."""
        # A late offset replaces a newer one. Other ghosts meet records whose offset is not sent
        # yet.
        late_offset = self.rule.api in (Api.TXN_OFFSET_COMMIT, Api.OFFSET_COMMIT)
        if self.ended and api == (self.rule.api if late_offset else Api.PRODUCE):
            part = _Part.MEETS
        elif self.ended and api == Api.ADD_OFFSETS_TO_TXN and not late_offset:
            part = _Part.FOLLOWS
        elif api in _ENDS:
            part = _Part.ENDS
        else:
            return None
        # Other producers share the brokers, and may share the topic.
        request = read_request(api, version, frame)
        if transactional_id(request) != self.writer:
            return None
        elsewhere = api == Api.PRODUCE and self.rule.topic not in (None, *topics(request))
        return None if elsewhere else part

    def hear(self, part: _Part) -> None:
        """Note that the broker has answered such a request."""
        self.ended = True
        if part is _Part.MEETS:
            self.met = True
            self.rule.released.set()


class Proxy:
    """The proxy of one cluster, in its own thread: `with Proxy(bootstrap) as proxy`, then
    `proxy.bootstrap`."""

    def __init__(self, bootstrap: str) -> None:
        self.upstream = [
            (host, int(port))
            for host, _, port in (address.rpartition(":") for address in bootstrap.split(","))
        ]
        self.rules: list[Rule] = []
        self.seen: Counter[int] = Counter()
        """How many requests of each kind have come from this user's processes."""
        self.passed = 0
        """How many requests have come from other users' processes."""
        self.failure: Exception | None = None
        """An error of the proxy itself, raised on exit."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._open: asyncio.Event
        self._listeners: dict[tuple[str, int], socket.socket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ghosts: list[_Ghost] = []
        self._clients: set[socket.socket] = set()
        self._bytes_left = PENDING_BYTES_MAX
        self._writers: set[asyncio.StreamWriter] = set()
        """Writers of all open connections, to clients and to brokers."""

    def __enter__(self) -> Self:
        """Start the proxy. Raises SetupError when it cannot listen."""
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
        """Apply the rule from the next request on."""
        self.rules.append(rule)
        return rule

    def idle_rules(self) -> list[str]:
        """Return a sentence for each rule that has hit nothing: what has come instead."""
        come = ", ".join(f"{self.seen[api]} {api.name}" for api in Api if self.seen[api])
        instead = f"These came: {come}." if come else NONE_CAME
        if self.passed:
            instead += f" Requests from other users' processes are never hit: {self.passed} came."
        return [
            f"The proxy's rule {rule.api.name} {rule.how} hit no request. {instead}"
            for rule in self.rules
            if not rule.struck
        ]

    def isolate(self) -> None:
        """Let nothing pass in either direction. Connections stay open, as behind a broken
        switch."""
        # The caller is in another thread, and asyncio's events are not safe to set from there.
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        """Let everything pass again, delayed requests first. Returns when the ghosts have
        arrived."""
        for rule in self.rules:
            rule.released.set()
        self.rules.clear()
        self._call(self._heal())

    async def _heal(self) -> None:
        self._open.set()
        with contextlib.suppress(TimeoutError):  # A paused broker answers no ghost.
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                await _arrivals(list(self._ghosts))

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
            # Closing would wait for clients that no longer read.
            writer.transport.abort()
        await asyncio.gather(
            *tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True
        )
        for client in self._clients:
            # A task cancelled before its first step does not own its client yet.
            client.close()

    def _listen(self, broker: tuple[str, int]) -> int:
        """Return the port for a broker; created when the broker is first named."""
        if broker not in self._listeners:
            self._listeners[broker] = local_servers.listen(
                self._loop, lambda: len(self._tasks), partial(self._accept, broker)
            )
        return self._port(broker)

    def _port(self, broker: tuple[str, int]) -> int:
        return int(self._listeners[broker].getsockname()[1])

    def _accept(self, broker: tuple[str, int], client: socket.socket, port: int) -> None:
        self._clients.add(client)
        is_ours = client_is_of(local_servers.OWN_UIDS, port, self._port(broker))
        self._spawn(_Connection(self, broker, is_ours=is_ours).serve(client))

    async def _connect(self, **to: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(**to)
        self._writers.add(writer)
        return reader, writer

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        """End a connection once its other side has read everything."""
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
        """Return the rule that hits this request, and count the strike."""
        self.seen[api] += 1
        rule = next((rule for rule in self.rules if rule.hits(api, version, frame)), None)
        if rule is not None:
            rule.struck += 1
            rule.heard()
        return rule

    def _concerned(self, api: int, version: int, frame: bytes) -> list[tuple[_Ghost, _Part]]:
        """Return the ghosts that a request relates to, and how."""
        parts = [(ghost, ghost.part(api, version, frame)) for ghost in self._ghosts]
        return [(ghost, part) for ghost, part in parts if part is not None]

    async def _rewritten(self, api: int, version: int, frame: bytes) -> bytes:
        """Replace the brokers' addresses in an answer with ours. Raises ClusterError for an unknown
        version, UndecodableError."""
        kind = MetadataResponse if api == METADATA else FindCoordinatorResponse
        if version > kind.max_version:
            raise ClusterError(f"The proxy cannot read version {version} of {kind.name}.")
        answer = decoded(kind, version, frame)
        if kind is MetadataResponse:
            named = answer.brokers
        else:
            named = answer.coordinators if version >= SEVERAL_COORDINATORS else [answer]
        if named is None:
            raise UndecodableError(f"{kind.name} without a list of brokers")
        for node in named:
            # An answer that names no broker, such as one with an error, has neither.
            if node.host and node.port > 0:
                node.host, node.port = HOST, self._listen((node.host, node.port))
        return bytes(answer.encode(header=True))


class _Connection:
    """A client's connection, and ours to its broker."""

    def __init__(self, proxy: Proxy, broker: tuple[str, int], *, is_ours: bool) -> None:
        self.proxy = proxy
        self.is_ours = is_ours
        """Whether rules may hit its requests, and ghosts wait for them."""
        self.broker = {"host": broker[0], "port": broker[1]}
        self.awaited: dict[int, tuple[int, int]] = {}
        """Api key and version of requests whose answers need rewriting, by correlation id."""
        self.swallowed: set[int] = set()
        self.heard: dict[int, list[tuple[_Ghost, _Part]]] = {}
        """Requests whose answers show the progress of a ghost's producer, by correlation id."""
        self.held: tuple[Rule, asyncio.Task[None]] | None = None
        """A request that waits until another one passes it."""

    async def serve(self, accepted: socket.socket) -> None:
        """Forward until either side or a rule ends the connection."""
        client = await self.proxy._connect(sock=accepted)
        # From here on the stream closes the socket.
        self.proxy._clients.discard(accepted)
        try:
            # While the network is cut, a new connection must not reach the broker either.
            await self.proxy._open.wait()
            upstream = await self.proxy._connect(**self.broker)
        except OSError:
            await self.proxy._close(client[1])
            return
        frames = [_Frames(self.proxy, side[0]) for side in (client, upstream)]
        pumps = [
            asyncio.create_task(self._requests(frames[0], upstream[1])),
            asyncio.create_task(self._answers(frames[1], client[1])),
        ]
        try:
            # Either pump ends the connection: its side has closed, or a rule breaks it.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump, side in zip(pumps, frames, strict=True):
                pump.cancel()
                side.release()
            # Network errors are ordinary here, and so are strangers who speak no Kafka. Any other
            # error is a mistake of the proxy.
            for ended in await asyncio.gather(*pumps, return_exceptions=True):
                if isinstance(ended, Exception) and not isinstance(
                    ended, OSError | UndecodableError
                ):
                    self.proxy.failure = ended
            await asyncio.gather(self.proxy._close(client[1]), self.proxy._close(upstream[1]))

    async def _requests(self, frames: _Frames, writer: asyncio.StreamWriter) -> None:
        while (frame := await frames.read()) is not None:
            await self.proxy._open.wait()
            if len(frame) < _HEADER.size or len(self.awaited) >= AWAITED_MAX:
                return  # No client of Kafka sent this.
            api, version, correlation = _HEADER.unpack_from(frame)
            if api in (METADATA, FIND_COORDINATOR):
                # An answer has only a correlation id, so its kind is noted now.
                self.awaited[correlation] = (api, version)
            if not self.is_ours:
                self.proxy.passed += 1
                await _send(writer, frame)
                continue
            rule = self.proxy._struck(api, version, frame)
            if rule is None:
                concerned = self.proxy._concerned(api, version, frame)
                if any(part is _Part.FOLLOWS for _, part in concerned):
                    # A ghost does more harm before the offset enters the transaction. The request
                    # waits in a task of its own: the one that the ghost waits for may follow on
                    # this connection.
                    self.proxy._spawn(self._behind(writer, frame, concerned))
                    continue
                if concerned:
                    self.heard[correlation] = concerned
                await _send(writer, frame)
                if self.held is not None and api == self.held[0].api:
                    # Immediately: a client that wants no answers may close the connection after its
                    # last request.
                    self.held[0].released.set()
                    await self.held[1]
                    self.held = None
            elif rule.how is How.LOST:
                # The end of this pump breaks the connection.
                return
            elif rule.how is How.GHOST:
                request = read_request(api, version, frame)
                # A producer with acks=0 gets no answer, so the ghost must not wait for one.
                answered = api != Api.PRODUCE or request.acks != 0
                ghost = _Ghost(rule, transactional_id(request), answered)
                self.proxy._ghosts.append(ghost)
                # The client's connection breaks now; the ghost travels on one of its own.
                self.proxy._spawn(self._haunt(api, version, frame, ghost))
                return
            elif rule.how is How.UNANSWERED:
                # The broker gets it. The connection breaks when its answer comes.
                self.swallowed.add(correlation)
                await _send(writer, frame)
            elif rule.how is How.OVERTAKEN:
                # Sent by a task, so that this loop reads the request that passes it.
                self.held = rule, self.proxy._spawn(self._later(writer, frame, rule))
            else:
                # LATE waits in this loop: everything behind the request waits too.
                await self._later(writer, frame, rule)

    async def _answers(self, frames: _Frames, writer: asyncio.StreamWriter) -> None:
        while (frame := await frames.read()) is not None:
            await self.proxy._open.wait()
            (correlation,) = _LENGTH.unpack_from(frame)
            if correlation in self.swallowed:
                return
            answered = self.heard.pop(correlation, [])
            for ghost, part in answered:
                ghost.hear(part)
            # The producer must not hear that its next transaction has written before the ghost
            # arrives: it would go on, and the moment of the most harm would be over.
            await _arrivals(ghost for ghost, part in answered if part is _Part.MEETS)
            request = self.awaited.pop(correlation, None)
            await _send(
                writer, frame if request is None else await self.proxy._rewritten(*request, frame)
            )

    async def _later(self, writer: asyncio.StreamWriter, frame: bytes, rule: Rule) -> None:
        await _waited(rule)
        with contextlib.suppress(OSError):
            await _send(writer, frame)
        rule.settled += 1

    async def _behind(
        self, writer: asyncio.StreamWriter, frame: bytes, concerned: list[tuple[_Ghost, _Part]]
    ) -> None:
        """Let the ghosts arrive, then send a request."""
        await _arrivals(ghost for ghost, _ in concerned)
        with contextlib.suppress(OSError):
            await _send(writer, frame)

    async def _haunt(self, api: int, version: int, frame: bytes, ghost: _Ghost) -> None:
        """Deliver a request on its own connection, and read its answer."""
        await _waited(ghost.rule)
        outcome = "the broker was gone"
        try:
            with contextlib.suppress(OSError):
                reader, writer = await self.proxy._connect(**self.broker)
                await _send(writer, frame)
                answer = await self._answer(reader) if ghost.answered else None
                outcome = errors(api, version, answer) if answer else "no answer"
                await self.proxy._close(writer)
        finally:
            # Requests and answers wait for it, so it arrives in any case.
            self.proxy._ghosts.remove(ghost)
            ghost.arrived.set()
        ghost.rule.settled += 1
        ghost.rule.arrived(f"{IN_NEXT if ghost.met else 'at the end of its time'}: {outcome}")

    async def _answer(self, reader: asyncio.StreamReader) -> bytes | None:
        frames = _Frames(self.proxy, reader)
        try:
            return await frames.read()
        finally:
            frames.release()


class _Frames:
    """The requests or answers that come from one side of a connection. Each counts against the
    proxy's `PENDING_BYTES_MAX` from its announcement until the next one is read."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader) -> None:
        self._proxy = proxy
        self._reader = reader
        self._reserved = 0

    async def read(self) -> bytes | None:
        """Read the next one without its length; None at the end of the connection, if it is none of
        Kafka's (whoever may connect to this machine may send anything), or if there is no room."""
        self.release()
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if not FRAME_MIN <= length <= min(FRAME_MAX, self._proxy._bytes_left):
                return None
            self._reserved = length
            self._proxy._bytes_left -= length
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None

    def release(self) -> None:
        self._proxy._bytes_left += self._reserved
        self._reserved = 0


async def _arrivals(ghosts: Iterable[_Ghost]) -> None:
    for ghost in ghosts:
        await ghost.arrived.wait()


async def _waited(rule: Rule) -> None:
    """Wait until the rule is released or its time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + rule.seconds
    # Polled: other threads set the event, which asyncio cannot await.
    while not rule.released.is_set() and loop.time() < deadline:
        await asyncio.sleep(0.005)


async def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(_LENGTH.pack(len(frame)) + frame)
    await writer.drain()
