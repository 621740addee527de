"""Regular expressions of contracts, in Java's syntax: refused if malformed, long, or slow on some
text.

An unlimited quantifier inside another one, such as `(a+)+`, makes Java try every way to split a
text. One record of a few dozen characters can then keep a core busy for hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LENGTH_MAX = 1_000
_UNKNOWN_ESCAPES = frozenset("CFgiIjJKlLmMoOqTUyY")
_QUANTIFIER = re.compile(
    r"(?:[*+?]|\{(?P<least>[0-9]+)(?P<comma>,(?P<most>[0-9]+)?)?\})(?P<kind>[?+]?)"
)
_GROUP = re.compile(
    r"\(\?(?:[:=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>|[a-zA-Z-]*:|(?P<flags>[a-zA-Z-]+)\))"
)


@dataclass
class _Group:
    """An open group."""

    atomic: bool = False
    """Java never backtracks into it, so its content costs nothing outside."""
    unbounded: bool = False
    """Whether it holds an unlimited quantifier that Java backtracks into."""


def check_pattern(pattern: str) -> str:
    """Return `pattern` if Spark may match records with it. Raises ValueError with the reason as a
    clause."""
    if len(pattern) > LENGTH_MAX:
        raise ValueError(
            f"a regular expression has {len(pattern):,} characters; {LENGTH_MAX:,} are allowed"
        )
    groups = [_Group()]
    held: bool | None = None
    """Whether the preceding repeatable part holds an unlimited quantifier; None without such a
    part."""
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at, held = _after_escape(pattern, at), False
        elif sign == "[":
            at, held = _after_class(pattern, at), False
        elif sign == "(":
            opened = _GROUP.match(pattern, at)
            if opened is None and pattern[at + 1 : at + 2] == "?":
                raise _invalid(pattern, "a group begins with (? and an unknown character")
            at = opened.end() if opened is not None else at + 1
            if opened is None or opened["flags"] is None:
                groups.append(_Group(atomic=opened is not None and opened[0] == "(?>"))
                held = None
        elif sign == ")":
            if len(groups) == 1:
                raise _invalid(pattern, "a ) has no (")
            closed = groups.pop()
            held = closed.unbounded and not closed.atomic
            groups[-1].unbounded |= held
            at += 1
        elif sign in "*+?{":
            at = _after_quantifier(pattern, at, held, groups[-1])
            held = None
        else:
            held = None if sign == "|" else False
            at += 1
    if len(groups) > 1:
        raise _invalid(pattern, "a ( has no )")
    return pattern


def _after_quantifier(pattern: str, at: int, held: bool | None, group: _Group) -> int:
    found = _QUANTIFIER.match(pattern, at)
    if found is None or held is None:
        raise _invalid(
            pattern,
            f"nothing precedes {pattern[at]}"
            if held is None
            else "a { is not followed by a number",
        )
    if found["most"] is not None and int(found["most"]) < int(found["least"]):
        raise _invalid(pattern, f"{found[0]} ends before it begins")
    unlimited = found[0][0] in "*+" or (found["comma"] is not None and found["most"] is None)
    if unlimited and held:
        raise ValueError(
            f"the regular expression {pattern!r} repeats a repetition, which can take exponential"
            " time. Make the inner one possessive (a++ for a+)"
        )
    if unlimited and found["kind"] != "+":
        group.unbounded = True
    return found.end()


def _after_escape(pattern: str, at: int) -> int:
    sign = pattern[at + 1 : at + 2]
    if not sign:
        raise _invalid(pattern, "it ends with a backslash")
    if sign in _UNKNOWN_ESCAPES:
        raise _invalid(pattern, f"there is no \\{sign}")
    if sign == "Q":
        end = pattern.find("\\E", at)
        return len(pattern) if end < 0 else end + 2
    if pattern[at + 2 : at + 3] in ("{", "<") and sign in "pPxNbk":
        end = pattern.find("}" if pattern[at + 2] == "{" else ">", at)
        if end < 0:
            raise _invalid(pattern, f"\\{sign}{pattern[at + 2]} does not end")
        return end + 1
    return at + 2


def _after_class(pattern: str, at: int) -> int:
    """Return the position after a class such as `[^a-z&&[^b]]`."""
    depth = 0
    while at < len(pattern):
        if pattern[at] == "[":
            depth += 1
            at += 2 if pattern[at + 1 : at + 2] == "^" else 1
            at += pattern[at : at + 1] == "]"
        elif pattern[at] == "\\":
            at = _after_escape(pattern, at)
        else:
            depth -= pattern[at] == "]"
            at += 1
        if depth == 0:
            return at
    raise _invalid(pattern, "a [ has no ]")


def _invalid(pattern: str, why: str) -> ValueError:
    return ValueError(f"{pattern!r} is not a valid regular expression: {why}")
