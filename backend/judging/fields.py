"""Fields of decoded records in contracts: `field('order.id')` and `key_field('id')` in expressions,
and an expression for each field of an output.

Spark knows no such functions. Each call becomes a column of the decoded reading
(validators/decoded.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from topicproof.validators.contract_terms import AS_JSON
from topicproof.validators.decoded import KEY_FIELD, VALUE_FIELD, parse_field, sql_of

FUNCTIONS = frozenset({VALUE_FIELD, KEY_FIELD})
_CALL = (TokenType.L_PAREN, TokenType.STRING, TokenType.R_PAREN)


@dataclass(frozen=True)
class Call:
    """A call of one of these functions within an expression."""

    start: int
    end: int
    """After its last character."""
    field: str
    """As validators/decoded.py spells it."""


def calls_in(text: str) -> list[Call]:
    """Return the calls in an expression, in order. Raises ValueError with the reason as a clause if
    one does not name a field."""
    try:
        tokens = sqlglot.tokenize(text, read="spark")
    except SqlglotError as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"the expression {text!r} does not parse: {first}") from error
    return list(_calls(text, tokens))


def _calls(text: str, tokens: Sequence[Token]) -> Iterator[Call]:
    for place, token in enumerate(tokens):
        called = token.text.lower()
        following = tokens[place + 1 : place + 1 + len(_CALL)]
        if called not in FUNCTIONS or token.token_type is TokenType.STRING:
            continue
        if not following or following[0].token_type is not TokenType.L_PAREN:
            continue
        if token.token_type is not TokenType.VAR or (
            tuple(one.token_type for one in following) != _CALL
        ):
            raise ValueError(
                f"{called} takes one literal path in {text!r}, as {called}('order.id')"
            )
        path = following[1].text
        parse_field(path)
        yield Call(token.start, following[2].end + 1, f"{called}:{path}")


def in_sql(text: str) -> str:
    """Return a checked expression as Spark gets it."""
    for call in reversed(calls_in(text)):
        text = text[: call.start] + sql_of(call.field) + text[call.end :]
    return text


def fields_of(*texts: str | None) -> tuple[str, ...]:
    """Return each field that checked expressions name, once."""
    named = (call.field for text in texts if text is not None for call in calls_in(text))
    return tuple(dict.fromkeys(named))


def each_in_sql(expressions: Mapping[str, str]) -> str:
    """Return the expressions of several fields as one: a JSON object of texts, by path."""
    given = ", ".join(
        f"{_quoted(path)}, cast(({in_sql(text)}) as string)" for path, text in expressions.items()
    )
    before, after = AS_JSON
    return f"{before}named_struct({given}){after}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
