"""Spark SQL expressions from users: parsed here, and limited to a list of functions.

Spark can run code that an expression names (`reflect`, `java_method`), read files and start
queries. So Spark receives only plain expressions over a record's columns, with functions that only
compute. Any other function is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from topicproof.backend.judging import fields
from topicproof.backend.judging.expression_limits import check_limits

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of a source record; key and value are text (validators/expected.py, `record`)."""

_FUNCTIONS = """
abs array array_contains array_distinct array_join array_max array_min array_position array_size
array_sort ascii base64 bigint bin binary boolean bround btrim cardinality cast ceil ceiling char
char_length character_length coalesce concat concat_ws contains conv crc32 date date_add date_diff
date_format date_from_unix_date date_sub date_trunc datediff day dayofmonth dayofweek dayofyear
decimal decode double element_at elt encode endswith exists exp filter find_in_set float floor
forall format_number format_string from_json from_unixtime get get_json_object getbit greatest hash
hex hour if ifnull initcap instr int isnan isnotnull isnull json_array_length json_object_keys lcase
least left length levenshtein ln locate log log10 log2 lower lpad ltrim make_date map
map_contains_key map_keys map_values md5 minute mod month named_struct nanvl negative nullif nvl
nvl2 octet_length overlay parse_url pmod position positive pow power printf quarter regexp
regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr
repeat replace reverse right rint rlike round rpad rtrim second sequence sha sha1 sha2 shiftleft
shiftright sign signum size slice smallint soundex space split split_part sqrt startswith string
struct substr substring substring_index timestamp timestamp_micros timestamp_millis
timestamp_seconds tinyint to_binary to_char to_date to_json to_number to_timestamp to_unix_timestamp
transform translate trim trunc try_add try_avg try_cast try_divide try_element_at try_multiply
try_subtract try_to_binary try_to_number try_to_timestamp typeof ucase unbase64 unhex unix_date
unix_micros unix_millis unix_seconds unix_timestamp upper url_decode url_encode weekday weekofyear
xxhash64 year zip_with
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Deterministic functions of one record alone, without side effects."""

_WORDS = (
    "and or not in when then else case between like ilike is div as varchar escape any all some"
)
_BEFORE_A_PARENTHESIS = frozenset(_WORDS.split())
"""Keywords and types that are not functions."""

_OF_THE_MOMENT = ("current_", "session_", "localtimestamp")
"""Words that Spark treats as functions even without parentheses."""
_OF_TIME = (
    *("date", "timestamp", "timestamp_ltz", "timestamp_ntz"),
    *("to_date", "to_timestamp", "try_to_timestamp"),
)
_DAYS_OF_THE_MOMENT = ("now", "today", "tomorrow", "yesterday")
"""What a constant of such a type may name instead of a time."""

_REFUSED: tuple[tuple[type, str], ...] = (
    (exp.Query, "a query"),
    (exp.Star, "a star"),
    (exp.Window, "a window"),
    (exp.AggFunc, "an aggregate"),
    (exp.Alias, "an alias"),
)


LENGTH_MAX = 10_000
"""Maximum characters of an expression."""


def check_expression(text: str, columns: Collection[str] = COLUMNS) -> str:
    """Return `text` if Spark may compute it of these columns. Raises ValueError with the reason as
    a clause."""
    parse_expression(text, columns)
    return text


def parse_expression(text: str, columns: Collection[str] = COLUMNS) -> exp.Expr:
    """Return the expression as a tree if Spark may compute it. Raises ValueError as
    `check_expression`."""
    if len(text) > LENGTH_MAX:
        raise ValueError(f"the expression has {len(text):,} characters; {LENGTH_MAX:,} are allowed")
    try:
        return _parsed(text, columns)
    except RecursionError as error:
        raise ValueError(
            f"the expression {text[:40]!r}... does not parse: it is nested too deeply"
        ) from error


def _parsed(text: str, columns: Collection[str]) -> exp.Expr:
    try:
        tokens = sqlglot.tokenize(text, read="spark")
        found = sqlglot.parse(f"SELECT {text}", read="spark")
    except SqlglotError as error:
        said = (
            error.errors[0]["description"]
            if isinstance(error, ParseError)
            else str(error).splitlines()[0]
        )
        raise ValueError(f"the expression {text!r} does not parse: {said.rstrip('.')}") from error
    select = found[0] if len(found) == 1 else None
    if (
        not isinstance(select, exp.Select)
        or len(select.expressions) != 1
        or [name for name, value in select.args.items() if value] != ["expressions"]
        or any(
            token.comments or token.token_type in (TokenType.SEMICOLON, TokenType.HINT)
            for token in tokens
        )
    ):
        raise ValueError(f"{text!r} is not one plain expression")
    for name, following, before in zip(tokens, tokens[1:], [None, *tokens], strict=False):
        called = name.text.lower()
        if following.token_type is not TokenType.L_PAREN or not called.replace("_", "a").isalnum():
            continue
        qualified = before is not None and before.token_type is TokenType.DOT
        if qualified or called not in FUNCTIONS | fields.FUNCTIONS | _BEFORE_A_PARENTHESIS:
            raise ValueError(f"the function {called} is not allowed in {text!r}")
    said = _of_the_moment(tokens)
    if said is not None:
        raise ValueError(
            f"{said} is not allowed in {text!r}: it gives a different result each time"
        )
    for node in select.expressions[0].walk():
        for kind, name_of_kind in _REFUSED:
            if isinstance(node, kind):
                raise ValueError(f"{name_of_kind} is not allowed in {text!r}")
    fields.calls_in(text)
    _check_columns(select.expressions[0], text, columns)
    check_limits(select.expressions[0])
    return cast(exp.Expr, select.expressions[0])


def _of_the_moment(tokens: Sequence[Token]) -> str | None:
    """Return what depends on the time of the check, as it is written; None if nothing does."""
    words = ["'" if one.token_type is TokenType.STRING else one.text.lower() for one in tokens]
    for at, token in enumerate(tokens):
        if words[at].startswith(_OF_THE_MOMENT):
            return token.text
        if words[at : at + 3] == ["unix_timestamp", "(", ")"]:
            return f"{token.text}()"
        if words[at] != "'" or not token.text.strip().lower().startswith(_DAYS_OF_THE_MOMENT):
            continue
        # `date 'today'`, `date('today')` and `cast('today' as date)` are alike for Spark.
        before = [one for one in words[:at] if one != "("][-1:]
        after = words[at + 2 : at + 3] if words[at + 1 : at + 2] == ["as"] else []
        if {*before, *after} & {*_OF_TIME}:
            return repr(token.text)
    return None


def _check_columns(expression: exp.Expression, text: str, columns: Collection[str]) -> None:
    own = {one.name for function in expression.find_all(exp.Lambda) for one in function.expressions}
    for column in expression.find_all(exp.Column):
        first = column.parts[0].name
        if first.lower() not in columns and first not in own:
            raise ValueError(f"{text!r} names {first}, and a record has {', '.join(columns)}")
