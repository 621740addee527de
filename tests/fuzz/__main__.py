"""Feed each parser for a time: `python -m tests.fuzz SECONDS [TARGET]`. Prints how many inputs each
had, and stops at the first traceback with the input that caused it."""

from __future__ import annotations

import sys
import time

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.targets import TARGETS

EXAMPLES = 200


def main(seconds: float, names: list[str]) -> None:
    for name in names or TARGETS:
        strategy, read = TARGETS[name]
        count = 0

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def once(data: bytes) -> None:
            nonlocal count
            count += 1
            read(data)  # noqa: B023 (called within the same turn of the loop)

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            once()
        sys.stdout.write(f"{name}: {count:,} inputs, 0 tracebacks\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
