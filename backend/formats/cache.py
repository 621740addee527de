"""What is kept of schemas: within a bound of bytes, and made once by whoever needs it first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock, Semaphore
from typing import Generic, TypeVar

from topicproof.backend.formats.registered import SchemaId

Value = TypeVar("Value")
WINDOW_S = 60.0


class Cache(Generic[Value]):
    """Values by schema id. The oldest go when there are too many, or their sizes exceed the bound;
    the newest stays. Safe for several threads: one makes a value, others that need the same one
    wait for it, and nobody else does unless `at_once` values are being made."""

    def __init__(self, count_max: int, bytes_max: int, at_once: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._values: dict[SchemaId, tuple[Value, int]] = {}
        self._making: dict[SchemaId, Lock] = {}
        self._lock = Lock()
        """Guards both."""
        self._slots = Semaphore(at_once)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, schema_id: SchemaId) -> bool:
        return schema_id in self._values

    @property
    def size(self) -> int:
        """Bytes of all values."""
        with self._lock:
            return sum(size for _, size in self._values.values())

    def get(self, schema_id: SchemaId, make: Callable[[], tuple[Value, int]]) -> Value:
        """Return the value of an id. `make` returns it with its size in bytes. Raises what `make`
        raises; then nothing is kept."""
        if (entry := self._values.get(schema_id)) is not None:
            return entry[0]
        with self._lock:
            making = self._making.setdefault(schema_id, Lock())
        with making:
            if (entry := self._values.get(schema_id)) is not None:
                return entry[0]
            try:
                with self._slots:
                    value, size = make()
                with self._lock:
                    self._values[schema_id] = value, size
                    self._drop_oldest()
                return value
            finally:
                with self._lock:
                    self._making.pop(schema_id, None)

    def _drop_oldest(self) -> None:
        total = sum(size for _, size in self._values.values())
        while len(self._values) > 1 and (
            len(self._values) > self._count_max or total > self._bytes_max
        ):
            _, size = self._values.pop(next(iter(self._values)))
            total -= size


class Allowance:
    """Seconds that something may take in any minute, together for all who ask."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._spent: deque[tuple[float, float]] = deque()
        """When something ended, and how many seconds it took."""

    @property
    def is_spent(self) -> bool:
        since = self._clock() - WINDOW_S
        return sum(took for end, took in [*self._spent] if end > since) >= self.seconds

    def spend(self, began: float) -> None:
        """Count the time since `began`, which is of the same clock."""
        now = self._clock()
        self._spent.append((now, now - began))
        while self._spent and self._spent[0][0] <= now - WINDOW_S:
            self._spent.popleft()

    def now(self) -> float:
        """Return the time of its clock, in seconds."""
        return self._clock()
