"""What functions make of their arguments: the type, the largest size and the most characters of
each result. What is not known to be short is as long as a record may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from topicproof.backend.contracts import expression_limits as limits
from topicproof.backend.contracts.expression_functions import (
    ANY,
    BINARY,
    BOOLEAN,
    DATE,
    FUNCTIONS,
    KINDS,
    NO_LONGER,
    NULL,
    NUMBER,
    OF_TWO,
    PATTERNS,
    TEXT,
    TIMESTAMP,
)
from topicproof.backend.contracts.expression_limits import SIZE_MAX, Size
from topicproof.backend.contracts.expression_tree import (
    Call,
    Member,
    Name,
    Node,
    Number,
    Text,
    Type,
    parse_schema,
    require_plain_name,
)

NUMBER_BYTES = 40
DIGITS_MAX = 19
"""Digits of a number that are looked at."""
TIMES = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
TEXTS = ("string", "varchar", "char")
FIXED = "to_timestamp(value, 'yyyy-MM-dd HH:mm:ss')"
_WIDTH = re.compile(r"%[^a-zA-Z%]*?([0-9]{5,})")
_CONVERSION = re.compile(r"%(?:[0-9]+\$)?[-#+ 0,(<]*[0-9]*(?:\.[0-9]+)?[sdxXofeEgGbc%]")
"""Conversions of `format_string` that print a value alone. %h and %t print Java's identity of an
object and times of the server's zone, %n depends on its system."""
JSON_OPTIONS = Call("map", (Text("ignoreNullFields"), Text("false")))
FIRST_ASIDE = frozenset({"if", "nvl2", "elt"})
"""Functions that choose by their first argument among the others."""
DECIMALS = ("decimal", "dec", "numeric")
FLOATS = ("double", "float", "real")


@dataclass(frozen=True)
class TypedPart:
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


def kind_of_cast(type_: Type) -> Type:
    """Return what the checker knows of a type of a cast."""
    if type_.name in TEXTS:
        return TEXT
    if type_.name in TIMES:
        return DATE if type_.name == "date" else TIMESTAMP
    if type_.parts:
        return replace(type_, parts=tuple(map(kind_of_cast, type_.parts)))
    return type_ if type_ in (BINARY, BOOLEAN) else NUMBER


def has_time(kind: Type) -> bool:
    """Return whether a time is in a type."""
    return kind.name in TIMES or any(map(has_time, kind.parts))


def has_boolean(kind: Type) -> bool:
    """Return whether a boolean is in a type."""
    return kind == BOOLEAN or any(map(has_boolean, kind.parts))


def has_decimal(kind: Type) -> bool:
    """Return whether a decimal is in a type."""
    return kind.name in DECIMALS or any(map(has_decimal, kind.parts))


def has_float(kind: Type) -> bool:
    """Return whether a double or a float is in a type."""
    return kind.name in FLOATS or any(map(has_float, kind.parts))


def has_number(kind: Type) -> bool:
    """Return whether a number may be in a type."""
    return kind in (NUMBER, ANY) or any(map(has_number, kind.parts))


def text_of(part: TypedPart) -> str:
    """Return a literal text."""
    assert isinstance(part.node, Text)
    return part.node.value


def may_be_text(kind: Type) -> bool:
    """Return whether Spark may take a value of this type for a text, or a part of it."""
    return kind in (TEXT, BINARY, ANY) or any(map(may_be_text, kind.parts))


def member_of(kind: Type, name: str) -> tuple[str, Type] | None:
    """Return the type of a field with the field's own spelling of its name; None if there is none
    of this name. Raises ValueError for letters that Spark may compare otherwise."""
    if kind.name == "map":
        return name, kind.parts[1]
    if kind.name == "array":
        inner = member_of(kind.parts[0], name)
        return None if inner is None else (inner[0], Type("array", (inner[1],)))
    folded = require_plain_name(name).lower()
    for member, part in zip(kind.names, kind.parts, strict=False):
        if member.lower() == folded:
            return member, part
    return None


def common_kind(types: Sequence[Type]) -> Type:
    """Return the type that Spark gives to one of these; ANY if that is not known."""
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
        return common_kind(types)
    if kind == "[t]":
        return Type("array", (TEXT,))
    first = types[0]
    if kind == "e":
        if first.name not in ("array", "map"):
            return ANY
        return first.parts[-1]
    return first


def most_characters(parts: Sequence[TypedPart]) -> int | None:
    """Return the most characters of any part; None if one is not known."""
    lengths = [part.characters for part in parts if part.type != NULL]
    bounds = [length for length in lengths if length is not None]
    return max(bounds, default=0) if len(bounds) == len(lengths) else None


def total_characters(lengths: Sequence[int | None]) -> int | None:
    """Return the characters of all together; None if one is not known."""
    bounds = [length for length in lengths if length is not None]
    return sum(bounds) if len(bounds) == len(lengths) else None


def size_beside(size: Size) -> Size:
    """The work of one more operand of a comparison."""
    return limits.constant(limits.constant_of(size) or NUMBER_BYTES)


def whole_number(node: Node) -> int | None:
    """Return a literal number; None for anything else."""
    if not isinstance(node, Number) or not re.fullmatch(r"-?[0-9]+", node.text):
        return None
    # Python refuses to convert thousands of digits, and 19 are too many already.
    return int(node.text[: DIGITS_MAX + 1])


_Result = tuple[Type, Size, int | None]


def _literal_size(name: str, part: TypedPart) -> int:
    size = whole_number(part.node)
    if size is None:
        raise ValueError(f"the size that {name} is given must be a literal number")
    if size > SIZE_MAX:
        raise ValueError(f"the size {size:,} that {name} is given is above {SIZE_MAX:,}")
    return max(size, 0)


def _repeat(name: str, parts: Sequence[TypedPart]) -> _Result:
    times = _literal_size(name, parts[1])
    length = parts[0].characters
    characters = None if length is None else length * times
    return TEXT, limits.scaled(parts[0].size, times), characters


def _space(name: str, parts: Sequence[TypedPart]) -> _Result:
    times = _literal_size(name, parts[0])
    return TEXT, limits.constant(times), times


def _reversed(_: str, parts: Sequence[TypedPart]) -> _Result:
    """An array, or the text of anything else."""
    kind = parts[0].type if parts[0].type.name in ("array", "any") else TEXT
    return kind, limits.added(parts[0].size, limits.constant(NUMBER_BYTES)), parts[0].characters


def _pad(name: str, parts: Sequence[TypedPart]) -> _Result:
    length = _literal_size(name, parts[1])
    return TEXT, limits.constant(4 * length), length


def _number_format(name: str, parts: Sequence[TypedPart]) -> _Result:
    if isinstance(parts[1].node, Text):
        length = len(parts[1].node.value)
    else:
        length = _literal_size(name, parts[1])
    return TEXT, limits.constant(length + 512), length + 512


def _sequence(_: str, parts: Sequence[TypedPart]) -> _Result:
    first, last = (whole_number(part.node) for part in parts[:2])
    if first is None or last is None:
        raise ValueError("both ends of a sequence must be literal numbers")
    if abs(last - first) > SIZE_MAX:
        raise ValueError(f"the ends of a sequence are more than {SIZE_MAX:,} apart")
    if len(parts) == 3 and whole_number(parts[2].node) is None:
        raise ValueError("the step of a sequence must be a literal number")
    count = abs(last - first) + 1
    return Type("array", (NUMBER,)), limits.constant(count * (limits.ELEMENT + 8)), None


def _format(_: str, parts: Sequence[TypedPart]) -> _Result:
    assert isinstance(parts[0].node, Text)
    text = parts[0].node.value
    if any(int(width[:DIGITS_MAX]) > SIZE_MAX for width in _WIDTH.findall(text)):
        raise ValueError(f"a format is wider than {SIZE_MAX:,} characters")
    widths = sum(int(digits[:DIGITS_MAX]) for digits in re.findall("[0-9]+", text))
    largest = limits.largest(*(part.size for part in parts[1:]), limits.constant(512))
    if re.search("%[^a-zA-Z%]*S", text):
        # Java copies the whole text for each character that becomes two.
        raise ValueError("%S takes quadratic time on a long text. Write %s, and upper(...)")
    if "%" in _CONVERSION.sub("", text):
        raise ValueError(
            f"the format {text[:40]!r} has a conversion that is not allowed. Write %s, %d, %x, %X,"
            " %o, %f, %e, %g, %b, %c or %%"
        )
    if any(part.type not in (TEXT, NUMBER, BOOLEAN) for part in parts[1:]):
        raise ValueError(
            "format_string takes texts, numbers and booleans: of anything else Java prints where it"
            " is in memory. Make a text of it, as in string(headers[0].value)"
        )
    size = limits.scaled(largest, 2 * text.count("%"))
    return TEXT, limits.added(size, limits.constant(4 * len(text) + widths)), None


def _date_format(_: str, parts: Sequence[TypedPart]) -> _Result:
    formats = (part.node.value for part in parts if isinstance(part.node, Text))
    length = 64 * max(map(len, formats), default=2)
    return TEXT, limits.constant(length), length


def _cut(_: str, parts: Sequence[TypedPart]) -> _Result:
    """A text up to a literal length."""
    length = whole_number(parts[-1].node)
    kind = parts[0].type if parts[0].type == BINARY else TEXT
    if length is None:
        return kind, parts[0].size, parts[0].characters
    length = max(length, 0)
    if parts[0].characters is not None:
        length = min(length, parts[0].characters)
    if 4 * length > limits.CONSTANT_MAX // 4:
        return kind, parts[0].size, length
    return kind, limits.constant(4 * length), length


def _substring(name: str, parts: Sequence[TypedPart]) -> _Result:
    if len(parts) == 3:
        return _cut(name, parts)
    kind = parts[0].type if parts[0].type == BINARY else TEXT
    return kind, parts[0].size, parts[0].characters


def _replaced(_: str, parts: Sequence[TypedPart]) -> _Result:
    if len(parts) == 2:
        return TEXT, parts[0].size, parts[0].characters
    size = limits.multiplied(parts[0].size, parts[2].size, "the result of replace")
    return TEXT, limits.added(parts[0].size, size), None


def _replaced_pattern(_: str, parts: Sequence[TypedPart]) -> _Result:
    if not isinstance(parts[2].node, Text):
        raise ValueError(
            "what regexp_replace puts in must be a literal text; replace and translate take any"
        )
    text = parts[2].node.value
    # A pattern may match between all characters, and each group is within the match.
    size = limits.scaled(parts[0].size, 1 + len(text.encode("utf-8", "surrogatepass")))
    return TEXT, limits.added(size, limits.constant(2 * len(text))), None


def _extracted(name: str, parts: Sequence[TypedPart]) -> _Result:
    if name in ("regexp_extract", "regexp_substr"):
        return TEXT, parts[0].size, parts[0].characters
    if name in ("regexp_extract_all", "split"):
        return Type("array", (TEXT,)), _pieces(parts[0].size), None
    kind = NUMBER if name in ("regexp_count", "regexp_instr") else BOOLEAN
    return kind, limits.constant(NUMBER_BYTES), None


def _pieces(size: Size) -> Size:
    """A text in pieces, at most one for each character."""
    return limits.added(limits.scaled(size, 1 + limits.ELEMENT), limits.constant(limits.ELEMENT))


def _array(_: str, parts: Sequence[TypedPart]) -> _Result:
    kind = Type("array", (common_kind([part.type for part in parts]),))
    beside = limits.constant(limits.ELEMENT * len(parts))
    return kind, limits.added(*(part.size for part in parts), beside), None


def field_names(arguments: Sequence[Node]) -> list[str]:
    """Return the names of a struct's fields."""
    return [
        node.name if isinstance(node, Name | Member) else f"col{at}"
        for at, node in enumerate(arguments, 1)
    ]


def _struct(name: str, parts: Sequence[TypedPart]) -> _Result:
    size = limits.added(
        *(part.size for part in parts), limits.constant(limits.ELEMENT * len(parts))
    )
    if name == "struct":
        names = tuple(field_names([part.node for part in parts]))
        size = limits.added(size, limits.constant(4 * sum(map(len, names))))
        return Type("struct", tuple(part.type for part in parts), names), size, None
    if len(parts) % 2:
        raise ValueError(f"{name} takes pairs of a name and a value")
    if name == "map":
        kinds = [common_kind([part.type for part in parts[at::2]]) for at in (0, 1)]
        return Type("map", tuple(kinds)), size, None
    named = []
    for part in parts[::2]:
        if not isinstance(part.node, Text):
            raise ValueError("a name in named_struct must be a literal text")
        named.append(require_plain_name(part.node.value))
    return Type("struct", tuple(part.type for part in parts[1::2]), tuple(named)), size, None


def _map_side(name: str, parts: Sequence[TypedPart]) -> _Result:
    kind = parts[0].type
    side = ANY if kind.name != "map" else kind.parts[0 if name == "map_keys" else 1]
    return Type("array", (side,)), parts[0].size, None


def _joined(name: str, parts: Sequence[TypedPart]) -> _Result:
    if name == "concat":
        size = limits.added(*(part.size for part in parts))
        if parts[0].type.name in ("array", "binary"):
            return common_kind([part.type for part in parts]), size, None
        return TEXT, size, total_characters([part.characters for part in parts])
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


def _chosen(name: str, parts: Sequence[TypedPart]) -> _Result:
    results = parts[1:] if name in FIRST_ASIDE else parts
    size = limits.largest(*(part.size for part in results))
    return common_kind([part.type for part in results]), size, most_characters(results)


def _schema(_: str, parts: Sequence[TypedPart]) -> _Result:
    assert isinstance(parts[1].node, Text)
    text = parts[1].node.value
    kind = parse_schema(text)
    if has_decimal(kind):
        raise ValueError(
            "a decimal in a schema of from_json may have any number of digits. Read it as a string,"
            " and cast it, as in cast(from_json(value, 'a string').a as decimal(19, 2))"
        )
    if has_time(kind_of_cast(kind)):
        raise ValueError(
            "a time in a schema of from_json depends on the day. Read it as a string, and give its"
            f" format, as in {FIXED}"
        )
    # The smallest element in JSON is {}, of which a struct with all its fields is made.
    return kind_of_cast(kind), limits.scaled(parts[0].size, limits.ELEMENT + len(text) / 4), None


def _json(_: str, parts: Sequence[TypedPart]) -> _Result:
    if len(parts) == 2 and parts[1].node != JSON_OPTIONS:
        raise ValueError("the options of to_json can only be map('ignoreNullFields', 'false')")
    size = limits.added(limits.scaled(parts[0].size, 6), limits.constant(64))
    return TEXT, size, None


def _json_part(_: str, parts: Sequence[TypedPart]) -> _Result:
    """A part of a text in JSON, in which control characters get six bytes each, and no more by a
    second call."""
    match parts[0].node:
        case Call("get_json_object", _):
            return TEXT, parts[0].size, None
    return TEXT, limits.added(limits.scaled(parts[0].size, 6), limits.constant(NUMBER_BYTES)), None


def _sorted(_: str, parts: Sequence[TypedPart]) -> _Result:
    if len(parts) > 1:
        raise ValueError("array_sort takes an array and a lambda of two variables")
    return parts[0].type, parts[0].size, None


def _no_lambda(name: str, _: Sequence[TypedPart]) -> _Result:
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
    "get_json_object": _json_part,
    "array_sort": _sorted,
    **dict.fromkeys(("exists", "filter", "forall", "transform", "zip_with"), _no_lambda),
}


def result_of(name: str, parts: Sequence[TypedPart]) -> tuple[Type, Size, int | None]:
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
        characters = total_characters([part.characters for part in parts[:2]])
    elif kind == TEXT and name in NO_LONGER and parts[0].characters is not None:
        characters = NO_LONGER[name] * parts[0].characters
    return kind, size, characters
