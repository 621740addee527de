"""Ports for the servers of tests. Each is this process's until it ends: no connection and no other
server on a busy machine gets it before its own server listens there, or after that was killed."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from topicproof.backend.services import processes

_HELD = ExitStack()
atexit.register(_HELD.close)


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback that nothing listens on, for servers that set
    SO_REUSEADDR."""
    return processes.free_ports(count, _HELD)
