"""An agent: the protocol's own client, in a session with a real server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent, Tool

COMMAND = ("-P", "-m", "topicproof", "mcp")
ANSWER_S = 300.0


@dataclass(frozen=True)
class Agent:
    client: Client
    portal: BlockingPortal

    @property
    def tools(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}

    def ask(self, tool: str, **arguments: Any) -> Any:
        """The structured answer of a tool."""
        answer = self._call(tool, arguments)
        assert not answer.is_error and answer.structured_content is not None, answer.content
        return answer.structured_content

    def refused(self, tool: str, **arguments: Any) -> str:
        """The sentence with which a tool refuses."""
        answer = self._call(tool, arguments)
        assert answer.is_error and answer.structured_content is None
        (content,) = answer.content
        assert isinstance(content, TextContent)
        return content.text

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        answer = self.portal.call(self.client.call_tool, tool, dict(arguments))
        assert isinstance(answer, CallToolResult)
        return answer


@contextmanager
def over_stdio(environment: Mapping[str, str], *options: str) -> Iterator[Agent]:
    """An agent that starts the command."""
    server = StdioServerParameters(
        command=sys.executable, args=[*COMMAND, *options], env={**os.environ, **environment}
    )
    with _session(Client(server, read_timeout_seconds=ANSWER_S)) as agent:
        yield agent


@contextmanager
def over_http(address: str, token: str) -> Iterator[Agent]:
    """An agent that bears a token."""
    web = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=ANSWER_S)
    transport = streamable_http_client(address, http_client=web)
    with _session(Client(transport, read_timeout_seconds=ANSWER_S)) as agent:
        yield agent
        agent.portal.call(web.aclose)


@contextmanager
def _session(client: Client) -> Iterator[Agent]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
        yield Agent(client, portal)
