"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""Linux's `struct ucred`: process, user, group."""


def is_own(connection: socket.socket) -> bool:
    """Return whether the other end belongs to this user, or to root. Elsewhere than on Linux, the
    permissions of the socket's folder are the only check."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    found = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return user in (os.getuid(), 0)
