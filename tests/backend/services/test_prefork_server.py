"""Spark's Python processes and runs are forked from one that has done the imports, and can do
without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import wait_until
from topicproof.backend.services.prefork_server import write_executable
from topicproof.backend.settings import ROOT, socket_path

pytestmark = pytest.mark.services

ASKED = """
import os, sys
sink = "topicproof.backend.sink.exactly_once"
print(sorted(sys.argv[1:]), os.getcwd(), os.environ["FLAVOUR"], sink in sys.modules)
"""


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    write_executable(path, socket_path(tmp_path))
    (tmp_path / "asked.py").write_text(ASKED)
    return path


@contextmanager
def forking(address: Path) -> Iterator[None]:
    """A process that forks at `address`; it ends, and leaves nothing, when nobody needs it any
    more."""
    command = [sys.executable, "-m", "topicproof.backend.services.prefork_server", str(address)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        wait_until(address.exists, 30, "the socket")
        yield
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
    assert not address.exists()


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[None]:
    with forking(socket_path(tmp_path)):
        yield


def ask(executable: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(executable.parent), "FLAVOUR": "vanilla"}
    done = subprocess.run(
        [executable, *arguments],
        env=environment,
        cwd=executable.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.usefixtures("forks")
def test_a_fork_runs_the_module_in_the_callers_surroundings(
    executable: Path,
) -> None:
    assert (
        ask(executable, "-m", "asked", "b", "a") == f"['a', 'b'] {executable.parent} vanilla True"
    )


def test_without_the_forking_process_it_is_an_ordinary_python(executable: Path) -> None:
    assert ask(executable, "-m", "asked", "a") == f"['a'] {executable.parent} vanilla False"


@pytest.mark.usefixtures("forks")
def test_other_questions_go_to_the_ordinary_python(
    executable: Path,
) -> None:
    assert ask(executable, "-c", "print(1 + 1)") == "2"
