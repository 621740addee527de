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
SERVER, TOKEN = "SPARK_CONNECT_LOCAL_URL", "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Variables of PySpark: where the workers of `foreachBatch` and of listeners for queries connect
to, and the token for that."""


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
    os.environ.update(_with_literal_address(os.environ))
    try:
        if arguments[:1] != ["-m"]:
            raise OSError
        connection, _ = ask(address, arguments[1:], os.environ, os.getcwd(), [0, 1, 2])  # noqa: PTH109  slow to import
    except OSError:
        os.execv(python, [python, "-P", *arguments])
    for stream in range(3):
        os.close(stream)
    connection.recv(1)


def _with_literal_address(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what changes in Spark's environment for its workers. It names the server `localhost`,
    where another user may listen at `::1`. A worker prints the address, so the token leaves it."""
    server, *parameters = environment.get(SERVER, "").split(";")
    if not server:
        return {}
    tokens = [part.removeprefix("token=") for part in parameters if part.startswith("token=")]
    others = [part for part in parameters if not part.startswith("token=")]
    server = server.replace("//localhost:", "//127.0.0.1:")
    changed = {SERVER: ";".join((server, *others, f"listener_uid={os.getuid()}"))}
    return changed | {TOKEN: tokens[0]} if tokens else changed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
