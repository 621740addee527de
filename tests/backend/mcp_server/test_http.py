"""Agents over HTTP, at a real server of the command without a login."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.backend.kafka.topics import Writer
from tests.backend.mcp_server.agent import COMMAND, over_http
from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.store import History
from topicproof.backend.mcp_server import cluster_tools
from topicproof.backend.mcp_server.cluster_tools import ClusterTools
from topicproof.backend.mcp_server.desk import Desk
from topicproof.backend.mcp_server.people import TOKEN_FILE, local_token
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.trust.acting import acting
from topicproof.backend.trust.identity import Action

NewTopic = Callable[..., str]
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "curl", "version": "1"},
    },
}


@dataclass(frozen=True)
class Server:
    address: str
    token: str


@pytest.fixture(scope="module")
def server(settings: Settings, cluster: Services) -> Iterator[Server]:
    assert cluster.bootstrap
    with subprocess.Popen(
        [sys.executable, *COMMAND, "--http", "0", "--payloads"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings.environment(), "COLUMNS": "500"},
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(4)]
            token = (settings.home / "trust" / TOKEN_FILE).read_text().strip()
            # It is printed when it is made, with the name of its file.
            assert lines[1] == f"Each request needs the header Authorization: Bearer {token}\n"
            assert TOKEN_FILE in lines[2]
            yield Server(lines[0].split()[-1], token)
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_an_agent_with_the_token_sees_records(
    server: Server, settings: Settings, bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a server was started with --payloads. An agent with the token sees records of every
    fate, and each look is in the audit log."""
    topic = new_topic()
    Writer(bootstrap, topic, value=b"v\x1b[0m").write("A1 A+ B2 B- n1")
    with over_http(server.address, server.token) as agent:
        newest = agent.ask("records", topic=topic)["items"]
        assert [(each["offset"], each["fate"]) for each in newest] == [
            (5, "committed"),
            (3, "aborted"),
            (2, "aborted"),
            (0, "committed"),
        ]
        assert newest[0]["value"] == "0x761b5b306d" and newest[0]["key"] == "n0"
        window = agent.ask("records", topic=topic, partition=0, offset=2, limit=2)["items"]
        assert [each["offset"] for each in window] == [2, 3]
        last = agent.ask("records", topic=topic, partition=0, limit=1)["items"]
        assert [each["offset"] for each in last] == [5]
        assert "Name the partition" in agent.refused("records", topic=topic, offset=2)
    history = History(settings)
    looks = [each.what for each in audit_entries(history) if each.action is Action.LOOK]
    history.engine.dispose()
    assert f"{topic}, the newest, for an agent" in looks
    assert f"{topic}-0, from offset 2 on, for an agent" in looks


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": ""}, 401),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_strangers_get_no_answer(server: Server, headers: dict[str, str], code: int) -> None:
    """Story: a web page, or another user of the machine, finds the port. Only a request to this
    server by its own name, with the token, is answered."""
    usual = {
        "Authorization": f"Bearer {server.token}",
        "Accept": "application/json, text/event-stream",
    }
    answer = httpx.post(server.address, json=HELLO, headers={**usual, **headers})
    assert answer.status_code == code, answer.text
    assert (b"serverInfo" in answer.content) is (code == 200)


def test_the_token_is_for_its_owner_alone(server: Server, settings: Settings) -> None:
    """Story: a server starts again. It has the same token, in a file that nobody else reads."""
    kept = local_token(settings)
    assert kept is not None and (kept.token, kept.is_new) == (server.token, False)
    assert kept.path.stat().st_mode & 0o077 == 0


def test_a_question_examines_no_log_that_is_too_long(
    settings: Settings, bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: several agents ask about a topic of tiny batches. Each question gets a sentence
    instead of the server's memory, and they are answered one after the other."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A1 A+ B1 B+")
    history = History(settings)
    desk = Desk(settings, Address(bootstrap), history, lambda: acting(settings), True)
    tools = ClusterTools(desk)
    questions: tuple[Callable[[], object], ...] = (
        lambda: tools.inspect_topic(topic),
        lambda: tools.group_lag(topic),
        lambda: tools.explain_offset(topic, 0, 0),
        lambda: tools.records(topic),
    )
    with monkeypatch.context() as patch:
        patch.setattr(cluster_tools, "BATCHES_MAX", 1)
        for question in questions:
            with pytest.raises(UsageError, match="an agent's question examines no more"):
                question()
    monkeypatch.setattr(cluster_tools, "TURN_WAIT_S", 0.0)
    with tools._examining(topic):
        for question in questions:
            with pytest.raises(UsageError, match="one question at a time"):
                question()
    assert tools.explain_offset(topic, 0, 0)["fate"] == "committed"
    history.engine.dispose()
