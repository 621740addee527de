"""A token for kafka-python is kept while it is fresh, and a missing one has a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.kafka.tokens import CLIENT_ID, CLIENT_SECRET, token_endpoint
from tests.backend.properties.stores import Authority
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.log.client import TokenProvider
from topicproof.backend.kafka.tokens import fetch_token
from topicproof.backend.properties.facts import Tokens


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with token_endpoint() as url:
        yield url


def _tokens(url: str, secret: str = CLIENT_SECRET, ca: str | None = None) -> Tokens:
    return Tokens(url, CLIENT_ID, secret, "kafka", {"logicalCluster": "lkc-1"}, ca)


def test_a_fresh_token_is_kept(endpoint: str) -> None:
    """Story: kafka-python logs in at each connection. One token serves until most of its life is
    over."""
    kept, short = (TokenProvider(_tokens(f"{endpoint}/{path}")) for path in ("token", "short"))
    assert kept.token() == kept.token()
    assert short.token() != short.token()
    assert kept.extensions() == {"logicalCluster": "lkc-1"}


@pytest.mark.parametrize(
    ("path", "secret", "sentence"),
    [
        ("token", "hidden", r"refused client topicproof \(HTTP 401\)"),
        ("empty", CLIENT_SECRET, "answered without a token"),
        ("failing", CLIENT_SECRET, "answered with HTTP 500"),
        ("deep", CLIENT_SECRET, "answered without a token"),
        ("moved", CLIENT_SECRET, "answered with HTTP 302"),
        ("long", CLIENT_SECRET, "answered with more than 1 MB"),
        ("endless", CLIENT_SECRET, "answered without a token"),
        ("long-lived", CLIENT_SECRET, "answered without a token"),
        ("split", CLIENT_SECRET, "answered without a token"),
        ("listed", CLIENT_SECRET, "answered without a token"),
        ("dripping-head", CLIENT_SECRET, "cannot be reached: it took too long"),
        ("dripping-body", CLIENT_SECRET, "cannot be reached: it took too long"),
    ],
)
def test_a_refused_token_has_a_reason(
    endpoint: str, path: str, secret: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the endpoint repeats the secret in its answer. The sentence does not. It redirects to
    a host that would give a token for the secret, or answers without end, also in a header. Or its
    token never ends, or goes on with a second one."""
    if path.startswith("dripping"):
        monkeypatch.setattr("topicproof.backend.kafka.tokens.ANSWER_S", 0.3)
    with pytest.raises(ClusterError, match=sentence) as told:
        fetch_token(_tokens(f"{endpoint}/{path}", secret))
    assert "hidden" not in str(told.value)


def test_an_endpoint_with_another_authority_is_named(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue("127.0.0.1")
    (tmp_path / "own.pem").write_text(issued.key + issued.chain)
    with token_endpoint(tmp_path / "own.pem") as url:
        assert fetch_token(_tokens(f"{url}/token", ca=authority.pem)).is_fresh
        with pytest.raises(ClusterError, match=r"cannot be reached: .*certificate verify failed"):
            fetch_token(_tokens(f"{url}/token"))
