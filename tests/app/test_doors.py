"""Who may speak to the dashboard: this machine's browsers, under its own name, from its own
pages."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.backend.services.test_connection_limits import answer, rest, serving
from topicproof.app.shell import doors
from topicproof.app.shell.doors import HEADERS, Doors, OwnerOnly, refusal
from topicproof.backend.cli import main
from topicproof.backend.errors import UsageError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.dashboard import host_names, is_loopback, require_closed
from topicproof.backend.services.processes import connection_is_of
from topicproof.backend.settings import ROOT, Settings

HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
OWN = {"host": "127.0.0.1:8501", "origin": "http://127.0.0.1:8501"}


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        (OWN, None),
        ({"host": "[::1]:8501"}, None),
        ({"host": "LOCALHOST:8501", "origin": "http://localhost:8501"}, None),
        ({"host": "rebound.example:8501", "origin": "http://rebound.example:8501"}, "this name"),
        ({"host": "127.0.0.1.rebound.example"}, "this name"),
        ({"host": "[bad"}, "this name"),
        ({}, "this name"),
        ({**OWN, "origin": "http://evil.example"}, "other web sites"),
        ({**OWN, "origin": "http://127.0.0.1:3000"}, "other web sites"),
        ({**OWN, "origin": "null"}, "other web sites"),
        ({**OWN, "origin": "http://["}, "other web sites"),
        *(
            ({"host": "127.0.0.1:8501", "sec-fetch-site": site, **further}, says)
            for site, further, says in (
                ("none", {}, None),
                ("same-origin", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}, None),
                ("cross-site", {}, "other web sites"),
                ("same-site", {}, "other web sites"),
                ("SAME-ORIGIN", {}, "other web sites"),
                ("cross-site", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, "other"),
                ("cross-site", {"sec-fetch-mode": "websocket"}, "other web sites"),
                ("cross-site", LINK | {"sec-fetch-dest": "iframe"}, "other web sites"),
                ("cross-site", LINK | {"sec-fetch-dest": "object"}, "other web sites"),
                ("cross-site", LINK | {"origin": "null"}, "other web sites"),
                ("cross-site", LINK, None),
                ("same-site", LINK, None),
            )
        ),
    ],
)
def test_a_request_needs_a_known_name_and_its_own_origin(
    headers: Mapping[str, str], says: str | None
) -> None:
    """Story: a foreign page sends requests, as itself or by a name of its own that resolves to
    127.0.0.1; so does a page of another program on this machine."""
    found = refusal(headers, HOSTS)
    assert found is None if says is None else found is not None and says in found


def answered(kind: str, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the doors send for a request, before an application that answers everything."""
    sent: list[dict[str, Any]] = []

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        return {"type": f"{kind}.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "headers": raw, "method": "GET", "path": "/"}
    asyncio.run(Doors(application, HOSTS)(scope, receive, send))
    return sent


def test_the_doors_refuse_requests_and_websockets() -> None:
    (start,) = answered("http", OWN)
    assert {name.decode() for name, _ in start["headers"]} == set(HEADERS)
    embedded = {"host": OWN["host"], "sec-fetch-site": "cross-site"}
    for foreign in ({**OWN, "origin": "http://evil.example"}, embedded):
        assert answered("http", foreign)[0]["status"] == 403
        assert [one["type"] for one in answered("websocket", foreign)] == ["websocket.close"]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5", "dashboard.example", ""])
def test_the_dashboard_does_not_listen_for_other_machines(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody binds the dashboard, which has no login, to all interfaces. Nothing starts,
    unless they insist."""
    assert not is_loopback(address) and is_loopback("127.0.0.1") and is_loopback("[::1]")
    with pytest.raises(UsageError, match=r"has no login.*--insecure"):
        require_closed(Settings(home=tmp_path), address)
    require_closed(Settings(home=tmp_path, insecure=True), address)
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_DASHBOARD_ADDRESS", address or "0.0.0.0")
    with pytest.raises(SystemExit) as ended:
        main(["up", "--no-demo"])
    assert ended.value.code == 64


def test_further_names_are_configured(tmp_path: Path) -> None:
    named = Settings(home=tmp_path, dashboard_hosts="Proof.example, ", dashboard_address="0.0.0.0")
    assert host_names(named) == HOSTS | {"0.0.0.0", "proof.example"}


REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n"
ENDS = [
    ("127.0.0.1", "127.0.0.1"),
    ("127.0.0.1", "127.0.0.2"),
    ("127.0.0.3", "127.0.0.3"),
    ("::1", "::1"),
    ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
]


@pytest.mark.parametrize(("server", "client"), ENDS)
def test_another_user_of_the_machine_is_not_served(
    server: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a dashboard has no login. Another user of the machine opens it at loopback, from any
    address and with any header. Its owner is served, and later requests of a connection are not
    looked up again."""
    lookups: list[tuple[str, int]] = []

    def look_up(uids: Any, ends: tuple[str, int], to: tuple[str, int]) -> bool:
        lookups.append(ends)
        return connection_is_of(uids, ends, to)

    monkeypatch.setattr(doors, "connection_is_of", look_up)
    with serving(OwnerOnly(answer), server) as port:

        def connection() -> socket.socket:
            return socket.create_connection((server, port), 20, source_address=(client, 0))

        with connection() as ours:
            for _ in range(3):
                ours.sendall(REQUEST)
                assert ours.recv(4096).startswith(b"HTTP/1.1 204")
            assert len(lookups) == 1
        with connect(f"ws://localhost:{port}/", sock=connection()) as tab:
            tab.send("still")
            assert tab.recv(20) == "here"
        monkeypatch.setattr(doors, "OWN_UIDS", frozenset({os.getuid() + 1}))
        with connection() as theirs:
            theirs.sendall(REQUEST)
            refused = rest(theirs).decode()
            assert refused.startswith("HTTP/1.1 403") and "configure a login" in refused
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"ws://localhost:{port}/", sock=connection()).__enter__()


@pytest.mark.parametrize(
    ("client", "server", "is_served"),
    [
        ("172.17.0.1", "172.17.0.2", True),
        ("172.17.0.1", "127.0.0.1", False),
        ("127.0.0.1", "172.17.0.2", False),
        ("not an address", "127.0.0.1", False),
        ("", "", False),
    ],
)
def test_who_comes_from_this_machine_has_a_socket_of_its_owner(
    client: str, server: str, is_served: bool
) -> None:
    """Story: a container's dashboard is asked from outside of it, where there are no sockets to
    look up. On loopback a connection whose socket is nowhere is nobody's."""
    scope = {"type": "http", "client": (client, 1), "server": (server, 8501)}
    assert doors._is_own(doors._connection(scope)) is is_served


@pytest.mark.parametrize(
    ("variable", "value", "serves_owner_alone"),
    [
        ("TOPICPROOF_HOME", None, True),
        ("TOPICPROOF_INSECURE", "true", False),
        ("TOPICPROOF_LOGIN", "proxy: {user: X-User, groups: X-Groups}", False),
    ],
)
def test_the_server_asks_first_whose_a_connection_is(
    variable: str, value: str | None, serves_owner_alone: bool, tmp_path: Path
) -> None:
    """Story: the owner's own server, one whose owner insists to serve everybody, and one with a
    login."""
    if variable == "TOPICPROOF_LOGIN":
        (tmp_path / "login.yaml").write_text(f"{value}\n")
        value = str(tmp_path / "login.yaml")
    program = (
        "from streamlit import config\n"
        "config._main_script_path = 'app/server.py'\n"
        "config.set_option('server.address', '127.0.0.1')\n"
        "from topicproof.app.server import app\n"
        "print(*(each.cls.__name__ for each in app._user_middleware))\n"
    )
    process = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=ROOT,
        env=python_environment()
        | {"TOPICPROOF_HOME": str(tmp_path / "home"), "FORWARDED_ALLOW_IPS": ""}
        | ({} if value is None else {variable: value}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (process.stdout.split()[0] == "OwnerOnly") is serves_owner_alone
    assert "Doors" in process.stdout
