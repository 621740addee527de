"""Which broker a connection between brokers belongs to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from topicproof.backend.services.processes import connects

OTHER = """
import socket, sys
link = socket.socket()
link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
link.bind(("127.0.0.1", int(sys.argv[1])))
link.connect(("127.0.0.1", int(sys.argv[2])))
print("there", flush=True)
sys.stdin.read()
"""


def test_two_connections_with_one_local_port_are_told_apart() -> None:
    """Story: two brokers happen to have the same local port, for connections to different peers.
    Once cut off, one of them used to continue over a connection that was mistaken for the
    other's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        fronts = [server.getsockname()[1] for server in (first, second)]
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            link.bind(("127.0.0.1", 0))
            link.connect(("127.0.0.1", fronts[0]))
            port = link.getsockname()[1]
            command = [sys.executable, "-c", OTHER, str(port), str(fronts[1])]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as other:
                assert other.stdout is not None and other.stdout.readline() == "there\n"
                found = [
                    [connects(pid, port, front) for front in fronts]
                    for pid in (os.getpid(), other.pid)
                ]
                assert found == [[True, False], [False, True]]
                other.communicate()
