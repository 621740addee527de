"""Expressions as trees: a small part of Spark SQL's grammar, parsed here, and written again for
Spark.

Spark never parses the text of a user. It gets what `to_sql` writes: every operation in parentheses,
every name quoted, every text escaped. So no difference between two parsers can hide anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

DEPTH_MAX = 60
"""Maximum depth of parentheses, calls and casts within each other."""
TREE_DEPTH_MAX = 29
"""Maximum depth of a tree, where a chain such as `a - b + c` is as deep as it is long. What
`to_sql` writes of a tree is at most twice as deep, so it can be parsed again."""
CHAIN_MAX = 200
"""Maximum operators in a chain."""
DIGITS_MAX = 400
"""Maximum characters of a number."""


@dataclass(frozen=True)
class Node:
    """A part of an expression."""

    def children(self) -> Iterator[Node]:
        for node_field in fields(self):
            value = getattr(self, node_field.name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, tuple):
                    yield from part
                elif isinstance(part, Node):
                    yield part

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children():
            yield from child.walk()


@dataclass(frozen=True)
class Text(Node):
    value: str


@dataclass(frozen=True)
class Number(Node):
    text: str
    """As it is written, such as 1, 1.5e3 or 2L; with its minus."""


@dataclass(frozen=True)
class Constant(Node):
    """null, true or false."""

    word: str


@dataclass(frozen=True)
class Time(Node):
    """A literal such as `date '2026-01-31'`."""

    kind: str
    value: str


@dataclass(frozen=True)
class Interval(Node):
    number: str
    unit: str


@dataclass(frozen=True)
class Name(Node):
    """A column of the record, or a variable of a lambda."""

    name: str


@dataclass(frozen=True)
class Member(Node):
    """`base.name`"""

    base: Node
    name: str


@dataclass(frozen=True)
class Item(Node):
    """`base[index]`"""

    base: Node
    index: Node


@dataclass(frozen=True)
class Call(Node):
    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Operation(Node):
    """`symbol` as in `_SHAPES`, or a binary operator."""

    symbol: str
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Type:
    """A type: a name, the types of its parts, and the names of a struct's fields."""

    name: str
    parts: tuple[Type, ...] = ()
    names: tuple[str, ...] = ()
    digits: tuple[int, ...] = ()
    """Of decimal."""

    def __str__(self) -> str:
        if self.name == "struct":
            named = (f"{quoted(n)}: {t}" for n, t in zip(self.names, self.parts, strict=True))
            return f"struct<{', '.join(named)}>"
        inner = f"<{', '.join(map(str, self.parts))}>" if self.parts else ""
        return self.name + inner + (f"({', '.join(map(str, self.digits))})" if self.digits else "")


@dataclass(frozen=True)
class Cast(Node):
    operand: Node
    type: Type
    is_safe: bool = False
    """Whether it gives null in place of an error."""


@dataclass(frozen=True)
class Case(Node):
    operand: Node | None
    branches: tuple[tuple[Node, Node], ...]
    default: Node | None


@dataclass(frozen=True)
class Lambda(Node):
    parameters: tuple[str, ...]
    body: Node


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:BD|[LSYDFlsydf])?(?![A-Za-z0-9_]))
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<name>`(?:[^`]|``)+`)
    |(?P<sign><=>|>>>|<>|!=|<=|>=|==|\|\||->|::|<<|>>|[-+*/%&|^~=<>().,!:]|\[|\])""",
    re.VERBOSE | re.DOTALL,
)
_SIMPLE = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-1][0-7]{2})|(.))|''|\"\"", re.DOTALL
)
_SCALARS = frozenset(
    [
        "string",
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "integer",
        "bigint",
        "float",
        "double",
        "real",
        "decimal",
        "binary",
        "date",
        "timestamp",
        "timestamp_ltz",
        "timestamp_ntz",
        "byte",
        "short",
        "long",
        "dec",
        "numeric",
    ]
)
_UNITS = frozenset(
    ["year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"]
)
_BINARY: tuple[tuple[str, ...], ...] = (
    ("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>", ">>>"),
    ("+", "-", "||"),
    ("*", "/", "%", "div"),
)
"""Operators of two values, from the weakest (AstBuilder's grammar, SqlBaseParser.g4)."""
_LEVELS = {symbol: level for level, symbols in enumerate(_BINARY) for symbol in symbols}
_FLAT = frozenset({"||", "+", "*", "and", "or"})
"""Operators of which a chain is one node. Spark reads it from the left, as it was written."""
_SHAPES: dict[str, str] = {
    "between": "({} between {} and {})",
    "is null": "({} is null)",
    "is true": "({} is true)",
    "is false": "({} is false)",
    "is unknown": "({} is unknown)",
    "not": "(not {})",
    "minus": "(- {})",
    "plus": "(+ {})",
    "~": "(~ {})",
}
_RESERVED = frozenset(
    [
        "and",
        "or",
        "not",
        "in",
        "when",
        "then",
        "else",
        "end",
        "case",
        "between",
        "like",
        "ilike",
        "is",
        "div",
        "escape",
        "rlike",
        "regexp",
        "from",
        "select",
        "over",
        "distinct",
    ]
)
"""Words that are never a name unless they are quoted."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int


def parse(text: str) -> Node:
    """Return the tree of an expression. Raises ValueError with the reason as a clause."""
    try:
        return _Parser(text).whole()
    except RecursionError as error:
        raise ValueError(
            f"the expression {text[:40]!r}... does not parse: it is nested too deeply"
        ) from error


def parse_schema(text: str) -> Type:
    """Return the type that a schema of `from_json` names: a type, or fields as `a int, b string`.
    Raises ValueError with the reason as a clause."""
    return _Parser(text).schema()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._tokens())
        self.at = 0
        self.depth = 0

    def _tokens(self) -> Iterator[_Token]:
        at = 0
        while at < len(self.text):
            if self.text.startswith(("--", "/*", "//"), at):
                raise ValueError(f"{self.text!r} is not one plain expression: it has a comment")
            token = _TOKEN.match(self.text, at)
            if token is None:
                raise self._failure(f"{self.text[at : at + 1]!r} at {at} is not understood")
            if token.lastgroup != "space":
                yield _Token(str(token.lastgroup), token[0], at)
            at = token.end()

    def _failure(self, why: str) -> ValueError:
        return ValueError(f"the expression {self.text!r} does not parse: {why}")

    def word(self, ahead: int = 0) -> str:
        """The next token: a bare word in lower case, a sign as it is; empty for any other."""
        place = self.at + ahead
        if place >= len(self.tokens) or self.tokens[place].kind not in ("word", "sign"):
            return ""
        return self.tokens[place].text.lower()

    def kind(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place].kind if place < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        if tuple(self.word(ahead) for ahead in range(len(words))) != words:
            return False
        self.at += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self._failure(f"{word!r} is expected {self._where()}")

    def _where(self) -> str:
        if self.at >= len(self.tokens):
            return "at its end"
        token = self.tokens[self.at]
        return f"before {token.text[:20]!r} (character {token.start + 1})"

    def whole(self) -> Node:
        if not self.tokens:
            raise self._failure("it is empty")
        node = self.expression()
        if self.at < len(self.tokens):
            raise ValueError(
                f"{self.text!r} is not one plain expression: it does not end {self._where()}"
            )
        layer, depth = [node], 0
        while layer:
            depth += 1
            layer = [child for parent in layer for child in parent.children()]
        if depth > TREE_DEPTH_MAX:
            raise self._failure("it is nested too deeply")
        return node

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self._failure("it is nested too deeply")
        node = self._any_of()
        self.depth -= 1
        return node

    def _any_of(self) -> Node:
        return self._chain(self._all_of, "or")

    def _all_of(self) -> Node:
        return self._chain(self._negation, "and")

    def _chain(self, operand: Callable[[], Node], word: str) -> Node:
        operands = [operand()]
        while self.accept(word):
            operands.append(operand())
            self._require_links(len(operands))
        return operands[0] if len(operands) == 1 else Operation(word, tuple(operands))

    def _require_links(self, links: int) -> None:
        if links > CHAIN_MAX:
            raise self._failure(f"a chain has more than {CHAIN_MAX} operators")

    def _negation(self) -> Node:
        negations = 0
        while self.accept("not") or self.accept("!"):
            negations += 1
        self._require_links(negations)
        node = self._predicate()
        for _ in range(negations):
            node = Operation("not", (node,))
        return node

    def _predicate(self) -> Node:
        node = self._operation(0)
        if self.accept("is"):
            negated = self.accept("not")
            if self.accept("distinct", "from"):
                same = Operation("<=>", (node, self._operation(0)))
                return same if negated else Operation("not", (same,))
            state = self.word()
            if state not in ("null", "true", "false", "unknown"):
                raise self._failure(f"null, true or false is expected {self._where()}")
            self.at += 1
            node = Operation(f"is {state}", (node,))
            return Operation("not", (node,)) if negated else node
        negated = self.word() == "not" and self.accept("not")
        whole: Node
        if self.accept("between"):
            low = self._operation(0)
            self.expect("and")
            whole = Operation("between", (node, low, self._operation(0)))
        elif self.accept("in"):
            whole = Operation("in", (node, *self._listed()))
        elif self.word() in ("like", "ilike"):
            return self._like(node, negated)
        elif self.accept("rlike") or self.accept("regexp"):
            whole = Operation("rlike", (node, self._operation(0)))
        elif negated:
            raise self._failure(f"nothing to negate {self._where()}")
        else:
            return node
        return Operation("not", (whole,)) if negated else whole

    def _like(self, node: Node, negated: bool) -> Node:
        symbol = self.word()
        self.at += 1
        if self.word() in ("any", "some", "all"):
            quantifier = "all" if self.word() == "all" else "any"
            self.at += 1
            name = f"{'not ' if negated else ''}{symbol} {quantifier}"
            return Operation(name, (node, *self._listed()))
        operands = [node, self._operation(0)]
        if self.accept("escape"):
            escape = self._primary()
            if not isinstance(escape, Text) or len(escape.value) != 1:
                raise self._failure("escape takes one literal character")
            operands.append(escape)
        whole = Operation(symbol, tuple(operands))
        return Operation("not", (whole,)) if negated else whole

    def _listed(self) -> tuple[Node, ...]:
        self.expect("(")
        if self.word() in ("select", "values", "from", "table", "with"):
            raise ValueError(f"a query is not allowed in {self.text!r}")
        items = [self.expression()]
        while self.accept(","):
            items.append(self.expression())
        self.expect(")")
        return tuple(items)

    def _operation(self, level: int) -> Node:
        """Operators of this level and of stronger ones."""
        node = self._unary()
        links, before = 0, ""
        while _LEVELS.get(self.word(), -1) >= level:
            word = self.word()
            symbol = {"==": "=", "!=": "<>"}.get(word, word)
            self.at += 1
            links += 1
            self._require_links(links)
            operands: tuple[Node, ...] = (node,)
            if symbol == before and symbol in _FLAT and isinstance(node, Operation):
                operands = node.operands
            node = Operation(symbol, (*operands, self._operation(_LEVELS[word] + 1)))
            before = symbol
        return node

    def _unary(self) -> Node:
        sign = self.word()
        if sign not in ("-", "+", "~"):
            return self._postfix()
        self.at += 1
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self._failure("it is nested too deeply")
        if sign == "-" and self.kind() == "number":
            node = self._postfix(negative=True)
        else:
            name = {"-": "minus", "+": "plus"}.get(sign, sign)
            node = Operation(name, (self._unary(),))
        self.depth -= 1
        return node

    def _postfix(self, negative: bool = False) -> Node:
        node = self._number(negative) if self.kind() == "number" else self._primary()
        links = 0
        while True:
            links += 1
            self._require_links(links)
            if self.accept("["):
                node = Item(node, self.expression())
                self.expect("]")
            elif self.accept("."):
                node = Member(node, self._identifier())
            elif self.accept("::"):
                node = Cast(node, self.type())
            else:
                return node

    def _number(self, negative: bool) -> Node:
        text = self.tokens[self.at].text
        self.at += 1
        if len(text) > DIGITS_MAX:
            raise self._failure(f"a number has more than {DIGITS_MAX} characters")
        return Number(f"-{text}" if negative else text)

    def _identifier(self) -> str:
        kind = self.kind()
        if kind not in ("word", "name") or (kind == "word" and self.word() in _RESERVED):
            raise self._failure(f"a name is expected {self._where()}")
        text = self.tokens[self.at].text
        self.at += 1
        return text[1:-1].replace("``", "`") if kind == "name" else text

    def _primary(self) -> Node:
        kind, word = self.kind(), self.word()
        if kind in ("text", "raw"):
            return Text(self._texts())
        if kind == "number":
            return self._number(False)
        if word == "(":
            return self._parenthesis()
        if word == "*":
            raise ValueError(f"a star is not allowed in {self.text!r}")
        if kind == "word":
            if word == "case":
                return self._case()
            if word in ("select", "values", "with", "table") and self.word(1) != ")":
                raise ValueError(f"a query is not allowed in {self.text!r}")
            if word in ("null", "true", "false"):
                self.at += 1
                return Constant(word)
            if word in ("date", "timestamp", "timestamp_ntz", "timestamp_ltz") and self.kind(1) in (
                "text",
                "raw",
            ):
                self.at += 1
                return Time(word, self._texts())
            if word == "interval" and self.word(1) != "(":
                return self._interval()
            if word in ("cast", "try_cast") and self.word(1) == "(":
                self.at += 2
                operand = self.expression()
                self.expect("as")
                cast = Cast(operand, self.type(), is_safe=word == "try_cast")
                self.expect(")")
                return cast
        if kind not in ("word", "name"):
            raise self._failure(f"a value is expected {self._where()}")
        if self.word(1) == "->" and word not in _RESERVED:
            return self._lambda((self._identifier(),))
        if self.word(1) == "(":
            return self._call()
        return Name(self._identifier())

    def _texts(self) -> str:
        """Adjacent literals are one text."""
        texts = []
        while self.kind() in ("text", "raw"):
            token = self.tokens[self.at]
            texts.append(token.text[2:-1] if token.kind == "raw" else _unescaped(token.text))
            self.at += 1
        return "".join(texts)

    def _parenthesis(self) -> Node:
        self.at += 1
        if self.word() in ("select", "values", "from", "table", "with"):
            raise ValueError(f"a query is not allowed in {self.text!r}")
        ahead = 0
        while self.kind(ahead) in ("word", "name") and self.word(ahead + 1) == ",":
            ahead += 2
        if ahead and self.word(ahead + 1) == ")" and self.word(ahead + 2) == "->":
            names = [self._identifier()]
            while self.accept(","):
                names.append(self._identifier())
            self.expect(")")
            return self._lambda(tuple(names))
        node = self.expression()
        self.expect(")")
        return node

    def _lambda(self, names: tuple[str, ...]) -> Node:
        self.expect("->")
        return Lambda(names, self.expression())

    def _call(self) -> Node:
        quoted_name = self.kind() == "name"
        function = self._function_name() if not quoted_name else self._identifier().lower()
        self.at += 1
        arguments: list[Node] = []
        if self.word() in ("select", "values", "with") or (
            self.word() in ("from", "table") and self.word(1) != ")"
        ):
            raise ValueError(f"a query is not allowed in {self.text!r}")
        if quoted_name and function in ("field", "key_field"):
            raise ValueError(
                f"{function} takes one literal path in {self.text!r}, as {function}('order.id')"
            )
        if not self.accept(")"):
            arguments.append(self._argument(function))
            while self.accept(","):
                arguments.append(self._argument(function))
            if self.word() in ("from", "for", "in", "placing"):
                raise self._failure(
                    f"{function} takes its arguments with commas, as {function}(a, b)"
                )
            self.expect(")")
        if self.word() == "over":
            raise ValueError(f"a window is not allowed in {self.text!r}")
        return Call(function, tuple(arguments))

    def _function_name(self) -> str:
        function = self.word()
        self.at += 1
        return function

    def _argument(self, function: str) -> Node:
        if self.kind() == "word" and (self.word(1), self.word(2)) == ("=", ">"):
            raise ValueError("an argument cannot be named; write the arguments in order")
        if self.word() in ("distinct", "both", "leading", "trailing") and self.word(1) not in (
            ",",
            ")",
        ):
            raise self._failure(f"{function} takes its arguments with commas, as trim('x', value)")
        if self.word() == "*":
            raise ValueError(f"a star is not allowed in {self.text!r}")
        return self.expression()

    def _case(self) -> Node:
        self.at += 1
        operand = None if self.word() == "when" else self.expression()
        branches = []
        while self.accept("when"):
            condition = self.expression()
            self.expect("then")
            branches.append((condition, self.expression()))
        if not branches:
            raise self._failure(f"'when' is expected {self._where()}")
        default = self.expression() if self.accept("else") else None
        self.expect("end")
        return Case(operand, tuple(branches), default)

    def _interval(self) -> Node:
        self.at += 1
        sign = "-" if self.accept("-") else ""
        if self.kind() == "text":
            number = self._texts()
        elif self.kind() == "number":
            number = self.tokens[self.at].text
            self.at += 1
        else:
            raise self._failure(f"a number of units is expected {self._where()}")
        unit = self.word().removesuffix("s")
        if not re.fullmatch(r"-?[0-9]{1,18}", sign + number) or unit not in _UNITS:
            raise self._failure("an interval is a whole number and one unit, as interval 3 days")
        self.at += 1
        return Interval(sign + number, unit)

    def type(self) -> Type:
        name = self.word()
        self.at += 1
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self._failure("it is nested too deeply")
        try:
            if name in ("array", "map") and self.accept("<"):
                parts = [self.type()]
                if name == "map":
                    self.expect(",")
                    parts.append(self.type())
                self._close()
                return Type(name, tuple(parts))
            if name == "struct" and self.accept("<"):
                node = self._struct_fields()
                self._close()
                return node
            if name in ("varchar", "char") and self.accept("("):
                digits = (self._digits(),)
                self.expect(")")
                return Type(name, digits=digits)
            if name not in _SCALARS:
                raise self._failure(f"there is no type {name or 'here'!r}")
            numbers: list[int] = []
            if name in ("decimal", "dec", "numeric") and self.accept("("):
                numbers.append(self._digits())
                if self.accept(","):
                    numbers.append(self._digits())
                self.expect(")")
            return Type(name, digits=tuple(numbers))
        finally:
            self.depth -= 1

    def _close(self) -> None:
        """Take one `>`, also of `>>` and `>>>`."""
        sign = self.word()
        if sign not in (">", ">>", ">>>"):
            raise self._failure(f"'>' is expected {self._where()}")
        if sign == ">":
            self.at += 1
        else:
            token = self.tokens[self.at]
            self.tokens[self.at] = _Token("sign", sign[1:], token.start + 1)

    def _digits(self) -> int:
        text = self.tokens[self.at].text if self.kind() == "number" else ""
        if not text.isdecimal() or len(text) > 5:
            raise self._failure(f"a whole number is expected {self._where()}")
        self.at += 1
        return int(text)

    def _struct_fields(self) -> Type:
        names, parts = [], []
        while True:
            names.append(require_plain_name(self._identifier()))
            self.accept(":")
            parts.append(self.type())
            if not self.accept(","):
                return Type("struct", tuple(parts), tuple(names))

    def schema(self) -> Type:
        is_type = self.word() in ("array", "map", "struct") and self.word(1) == "<"
        node = self.type() if is_type or len(self.tokens) == 1 else self._struct_fields()
        if self.at < len(self.tokens):
            raise self._failure(f"it does not end {self._where()}")
        return node


def _unescaped(token: str) -> str:
    """Return the text of a literal, as Spark reads it (SparkParserUtils.unescapeSQLString)."""
    quote = token[0]

    def plain(escape: re.Match[str]) -> str:
        if escape[0] in ("''", '""'):
            return quote if escape[0][0] == quote else escape[0]
        four, eight, octal, sign = escape.groups()
        if four or eight:
            code = int(four or eight, 16)
            if code > 0x10FFFF:
                raise ValueError(f"there is no character {escape[0]}")
            return chr(code)
        if octal:
            return chr(int(octal, 8))
        return escape[0] if sign in "%_" else _SIMPLE.get(sign, sign)

    text = _ESCAPE.sub(plain, token[1:-1])
    try:
        # Two escapes of UTF-16 are one character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ValueError("a text has half a character (a lone surrogate)") from error


def require_plain_name(name: str) -> str:
    """Return the name of a struct's field. Raises ValueError unless it is of ASCII: Spark takes
    two names for one by the small and the capital form of each character, Python by those of the
    whole text."""
    if not re.fullmatch("[ -~]+", name):
        raise ValueError(
            f"the name {name!r} of a struct's field has characters beyond printable ASCII. Take"
            " the field with field('...') or get_json_object"
        )
    return name


def quoted(name: str) -> str:
    """Return a name as Spark reads it. Raises ValueError for one in which Spark would put a
    setting."""
    if "${" in name:
        raise ValueError(f"a name cannot hold ${{: {name!r}")
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as Spark reads it. `${env:HOME}` stays a text: Spark would put the variable's
    value in its place, even within quotes."""
    signs = []
    for at, sign in enumerate(text):
        if sign in "\\'":
            signs.append(f"\\{sign}")
        elif sign < " " or sign == "\x7f" or (sign == "$" and text[at + 1 : at + 2] == "{"):
            signs.append(f"\\u{ord(sign):04x}")
        else:
            signs.append(sign)
    return f"'{''.join(signs)}'"


def to_sql(node: Node) -> str:
    """Write a tree for Spark."""
    match node:
        case Text(value):
            return literal(value)
        case Number(text):
            return f"({text})" if text.startswith("-") else text
        case Constant(word):
            return word
        case Time(kind, value):
            return f"{kind} {literal(value)}"
        case Interval(number, unit):
            return f"interval {literal(number)} {unit}"
        case Name(name):
            return quoted(name)
        case Member(base, name):
            return f"{to_sql(base)}.{quoted(name)}"
        case Item(base, index):
            return f"{to_sql(base)}[{to_sql(index)}]"
        case Call(function, arguments):
            return f"{function}({', '.join(map(to_sql, arguments))})"
        case Cast(operand, type_, is_safe):
            return f"{'try_' if is_safe else ''}cast({to_sql(operand)} as {type_})"
        case Lambda((name,), body):
            return f"{quoted(name)} -> {to_sql(body)}"
        case Lambda(names, body):
            return f"({', '.join(map(quoted, names))}) -> {to_sql(body)}"
        case Case(operand, branches, default):
            begin = "case" if operand is None else f"case {to_sql(operand)}"
            middle = (
                f" when {to_sql(condition)} then {to_sql(outcome)}"
                for condition, outcome in branches
            )
            end = "" if default is None else f" else {to_sql(default)}"
            return f"({begin}{''.join(middle)}{end} end)"
        case Operation(symbol, operands):
            return _operation_in_sql(symbol, tuple(map(to_sql, operands)))
    raise TypeError(f"no SQL for {type(node).__name__}")


def _operation_in_sql(symbol: str, operands: tuple[str, ...]) -> str:
    if symbol in _SHAPES:
        return _SHAPES[symbol].format(*operands)
    if symbol in _FLAT:
        return f"({f' {symbol} '.join(operands)})"
    first, *rest = operands
    if symbol == "in" or symbol.endswith((" any", " all")):
        return f"({first} {symbol} ({', '.join(rest)}))"
    if len(rest) == 2:
        return f"({first} {symbol} {rest[0]} escape {rest[1]})"
    return f"({first} {symbol} {rest[0]})"
