"""Limits on the cost of an expression per record: safe patterns, and results of bounded size."""

from __future__ import annotations

import re

from sqlglot import exp

from topicproof.backend.judging.patterns import check_pattern

SIZE_MAX = 10_000
"""Maximum characters or elements that an expression may create per record."""

DIGITS_MAX = 19
"""Digits of a number that are looked at."""
_PATTERNS = (
    *(
        exp.RegexpLike,
        exp.RegexpILike,
        exp.RegexpSplit,
        exp.RegexpExtract,
        exp.RegexpExtractAll,
        exp.RegexpReplace,
    ),
    *(exp.RegexpCount, exp.RegexpInstr, exp.RegexpSubstr),
)
"""Functions whose argument `expression` is a pattern."""
_NAMED_PATTERNS = frozenset(
    {"rlike", "regexp", "regexp_like", "split", "regexp_count", "regexp_instr", "regexp_substr"}
)
"""Functions that the parser knows only by name; their second argument is a pattern."""
_SIZES: dict[type[exp.Expr], str] = {exp.Repeat: "times", exp.Space: "this", exp.Pad: "expression"}
_NAMED_SIZES = {
    "repeat": 1,
    "space": 0,
    "lpad": 1,
    "rpad": 1,
    "array_repeat": 1,
    "format_number": 1,
}
_NAMED_FORMATS = frozenset({"format_string", "printf"})
_WIDTH = re.compile(r"%[^a-zA-Z%]*?([0-9]{5,})")


def check_limits(expression: exp.Expr) -> None:
    """Check the cost of an expression. Raises ValueError with a clause about the first part that
    may cost too much."""
    for node in expression.walk():
        if isinstance(node, exp.Kwarg):
            raise ValueError("an argument cannot be named; write the arguments in order")
        for pattern in _patterns(node):
            check_pattern(pattern)
    if _growth(expression) > SIZE_MAX:
        raise ValueError(f"sizes within sizes make more than {SIZE_MAX:,} characters or elements")


def patterns_of(expression: exp.Expr) -> list[str]:
    """Return the regular expressions in an expression."""
    return [pattern for node in expression.walk() for pattern in _patterns(node)]


def _patterns(node: exp.Expr) -> list[str]:
    called = _name(node)
    if isinstance(node, _PATTERNS):
        given = node.args.get("expression")
    elif called in _NAMED_PATTERNS:
        given = _argument(node, 1)
    else:
        return []
    if given is None:
        return []
    text = _text(given)
    if text is None:
        raise ValueError("a regular expression must be a literal text")
    return [text]


def _growth(node: exp.Expr) -> int:
    """Return how many times larger than a record a result can be. Nested sizes multiply, also when
    a function is applied to every element of an array."""
    grown = [_growth(one) for one in node.iter_expressions()]
    within = 1
    if any(isinstance(one, exp.Lambda) for one in node.iter_expressions()):
        for factor in grown:
            within *= factor
    else:
        within = max(grown, default=1)
    return max(_size(node), 1) * within


def _size(node: exp.Expr) -> int:
    called = _name(node)
    if isinstance(node, exp.GenerateSeries) or called == "sequence":
        return _sequence_size(node)
    if isinstance(node, exp.Format) or called in _NAMED_FORMATS:
        return _format_size(node)
    if type(node) in _SIZES:
        given = node.args.get(_SIZES[type(node)])
    elif called in _NAMED_SIZES:
        given = _argument(node, _NAMED_SIZES[called])
    else:
        return 1
    size = None if given is None else _whole(given)
    what = called or node.key
    if size is None:
        raise ValueError(f"the size that {what} is given must be a literal number")
    if size > SIZE_MAX:
        raise ValueError(f"the size {size:,} that {what} is given is above {SIZE_MAX:,}")
    return size


def _sequence_size(node: exp.Expr) -> int:
    both = (
        (node.args.get("start"), node.args.get("end"))
        if isinstance(node, exp.GenerateSeries)
        else (_argument(node, 0), _argument(node, 1))
    )
    first, last = (None if one is None else _whole(one) for one in both)
    if first is None or last is None:
        raise ValueError("both ends of a sequence must be literal numbers")
    if abs(last - first) > SIZE_MAX:
        raise ValueError(f"the ends of a sequence are more than {SIZE_MAX:,} apart")
    return min(abs(last - first) + 1, SIZE_MAX)


def _format_size(node: exp.Expr) -> int:
    given = node.this if isinstance(node, exp.Format) else _argument(node, 0)
    text = None if given is None else _text(given)
    if text is None:
        raise ValueError("a format must be a literal text")
    if any(int(width[:DIGITS_MAX]) > SIZE_MAX for width in _WIDTH.findall(text)):
        raise ValueError(f"a format is wider than {SIZE_MAX:,} characters")
    return 1


def _name(node: exp.Expr) -> str:
    return (
        str(node.this).lower()
        if isinstance(node, exp.Anonymous) and isinstance(node.this, str)
        else ""
    )


def _argument(node: exp.Expr, position: int) -> exp.Expr | None:
    given = node.expressions
    return given[position] if position < len(given) else None


def _text(node: exp.Expr) -> str | None:
    literal = isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string)
    return str(node.this) if literal else None


def _whole(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Neg):
        size = _whole(node.this)
        return None if size is None else -size
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
        # Python refuses to convert thousands of digits, and 19 are too many already.
        return int(str(node.this)[:DIGITS_MAX])
    return None
