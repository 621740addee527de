"""Who may speak to the dashboard: this machine's browsers, under its own name, from its own
pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from topicproof.app.shell.doors import HEADERS, Doors, refusal
from topicproof.backend.cli import main
from topicproof.backend.errors import UsageError
from topicproof.backend.services.dashboard import host_names, is_loopback, require_closed
from topicproof.backend.settings import Settings

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
