"""Limits of a file download. They are apart from files.py because plans need them without an HTTP
client."""

from __future__ import annotations

from dataclasses import dataclass

FIELD_MAX = 10_000
"""Characters of a payment's field."""


@dataclass(frozen=True)
class Limits:
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")
    """The only hosts to connect to: URLs are data, and data may come from anybody."""
    timeout_s: float = 5.0
    """Time limit for a whole download."""
    attempts: int = 3
    bytes_max: int = 10_000_000
