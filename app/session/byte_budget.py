"""What pages read and keep for each other, within one budget of bytes.

Streamlit's caches count entries, of any size: 64 windows of large records would take all memory.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

import streamlit as st

BYTES_MAX = 256_000_000
"""Bytes of all kept values together. Larger values are not kept."""
TTL_S = 600.0

Value = TypeVar("Value")


class ByteBudget:
    """Values by key. The ones that were used longest ago make room. Safe for several threads."""

    def __init__(self, bytes_max: int = BYTES_MAX, ttl_s: float = TTL_S) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._ttl_s = ttl_s
        self._values: OrderedDict[Hashable, tuple[object, int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, read: Callable[[], Value], size_of: Callable[[Value], int]
    ) -> Value:
        """Return the value of the key, and read it if it is not kept. `size_of` returns bytes.
        Whoever passes a key always reads the same type."""
        now = time.monotonic()
        with self._lock:
            value, _, read_at = self._values.get(key, (None, 0, 0.0))
            if key in self._values and now - read_at <= self._ttl_s:
                self._values.move_to_end(key)
                return value  # type: ignore[return-value]
        fresh = read()
        self.keep(key, fresh, size_of(fresh))
        return fresh

    def keep(self, key: Hashable, value: object, size: int) -> None:
        """Keep a value of `size` bytes in place of the key's present one."""
        with self._lock:
            self._drop(key)
            self._put(key, value, size)

    def kept_value(self, key: Hashable) -> object | None:
        """Return the key's value, None if it is not kept any more."""
        with self._lock:
            value, _, read_at = self._values.get(key, (None, 0, 0.0))
            return value if time.monotonic() - read_at <= self._ttl_s else None

    def _put(self, key: Hashable, value: object, size: int) -> None:
        now = time.monotonic()
        if size <= self.bytes_max:
            self._values[key] = value, size, now
            self.bytes += size
        expired = [name for name, entry in self._values.items() if now - entry[2] > self._ttl_s]
        for name in expired:
            self._drop(name)
        while self.bytes > self.bytes_max:
            self._drop(next(iter(self._values)))

    def _drop(self, key: Hashable) -> None:
        if key in self._values:
            self.bytes -= self._values.pop(key)[1]


@st.cache_resource(max_entries=1, show_spinner=False)
def byte_budget() -> ByteBudget:
    """Returns the budget that all pages share."""
    return ByteBudget()
