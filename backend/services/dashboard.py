"""The dashboard as a child process: Streamlit on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from topicproof.backend.errors import SetupError
from topicproof.backend.services.processes import await_start, end_process, listens
from topicproof.backend.settings import ROOT, Settings

START_TIMEOUT_S = 60.0


@contextmanager
def dashboard(settings: Settings, port: int) -> Iterator[str]:
    """Start the dashboard as a child process; it is ready when the block starts and gone when it
    ends."""
    log = settings.home / "dashboard.log"
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app/main.py",
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
        await_start("The dashboard", child, lambda: listens(port), START_TIMEOUT_S, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        end_process(child)


def require_port(port: int) -> None:
    if listens(port):
        raise SetupError(
            f"Port {port} is taken by another program. Choose another: topicproof up --port"
            f" {port + 1}"
        )
