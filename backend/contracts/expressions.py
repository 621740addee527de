"""Spark SQL expressions from users: parsed here, limited to what is on a list, and written again
for Spark.

Spark can run code that an expression names (`reflect`, `java_method`), read files, start queries,
and put settings and environment variables into a text (`'${env:HOME}'`). So it receives only what
`to_sql` writes of a tree that `check_expression` has accepted: literals, columns of the record,
variables of lambdas, and functions that only compute, each with a bound on its result. The result
does not depend on the day: a text becomes a time only by a fixed format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topicproof.backend.contracts import expression_limits as limits
from topicproof.backend.contracts.expression_functions import (
    ANY,
    BINARY,
    BOOLEAN,
    DATE,
    FUNCTIONS,
    INTERVAL,
    KINDS,
    LAMBDAS,
    LITERALS,
    NO_LONGER,
    NULL,
    NUMBER,
    OF_BOTH,
    OF_DATES,
    OF_TIMES,
    OF_TWO,
    PATTERNS,
    TEXT,
    TIMESTAMP,
)
from topicproof.backend.contracts.expression_limits import RECORD, SIZE_MAX, Size
from topicproof.backend.contracts.expression_patterns import Cost, like_cost, pattern_cost
from topicproof.backend.contracts.expression_tree import (
    Call,
    Case,
    Cast,
    Constant,
    Interval,
    Item,
    Lambda,
    Member,
    Name,
    Node,
    Number,
    Operation,
    Text,
    Time,
    Type,
    parse,
    parse_schema,
    to_sql,
)
from topicproof.validators.decoded import DECODED, KEY_FIELD, VALUE_FIELD, parse_field

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of a source record; key and value are text (validators/expected.py, `record`)."""
LENGTH_MAX = 10_000
"""Maximum characters of an expression."""
WRITTEN_MAX = 5_000
"""Parts that Spark makes of an expression at most, on the driver."""
SQL_LENGTH_MAX = 200_000
"""Maximum characters of what Spark gets of it."""
TOPIC_MAX = 249
NUMBER_BYTES = 40
DIGITS_MAX = 19
"""Digits of a number that are looked at."""
PATHS = frozenset({VALUE_FIELD, KEY_FIELD})
"""Functions that name a field of a decoded record."""

_HEADER = Type("struct", (TEXT, BINARY), ("key", "value"))
_KINDS_OF_COLUMNS = {
    "key": TEXT,
    "value": TEXT,
    "topic": TEXT,
    "partition": NUMBER,
    "offset": NUMBER,
    "timestamp": TIMESTAMP,
    "headers": Type("array", (_HEADER,)),
}
_COMPARISONS = ("=", "<=>", "<>", "<", "<=", ">", ">=", "between", "in")
_TIMES = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
_TEXTS = ("string", "varchar", "char")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{1,2}(-[0-9]{1,2}([ T][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]{1,9})?)?"
    r"( ?(Z|UTC|[+-][0-9]{1,2}:[0-9]{2}))?)?)?"
)
"""Times that are the same each day."""
_MOMENT_NAMES = ("current_", "session_", "localtimestamp")
_FIXED = "to_timestamp(value, 'yyyy-MM-dd HH:mm:ss')"
_WIDTH = re.compile(r"%[^a-zA-Z%]*?([0-9]{5,})")
JSON_OPTIONS = Call("map", (Text("ignoreNullFields"), Text("false")))
_FIRST_ASIDE = frozenset({"if", "nvl2", "elt"})
"""Functions that choose by their first argument among the others."""
_DECIMALS = ("decimal", "dec", "numeric")
DECIMAL_TEXT = r"^[\x00-\x20]*+[-+.0-9]{0,300}+(?:[eE][-+]?+[0-9]{1,3}+)?+[\x00-\x20]*+$"
"""Texts of decimals that take little time. Spark trims them as Java does."""
_LONG_EXPONENT = re.compile(r"[eE][+-]?[0-9]{4}")
SCALE_MAX = 400
_TO_DECIMALS = frozenset({"floor", "ceil", "ceiling"})
"""Functions that make a decimal of their first argument, if they are given a number of digits."""
_SCALED = _TO_DECIMALS | {"round", "bround"}
"""Functions whose second argument is a number of digits."""
_COMPARED = frozenset(
    (
        *("contains", "instr", "locate", "position", "replace", "split_part"),
        *("substring_index", "btrim", "ltrim", "rtrim", "trim"),
    )
)
"""Functions that take the time of their first two texts' product."""
_AGGREGATES = frozenset(
    [
        "count",
        "sum",
        "avg",
        "mean",
        "min",
        "max",
        "first",
        "last",
        "collect_list",
        "collect_set",
        "any_value",
        "some",
        "every",
        "any",
        "count_if",
        "row_number",
        "rank",
    ]
)


def check_expression(text: str, columns: Collection[str] = COLUMNS) -> str:
    """Return `text` if Spark may compute it of these columns. Raises ValueError with the reason as
    a clause."""
    parse_expression(text, columns)
    return text


def spark_sql(text: str, columns: Collection[str] = COLUMNS) -> str:
    """Return an expression as Spark gets it: written again, with the column of each field. Raises
    ValueError as `check_expression`."""
    return to_sql(with_columns(parse_expression(text, columns)))


def stored_sql(sql: str) -> str:
    """Check what evidence keeps of an expression, or of one for each field of the output, as
    `check_expression` does, and write it again. Raises ValueError."""
    if len(sql) > SQL_LENGTH_MAX:
        raise ValueError(
            f"the expression has {len(sql):,} characters; {SQL_LENGTH_MAX:,} are allowed"
        )
    tree = parse(sql)
    decimals: set[int] = set()
    efforts: list[limits.Effort] = []
    for part in texts_of_fields(tree) or (tree,):
        of_part, effort = _check(part, sql, (*COLUMNS, DECODED))
        decimals |= of_part
        efforts.append(effort)
    limits.require_little_together(efforts)
    return to_sql(with_columns(_with_short_decimals(tree, decimals)))


def require_little_together(texts: Iterable[str]) -> None:
    """Raises ValueError if the checked expressions of an output's fields take too long together."""
    limits.require_little_together(_check(parse(text), text, COLUMNS)[1] for text in texts)


def texts_of_fields(tree: Node) -> tuple[Node, ...]:
    """Return the expressions of several fields that `each_in_sql` has put into one; empty for any
    other tree."""
    match tree:
        case Call("to_json", (Call("named_struct", arguments), options)) if (
            options == JSON_OPTIONS and len(arguments) % 2 == 0
        ):
            names, texts = arguments[::2], arguments[1::2]
            if all(isinstance(name, Text) for name in names) and all(
                isinstance(text, Cast) and text.type == TEXT for text in texts
            ):
                return texts
    return ()


def parse_expression(text: str, columns: Collection[str] = COLUMNS) -> Node:
    """Return the expression as a tree if Spark may compute it. Raises ValueError as
    `check_expression`."""
    if len(text) > LENGTH_MAX:
        raise ValueError(f"the expression has {len(text):,} characters; {LENGTH_MAX:,} are allowed")
    tree = parse(text)
    return _with_short_decimals(tree, _check(tree, text, columns)[0])


def _check(tree: Node, text: str, columns: Collection[str]) -> tuple[set[int], limits.Effort]:
    """Return which nodes make a decimal of a text, by their `id`, and what Spark does for a record.
    Raises ValueError."""
    checker = _Checker(text, columns)
    try:
        _require_few_copies(tree, text)
        work = checker.part(tree).work
        effort = limits.Effort(work, checker.steps)
        limits.require_little_work(effort)
        sql = to_sql(with_columns(_with_short_decimals(tree, checker.decimals)))
        if checker.decimals:
            # Evidence keeps it, and `verify` parses it. The patterns make the tree deeper.
            parse(sql)
        length = len(sql)
    except RecursionError as error:
        raise ValueError(
            f"the expression {text[:40]!r}... does not parse: it is nested too deeply"
        ) from error
    if length > SQL_LENGTH_MAX:
        raise ValueError(
            f"the expression becomes {length:,} characters of SQL; {SQL_LENGTH_MAX:,} are allowed"
        )
    return checker.decimals, effort


def _require_few_copies(tree: Node, text: str) -> None:
    """Raises ValueError if Spark would write too much of an expression: it writes some operands
    several times, also those within."""
    count = _written(tree)
    if count > WRITTEN_MAX:
        raise ValueError(
            f"Spark would make {count:,.0f} parts of {text[:40]!r}; {WRITTEN_MAX:,} are allowed."
            " Put less into case, right, nullif and between"
        )


def _written(node: Node) -> float:
    """Return how many parts Spark makes of an expression."""
    times = 1
    copied: tuple[Node, ...] = ()
    match node:
        case Case(operand, branches, _) if operand is not None:
            times, copied = len(branches), (operand,)
        case Call(function, arguments) if function.lower() in ("right", "nullif"):
            times, copied = 2, tuple(arguments)
        case Operation("between", (first, *_)):
            times, copied = 2, (first,)
    parts = [(child, _written(child)) for child in node.children()]
    return 1 + sum(
        count * (times if any(child is each for each in copied) else 1) for child, count in parts
    )


def measured_size(text: str) -> Size:
    """Return the bound of the result of a checked expression, in bytes."""
    return _Checker(text, COLUMNS).part(parse(text)).size


def with_columns(tree: Node) -> Node:
    """Return the tree with a column of the decoded reading for each call such as `field('id')`, and
    with the names of each struct's fields: Spark's own rule for them is another one."""

    def column(node: Node) -> Node | None:
        if isinstance(node, Call) and node.function in PATHS:
            return Member(Name(DECODED), field_of(node))
        if isinstance(node, Call) and node.function.lower() == "struct":
            named = (
                part
                for name, argument in zip(_names(node.arguments), node.arguments, strict=True)
                for part in (Text(name), _changed(argument, column))
            )
            return Call("named_struct", tuple(named))
        return None

    return _changed(tree, column)


def _with_short_decimals(tree: Node, decimals: Collection[int]) -> Node:
    """Return the tree with what makes a decimal of a text only where the text is short: 12 bytes
    such as 1e-600000000 are a number of 600 million digits, which Spark writes out. Any other text
    becomes an empty one, which is no number. `decimals`: the nodes to change, by their `id`."""

    def shortened(node: Node) -> Node | None:
        if id(node) not in decimals:
            return None
        if isinstance(node, Cast):
            return replace(node, operand=short(node.operand))
        assert isinstance(node, Call)
        first, *following = node.arguments
        rest = [_changed(argument, shortened) for argument in following]
        return replace(node, arguments=(short(first), *rest))

    def short(text: Node) -> Node:
        return Call("regexp_extract", (_changed(text, shortened), Text(DECIMAL_TEXT), Number("0")))

    return _changed(tree, shortened) if decimals else tree


def _is_short_decimal(node: Node) -> bool:
    """Whether `_with_short_decimals` has written it."""
    match node:
        case Call("regexp_extract", (_, Text(pattern), Number("0"))):
            return pattern == DECIMAL_TEXT
    return False


def _changed(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a tree with other nodes. `change` returns None for a node that stays."""
    new = change(node)
    if new is not None:
        return new
    values: dict[str, Any] = {}
    for name, value in vars(node).items():
        if isinstance(value, Node):
            values[name] = _changed(value, change)
        elif name == "branches":
            values[name] = tuple(
                (_changed(when, change), _changed(then, change)) for when, then in value
            )
        elif isinstance(value, tuple):
            values[name] = tuple(
                _changed(item, change) if isinstance(item, Node) else item for item in value
            )
    return replace(node, **values)


def field_of(call: Call) -> str:
    """Return the field that `field('id')` names, as validators/decoded.py spells it."""
    (path,) = call.arguments
    assert isinstance(path, Text)
    return f"{call.function}:{path.value}"


def patterns_of(tree: Node) -> list[str]:
    """Return the regular expressions in a checked expression."""
    patterns = []
    for node in tree.walk():
        match node:
            case Operation("rlike", (_, Text(pattern))):
                patterns.append(pattern)
            case Call(function, (_, Text(pattern), *_)) if function in PATTERNS:
                patterns.append(pattern)
    return patterns


@dataclass(frozen=True)
class _TypedPart:
    """What is known of a part of an expression."""

    type: Type
    size: Size
    work: Size
    """Bytes that Spark looks at to compute it."""
    is_open: bool
    """Whether it depends on the record. Spark computes all other parts before it reads."""
    node: Node
    characters: int | None = None
    """Maximum characters of a text, if known."""


class _Checker:
    """Checks the parts of one expression from the leaves."""

    def __init__(self, text: str, columns: Collection[str]) -> None:
        self.text = text
        self.columns = columns
        self.variables: dict[str, tuple[str, Type]] = {}
        """By name in lower case: what stands for its size, and its type."""
        self.lambdas = 0
        self.decimals: set[int] = set()
        """What makes a decimal of a text, by its `id`."""
        self.steps = 0.0
        """Steps of all patterns whose texts have a limited length."""

    def part(self, node: Node) -> _TypedPart:
        part = self._part(node)
        limits.require_small(part.size, self._quote(node))
        return part

    def _quote(self, node: Node) -> str:
        text = to_sql(node)
        return repr(text if len(text) <= 60 else f"{text[:57]}...")

    def _part(self, node: Node) -> _TypedPart:
        match node:
            case Text(value):
                size = limits.constant(len(value.encode("utf-8", "surrogatepass")))
                return _TypedPart(TEXT, size, limits.constant(0), False, node, len(value))
            case Number() | Interval():
                if isinstance(node, Number) and _LONG_EXPONENT.search(node.text):
                    raise ValueError(
                        f"the number {node.text} in {self.text!r} has an exponent of more than"
                        " three digits"
                    )
                kind = NUMBER if isinstance(node, Number) else INTERVAL
                return _leaf(kind, node)
            case Constant(word):
                return _leaf(NULL if word == "null" else BOOLEAN, node)
            case Time(kind, value):
                if _TIME.fullmatch(value) is None:
                    raise ValueError(self._of_the_moment(repr(value)))
                return _leaf(DATE if kind == "date" else TIMESTAMP, node)
            case Name(name):
                return self._named(node, name)
            case Member(base, name):
                return self._member(node, base, name)
            case Item(base, index):
                return self._item(node, self.part(base), self.part(index))
            case Cast(operand, type_, _):
                part = self.part(operand)
                if _has_decimal(type_):
                    self._require_short_decimal(node, part, is_within=bool(type_.parts))
                return self._cast(node, part, _kind(type_))
            case Case(operand, branches, default):
                return self._case(node, operand, branches, default)
            case Operation(symbol, operands):
                return self._operation(node, symbol, [self.part(child) for child in operands])
            case Lambda():
                raise ValueError(f"a lambda stands beside no array in {self.text!r}")
            case Call(function, arguments):
                return self._call(node, function, arguments)
        raise TypeError(f"nothing is known of {type(node).__name__}")

    def _of_the_moment(self, subject: str) -> str:
        return (
            f"{subject} is not allowed in {self.text!r}: it gives a different result each time."
            " Write a fixed time, as in timestamp '2026-01-31 12:00:00'"
        )

    def _named(self, node: Name, name: str) -> _TypedPart:
        column = name.lower()
        if column in self.variables:
            symbol, kind = self.variables[column]
            return _TypedPart(kind, limits.times_of(symbol), limits.constant(0), True, node)
        if column.startswith(_MOMENT_NAMES):
            raise ValueError(self._of_the_moment(name))
        if column not in self.columns or column == DECODED:
            names = ", ".join(column_name for column_name in self.columns if column_name != DECODED)
            raise ValueError(f"{self.text!r} names {name}, and a record has {names}")
        kind = _KINDS_OF_COLUMNS[column]
        if column == "topic":
            size = limits.constant(TOPIC_MAX)
            return _TypedPart(kind, size, limits.constant(0), True, node, TOPIC_MAX)
        if kind in (NUMBER, TIMESTAMP):
            return replace(_leaf(kind, node), is_open=True)
        factor = 1 + limits.ELEMENT if column == "headers" else 1
        return _TypedPart(kind, limits.times_of(RECORD, factor), limits.constant(0), True, node)

    def _member(self, node: Member, base: Node, name: str) -> _TypedPart:
        if isinstance(base, Name) and base.name.lower() == DECODED and DECODED in self.columns:
            function, _, path = name.partition(":")
            if function not in PATHS or not path:
                raise ValueError(f"{self.text!r} names {DECODED}.{name}, which is no field")
            parse_field(path)
            return _TypedPart(TEXT, limits.times_of(RECORD), limits.constant(0), True, node)
        part = self.part(base)
        kind = _member_type(part.type, name)
        if kind is None:
            raise ValueError(f"{self._quote(base)} has no field {name} in {self.text!r}")
        return replace(part, type=kind, node=node, characters=None)

    def _item(self, node: Item, base: _TypedPart, index: _TypedPart) -> _TypedPart:
        kind = ANY
        if base.type.name == "array":
            if _may_be_text(index.type):
                raise ValueError(f"an array has no field {self._quote(index.node)}: give a number")
            kind = base.type.parts[0]
        elif base.type.name == "map":
            kind = base.type.parts[1]
            self._require_alike("map", (replace(base, type=base.type.parts[0]), index))
            self._require_key(base.type.parts[0], index)
        elif isinstance(index.node, Text):
            kind = _member_type(base.type, index.node.value) or ANY
        if base.type == ANY:
            self._require_key(ANY, index)
        work = limits.added(base.work, index.work)
        return _TypedPart(kind, base.size, work, base.is_open or index.is_open, node)

    def _require_key(self, kind: Type, index: _TypedPart) -> None:
        """Raises ValueError if Spark may make a decimal of a text to find it in a map."""
        if _may_be_text(index.type) and kind != TEXT:
            raise ValueError(
                f"the text {self._quote(index.node)} is looked for in a map whose keys are"
                f" no texts, in {self.text!r}. Cast it to the type of the keys"
            )

    def _cast(self, node: Cast, part: _TypedPart, kind: Type) -> _TypedPart:
        if _has_time(kind):
            self._require_time(part, kind)
        size = limits.constant(NUMBER_BYTES)
        characters: int | None = None
        if kind == TEXT:
            characters = part.characters
            if part.type in (NUMBER, BOOLEAN, DATE, TIMESTAMP, INTERVAL, NULL):
                # What is taken out of something as long as a record may be more than it seems.
                is_small = limits.constant_of(part.size) is not None
                characters = NUMBER_BYTES if is_small else None
                size = size if is_small else limits.added(part.size, size)
            elif part.type in (TEXT, BINARY):
                size = limits.scaled(part.size, 1 if part.type == TEXT else 3)
            else:
                size = limits.added(limits.scaled(part.size, 4), size)
        elif kind not in (NUMBER, BOOLEAN, DATE, TIMESTAMP):
            # Each element gets the names of all its fields.
            names = len(str(node.type))
            size = limits.scaled(part.size, 1 + names / limits.ELEMENT)
            size = limits.added(size, limits.constant(NUMBER_BYTES + names))
        work = limits.added(part.work, part.size, size)
        return _TypedPart(kind, size, work, part.is_open, node, characters)

    def _require_short_decimal(self, node: Node, part: _TypedPart, *, is_within: bool) -> None:
        """Note that a node makes a decimal of a text. Raises ValueError if it may make several, or
        if nobody knows."""
        if not _may_be_text(part.type) or _is_short_decimal(part.node):
            return
        if is_within or part.type != TEXT:
            raise ValueError(
                f"{self._quote(part.node)} is cast to a decimal in {self.text!r}, and may hold"
                " texts of any length. Cast each alone, as in cast(string(x) as decimal(19, 2))"
            )
        self.decimals.add(id(node))

    def _require_time(self, part: _TypedPart, kind: Type) -> None:
        """Raises ValueError if a time is made of a text without a fixed format."""
        if part.type in (NUMBER, DATE, TIMESTAMP, NULL, BOOLEAN) and kind in (DATE, TIMESTAMP):
            return
        if isinstance(part.node, Text) and _TIME.fullmatch(part.node.value):
            return
        if kind == DATE and part.type == TEXT and part.is_open:
            return
        text = part.node.value if isinstance(part.node, Text) else None
        quote = self._quote(part.node) if text is None else repr(text)
        if text is not None:
            raise ValueError(self._of_the_moment(quote))
        raise ValueError(
            f"{quote} as a {kind.name} is not allowed in {self.text!r}: a text can name a time of"
            f" the day of the check, such as 12:00 or now. Give its format, as in {_FIXED}"
        )

    def _require_alike(self, subject: str, parts: Sequence[_TypedPart]) -> None:
        """Raises ValueError if Spark would make a time of a text beside a time."""
        if not any(_has_time(part.type) for part in parts):
            return
        are_plain = all(part.type in (DATE, TIMESTAMP, TEXT, NULL) for part in parts)
        for part in parts:
            if not _may_be_text(part.type):
                continue
            if isinstance(part.node, Text) and are_plain:
                if _TIME.fullmatch(part.node.value):
                    continue
                raise ValueError(self._of_the_moment(repr(part.node.value)))
            raise ValueError(
                f"{subject} compares a time with the text {self._quote(part.node)} in"
                f" {self.text!r}. Make a time of it, as in {_FIXED}, or a text of the time with"
                " date_format"
            )

    def _case(
        self,
        node: Case,
        operand: Node | None,
        branches: Sequence[tuple[Node, Node]],
        default: Node | None,
    ) -> _TypedPart:
        conditions = [self.part(when) for when, _ in branches]
        results = [self.part(then) for _, then in branches]
        if default is not None:
            results.append(self.part(default))
        if operand is not None:
            conditions.append(self.part(operand))
            self._require_alike("case", conditions)
        self._require_alike("case", results)
        parts = (*conditions, *results)
        return _TypedPart(
            _common([part.type for part in results]),
            limits.largest(*(part.size for part in results)),
            limits.added(
                *(part.work for part in parts), *(part.size for part in parts), limits.constant(1)
            ),
            any(part.is_open for part in parts),
            node,
            _most(results),
        )

    def _operation(self, node: Operation, symbol: str, parts: list[_TypedPart]) -> _TypedPart:
        work = limits.added(*(part.work for part in parts), limits.constant(1))
        is_open = any(part.is_open for part in parts)
        sizes = [part.size for part in parts]
        small = limits.constant(NUMBER_BYTES)
        self._require_interval_beside_time(symbol, [part.type for part in parts])
        if symbol == "||":
            self._require_joinable(parts)
            size = limits.added(*sizes)
            kind = _common([part.type for part in parts])
            kind = kind if parts[0].type.name in ("array", "binary") else TEXT
            characters = _total([part.characters for part in parts])
            return _TypedPart(kind, size, limits.added(work, size), is_open, node, characters)
        if symbol == "rlike":
            steps = self._matched(parts[0], self._pattern(parts[1]), parts[1])
            return _TypedPart(BOOLEAN, small, limits.added(work, steps, *sizes), is_open, node)
        if "like" in symbol:
            escape = "\\"
            patterns = parts[1:]
            if len(parts) == 3 and symbol in ("like", "ilike"):
                assert isinstance(parts[2].node, Text)
                escape, patterns = parts[2].node.value, parts[1:2]
            if "ilike" in symbol and escape.lower() != escape:
                # Spark makes the pattern lower case, and not the escape.
                raise ValueError(f"the escape {escape!r} of ilike is a capital letter")
            for pattern in patterns:
                if not isinstance(pattern.node, Text):
                    raise ValueError(
                        f"the pattern of {symbol} must be a literal text; startswith and endswith"
                        " take any, contains a short one"
                    )
                cost = like_cost(pattern.node.value, escape)
                work = limits.added(work, self._matched(parts[0], cost, pattern))
            work = limits.added(work, limits.scaled(sizes[0], len(patterns)))
            return _TypedPart(BOOLEAN, small, work, is_open, node)
        if symbol in _COMPARISONS:
            self._require_alike(symbol, parts)
            compared_size = limits.added(limits.smallest(*sizes[:2]), *map(_beside, sizes[2:]))
            return _TypedPart(BOOLEAN, small, limits.added(work, compared_size), is_open, node)
        self._require_alike(symbol, parts)
        if symbol in ("and", "or", "not") or symbol.startswith("is "):
            return _TypedPart(BOOLEAN, small, work, is_open, node)
        times = [part.type for part in parts if part.type in (DATE, TIMESTAMP)]
        # The difference of two times is an interval; a day later is a time.
        kind = NUMBER if not times else TIMESTAMP if len(times) == 1 else INTERVAL
        return _TypedPart(kind, small, limits.added(work, *sizes), is_open, node)

    def _require_interval_beside_time(self, symbol: str, kinds: Sequence[Type]) -> None:
        """Raises ValueError if Spark would make a time of a text beside an interval."""
        others = [kind for kind in kinds if kind != INTERVAL]
        if len(others) == len(kinds) or symbol.startswith("is "):
            return
        is_shift = symbol in ("+", "-") and all(kind in (DATE, TIMESTAMP) for kind in others)
        if not (is_shift and others) and (others or symbol not in _COMPARISONS):
            raise ValueError(
                f"{symbol} takes an interval only beside a time in {self.text!r}, as in"
                " timestamp - interval 1 day"
            )

    def _require_joinable(self, parts: Sequence[_TypedPart]) -> None:
        if any(part.type.name in ("array", "any") for part in parts):
            self._require_alike("||", parts)

    def _pattern(self, part: _TypedPart) -> Cost:
        if not isinstance(part.node, Text):
            raise ValueError("a regular expression must be a literal text")
        return pattern_cost(part.node.value)

    def _matched(self, subject: _TypedPart, cost: Cost, pattern: _TypedPart) -> Size:
        """Add the steps on a text of limited length to all steps; return those on any other, as
        work. Raises ValueError if matching may take too long on the longest text."""
        longest = cost.longest()
        characters: float | None = subject.characters
        if characters is None:
            characters = limits.constant_of(subject.size)
        if (characters is None and (cost.degree > 1 or cost.factor > 2_000)) or (
            characters is not None and characters > longest
        ):
            assert isinstance(pattern.node, Text)
            remedy = (
                f"Match at most {longest:,} characters, as in substr(value, 1, {longest}), or"
                if longest
                else "Either"
            )
            boundary = (
                r". For \b, which looks back over accents, write (?<!\w) or (?!\w)"
                if re.search(r"(?<!\\)(?:\\\\)*\\[bB]", pattern.node.value)
                else ""
            )
            raise ValueError(
                f"the pattern {pattern.node.value!r} takes more than linear time on a long text."
                f" {remedy} begin it with ^ and let nothing that is repeated share characters with"
                f" what follows, as in ^[^,]*,{boundary}"
            )
        if characters is None:
            return limits.scaled(subject.size, cost.factor * limits.STEP_WORK)
        self.steps += cost.steps(characters)
        return {}

    def _call(self, node: Call, name: str, arguments: Sequence[Node]) -> _TypedPart:
        if name in PATHS:
            return self._field(node)
        if name in _AGGREGATES and name not in FUNCTIONS:
            raise ValueError(f"an aggregate ({name}) is not allowed in {self.text!r}")
        function = FUNCTIONS.get(name)
        if function is None:
            raise ValueError(f"the function {name} is not allowed in {self.text!r}")
        if name == "unix_timestamp" and not arguments:
            raise ValueError(self._of_the_moment(f"{name}()"))
        if not function.least <= len(arguments) <= function.most:
            raise ValueError(
                f"{name} takes {function.least} to {function.most} arguments in {self.text!r}"
            )
        if name in LAMBDAS and isinstance(arguments[-1], Lambda):
            return self._applied(node, name, arguments)
        parts = [self.part(argument) for argument in arguments]
        for at, description in LITERALS.get(name, ()):
            if at < len(parts) and not isinstance(parts[at].node, Text):
                raise ValueError(f"{description} must be a literal text in {name}")
        self._require_times(name, parts)
        if any(part.type == INTERVAL for part in parts) and name not in ("isnull", "isnotnull"):
            raise ValueError(f"{name} takes no interval in {self.text!r}")
        if name in ("decimal", "to_char") or (name in _TO_DECIMALS and len(parts) == 2):
            self._require_short_decimal(node, parts[0], is_within=False)
        if name in _SCALED and len(parts) == 2:
            scale = _whole(parts[1].node)
            if scale is None or abs(scale) > SCALE_MAX:
                raise ValueError(
                    f"the digits that {name} is given must be a literal number up to {SCALE_MAX}"
                )
        if name == "parse_url" and len(parts) == 3:
            _require_parameter(parts[2].node)
        if name == "map":
            self._require_alike(name, parts[::2])
            self._require_alike(name, parts[1::2])
        elif name == "concat":
            self._require_joinable(parts)
        elif name not in OF_BOTH:
            self._require_alike(name, parts[1:] if name in _FIRST_ASIDE else parts)
        steps: Size = {}
        if name in PATTERNS and not _is_short_decimal(node):
            steps = self._matched(parts[0], self._pattern(parts[1]), parts[1])
        kind, size, characters = self._result(name, parts)
        sizes = [part.size for part in parts]
        of_parts = (part.work for part in parts)
        work = limits.added(*of_parts, *sizes, size, steps, limits.constant(1))
        if name in _COMPARED and len(parts) > 1:
            # Spark looks for the whole of one in each place of the other.
            pairs = limits.multiplied(sizes[0], sizes[1], name)
            work = limits.added(work, limits.scaled(pairs, limits.STEP_WORK))
        if name in ("to_number", "try_to_number") and re.search("[,gG]", _text_of(parts[1])):
            # Spark keeps the place of each comma, and moves all of them for each that follows.
            work = limits.added(work, limits.multiplied(sizes[0], sizes[0], name))
        if name == "get_json_object":
            # Each star copies all that is below it.
            stars = _text_of(parts[1]).count("*")
            work = limits.added(work, limits.scaled(sizes[0], stars))
        is_open = any(part.is_open for part in parts)
        return _TypedPart(kind, size, work, is_open, node, characters)

    def _field(self, node: Call) -> _TypedPart:
        if len(node.arguments) != 1 or not isinstance(node.arguments[0], Text):
            raise ValueError(
                f"{node.function} takes one literal path in {self.text!r}, as"
                f" {node.function}('order.id')"
            )
        parse_field(node.arguments[0].value)
        return _TypedPart(TEXT, limits.times_of(RECORD), limits.constant(0), True, node)

    def _require_times(self, name: str, parts: Sequence[_TypedPart]) -> None:
        at = 1 if name == "date_trunc" else 0
        if name in OF_TIMES or name == "date_trunc" or name == "timestamp":
            self._require_time(parts[at], TIMESTAMP)
        elif name in ("to_timestamp", "try_to_timestamp") and len(parts) == 1:
            self._require_time(parts[0], TIMESTAMP)
        elif name == "date" or (name == "to_date" and len(parts) == 1):
            self._require_time(parts[0], DATE)
        elif name in OF_DATES:
            count = 2 if name in ("date_diff", "datediff") else 1
            for part in parts[:count]:
                self._require_time(part, DATE)

    def _applied(self, node: Call, name: str, arguments: Sequence[Node]) -> _TypedPart:
        """A lambda, applied to each element of arrays."""
        body_of = arguments[-1]
        assert isinstance(body_of, Lambda)
        arrays = [self.part(argument) for argument in arguments[:-1]]
        least, most = LAMBDAS[name]
        if not least <= len(body_of.parameters) <= most:
            raise ValueError(f"the lambda of {name} takes {least} to {most} variables")
        if any(array.type.name != "array" for array in arrays):
            raise ValueError(f"{name} takes an array in {self.text!r}")
        names = [variable.lower() for variable in body_of.parameters]
        for variable in names:
            reserved = (*COLUMNS, *self.columns, DECODED, *self.variables)
            if (
                variable in reserved
                or variable.startswith("_")
                or not re.fullmatch("[a-z0-9_]+", variable)
            ):
                raise ValueError(
                    f"a lambda's variable cannot be called {variable} in {self.text!r}: it is the"
                    " name of a column, of another variable, or begins with _"
                )
        if len(set(names)) < len(names):
            raise ValueError(f"two variables of a lambda have one name in {self.text!r}")
        sizes: dict[str, Size] = {}
        outer = self.variables
        self.variables = dict(outer)
        for at, variable in enumerate(names):
            self.lambdas += 1
            symbol = f"{variable} {self.lambdas}"
            if name in ("transform", "filter") and at == 1:
                self.variables[variable] = (symbol, NUMBER)
                sizes[symbol] = limits.constant(0)
            else:
                array = arrays[at] if name == "zip_with" else arrays[0]
                self.variables[variable] = (symbol, array.type.parts[0])
                sizes[symbol] = array.size
        steps_before, self.steps = self.steps, 0.0
        body = self.part(body_of.body)
        self.variables = outer
        quote = self._quote(node)
        results = limits.of_elements(body.size, sizes, quote)
        rounds = 64 if name == "array_sort" else 1
        work = limits.added(
            *(array.work for array in arrays),
            *(array.size for array in arrays),
            limits.scaled(limits.of_elements(body.work, sizes, quote), rounds),
            self._matched_in_elements(sizes, rounds, steps_before),
        )
        kind, size = arrays[0].type, arrays[0].size
        if name in ("exists", "forall"):
            kind, size = BOOLEAN, limits.constant(NUMBER_BYTES)
        elif name in ("transform", "zip_with"):
            kind, size = Type("array", (body.type,)), results
            work = limits.added(work, results)
        is_open = any(array.is_open for array in arrays) or body.is_open
        return _TypedPart(kind, size, work, is_open, node)

    def _matched_in_elements(
        self, arrays: Mapping[str, Size], rounds: int, steps_before: float
    ) -> Size:
        """Add the steps of a lambda's patterns for all elements to `steps_before`; return them as
        work where the number of elements grows with the record."""
        elements = limits.scaled(
            limits.added(*arrays.values()), self.steps * rounds / limits.ELEMENT
        )
        count = limits.constant_of(elements)
        self.steps = steps_before + (count or 0)
        return elements if count is None else {}

    def _result(self, name: str, parts: Sequence[_TypedPart]) -> tuple[Type, Size, int | None]:
        """Return the type of a function's result, its size, and its maximum characters."""
        rule = _RULES.get(name)
        if rule is not None:
            return rule(name, parts)
        function = FUNCTIONS[name]
        whole = limits.added(*(part.size for part in parts))
        size = limits.scaled(whole, function.growth)
        size = limits.added(size, limits.constant(128 if not function.growth else NUMBER_BYTES))
        kind = _result_type(function.kind, [part.type for part in parts])
        # Of any other function it is not known.
        characters = None
        if name in OF_TWO:
            characters = _total([part.characters for part in parts[:2]])
        elif kind == TEXT and name in NO_LONGER and parts[0].characters is not None:
            characters = NO_LONGER[name] * parts[0].characters
        return kind, size, characters


def _leaf(kind: Type, node: Node) -> _TypedPart:
    return _TypedPart(kind, limits.constant(NUMBER_BYTES), limits.constant(0), False, node)


def _kind(type_: Type) -> Type:
    """Return what the checker knows of a type of a cast."""
    if type_.name in _TEXTS:
        return TEXT
    if type_.name in _TIMES:
        return DATE if type_.name == "date" else TIMESTAMP
    if type_.parts:
        return replace(type_, parts=tuple(map(_kind, type_.parts)))
    return type_ if type_ in (BINARY, BOOLEAN) else NUMBER


def _has_time(kind: Type) -> bool:
    return kind.name in _TIMES or any(map(_has_time, kind.parts))


def _has_decimal(kind: Type) -> bool:
    return kind.name in _DECIMALS or any(map(_has_decimal, kind.parts))


def _element(kind: Type) -> Type:
    return kind.parts[0] if kind.name == "array" else ANY


def _text_of(part: _TypedPart) -> str:
    """Return a literal text."""
    assert isinstance(part.node, Text)
    return part.node.value


def _require_parameter(node: Node) -> None:
    """Raises ValueError unless a text is the same in the regular expression that Spark makes of
    it."""
    if not isinstance(node, Text) or not re.fullmatch("[A-Za-z0-9_-]{1,100}", node.value):
        raise ValueError(
            "the name of a parameter in parse_url consists of up to 100 letters, digits, _ and -"
        )


def _may_be_text(kind: Type) -> bool:
    return kind in (TEXT, BINARY, ANY) or any(map(_may_be_text, kind.parts))


def _member_type(kind: Type, name: str) -> Type | None:
    if kind.name == "array":
        inner = _member_type(kind.parts[0], name)
        return None if inner is None else Type("array", (inner,))
    if kind.name == "map":
        return kind.parts[1]
    names = [member.lower() for member in kind.names]
    return kind.parts[names.index(name.lower())] if name.lower() in names else None


def _common(types: Sequence[Type]) -> Type:
    distinct = [kind for kind in dict.fromkeys(types) if kind != NULL]
    if not distinct:
        return NULL
    if len(distinct) == 1:
        return distinct[0]
    # A text beside a time becomes one.
    return TIMESTAMP if set(distinct) <= {DATE, TIMESTAMP, TEXT} else ANY


def _result_type(kind: str, types: Sequence[Type]) -> Type:
    if kind in KINDS:
        return KINDS[kind]
    if kind == "=":
        return _common(types)
    if kind == "[t]":
        return Type("array", (TEXT,))
    first = types[0]
    if kind == "e":
        if first.name not in ("array", "map"):
            return ANY
        return first.parts[-1]
    return first


def _most(parts: Sequence[_TypedPart]) -> int | None:
    lengths = [part.characters for part in parts if part.type != NULL]
    bounds = [length for length in lengths if length is not None]
    return max(bounds, default=0) if len(bounds) == len(lengths) else None


def _total(lengths: Sequence[int | None]) -> int | None:
    bounds = [length for length in lengths if length is not None]
    return sum(bounds) if len(bounds) == len(lengths) else None


def _beside(size: Size) -> Size:
    """The work of one more operand of a comparison."""
    return limits.constant(limits.constant_of(size) or NUMBER_BYTES)


def _whole(node: Node) -> int | None:
    """Return a literal number; None for anything else."""
    if not isinstance(node, Number) or not re.fullmatch(r"-?[0-9]+", node.text):
        return None
    # Python refuses to convert thousands of digits, and 19 are too many already.
    return int(node.text[: DIGITS_MAX + 1])


_Result = tuple[Type, Size, int | None]


def _literal_size(name: str, part: _TypedPart) -> int:
    size = _whole(part.node)
    if size is None:
        raise ValueError(f"the size that {name} is given must be a literal number")
    if size > SIZE_MAX:
        raise ValueError(f"the size {size:,} that {name} is given is above {SIZE_MAX:,}")
    return max(size, 0)


def _repeat(name: str, parts: Sequence[_TypedPart]) -> _Result:
    times = _literal_size(name, parts[1])
    length = parts[0].characters
    characters = None if length is None else length * times
    return TEXT, limits.scaled(parts[0].size, times), characters


def _space(name: str, parts: Sequence[_TypedPart]) -> _Result:
    times = _literal_size(name, parts[0])
    return TEXT, limits.constant(times), times


def _reversed(_: str, parts: Sequence[_TypedPart]) -> _Result:
    """An array, or the text of anything else."""
    kind = parts[0].type if parts[0].type.name in ("array", "any") else TEXT
    return kind, limits.added(parts[0].size, limits.constant(NUMBER_BYTES)), parts[0].characters


def _pad(name: str, parts: Sequence[_TypedPart]) -> _Result:
    length = _literal_size(name, parts[1])
    return TEXT, limits.constant(4 * length), length


def _number_format(name: str, parts: Sequence[_TypedPart]) -> _Result:
    if isinstance(parts[1].node, Text):
        length = len(parts[1].node.value)
    else:
        length = _literal_size(name, parts[1])
    return TEXT, limits.constant(length + 512), length + 512


def _sequence(_: str, parts: Sequence[_TypedPart]) -> _Result:
    first, last = (_whole(part.node) for part in parts[:2])
    if first is None or last is None:
        raise ValueError("both ends of a sequence must be literal numbers")
    if abs(last - first) > SIZE_MAX:
        raise ValueError(f"the ends of a sequence are more than {SIZE_MAX:,} apart")
    if len(parts) == 3 and _whole(parts[2].node) is None:
        raise ValueError("the step of a sequence must be a literal number")
    count = abs(last - first) + 1
    return Type("array", (NUMBER,)), limits.constant(count * (limits.ELEMENT + 8)), None


def _format(_: str, parts: Sequence[_TypedPart]) -> _Result:
    assert isinstance(parts[0].node, Text)
    text = parts[0].node.value
    if any(int(width[:DIGITS_MAX]) > SIZE_MAX for width in _WIDTH.findall(text)):
        raise ValueError(f"a format is wider than {SIZE_MAX:,} characters")
    widths = sum(int(digits[:DIGITS_MAX]) for digits in re.findall("[0-9]+", text))
    largest = limits.largest(*(part.size for part in parts[1:]), limits.constant(512))
    size = limits.scaled(largest, 2 * text.count("%"))
    return TEXT, limits.added(size, limits.constant(4 * len(text) + widths)), None


def _date_format(_: str, parts: Sequence[_TypedPart]) -> _Result:
    formats = (part.node.value for part in parts if isinstance(part.node, Text))
    length = 64 * max(map(len, formats), default=2)
    return TEXT, limits.constant(length), length


def _cut(_: str, parts: Sequence[_TypedPart]) -> _Result:
    """A text up to a literal length."""
    length = _whole(parts[-1].node)
    kind = parts[0].type if parts[0].type == BINARY else TEXT
    if length is None:
        return kind, parts[0].size, parts[0].characters
    length = max(length, 0)
    if parts[0].characters is not None:
        length = min(length, parts[0].characters)
    if 4 * length > limits.CONSTANT_MAX // 4:
        return kind, parts[0].size, length
    return kind, limits.constant(4 * length), length


def _substring(name: str, parts: Sequence[_TypedPart]) -> _Result:
    if len(parts) == 3:
        return _cut(name, parts)
    kind = parts[0].type if parts[0].type == BINARY else TEXT
    return kind, parts[0].size, parts[0].characters


def _replaced(_: str, parts: Sequence[_TypedPart]) -> _Result:
    if len(parts) == 2:
        return TEXT, parts[0].size, parts[0].characters
    size = limits.multiplied(parts[0].size, parts[2].size, "the result of replace")
    return TEXT, limits.added(parts[0].size, size), None


def _replaced_pattern(_: str, parts: Sequence[_TypedPart]) -> _Result:
    if not isinstance(parts[2].node, Text):
        raise ValueError(
            "what regexp_replace puts in must be a literal text; replace and translate take any"
        )
    text = parts[2].node.value
    # A pattern may match between all characters, and each group is within the match.
    size = limits.scaled(parts[0].size, 1 + len(text.encode("utf-8", "surrogatepass")))
    return TEXT, limits.added(size, limits.constant(2 * len(text))), None


def _extracted(name: str, parts: Sequence[_TypedPart]) -> _Result:
    if name in ("regexp_extract", "regexp_substr"):
        return TEXT, parts[0].size, parts[0].characters
    if name in ("regexp_extract_all", "split"):
        return Type("array", (TEXT,)), _pieces(parts[0].size), None
    kind = NUMBER if name in ("regexp_count", "regexp_instr") else BOOLEAN
    return kind, limits.constant(NUMBER_BYTES), None


def _pieces(size: Size) -> Size:
    """A text in pieces, at most one for each character."""
    return limits.added(limits.scaled(size, 1 + limits.ELEMENT), limits.constant(limits.ELEMENT))


def _array(_: str, parts: Sequence[_TypedPart]) -> _Result:
    kind = Type("array", (_common([part.type for part in parts]),))
    beside = limits.constant(limits.ELEMENT * len(parts))
    return kind, limits.added(*(part.size for part in parts), beside), None


def _names(arguments: Sequence[Node]) -> list[str]:
    """Return the names of a struct's fields."""
    return [
        node.name if isinstance(node, Name | Member) else f"col{at}"
        for at, node in enumerate(arguments, 1)
    ]


def _struct(name: str, parts: Sequence[_TypedPart]) -> _Result:
    size = limits.added(
        *(part.size for part in parts), limits.constant(limits.ELEMENT * len(parts))
    )
    if name == "struct":
        names = tuple(_names([part.node for part in parts]))
        size = limits.added(size, limits.constant(4 * sum(map(len, names))))
        return Type("struct", tuple(part.type for part in parts), names), size, None
    if len(parts) % 2:
        raise ValueError(f"{name} takes pairs of a name and a value")
    if name == "map":
        kinds = [_common([part.type for part in parts[at::2]]) for at in (0, 1)]
        return Type("map", tuple(kinds)), size, None
    named = []
    for part in parts[::2]:
        if not isinstance(part.node, Text):
            raise ValueError("a name in named_struct must be a literal text")
        named.append(part.node.value)
    return Type("struct", tuple(part.type for part in parts[1::2]), tuple(named)), size, None


def _map_side(name: str, parts: Sequence[_TypedPart]) -> _Result:
    kind = parts[0].type
    side = ANY if kind.name != "map" else kind.parts[0 if name == "map_keys" else 1]
    return Type("array", (side,)), parts[0].size, None


def _joined(name: str, parts: Sequence[_TypedPart]) -> _Result:
    if name == "concat":
        size = limits.added(*(part.size for part in parts))
        if parts[0].type.name in ("array", "binary"):
            return _common([part.type for part in parts]), size, None
        return TEXT, size, _total([part.characters for part in parts])
    if name == "concat_ws":
        between, arrays = parts[0], parts[1:]
    else:
        between, arrays = parts[1], parts[:1]
    whole = limits.added(*(part.size for part in arrays), limits.constant(len(parts)))
    count = limits.added(limits.scaled(whole, 1 / limits.ELEMENT), limits.constant(len(arrays) + 1))
    size = limits.added(whole, limits.multiplied(count, between.size, f"the result of {name}"))
    if len(parts) == 3 and name == "array_join":
        size = limits.added(size, limits.multiplied(count, parts[2].size, f"the result of {name}"))
    return TEXT, size, None


def _chosen(name: str, parts: Sequence[_TypedPart]) -> _Result:
    results = parts[1:] if name in _FIRST_ASIDE else parts
    size = limits.largest(*(part.size for part in results))
    return _common([part.type for part in results]), size, _most(results)


def _schema(_: str, parts: Sequence[_TypedPart]) -> _Result:
    assert isinstance(parts[1].node, Text)
    text = parts[1].node.value
    kind = parse_schema(text)
    if _has_decimal(kind):
        raise ValueError(
            "a decimal in a schema of from_json may have any number of digits. Read it as a string,"
            " and cast it, as in cast(from_json(value, 'a string').a as decimal(19, 2))"
        )
    if _has_time(_kind(kind)):
        raise ValueError(
            "a time in a schema of from_json depends on the day. Read it as a string, and give its"
            f" format, as in {_FIXED}"
        )
    # The smallest element in JSON is {}, of which a struct with all its fields is made.
    return _kind(kind), limits.scaled(parts[0].size, limits.ELEMENT + len(text) / 4), None


def _json(_: str, parts: Sequence[_TypedPart]) -> _Result:
    if len(parts) == 2 and parts[1].node != JSON_OPTIONS:
        raise ValueError("the options of to_json can only be map('ignoreNullFields', 'false')")
    size = limits.added(limits.scaled(parts[0].size, 6), limits.constant(64))
    return TEXT, size, None


def _sorted(_: str, parts: Sequence[_TypedPart]) -> _Result:
    if len(parts) > 1:
        raise ValueError("array_sort takes an array and a lambda of two variables")
    return parts[0].type, parts[0].size, None


def _no_lambda(name: str, _: Sequence[_TypedPart]) -> _Result:
    raise ValueError(f"{name} takes a lambda, as in {name}(headers, h -> h.key = 'id')")


_RULES = {
    "repeat": _repeat,
    "space": _space,
    "reverse": _reversed,
    **dict.fromkeys(("lpad", "rpad"), _pad),
    "format_number": _number_format,
    "sequence": _sequence,
    **dict.fromkeys(("format_string", "printf"), _format),
    **dict.fromkeys(("date_format", "to_char", "from_unixtime"), _date_format),
    **dict.fromkeys(("left", "right"), _cut),
    **dict.fromkeys(("substr", "substring"), _substring),
    "replace": _replaced,
    "regexp_replace": _replaced_pattern,
    **dict.fromkeys(PATTERNS - {"regexp_replace"}, _extracted),
    "array": _array,
    **dict.fromkeys(("struct", "named_struct", "map"), _struct),
    **dict.fromkeys(("map_keys", "map_values"), _map_side),
    **dict.fromkeys(("concat", "concat_ws", "array_join"), _joined),
    **dict.fromkeys(
        ("if", "nvl2", "elt", "coalesce", "greatest", "least", "ifnull", "nvl", "nullif"), _chosen
    ),
    "from_json": _schema,
    "to_json": _json,
    "array_sort": _sorted,
    **dict.fromkeys(("exists", "filter", "forall", "transform", "zip_with"), _no_lambda),
}
