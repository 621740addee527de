"""The login of a Java client, `sasl.jaas.config` (KIP-85): one login module with its options.

The words are split as Kafka's JaasConfig does with `java.io.StreamTokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from topicproof.backend.errors import UsageError

PLAIN, SCRAM, TOKENS = "PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule"
_CLASSES = {
    PLAIN: f"org.apache.kafka.common.security.plain.{PLAIN}",
    SCRAM: f"org.apache.kafka.common.security.scram.{SCRAM}",
    TOKENS: f"org.apache.kafka.common.security.oauthbearer.{TOKENS}",
}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/"""
    r"""|(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<mark>[=;])|(?P<word>[\w$.\-]+)""",
    re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


_TYPOGRAPHIC = "\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
QUOTES = f"\"'{_TYPOGRAPHIC}"
"""Characters that people put around a value."""


@dataclass(frozen=True)
class Login:
    module: str
    """The class without its package."""
    options: Mapping[str, str] = field(repr=False)


def parse_login(text: str, place: str) -> Login:
    """Parse one login. Raises UsageError; no message contains a value."""
    tokens = _tokens(text, place)
    if len(tokens) < 2 or tokens[1][1].lower() not in _FLAGS:
        raise UsageError(f"{place}: expected a login module, `required`, its options and `;`.")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and tokens[at] != ("mark", ";"):
        name, mark, value = (tokens[at : at + 3] + [("mark", "")] * 3)[:3]
        if name[0] == "mark" or mark != ("mark", "=") or value[0] == "mark":
            raise UsageError(
                f'{place}: expected name="value" after {len(options)} options. Inside the quotes,'
                " write a backslash before a quote or a backslash."
            )
        options[name[1]] = value[1]
        at += 3
    if at != len(tokens) - 1:
        why = (
            "a semicolon (;) must end it, after the last option"
            if at == len(tokens)
            else "only one login module may stand"
        )
        raise UsageError(f"{place}: {why}.")
    return Login(tokens[0][1].rpartition(".")[2], options)


def login_line(module: str, options: Mapping[str, str]) -> str:
    """Return the value of `sasl.jaas.config`."""
    option_words = "".join(f" {name}={_quoted(value)}" for name, value in options.items())
    return f"{_CLASSES[module]} required{option_words};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _tokens(text: str, place: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise UsageError(f"{place}: {_misfit(text, at, tokens)}.")
        at = token.end()
        if token.lastgroup == "quoted":
            tokens.append(("word", _unescaped(token.group()[1:-1])))
        elif token.lastgroup is not None:
            tokens.append((token.lastgroup, token.group()))
    return tokens


def _misfit(text: str, at: int, before: list[tuple[str, str]]) -> str:
    """Explain why no word begins at `at`, and what to write. Contains no value."""
    character = text[at]
    if character in _TYPOGRAPHIC:
        return f'character {at + 1} is a typographic quote ({character}). Write a straight one (")'
    if character in "\"'":
        return (
            f"the quote at character {at + 1} is not closed. Write a second one after the value,"
            " and a backslash before a quote inside it"
        )
    marks = [place for place, token in enumerate(before) if token == ("mark", "=") and place]
    option = before[marks[-1] - 1][1] if marks else ""
    if not option:
        return f"character {at + 1} does not fit. Quote each value"
    return f'the value of {option} holds what only quotes allow. Write {option}="VALUE"'


def _unescaped(text: str) -> str:
    def replace_escape(escaped: re.Match[str]) -> str:
        character = escaped.group(1)
        return (
            chr(int(character, 8))
            if character[0] in "01234567"
            else _ESCAPES.get(character, character)
        )

    return re.sub(r"\\([0-3]?[0-7]{1,2}|.)", replace_escape, text, flags=re.DOTALL)
