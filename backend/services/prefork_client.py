"""Asks for a fork (see prefork_server.py). Spark starts this program as its Python; it lives as
long as the fork.

It imports only the standard library, so it starts in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence

LENGTH_BYTES = 8


def ask(
    address: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    streams: Sequence[int],
    detached: bool = False,
) -> tuple[socket.socket, int]:
    """Run `arguments` (a module and its arguments) in a fork. Returns a connection that ends with
    the fork, and the fork's process id.

    `streams`: the descriptors of its standard streams. `detached`: it outlives the prefork server.
    Raises OSError if no server answers at `address`.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
        request = {
            "arguments": [*arguments],
            "environment": {**environment},
            "folder": folder,
            "detached": detached,
        }
        text = json.dumps(request).encode()
        socket.send_fds(connection, [len(text).to_bytes(LENGTH_BYTES, "big")], [*streams])
        connection.sendall(text)
        answer = connection.recv(LENGTH_BYTES)
        if not answer:
            raise OSError
    except OSError:
        connection.close()
        raise
    return connection, int.from_bytes(answer, "big")


def main(address: str, python: str, arguments: list[str]) -> None:
    """Run Python's `arguments` in a fork. Anything but `-m module` goes to `python` itself."""
    try:
        if arguments[:1] != ["-m"]:
            raise OSError
        connection, _ = ask(address, arguments[1:], os.environ, os.getcwd(), [0, 1, 2])  # noqa: PTH109  slow to import
    except OSError:
        os.execv(python, [python, "-P", *arguments])
    for stream in range(3):
        os.close(stream)
    connection.recv(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
