"""Paths into JSON documents, and the exact text that lies at one.

Spark's own functions (`get_json_object`, `from_json` with a text at the leaf) read every decimal as
a double: `0.1000000000000000001` becomes 0.1, and `1.10` becomes 1.1. Two identities that differ
only there would be one.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, functions as F

INDEX_MAX = 2**31 - 1
_STEP = re.compile(
    r"\.(?P<name>[^\s.\[\]*'\"()?]+)|\['(?P<quoted>(?:[^'\\]|\\['\\])+)'\]|\[(?P<index>0|[1-9][0-9]*)\]"
)
_REFUSED = (
    (re.compile(r"\.\."), "a path cannot search all levels (..)"),
    (re.compile(r"\.\*|\[\*\]"), "a path cannot hold a wildcard (*)"),
    (re.compile(r"\[\?|\[\("), "a path cannot hold a filter"),
    (re.compile(r"\[''\]|\.\Z|\.\["), "a path cannot hold an empty name"),
)

_MARK = "\ufdd0"
"""A noncharacter, which Unicode reserves for use inside a program. It marks a text that was a
number."""
_MARKED = rf"{_MARK}|(?<!\\)(?:\\\\)*+\\u[fF][dD][dD]0"
"""Matches a document that has the mark itself, also as an escape of JSON in either case."""
_INEXACT = r"[0-9][.eE]|-0|[0-9]{18}"
"""Matches a document if one of its numbers might not come out as it was written."""
_NUMBER = (
    # everything before a number, including texts that are not numbers
    r'\G((?:[^"0-9\-]|"(?:[^"\\]|\\.)*+")*+)'
    r"(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)"
    r"(?=\s*+(?:[,\]}]|\z))"
)
"""Possessive quantifiers of Java: time grows with the document's length, and the stack does not."""
_OPENED = r"(?:[\[{][^\[\]{}]*+)"
_TOO_DEEP = rf"\A[^\[{{]*+(?:{_OPENED}{{1,1000}}+(?:[\]}}][^\[{{]*+)++)*+{_OPENED}{{1001}}"
"""Matches a document with so many brackets opened one inside the other. From the beginning, so that
each bracket is looked at twice, not once for each one before it."""


def parse_path(text: str) -> tuple[str | int, ...]:
    """Parses the steps of `$.name`, `$['name']` and `$[0]`, and of paths made of these. In
    brackets, `\\'` and `\\\\` stand for `'` and `\\`. Raises ValueError with one clause that says
    what is wrong."""
    if not text.startswith("$"):
        raise ValueError(f"the path {text!r} does not begin with $, as $.id does")
    if text == "$":
        raise ValueError("the path '$' is the whole value. Name a field of it, such as $.id")
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"{_why(text, at)} in {text!r}. Use $.name, $['name'] and $[0]")
        at = match.end()
        if match["index"] is not None:
            if len(match["index"]) > len(str(INDEX_MAX)) or int(match["index"]) > INDEX_MAX:
                raise ValueError(f"the index {match['index']} is too large in {text!r}")
            steps.append(int(match["index"]))
        else:
            steps.append(match["name"] or re.sub(r"\\(.)", r"\1", match["quoted"]))
            if {"'", '"'} <= set(str(steps[-1])):
                raise ValueError(f"a name cannot hold both kinds of quotes in {text!r}")
    return tuple(steps)


def _why(text: str, at: int) -> str:
    for pattern, why in _REFUSED:
        if pattern.match(text, at):
            return why
    return f"a path cannot hold {text[at : at + 10]!r}"


def spell_path(steps: tuple[str | int, ...]) -> str:
    """Formats the steps as a path that `parse_path` parses back."""
    return "$" + "".join(map(_spelled, steps))


def _spelled(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _STEP.fullmatch(f".{step}"):
        return f".{step}"
    return "['" + re.sub(r"(['\\])", r"\\\1", step) + "']"


NAMED_MAX, NAMED_CHARACTERS_MAX = 100, 10_000
"""Names and characters of a document in which a name that comes twice is looked for, to say it."""


def exact_text(column: Column, path: tuple[str | int, ...]) -> Column:
    """Extracts the text of the element at `path` from JSON documents in a text column, exactly as
    written.

    - Number: its own characters, such as `1.10`, `1e5`, `-0`, 30 digits or 1,200 digits.
    - Text: unescaped. A text that holds JSON is a text: no path leads into it.
    - `true` and `false`: as they are.
    - Object or array: JSON without spaces, the names of an object in order, its numbers as they
      were written.
    - `null` or missing: null. That includes an index beyond the end, a name in an array, an index
      into an object, and a step into a scalar.
    - No JSON: null. That includes text after the document, bytes that are not UTF-8, `'single
      quotes'`, `NaN`, `01`, comments, raw control characters, half a surrogate pair, nesting beyond
      1,000 levels, and more than 16 MB.
    - The noncharacter U+FDD0 anywhere in the document, also as an escape of JSON: null.
    - The same name twice in any object: null, because readers disagree about which one counts.

    Names are case-sensitive. A number and a text of the same characters give the same.
    """
    whole, alone = _documents(column)
    element = F.try_variant_get(whole, "$.d" + "".join(map(_step_of_spark, path)), "string")
    exact = F.regexp_replace(element, F.lit(f'"?{_MARK}(-?[0-9][-+.0-9eE]*+)"?'), F.lit("$1"))
    return F.when(alone.isNotNull(), exact)


def why_absent(column: Column, path: tuple[str | int, ...]) -> Column:
    """Explains why `exact_text` is null for a value, as a clause. `column` is the value's bytes."""
    text = column.cast("string")
    # Spark reads the document again for each of its names.
    short = F.when(F.length(text) <= NAMED_CHARACTERS_MAX, text)
    names = F.slice(F.json_object_keys(short), 1, NAMED_MAX)
    again = F.filter(names, lambda name, place: F.array_position(names, name) <= place)
    whole, alone = _documents(text)
    return (
        F.when(column.isNull(), "it has no value")
        .when(~F.is_valid_utf8(text), "its value is not UTF-8 text")
        .when(
            F.startswith(text, F.lit("\ufeff")),
            "its value begins with a byte order mark, which is no part of JSON",
        )
        .when(
            whole.isNotNull() & alone.isNotNull(),
            f"its document holds nothing, or null, at {spell_path(path)}",
        )
        .when(text.rlike(_MARKED), "its document holds the character U+FDD0, which no identity has")
        .when(text.rlike(_TOO_DEEP), "its document is nested more than 1,000 levels deep")
        .when(
            F.size(again) > 0,
            F.concat(
                F.lit("its document holds the name "), F.get(again, F.lit(0)), F.lit(" twice")
            ),
        )
        .otherwise("its value is no valid JSON document, or an object in it holds a name twice")
    )


def _documents(column: Column) -> tuple[Column, Column]:
    """Returns the document in a text column inside an object at `d`, and inside an array; one of
    them is null if the text is not one JSON document."""
    # Spark reads bytes that are not UTF-8 as U+FFFD, so that different texts would be the same.
    readable = F.is_valid_utf8(column) & ~column.rlike(_MARKED)
    text = F.when(readable, column)
    marked = F.regexp_replace(text, F.lit(_NUMBER), F.lit(f'$1"{_MARK}$2"'))
    document = F.when(text.rlike(_INEXACT), marked).otherwise(text)
    # Spark stops parsing where a document ends. Inside another document, trailing text is an error,
    # unless it closes or extends that one: `}` and `,"x":1` in an object, `]` and `,1` in an array.
    # No text does so in both.
    whole, alone = (
        F.try_parse_json(F.concat(F.lit(before), document, F.lit(after)))
        for before, after in (('{"d":', "}"), ("[", "]"))
    )
    return whole, alone


def _step_of_spark(step: str | int) -> str:
    """Formats a step. Spark's paths know no escapes, but either kind of quotes."""
    if isinstance(step, int):
        return f"[{step}]"
    return f'["{step}"]' if "'" in step else f"['{step}']"
