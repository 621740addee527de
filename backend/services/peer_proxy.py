"""A proxy between the brokers of an embedded cluster. It can isolate a broker from its peers while
clients still reach it.

Each broker advertises a port of this process to its peers, and its own port to clients. The proxy
forwards all bytes unread to the broker's own port. Only this user's processes and root's are
brokers: a connection of another user is closed (Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from topicproof.backend.services import local_servers
from topicproof.backend.services.local_servers import HOST
from topicproof.backend.services.processes import client_is_of

READ_BYTES = 65_536

Ends = tuple[int | None, int]
"""A connection's source node (None: unknown) and target node."""


class Links(threading.Thread):
    """The links of one cluster, in their own thread. `node_of` returns the node whose process has
    the connection from a local port to another, or None."""

    def __init__(self, node_of: Callable[[int, int], int | None]) -> None:
        super().__init__(name="links", daemon=True)
        self.node_of = node_of
        self.apart: set[int] = set()
        """Isolated nodes."""
        self.loop = asyncio.new_event_loop()
        self.listeners: list[socket.socket] = []
        self.open: dict[asyncio.Task[None], Ends] = {}
        """All connections, each from the moment at which it was accepted."""
        self.accepted: set[socket.socket] = set()
        """Those whose task has not begun. One that is cancelled before closes nothing."""

    def run(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(self._end())
        self.loop.close()

    def listen(self, node: int, port: int) -> int:
        """Open a new port that forwards to this port of a node. Raises OSError."""
        return asyncio.run_coroutine_threadsafe(self._listen(node, port), self.loop).result()

    def cut(self, node: int) -> None:
        """Isolate a node from its peers."""
        self.apart.add(node)
        self.loop.call_soon_threadsafe(self._drop, node)

    def heal(self, node: int) -> None:
        self.apart.discard(node)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join()

    async def _end(self) -> None:
        for listener in self.listeners:
            self.loop.remove_reader(listener)
            listener.close()
        for task in self.open:
            task.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        for client in self.accepted:
            client.close()

    def _drop(self, node: int) -> None:
        for task in [task for task, ends in self.open.items() if node in ends or None in ends]:
            task.cancel()

    async def _listen(self, node: int, port: int) -> int:
        def serve(client: socket.socket, client_port: int) -> None:
            task = self.loop.create_task(self._serve(node, port, client, client_port))
            self.open[task] = (None, node)
            task.add_done_callback(self.open.pop)
            self.accepted.add(client)

        listener = local_servers.listen(self.loop, lambda: len(self.open), serve)
        self.listeners.append(listener)
        return int(listener.getsockname()[1])

    async def _serve(self, node: int, port: int, client: socket.socket, client_port: int) -> None:
        """Forward a connection's bytes until either side or `cut` ends it."""
        task = asyncio.current_task()
        assert task is not None
        front = client.getsockname()[1]
        stream = await asyncio.open_connection(sock=client)
        # From here on the stream closes the socket.
        self.accepted.discard(client)
        try:
            if not await asyncio.to_thread(
                client_is_of, local_servers.OWN_UIDS, client_port, front
            ):
                return
            ends: Ends = (await asyncio.to_thread(self.node_of, client_port, front), node)
            self.open[task] = ends
            # An unknown source may be an isolated node. It connects again.
            if not self.apart or not self.apart.union({None}).intersection(ends):
                await _join(stream, await asyncio.open_connection(HOST, port))
        except (OSError, asyncio.CancelledError):
            pass  # The broker is gone, or the link was cut. Brokers handle both.
        finally:
            stream[1].close()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(left: Stream, right: Stream) -> None:
    pumps = [
        asyncio.create_task(_pump(left[0], right[1])),
        asyncio.create_task(_pump(right[0], left[1])),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        right[1].close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
