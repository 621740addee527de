"""The dashboard as a child process: Streamlit on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topicproof.backend.errors import SetupError
from topicproof.backend.services.kafka import end_process
from topicproof.backend.settings import ROOT, Settings

START_TIMEOUT_S = 60.0


@contextmanager
def dashboard(settings: Settings, port: int) -> Iterator[str]:
    """The dashboard as a child process, ready when the block starts, gone when it ends."""
    log = settings.home / "dashboard.log"
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app/server.py",
        "--server.port",
        str(port),
    ]
    command += ["--server.headless", "true", "--server.address", settings.dashboard_address]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, **settings.environment()},
        )
    try:
        _await_dashboard(child, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        end_process(child)


def _await_dashboard(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(port):
        if child.poll() is not None or time.monotonic() > deadline:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise SetupError(f"The dashboard did not come up. The end of its log ({log}):\n{end}")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def require_port(port: int) -> None:
    if _answers(port):
        raise SetupError(
            f"Port {port} is taken by another program. Choose another: topicproof up --port"
            f" {port + 1}"
        )
