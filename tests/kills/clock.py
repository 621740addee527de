"""The wall clock jumps while a run works: `python -m tests.kills.clock`, which needs gcc.

All processes of the run see it jump, Kafka and Spark too: by an hour back and by an hour on, in
each state. The run must hold, its evidence must verify, and a plain client must read every record
once.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import wait_until
from tests.kills.pipeline import PLAN, RESUME_S, START_S, STATES, start, wrong
from topicproof.backend.history.store import ENDED, History, State
from topicproof.backend.settings import read_settings

JUMPS_S = (-3_600, 3_600)
AFTER_S = 1.0


def jump(shim: Path, state: State, seconds: int) -> str:
    """Return what is wrong after a jump in this state; empty if all is well."""
    with tempfile.TemporaryDirectory(prefix="clock-") as home:
        shift = Path(home) / "shift"
        shift.write_bytes(struct.pack("q", 0))
        os.environ |= {"LD_PRELOAD": str(shim), "CLOCK_SHIFT": str(shift)}
        settings = read_settings(home=Path(home) / "home")
        try:
            history = History(settings)
            process = start(settings, *PLAN)
            wait_until(lambda: len(history.list()) == 1, START_S, "the run's entry")
            run_id = history.list()[0].id
            wait_until(
                lambda: history.get(run_id).state in (state, *ENDED) or process.poll() is not None,
                START_S,
                f"the state {state}",
            )
            time.sleep(AFTER_S)
            with shift.open("r+b") as file:
                file.write(struct.pack("q", seconds))
            told, _ = process.communicate(timeout=RESUME_S)
            if process.returncode != 0 or "HOLDS" not in told:
                return f"exit code {process.returncode}: {told[-600:]}"
            return wrong(settings, run_id)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            os.environ.pop("LD_PRELOAD")
            # The services stop after their last user, and write into the folder until then.
            running = settings.services / "running.json"
            wait_until(lambda: not running.exists(), RESUME_S, "the end of Kafka and Spark")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="clock-") as folder:
        shim = Path(folder) / "clock.so"
        source = Path(__file__).with_suffix(".c")
        command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"]
        subprocess.run(command, check=True)
        surprises = 0
        for state in STATES:
            for seconds in JUMPS_S:
                surprise = jump(shim, state, seconds)
                surprises += bool(surprise)
                sys.stdout.write(f"{state:12} {seconds:+6} s  {surprise or 'as expected'}\n")
                sys.stdout.flush()
    sys.exit(surprises > 0)


if __name__ == "__main__":
    main()
