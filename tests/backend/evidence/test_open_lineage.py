"""Verdicts for catalogues of data, as an endpoint gets them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.app.test_history_page import HELD, TWICE
from tests.ports import free_ports
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.open_lineage import emit, event_of
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Endpoint(ThreadingHTTPServer):
    """Takes events, with the status that it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.taken: list[tuple[str, str | None, dict[str, Any]]] = []
        self.status = 201

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Taker(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.taken.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening() -> Iterator[Endpoint]:
    with Endpoint() as found:
        threading.Thread(target=found.serve_forever).start()
        yield found
        found.shutdown()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with listening() as found:
        yield found


def sent(endpoint: Endpoint, report: Report) -> dict[str, Any]:
    emit(endpoint.url, [event_of(report, "a:9092,b:9092", "c:9092", NOW)])
    return endpoint.taken[-1][2]


def test_a_violated_verdict_names_what_failed(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a catalogue gets a verdict with duplicates, with the key of its user."""
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "k3y")
    event = sent(endpoint, TWICE)
    path, authorization, _ = endpoint.taken[-1]
    assert (path, authorization) == ("/api/v1/lineage", "Bearer k3y")
    assert (event["eventType"], event["eventTime"]) == ("COMPLETE", "2026-01-02T03:04:05+00:00")
    source, sink = event["inputs"]
    assert (source["namespace"], source["name"]) == ("kafka://a:9092", TWICE.source.topic)
    assert (sink["namespace"], sink["name"]) == ("kafka://c:9092", TWICE.sink.topic)
    verdict, *each = sink["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (verdict["assertion"], verdict["success"]) == ("exactly_once", False)
    assert {one["assertion"]: one["success"] for one in each}["duplicate"] is False
    assert "values" not in json.dumps(event), "no payload leaves with a verdict"


@pytest.mark.parametrize("outcome", Outcome)
def test_only_a_verdict_that_holds_is_a_success(outcome: Outcome, endpoint: Endpoint) -> None:
    """Story: the specification has no assertion that is open."""
    event = sent(endpoint, replace(HELD, verdict=outcome))
    verdict = event["inputs"][1]["inputFacets"]["dataQualityAssertions"]["assertions"][0]
    assert verdict["success"] is (outcome is Outcome.HOLDS)


def test_an_endpoint_that_refuses_is_named(endpoint: Endpoint) -> None:
    """Story: the endpoint wants a key; nobody listens; the address is none."""
    endpoint.status = 401
    closed = f"http://127.0.0.1:{free_ports(1)[0]}"
    for url, why in ((endpoint.url, "HTTP 401"), (closed, "ConnectionError"), ("x", "ValueError")):
        with pytest.raises(EvidenceError, match=f"did not take the verdict .{why}"):
            emit(url, [event_of(HELD, "a:1", "b:1", NOW)])
