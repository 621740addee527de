"""A program under test, in any language: started, killed at chosen or random moments, restarted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from topicproof.backend.characters import visible
from topicproof.backend.services.processes import end_of_log
from topicproof.backend.waiting import ask_until

TIMEOUT_S = 60.0
STEP_S = 0.02


@dataclass
class Program:
    """A command and its process. Its output, and that of each restart, goes to `log`."""

    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def output(self) -> str:
        """Everything that it has written to standard output and standard error."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        """Start it. Raises AssertionError if it runs already or cannot be started."""
        assert not self.running, f"{self} runs already"
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=self.cwd,
                    env={**os.environ, **self.env},
                )
        except OSError as error:
            raise AssertionError(f"{self} cannot be started: {error.strerror}.") from error

    def kill(self) -> None:
        """Kill it and its children with SIGKILL. Nothing happens if it has ended."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def stop(self, timeout_s: float = TIMEOUT_S) -> int:
        """End it with SIGTERM, and return its exit code. Raises AssertionError if it does not
        end."""
        self._signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait until it ends by itself, and return its exit code. Raises AssertionError if it does
        not."""
        assert self.process is not None, f"{self} was never started"
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise AssertionError(
                f"{self} did not end within {timeout_s:g} s. {end_of_log(self.log)}"
            ) from error

    def wait_until(
        self,
        condition: Callable[[], bool],
        timeout_s: float = TIMEOUT_S,
        what: str = "its condition",
    ) -> None:
        """Wait for a condition while the program runs. Raises AssertionError, with the end of its
        output, if it ends first or takes too long."""
        self._await(condition, timeout_s, what)

    def kill_when(
        self,
        condition: Callable[[], bool],
        timeout_s: float = TIMEOUT_S,
        what: str = "the moment to be killed",
    ) -> None:
        """Kill it while a condition holds. When the condition holds, the program is frozen
        (SIGSTOP) and the condition is asked for again, so the moment cannot pass before the
        kill."""

        def struck() -> bool:
            if not condition():
                return False
            with self._frozen():
                if not self.running or not condition():
                    return False
                self.kill()
                return True

        self._await(struck, timeout_s, what)

    def kill_randomly(
        self,
        progress: Callable[[], int],
        until: int,
        times: int = 3,
        seed: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Kill and restart it `times` times, each when `progress` reaches a random figure below
        `until`, such as the number of inputs. The seed is printed, and pytest shows it when the
        test fails. Raises TypeError if `until` is no number."""
        if not isinstance(until, int):
            raise TypeError(f"until is {until!r}; it must be the figure that progress() ends at.")
        seed = random.randrange(1_000_000) if seed is None else seed
        figures = sorted(random.Random(seed).sample(range(1, until), times))
        print(f"{self} is killed at {figures} of {until} (seed={seed})")  # noqa: T201
        for figure in figures:
            self.kill_when(partial(_reached, progress, figure), timeout_s, f"{figure} of {until}")
            self.start()

    def __str__(self) -> str:
        return visible(f"the program `{' '.join(self.command)[:200]}`")

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            # It may end between the question and the signal.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _await(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        def look() -> tuple[bool, bool]:
            # In this order: a program may meet the condition and end at once.
            ended = not self.running
            return condition(), ended

        met, ended = ask_until(look, any, timeout_s, STEP_S)
        if not met:
            why = "ended before" if ended else f"took more than {timeout_s:g} s until"
            raise AssertionError(f"{self} {why} {what}. {end_of_log(self.log)}")


def _reached(progress: Callable[[], int], due: int) -> bool:
    return progress() >= due
