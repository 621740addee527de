"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

import psutil

_CREDENTIALS = struct.Struct("3i")
"""Linux's `struct ucred`: process, user, group."""


def _credentials(connection: socket.socket) -> tuple[int, int, int] | None:
    """Return process, user and group of the other end; None elsewhere than on Linux."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    return _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))


def is_own(connection: socket.socket) -> bool:
    """Return whether the other end belongs to this user, or to root. Elsewhere than on Linux, the
    permissions of the socket's folder are the only check."""
    credentials = _credentials(connection)
    return credentials is None or credentials[1] in (os.getuid(), 0)


def stopped_process(connection: socket.socket) -> int | None:
    """Return the process that listens at the other end if a signal has stopped it; else None."""
    credentials = _credentials(connection)
    try:
        if credentials and psutil.Process(credentials[0]).status() == psutil.STATUS_STOPPED:
            return credentials[0]
    except psutil.NoSuchProcess:
        return None
    return None
