"""What Spark starts as its Python: asks for a fork (see worker_forks.py) and lives as long as the fork does.

It knows the standard library alone, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import socket
import sys

LENGTH_BYTES = 8


def main(address: str, python: str, arguments: list[str]) -> None:
    """`arguments` are Python's own; whatever is not `-m module` is left to `python`."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        if arguments[:1] != ["-m"]:
            raise OSError
        connection.connect(address)
    except OSError:
        os.execv(python, [python, *arguments])
    folder = os.getcwd()  # noqa: PTH109  pathlib is slow to import
    asked = {"arguments": arguments[1:], "environment": dict(os.environ), "folder": folder}
    text = json.dumps(asked).encode()
    socket.send_fds(connection, [len(text).to_bytes(LENGTH_BYTES, "big")], [0, 1, 2])
    connection.sendall(text)
    for stream in range(3):
        os.close(stream)
    connection.recv(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
