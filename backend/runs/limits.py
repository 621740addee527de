"""What a download of a file may take; apart from files.py, because plans know it and need no HTTP
client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")
    """Nobody else is asked for anything: a URL is data, and data may come from anybody."""
    timeout_s: float = 5.0
    """Of a whole download."""
    attempts: int = 3
    bytes_max: int = 10_000_000
