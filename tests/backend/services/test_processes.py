"""Limits of the processes that the embedded services need, and who listens at a port."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from topicproof.backend.errors import SetupError
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.processes import (
    LOOPBACK,
    OPEN_FILES_MIN,
    answers_itself,
    end_of_log,
    free_ports,
    listener_uids,
    listens,
    require_open_files,
)
from topicproof.backend.services.spark import EmbeddedSpark
from topicproof.backend.settings import Settings


def test_few_open_files_are_more_afterwards_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a shell allows few open files. The limit is raised where the system allows it;
    otherwise a sentence says so before Java fails without one."""
    before = _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MIN // 2, hard))
        require_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= OPEN_FILES_MIN
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    monkeypatch.setattr("resource.getrlimit", lambda _which: (40, 40))
    with pytest.raises(SetupError, match="may open only 40 files here"):
        require_open_files()


def test_a_held_port_is_given_to_nobody_but_its_server() -> None:
    """Story: a broker takes seconds to start, and a killed one is started again. Meanwhile a busy
    machine opens thousands of connections; none has a broker's port."""
    with ExitStack() as held:
        (port,) = free_ports(1, held)
        for _ in range(2):
            # As Java's: its option lets it listen beside the socket that holds the port.
            with socket.create_server((LOOPBACK, port)) as server:
                assert listens(port) and server.getsockname()[1] == port
            assert not listens(port)
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind((LOOPBACK, port))
    with socket.socket() as stranger:
        stranger.bind((LOOPBACK, port))


def test_errors_before_the_end_of_a_log_are_told(tmp_path: Path) -> None:
    """Story: a broker fails, and then says in sixty lines how it stops. What people read begins
    with the reason."""
    log = tmp_path / "server.log"
    stopping = "".join(f"[2026] INFO part {number} stops (kafka)\n" for number in range(60))
    log.write_text(
        "[2026] INFO starts (kafka)\n[2026] ERROR Fatal error during startup (kafka)\n"
        "java.net.BindException: Address already in use\n\tat java.base/Net.bind(Net.java)\n"
        + stopping
    )
    errors, _, end = end_of_log(log).partition("The end of its log")
    assert errors.splitlines() == [
        "Its last errors:",
        "[2026] ERROR Fatal error during startup (kafka)",
        "java.net.BindException: Address already in use",
    ]
    assert "part 59 stops" in end and "part 19 stops" not in end
    log.write_text(stopping)
    assert end_of_log(log).startswith("The end of its log")


@pytest.mark.parametrize(
    ("address", "serves"),
    [("127.0.0.1", True), ("0.0.0.0", True), ("::ffff:127.0.0.1", True), ("::1", False)],
)
def test_a_port_has_a_process_and_a_user(address: str, serves: bool) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        port = listener.getsockname()[1]
        assert listener_uids(port) == frozenset()
        listener.listen()
        assert listener_uids(port) == frozenset({os.getuid()} if serves else ())
        assert not answers_itself(os.getppid(), port), "another process accepts there"


@pytest.mark.services
def test_a_port_that_was_taken_meanwhile_is_not_ours(tmp_path: Path) -> None:
    """Story: another program takes the port after it was found free. Nobody is sent there to sign
    in, and no token is sent there while our Spark server still fails."""
    with (
        socket.create_server(("127.0.0.1", 0)) as stranger,
        subprocess.Popen(["sleep", "600"]) as process,
    ):
        port = stranger.getsockname()[1]
        assert not EmbeddedSpark(tmp_path, [], port=port, process=process)._answers()
        process.kill()
        with pytest.raises(SetupError, match="The dashboard ended while starting"):
            dashboard(Settings(home=tmp_path), port).__enter__()
