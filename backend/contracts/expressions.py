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
from dataclasses import dataclass, field, replace
from typing import Any

from topicproof.backend.contracts import expression_limits as limits
from topicproof.backend.contracts.expression_functions import (
    ANY,
    BINARY,
    BOOLEAN,
    DATE,
    FUNCTIONS,
    INTERVAL,
    LAMBDAS,
    LITERALS,
    NULL,
    NUMBER,
    OF_BOTH,
    OF_DATES,
    OF_NUMBERS,
    OF_ONE_TYPE,
    OF_TIMES,
    PATTERNS,
    TEXT,
    TIME_FORMATS,
    TIMESTAMP,
    weight_of,
)
from topicproof.backend.contracts.expression_limits import RECORD, Size
from topicproof.backend.contracts.expression_patterns import Cost, like_cost, pattern_cost
from topicproof.backend.contracts.expression_results import (
    FIRST_ASIDE,
    FIXED,
    JSON_OPTIONS,
    NUMBER_BYTES,
    TypedPart,
    common_kind,
    field_names,
    has_boolean,
    has_decimal,
    has_float,
    has_number,
    has_time,
    kind_of_cast,
    may_be_text,
    member_of,
    most_characters,
    result_of,
    size_beside,
    text_of,
    total_characters,
    whole_number,
)
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
    to_sql,
)
from topicproof.validators.decoded import DECODED, KEY_FIELD, VALUE_FIELD, parse_field, spell_field
from topicproof.validators.expected import NUMBER_TEXT

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of a source record; key and value are text (validators/expected.py, `record`)."""
LENGTH_MAX = 10_000
"""Maximum characters of an expression."""
WRITTEN_MAX = 5_000
"""Parts that Spark makes of an expression at most, on the driver."""
SQL_LENGTH_MAX = 200_000
"""Maximum characters of what Spark gets of it."""
TOPIC_MAX = 249
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
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{1,2}(-[0-9]{1,2}([ T][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]{1,9})?)?"
    r"( ?(Z|UTC|[+-][0-9]{1,2}:[0-9]{2}))?)?)?"
)
"""Times that are the same each day."""
_MOMENT_NAMES = ("current_", "session_", "localtimestamp")
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
NUMBER_TEXT_MAX = 20
"""Characters of a text of which Spark makes such a number as it is."""
BOOLEAN_TEXT_MAX = 20
"""Characters of a text that becomes a boolean. Spark makes it lower case as Java does, which takes
quadratic time on many capital sigmas."""
FORMAT_MAX = 100
"""Characters of a time's format."""
BRACKETS_MAX = 5
"""Optional parts of a time's format within each other."""
_QUOTED = re.compile("'[^']*'")
_TWICE = frozenset({"right", "nullif", "regexp_substr"})
"""Functions whose arguments Spark writes twice."""
_CHOICES = frozenset({"coalesce", "ifnull", "nvl", "nanvl"})
"""Functions whose first argument Spark looks at twice."""
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
    changes = Changes()
    efforts: list[limits.Effort] = []
    for part in texts_of_fields(tree) or (tree,):
        of_part, effort = _check(part, sql, (*COLUMNS, DECODED))
        changes.add(of_part)
        efforts.append(effort)
    limits.require_little_together(efforts)
    return to_sql(with_columns(_rewritten(tree, changes)))


def require_little_together(texts: Iterable[str]) -> None:
    """Raises ValueError if the checked expressions of an output's fields take too long together."""
    limits.require_little_together(_check(parse(text), text, COLUMNS)[1] for text in texts)


def require_little_of_stored(texts: Iterable[str]) -> None:
    """Raises ValueError as `require_little_together`, for what evidence keeps of expressions."""
    columns = (*COLUMNS, DECODED)
    limits.require_little_together(_check(parse(text), text, columns)[1] for text in texts)


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
    return _rewritten(tree, _check(tree, text, columns)[0])


@dataclass(frozen=True)
class Changes:
    """What Spark gets otherwise than it was written, by the `id` of nodes."""

    decimals: set[int] = field(default_factory=set)
    """Casts and calls that make a decimal of their first text: 12 bytes such as 1e-600000000 are a
    number of 600 million digits, which Spark writes out."""
    numbers: set[int] = field(default_factory=set)
    """Texts of which Spark may make a double or a float."""
    spellings: dict[int, str] = field(default_factory=dict)
    """The own name of a field that was taken by a name in other letters."""

    def add(self, others: Changes) -> None:
        self.decimals.update(others.decimals)
        self.numbers.update(others.numbers)
        self.spellings.update(others.spellings)


def _check(tree: Node, text: str, columns: Collection[str]) -> tuple[Changes, limits.Effort]:
    """Return what to change in the tree, and what Spark does for a record. Raises ValueError."""
    checker = _Checker(text, columns)
    try:
        _require_few_copies(tree, text)
        work = checker.part(tree).work
        effort = limits.Effort(work, checker.steps)
        limits.require_little_work(effort)
        sql = to_sql(with_columns(_rewritten(tree, checker.changes)))
        if checker.changes.decimals or checker.changes.numbers:
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
    return checker.changes, effort


def _require_few_copies(tree: Node, text: str) -> None:
    """Raises ValueError if Spark would write too much of an expression: it writes some operands
    several times, also those within."""
    count = _written(tree)
    if count > WRITTEN_MAX:
        raise ValueError(
            f"Spark would make {count:,.0f} parts of {text[:40]!r}; {WRITTEN_MAX:,} are allowed."
            " Put less into case, coalesce, right, nullif, between and like"
        )


def _written(node: Node) -> float:
    """Return how many parts Spark makes of an expression, or looks at."""
    return 1 + sum(
        _written(child) * _times(node, child) * _visits(node, child) for child in node.children()
    )


def _visits(node: Node, child: Node) -> int:
    """Return how often Spark looks at a child for parts that it need not compute again: what comes
    first in a choice is among what is always computed, and among the choices."""
    match node:
        case Case(operand, ((first, _), _, *_), _) if child is operand or child is first:
            return 2
        case Call(function, (first, *_)) if function.lower() in _CHOICES and child is first:
            return 2
    return 1


def _times(node: Node, child: Node) -> int:
    """Return how often Spark writes, and computes, a child of a node."""
    match node:
        case Case(operand, branches, _) if child is operand:
            return len(branches)
        case Call(function, _) if function.lower() in _TWICE:
            return 2
        case Operation("between", (first, *_)) if child is first:
            return 2
        case Operation(symbol, (first, *patterns)) if "like" in symbol and child is first:
            # 'a%b' becomes a length, a beginning and an end.
            texts = (pattern.value for pattern in patterns if isinstance(pattern, Text))
            return sum(3 if "%" in text.strip("%") else 1 for text in texts) or 1
    return 1


def measured_size(text: str) -> Size:
    """Return the bound of the result of a checked expression, in bytes."""
    return limits.of_record(_Checker(text, COLUMNS).part(parse(text)).size)


def with_columns(tree: Node) -> Node:
    """Return the tree with a column of the decoded reading for each call such as `field('id')`, and
    with the names of each struct's fields: Spark's own rule for them is another one."""

    def column(node: Node) -> Node | None:
        if isinstance(node, Call) and node.function in PATHS:
            return Member(Name(DECODED), field_of(node))
        return _with_names(node, column)

    return _changed(tree, column)


def _with_names(node: Node, change: Callable[[Node], Node | None]) -> Node | None:
    """Return a struct with the names of its fields and changed values; None for any other node."""
    if not isinstance(node, Call) or node.function.lower() != "struct":
        return None
    named = (
        part
        for name, argument in zip(field_names(node.arguments), node.arguments, strict=True)
        for part in (Text(name), _changed(argument, change))
    )
    return Call("named_struct", tuple(named))


def _rewritten(tree: Node, changes: Changes) -> Node:
    """Return the tree with its changes: what makes a number of a text, only where the text is
    short; each field of a struct in its own spelling."""

    def shorter(node: Node) -> Node | None:
        if id(node) in changes.numbers:
            return _short(_with_changed_parts(node, shorter), NUMBER_TEXT)
        if id(node) in changes.spellings:
            name = changes.spellings[id(node)]
            if isinstance(node, Member):
                return Member(_changed(node.base, shorter), name)
            assert isinstance(node, Item)
            return Item(_changed(node.base, shorter), Text(name))
        if id(node) not in changes.decimals:
            return _with_names(node, shorter)
        if isinstance(node, Cast):
            return replace(node, operand=_short(_changed(node.operand, shorter), DECIMAL_TEXT))
        assert isinstance(node, Call)
        first, *rest = (_changed(argument, shorter) for argument in node.arguments)
        return replace(node, arguments=(_short(first, DECIMAL_TEXT), *rest))

    return _changed(tree, shorter)


def _short(text: Node, pattern: str) -> Node:
    """Return what makes an empty text, which is no number, of any text that the pattern does not
    match."""
    return Call("regexp_extract", (text, Text(pattern), Number("0")))


def _is_short(node: Node) -> bool:
    """Whether `_short` has written it."""
    match node:
        case Call("regexp_extract", (_, Text(pattern), Number("0"))):
            return pattern in (DECIMAL_TEXT, NUMBER_TEXT)
    return False


def _changed(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a tree with other nodes. `change` returns None for a node that stays."""
    new = change(node)
    return _with_changed_parts(node, change) if new is None else new


def _with_changed_parts(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a node with other nodes below it."""
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


class _Checker:
    """Checks the parts of one expression from the leaves."""

    def __init__(self, text: str, columns: Collection[str]) -> None:
        self.text = text
        self.columns = columns
        self.variables: dict[str, tuple[str, Type]] = {}
        """By name in lower case: what stands for its size, and its type."""
        self.lambdas = 0
        self.changes = Changes()
        self.steps = 0.0
        """Steps of all patterns whose texts have a limited length."""

    def part(self, node: Node) -> TypedPart:
        part = self._part(node)
        limits.require_small(part.size, lambda: self._quote(node))
        return part

    def _quote(self, node: Node) -> str:
        text = to_sql(node)
        return repr(text if len(text) <= 60 else f"{text[:57]}...")

    def _part(self, node: Node) -> TypedPart:
        match node:
            case Text(value):
                size = limits.constant(len(value.encode("utf-8", "surrogatepass")))
                return TypedPart(TEXT, size, limits.constant(0), False, node, len(value))
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
                if has_decimal(type_):
                    self._require_short_decimal(node, part, is_within=bool(type_.parts))
                if has_float(type_):
                    looked = self._require_short_numbers([part], is_within=bool(type_.parts))
                    part = replace(part, work=limits.added(part.work, looked))
                return self._cast(node, part, kind_of_cast(type_))
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

    def _named(self, node: Name, name: str) -> TypedPart:
        column = name.lower() if name.isascii() else ""
        if column in self.variables:
            symbol, kind = self.variables[column]
            return TypedPart(kind, limits.times_of(symbol), limits.constant(0), True, node)
        if column.startswith(_MOMENT_NAMES):
            raise ValueError(self._of_the_moment(name))
        if column not in self.columns or column == DECODED:
            names = ", ".join(column_name for column_name in self.columns if column_name != DECODED)
            raise ValueError(f"{self.text!r} names {name}, and a record has {names}")
        kind = _KINDS_OF_COLUMNS[column]
        if column == "topic":
            size = limits.constant(TOPIC_MAX)
            return TypedPart(kind, size, self._copied(size), True, node, TOPIC_MAX)
        if kind in (NUMBER, TIMESTAMP):
            return replace(_leaf(kind, node), is_open=True)
        size = limits.times_of(RECORD, 1 + limits.ELEMENT if column == "headers" else 1)
        return TypedPart(kind, size, self._copied(size), True, node)

    def _copied(self, size: Size) -> Size:
        """Return the work of a column. In a lambda, Spark copies its bytes for each element: it
        moves the cast of `record` (validators/expected.py) there."""
        return size if self.variables else limits.constant(0)

    def _member(self, node: Member, base: Node, name: str) -> TypedPart:
        if isinstance(base, Name) and base.name.lower() == DECODED and DECODED in self.columns:
            function, _, path = name.partition(":")
            if function not in PATHS or not path:
                raise ValueError(f"{self.text!r} names {DECODED}.{name}, which is no field")
            return self._of_path(node, function, path)
        part = self.part(base)
        kind = self._kind_of_field(node, part, name)
        # The field of an array is a new array.
        searched = part.size if part.type.name in ("array", "map", "any") else limits.constant(0)
        work = limits.added(part.work, searched)
        return replace(part, type=kind, node=node, characters=None, work=work)

    def _kind_of_field(self, node: Member | Item, base: TypedPart, name: str) -> Type:
        """Note the own name of a field, and return its type. Raises ValueError if there is none."""
        member = member_of(base.type, name)
        if member is None:
            raise ValueError(f"{self._quote(base.node)} has no field {name} in {self.text!r}")
        if member[0] != name:
            self.changes.spellings[id(node)] = member[0]
        return member[1]

    def _item(self, node: Item, base: TypedPart, index: TypedPart) -> TypedPart:
        kind = ANY
        if base.type.name == "array":
            if may_be_text(index.type):
                raise ValueError(f"an array has no field {self._quote(index.node)}: give a number")
            kind = base.type.parts[0]
        elif base.type.name == "map":
            kind = base.type.parts[1]
            self._require_alike("map", (replace(base, type=base.type.parts[0]), index))
            self._require_key(base.type.parts[0], index)
        elif isinstance(index.node, Text):
            kind = self._kind_of_field(node, base, index.node.value)
        if base.type == ANY:
            self._require_key(ANY, index)
        searched = base.size if base.type.name in ("map", "any") else limits.constant(0)
        work = limits.added(base.work, index.work, searched)
        return TypedPart(kind, base.size, work, base.is_open or index.is_open, node)

    def _require_key(self, kind: Type, index: TypedPart) -> None:
        """Raises ValueError if Spark may make a decimal of a text to find it in a map."""
        if may_be_text(index.type) and kind != TEXT:
            raise ValueError(
                f"the text {self._quote(index.node)} is looked for in a map whose keys are"
                f" no texts, in {self.text!r}. Cast it to the type of the keys"
            )

    def _cast(self, node: Cast, part: TypedPart, kind: Type) -> TypedPart:
        if has_time(kind):
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
        if has_boolean(kind):
            self._require_short_boolean(part)
        weight = weight_of("boolean" if has_boolean(kind) else "cast")
        work = limits.added(
            part.work, limits.scaled(part.size, weight.byte), size, limits.constant(weight.call)
        )
        return TypedPart(kind, size, work, part.is_open, node, characters)

    def _require_short_decimal(self, node: Node, part: TypedPart, *, is_within: bool) -> None:
        """Note that a node makes a decimal of a text. Raises ValueError if it may make several, or
        if nobody knows."""
        if not may_be_text(part.type) or _is_short(part.node):
            return
        if is_within or part.type != TEXT:
            raise ValueError(
                f"{self._quote(part.node)} is cast to a decimal in {self.text!r}, and may hold"
                " texts of any length. Cast each alone, as in cast(string(x) as decimal(19, 2))"
            )
        self.changes.decimals.add(id(node))

    def _require_short_numbers(
        self, parts: Sequence[TypedPart], *, is_within: bool = False
    ) -> Size:
        """Note the texts of which Spark may make a double or a float; return the work to look at
        their length. Raises ValueError if they are within something, or if nobody knows."""
        weight, work = weight_of("regexp_extract"), limits.constant(0)
        for part in parts:
            if not may_be_text(part.type) or _is_short(part.node):
                continue
            if is_within or part.type != TEXT:
                raise ValueError(
                    f"{self._quote(part.node)} becomes a number in {self.text!r}, and may hold"
                    " texts of any length. Cast each alone, as in"
                    " transform(split(value, ','), x -> cast(x as double))"
                )
            if part.characters is None or part.characters > NUMBER_TEXT_MAX:
                self.changes.numbers.add(id(part.node))
                read = limits.scaled(part.size, weight.byte)
                work = limits.added(work, read, limits.constant(weight.call))
        return work

    def _require_short_beside_number(self, parts: Sequence[TypedPart]) -> Size:
        """Note the texts of which Spark may make a double beside a number, and no bigint. Return
        and raises as `_require_short_numbers`."""
        others = [part for part in parts if part.type not in (TEXT, NULL)]
        kinds = {part.type for part in parts} - {NULL}
        if len(kinds) < 2 or not any(map(has_number, kinds)) or all(map(_is_whole, others)):
            return {}
        return self._require_short_numbers([part for part in parts if not has_time(part.type)])

    def _require_short_boolean(self, part: TypedPart) -> None:
        """Raises ValueError if a boolean may be made of a long text."""
        if not may_be_text(part.type) or (
            part.type == TEXT
            and part.characters is not None
            and part.characters <= BOOLEAN_TEXT_MAX
        ):
            return
        raise ValueError(
            f"a boolean is made of the text {self._quote(part.node)} in {self.text!r}, which takes"
            " quadratic time on a long one. Compare it, as in value = 'true', or shorten it, as in"
            f" cast(substr(value, 1, {BOOLEAN_TEXT_MAX}) as boolean)"
        )

    def _require_no_boolean(self, parts: Sequence[TypedPart]) -> None:
        """Raises ValueError if Spark would make a boolean of a text beside one."""
        if any(has_boolean(part.type) for part in parts):
            for part in parts:
                if not isinstance(part.node, Text) and not has_boolean(part.type):
                    self._require_short_boolean(replace(part, characters=None))

    def _require_time(self, part: TypedPart, kind: Type) -> None:
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
            f" the day of the check, such as 12:00 or now. Give its format, as in {FIXED}"
        )

    def _require_alike(self, subject: str, parts: Sequence[TypedPart]) -> None:
        """Raises ValueError if Spark would make a time or a boolean of a text beside one."""
        self._require_no_boolean(parts)
        if not any(has_time(part.type) for part in parts):
            return
        are_plain = all(part.type in (DATE, TIMESTAMP, TEXT, NULL) for part in parts)
        for part in parts:
            if not may_be_text(part.type):
                continue
            if isinstance(part.node, Text) and are_plain:
                if _TIME.fullmatch(part.node.value):
                    continue
                raise ValueError(self._of_the_moment(repr(part.node.value)))
            raise ValueError(
                f"{subject} compares a time with the text {self._quote(part.node)} in"
                f" {self.text!r}. Make a time of it, as in {FIXED}, or a text of the time with"
                " date_format"
            )

    def _case(
        self,
        node: Case,
        operand: Node | None,
        branches: Sequence[tuple[Node, Node]],
        default: Node | None,
    ) -> TypedPart:
        conditions = [self.part(when) for when, _ in branches]
        results = [self.part(then) for _, then in branches]
        if default is not None:
            results.append(self.part(default))
        if operand is not None:
            conditions.append(self.part(operand))
            self._require_alike("case", conditions)
        self._require_alike("case", results)
        parts = (*conditions, *results)
        looked = [self._require_short_beside_number(results)]
        if operand is not None:
            looked += [self._require_short_beside_number(conditions)] * len(branches)
        return TypedPart(
            common_kind([part.type for part in results]),
            limits.largest(*(part.size for part in results)),
            limits.added(
                _work_of(node, parts),
                *looked,
                *(part.size for part in parts),
                limits.constant(weight_of("case").call * len(parts)),
            ),
            any(part.is_open for part in parts),
            node,
            most_characters(results),
        )

    def _operation(self, node: Operation, symbol: str, parts: list[TypedPart]) -> TypedPart:
        weight = weight_of(symbol)
        work = limits.added(_work_of(node, parts), limits.constant(weight.call))
        is_open = any(part.is_open for part in parts)
        sizes = [part.size for part in parts]
        small = limits.constant(NUMBER_BYTES)
        self._require_interval_beside_time(symbol, [part.type for part in parts])
        if symbol == "||":
            work = limits.added(work, self._require_joinable(parts))
            size = limits.added(*sizes)
            kind = common_kind([part.type for part in parts])
            kind = kind if parts[0].type.name in ("array", "binary") else TEXT
            characters = total_characters([part.characters for part in parts])
            return TypedPart(kind, size, limits.added(work, size), is_open, node, characters)
        if symbol == "rlike":
            steps = self._matched(parts[0], self._pattern(parts[1]), parts[1])
            read = limits.scaled(sizes[0], weight.byte)
            return TypedPart(BOOLEAN, small, limits.added(work, steps, read), is_open, node)
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
            work = limits.added(work, limits.scaled(sizes[0], weight.byte * len(patterns)))
            return TypedPart(BOOLEAN, small, work, is_open, node)
        if symbol in _COMPARISONS:
            self._require_alike(symbol, parts)
            work = limits.added(work, self._require_short_beside_number(parts))
            compared_size = limits.added(limits.smallest(*sizes[:2]), *map(size_beside, sizes[2:]))
            return TypedPart(BOOLEAN, small, limits.added(work, compared_size), is_open, node)
        self._require_alike(symbol, parts)
        if symbol.startswith("is ") and symbol.endswith(("true", "false")):
            self._require_short_boolean(replace(parts[0], characters=None))
        if symbol == "not":
            self._require_short_boolean(parts[0])
        if symbol in ("and", "or", "not") or symbol.startswith("is "):
            return TypedPart(BOOLEAN, small, work, is_open, node)
        times = [part.type for part in parts if part.type in (DATE, TIMESTAMP)]
        if not times and not (len(parts) > 1 and all(map(_is_whole, parts[1:]))):
            work = limits.added(work, self._require_short_numbers(parts))
        # The difference of two times is an interval; a day later is a time.
        kind = NUMBER if not times else TIMESTAMP if len(times) == 1 else INTERVAL
        read = limits.scaled(limits.added(*sizes), weight.byte)
        return TypedPart(kind, small, limits.added(work, read), is_open, node)

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

    def _require_joinable(self, parts: Sequence[TypedPart]) -> Size:
        if any(part.type.name in ("array", "any") for part in parts):
            self._require_alike("||", parts)
        is_array = any(part.type.name == "array" for part in parts)
        return self._require_short_beside_number(parts) if is_array else {}

    def _pattern(self, part: TypedPart) -> Cost:
        if not isinstance(part.node, Text):
            raise ValueError("a regular expression must be a literal text")
        return pattern_cost(part.node.value)

    def _matched(self, subject: TypedPart, cost: Cost, pattern: TypedPart) -> Size:
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

    def _call(self, node: Call, name: str, arguments: Sequence[Node]) -> TypedPart:
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
        if name == "boolean":
            self._require_short_boolean(parts[0])
        if any(part.type == INTERVAL for part in parts) and name not in ("isnull", "isnotnull"):
            raise ValueError(f"{name} takes no interval in {self.text!r}")
        looked: Size = {}
        if name in ("decimal", "to_char") or (name in _TO_DECIMALS and len(parts) == 2):
            self._require_short_decimal(node, parts[0], is_within=False)
        elif name in OF_NUMBERS:
            looked = self._require_short_numbers(parts)
        if name in _SCALED and len(parts) == 2:
            scale = whole_number(parts[1].node)
            if scale is None or abs(scale) > SCALE_MAX:
                raise ValueError(
                    f"the digits that {name} is given must be a literal number up to {SCALE_MAX}"
                )
        for at, _ in LITERALS.get(name, ()) if name in TIME_FORMATS else ():
            if at < len(parts):
                _require_flat_format(text_of(parts[at]))
        if name == "parse_url" and len(parts) == 3:
            _require_parameter(parts[2].node)
        if name == "map":
            for side in (parts[::2], parts[1::2]):
                self._require_alike(name, side)
                looked = limits.added(looked, self._require_short_beside_number(side))
        elif name == "concat":
            looked = self._require_joinable(parts)
        elif name not in OF_BOTH:
            alike = parts[1:] if name in FIRST_ASIDE else parts
            self._require_alike(name, alike)
            if name in OF_ONE_TYPE:
                looked = self._require_short_beside_number(alike)
        steps: Size = {}
        if name in PATTERNS and not _is_short(node):
            steps = self._matched(parts[0], self._pattern(parts[1]), parts[1])
        kind, size, characters = result_of(name, parts)
        sizes = [part.size for part in parts]
        weight = weight_of(name)
        work = limits.added(
            _work_of(node, parts),
            limits.scaled(limits.added(*sizes), weight.byte),
            size,
            steps,
            looked,
            limits.constant(weight.call),
        )
        if name in _COMPARED and len(parts) > 1:
            # Spark looks for the whole of one in each place of the other.
            pairs = limits.multiplied(sizes[0], sizes[1], name)
            work = limits.added(work, limits.scaled(pairs, limits.STEP_WORK))
        if name in ("to_number", "try_to_number") and re.search("[,gG]", text_of(parts[1])):
            # Spark keeps the place of each comma, and moves all of them for each that follows.
            work = limits.added(work, limits.multiplied(sizes[0], sizes[0], name))
        if name == "get_json_object":
            # Each star copies all that is below it.
            stars = text_of(parts[1]).count("*")
            work = limits.added(work, limits.scaled(sizes[0], stars * weight.byte))
        is_open = any(part.is_open for part in parts)
        return TypedPart(kind, size, work, is_open, node, characters)

    def _field(self, node: Call) -> TypedPart:
        if len(node.arguments) != 1 or not isinstance(node.arguments[0], Text):
            raise ValueError(
                f"{node.function} takes one literal path in {self.text!r}, as"
                f" {node.function}('order.id')"
            )
        return self._of_path(node, node.function, node.arguments[0].value)

    def _of_path(self, node: Node, function: str, path: str) -> TypedPart:
        size = limits.of_field(f"{function}:{spell_field(parse_field(path))}")
        return TypedPart(TEXT, size, limits.constant(0), True, node)

    def _require_times(self, name: str, parts: Sequence[TypedPart]) -> None:
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

    def _applied(self, node: Call, name: str, arguments: Sequence[Node]) -> TypedPart:
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
                or not all(map(str.isascii, body_of.parameters))
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
        body_work = limits.added(body.work, limits.constant(weight_of(name).call))
        work = limits.added(
            *(array.work for array in arrays),
            *(array.size for array in arrays),
            limits.scaled(limits.of_elements(body_work, sizes, quote), rounds),
            self._matched_in_elements(sizes, rounds, steps_before),
        )
        kind, size = arrays[0].type, arrays[0].size
        if name in ("exists", "forall"):
            kind, size = BOOLEAN, limits.constant(NUMBER_BYTES)
        elif name in ("transform", "zip_with"):
            kind, size = Type("array", (body.type,)), results
            work = limits.added(work, results)
        is_open = any(array.is_open for array in arrays) or body.is_open
        return TypedPart(kind, size, work, is_open, node)

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


def _work_of(node: Node, parts: Iterable[TypedPart]) -> Size:
    """Return the work of the parts of a node, as often as Spark computes each."""
    return limits.added(*(limits.scaled(part.work, _times(node, part.node)) for part in parts))


def _is_whole(part: TypedPart) -> bool:
    """Whether Spark makes a bigint of a text beside it."""
    if part.type == NUMBER and isinstance(part.node, Name):
        return part.node.name.lower() in ("partition", "offset")
    number = whole_number(part.node)
    return number is not None and abs(number) < 2**63


def _leaf(kind: Type, node: Node) -> TypedPart:
    return TypedPart(kind, limits.constant(NUMBER_BYTES), limits.constant(0), False, node)


def _require_flat_format(text: str) -> None:
    """Raises ValueError for the format of a time that Java parses by a recursion for each of its
    brackets, thousands of which end in a StackOverflowError."""
    depth = deepest = 0
    for sign in _QUOTED.sub("", text):
        depth += (sign == "[") - (sign == "]")
        deepest = max(deepest, depth)
    if len(text) > FORMAT_MAX or deepest > BRACKETS_MAX:
        raise ValueError(
            f"the format {text[:40]!r} of a time is too large: {FORMAT_MAX} characters, and"
            f" {BRACKETS_MAX} brackets within each other, are allowed"
        )


def _require_parameter(node: Node) -> None:
    """Raises ValueError unless a text is the same in the regular expression that Spark makes of
    it."""
    if not isinstance(node, Text) or not re.fullmatch("[A-Za-z0-9_-]{1,100}", node.value):
        raise ValueError(
            "the name of a parameter in parse_url consists of up to 100 letters, digits, _ and -"
        )
