"""The dashboard as a child process: Streamlit on loopback."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from topicproof.backend.errors import SetupError, UsageError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.processes import answers_itself, await_start, end_process, listens
from topicproof.backend.settings import ROOT, Settings
from topicproof.backend.trust.login import Login, configured_login, dashboard_provider

START_TIMEOUT_S = 60.0
STDIN_HELD = "TOPICPROOF_STDIN_HELD"
"""A variable of the child: its standard input ends when its parent does."""
FORWARDED = "FORWARDED_ALLOW_IPS"
"""A variable of the web server, uvicorn: from which peers it takes the header X-Forwarded-For for
the address of the peer. It reads the variable before it loads the application."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@contextmanager
def dashboard(settings: Settings, port: int) -> Iterator[str]:
    """Start the dashboard as a child process; it is ready when the block starts and gone when it
    ends, or when this process is killed. Raises UsageError as `require_closed`."""
    require_closed(settings, settings.dashboard_address)
    log = settings.home / "dashboard.log"
    command = [
        *(sys.executable, "-P", "-m"),
        *("topicproof.app.shell.launch", "run", str(ROOT / "app" / "server.py")),
        "--server.port",
        str(port),
    ]
    command += ["--server.headless", "true", "--server.address", settings.dashboard_address]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            # Never written to. It closes when this process ends, however that happens.
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Streamlit reads `.streamlit` of its working folder.
            cwd=ROOT,
            start_new_session=True,
            env={**python_environment(), **settings.environment(), STDIN_HELD: "1", FORWARDED: ""},
        )
    try:
        await_start(
            "The dashboard", child, lambda: answers_itself(child.pid, port), START_TIMEOUT_S, log
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        end_process(child)
        assert child.stdin is not None
        child.stdin.close()


def require_closed(settings: Settings, address: str) -> None:
    """Raises UsageError if a dashboard without a login could be reached from other machines at this
    address, unless the settings say so explicitly, and if the login is not configured well."""
    login = configured_login(settings)
    if login is not None and login.provider is not None:
        dashboard_provider(login)
    if login is not None or settings.insecure or is_loopback(address):
        return
    raise UsageError(
        f"The dashboard has no login, and {address} can be reached from other machines: anyone"
        " who reaches it can start runs and sign. Leave out TOPICPROOF_DASHBOARD_ADDRESS, configure"
        " a login (TOPICPROOF_LOGIN), or repeat this with --insecure."
    )


def require_peers(login: Login) -> None:
    """Raises UsageError if this web server would believe headers about the address of a peer, by
    which a proxy is known."""
    if login.proxy is not None and os.environ.get(FORWARDED) != "":
        raise UsageError(
            f"With a proxy's login the dashboard must be started with an empty {FORWARDED}, as"
            " `topicproof up` does. Otherwise anybody could claim to be the proxy."
        )


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches a listener at this address."""
    if address == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(address.strip("[]"))
        return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
    except ValueError:
        return False


def host_names(settings: Settings) -> frozenset[str]:
    """Return the names by which browsers may open the dashboard."""
    named = (name.strip().lower() for name in (settings.dashboard_hosts or "").split(","))
    address = settings.dashboard_address.strip("[]")
    login = configured_login(settings)
    opened = login.provider.address if login is not None and login.provider is not None else None
    public = urlsplit(opened or "").hostname or ""
    return frozenset(filter(None, (*LOOPBACK, address, public, *named)))


def require_port(port: int) -> None:
    if listens(port):
        raise SetupError(
            f"Port {port} is taken by another program. Choose another: topicproof up --port"
            f" {port + 1}"
        )
