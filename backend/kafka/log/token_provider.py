"""Tokens for kafka-python, which fetches none itself."""

from __future__ import annotations

from kafka.net.sasl.oauth import AbstractTokenProvider

from topicproof.backend.kafka.tokens import Token, fetch_token
from topicproof.backend.properties.facts import Tokens


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Keeps a token until most of its lifetime has passed. Raises ClusterError if none can be
    fetched."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self.tokens = tokens
        self.kept: Token | None = None

    def token(self) -> str:
        if self.kept is None or not self.kept.is_fresh:
            self.kept = fetch_token(self.tokens)
        return self.kept.text

    def extensions(self) -> dict[str, str]:
        return dict(self.tokens.extensions)
