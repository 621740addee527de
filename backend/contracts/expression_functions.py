"""Functions that an expression may call: their number of arguments, the kind of their result, and
its size in terms of the arguments.

All are deterministic functions of one record alone, without side effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from topicproof.backend.contracts.expression_tree import Type

TEXT, BINARY, NUMBER, BOOLEAN = (Type(n) for n in ("string", "binary", "number", "boolean"))
DATE, TIMESTAMP, INTERVAL = Type("date"), Type("timestamp"), Type("interval")
NULL, ANY = Type("null"), Type("any")
"""ANY: a type that is not known here."""


@dataclass(frozen=True)
class Function:
    least: int
    most: int
    kind: str
    """A letter of `KINDS`, or: = the common type of the arguments, 0 that of the first, e that of
    an element of the first, [t] an array of texts, [0] an array of the first argument's kind, * a
    rule of its own."""
    growth: float
    """Size of the result in sizes of the arguments together; 0 for a small one."""


KINDS = {
    "t": TEXT,
    "b": BINARY,
    "n": NUMBER,
    "o": BOOLEAN,
    "d": DATE,
    "s": TIMESTAMP,
}
_MANY = 200

# Each line: least-most arguments, kind, growth, names.
_TABLE = """
1-1 n 0 abs ascii bigint bround cardinality ceil ceiling char_length character_length crc32 day
1-1 n 0 dayofmonth dayofweek dayofyear decimal double exp float floor hour int json_array_length
1-1 n 0 length
1-1 n 0 ln log10 log2 minute month negative octet_length positive quarter round rint second sign
1-1 n 0 signum size array_size smallint sqrt tinyint unix_date unix_micros unix_millis unix_seconds
1-1 n 0 weekday weekofyear year
2-2 n 0 array_position bround ceil date_diff datediff find_in_set floor getbit instr mod nanvl pmod
2-2 n 0 pow power round shiftleft shiftright to_number try_to_number
2-3 n 0 locate position
1-2 n 0 log unix_timestamp to_unix_timestamp
2-2 = 0 try_add try_divide try_multiply try_subtract
1-200 n 0 hash xxhash64
1-1 o 0 boolean isnan isnotnull isnull
2-2 o 0 array_contains contains endswith map_contains_key startswith
1-1 b 1 binary
1-1 b 0.5 unhex
1-1 b 1 unbase64
1-2 b 3 to_binary try_to_binary
2-2 b 4 encode
1-1 t 0 bin md5 sha sha1
2-2 t 0 sha2
3-3 t 0 conv
1-1 t 1 char string
1-2 t 1 btrim ltrim rtrim trim
1-1 t 2 base64 hex
1-1 t 3 initcap lcase lower ucase upper
1-1 t 3 url_decode url_encode
2-2 t 3 decode
2-2 t 6 get_json_object
2-3 t 2 parse_url
2-3 t 1 substr substring
3-3 t 1 split_part substring_index
2-2 t 1 left right
2-2 t 0 date_format to_char format_number
1-2 t 0 from_unixtime
3-3 t 4 translate
1-1 [t] 17 json_object_keys
1-2 d 0 to_date
1-1 d 0 date date_from_unix_date
2-2 d 0 date_add date_sub
2-2 d 0 trunc
3-3 d 0 make_date
1-1 s 0 timestamp timestamp_micros timestamp_millis timestamp_seconds
1-2 s 0 to_timestamp try_to_timestamp
2-2 s 0 date_trunc
1-1 e 1 array_max array_min
2-2 e 1 get
2-2 e 1 element_at try_element_at
3-3 0 1 slice
1-200 = 1 coalesce greatest least
2-2 = 1 ifnull nvl nullif
3-3 * 1 if nvl2
1-200 * 1 array concat struct
2-200 * 1 concat_ws elt map named_struct
1-200 * 1 format_string printf
2-3 * 1 array_join
1-2 * 1 array_sort
2-2 * 1 exists filter forall transform
3-3 * 1 zip_with
1-1 * 1 map_keys map_values
2-2 * 1 from_json sequence
3-3 * 1 sequence replace
2-2 * 1 replace repeat
1-1 * 1 space reverse
2-3 * 1 lpad rpad
1-2 * 6 to_json
2-2 * 1 regexp regexp_like rlike regexp_count regexp_substr
2-3 * 1 regexp_extract regexp_extract_all regexp_instr split
3-3 * 1 regexp_replace
"""


def _functions() -> dict[str, Function]:
    table: dict[str, Function] = {}
    for line in _TABLE.strip().splitlines():
        count, kind, growth, *names = line.split()
        least, most = map(int, count.split("-"))
        for name in names:
            before = table.get(name)
            if before is not None and before.kind == kind:
                least_of, most_of = min(before.least, least), max(before.most, most)
                table[name] = Function(least_of, most_of, kind, float(growth))
            else:
                table[name] = Function(least, most, kind, float(growth))
    return table


FUNCTIONS = _functions()


class Weight(NamedTuple):
    """What a function or operator costs, in nanoseconds of a core."""

    byte: float
    """For each byte of its arguments of the worst content; beside one for each of the result."""
    call: float
    """For each call, however short the text."""


# Each line: nanoseconds for a byte, for a call, names. Measured for functions of letters, splits,
# patterns, JSON and addresses, estimated for the others, and rounded up.
_WEIGHTS = """
1 20 and or not + - * / % case if coalesce nvl ifnull nvl2 length octet_length isnull isnotnull
3 50 = <> < <= > >= <=> between in
5 300 md5 sha sha1 crc32 hex unhex base64 reverse
8 500 sha2 unbase64 to_binary try_to_binary
8 20000 boolean
8 100 cast int bigint smallint tinyint float double decimal date timestamp string conv
30 300 ltrim rtrim trim btrim replace
8 300 substring_index find_in_set lpad rpad
10 300 encode decode
10 300 like rlike regexp regexp_like regexp_instr regexp_extract regexp_substr
30 500 ilike
25 300 upper lower ucase lcase
60 1000 url_encode url_decode
20 2000 format_string printf
60 300 translate
80 300 split_part split
100 20000 initcap
100 600 regexp_replace
150 600 regexp_extract_all regexp_count
50 20000 get_json_object json_array_length json_object_keys
100 30000 from_json
10 2000 to_json
30 20000 parse_url
20 20000 to_timestamp try_to_timestamp to_date unix_timestamp to_unix_timestamp to_number
20 20000 try_to_number
2 2000 date_format from_unixtime to_char format_number
4 50 array_join concat_ws array_max array_min array_position array_contains
1 60 transform filter exists forall zip_with array_sort
"""


def _weights() -> dict[str, Weight]:
    table: dict[str, Weight] = {}
    for line in _WEIGHTS.strip().splitlines():
        byte, call, *names = line.split()
        table |= dict.fromkeys(names, Weight(float(byte), float(call)))
    return table


WEIGHTS = _weights()
"""The weights of all that costs more than a copy."""
COPY = Weight(1, 50)


def weight_of(name: str) -> Weight:
    """Return the weight of a function or operator."""
    return WEIGHTS.get(name, COPY)


LITERALS: dict[str, tuple[tuple[int, str], ...]] = {
    **dict.fromkeys(("format_string", "printf"), ((0, "a format"),)),
    **dict.fromkeys(
        ("date_format", "to_timestamp", "try_to_timestamp", "to_date", "unix_timestamp"),
        ((1, "a format"),),
    ),
    **dict.fromkeys(
        ("to_unix_timestamp", "from_unixtime", "to_char", "to_number", "try_to_number"),
        ((1, "a format"),),
    ),
    **dict.fromkeys(("to_binary", "try_to_binary"), ((1, "a format"),)),
    **dict.fromkeys(("encode", "decode"), ((1, "a character set"),)),
    "date_trunc": ((0, "a unit"),),
    "trunc": ((1, "a unit"),),
    "get_json_object": ((1, "a path"),),
    "from_json": ((1, "a schema"),),
    "parse_url": ((1, "a part of an address"), (2, "the name of a parameter")),
    "conv": (),
}
"""Arguments that must be a literal text, by position."""
OF_NUMBERS = frozenset(
    [
        "abs",
        "bround",
        "ceil",
        "ceiling",
        "double",
        "exp",
        "float",
        "floor",
        "isnan",
        "ln",
        "log",
        "log10",
        "log2",
        "mod",
        "nanvl",
        "negative",
        "pmod",
        "positive",
        "pow",
        "power",
        "rint",
        "round",
        "sign",
        "signum",
        "sqrt",
        "try_add",
        "try_divide",
        "try_multiply",
        "try_subtract",
        "format_number",
        "timestamp_seconds",
    ]
)
"""Functions of a double or a float. Spark makes one of a text."""
OF_ONE_TYPE = frozenset(
    [
        "array",
        "array_contains",
        "array_position",
        "coalesce",
        "greatest",
        "if",
        "ifnull",
        "least",
        "map_contains_key",
        "nullif",
        "nvl",
        "nvl2",
    ]
)
"""Functions whose arguments Spark gives one type: a number, if a text is beside one."""
TIME_FORMATS = frozenset(
    (
        *("date_format", "to_timestamp", "try_to_timestamp", "to_date", "unix_timestamp"),
        *("to_unix_timestamp", "from_unixtime"),
    )
)
"""Functions whose literal is the format of a time."""

NO_LONGER = {
    **dict.fromkeys(("string", "split_part", "substring_index", "translate", "url_decode"), 1),
    "decode": 4,
    **dict.fromkeys(("initcap", "lcase", "lower", "ucase", "upper"), 3),
}
"""Functions whose text has at most so many times the characters of the first argument: one
character in lower case may be three in upper case, and has up to four bytes."""
OF_TWO = frozenset(["btrim", "ltrim", "rtrim", "trim"])
"""Functions whose text has at most the characters of both arguments together. Which of both
`ltrim` and `rtrim` shorten differs from `btrim`."""

PATTERNS = frozenset(
    [
        "regexp",
        "regexp_like",
        "rlike",
        "regexp_count",
        "regexp_substr",
        "regexp_extract",
        "regexp_extract_all",
        "regexp_instr",
        "split",
        "regexp_replace",
    ]
)
"""Functions whose second argument is a regular expression."""
LAMBDAS = {
    "exists": (1, 1),
    "forall": (1, 1),
    "filter": (1, 2),
    "transform": (1, 2),
    "array_sort": (2, 2),
    "zip_with": (2, 2),
}
"""How many variables the last argument of each may take."""
OF_TIMES = frozenset(
    ["hour", "minute", "second", "date_format", "unix_micros", "unix_millis", "unix_seconds"]
)
"""Functions of a timestamp. Spark makes one of a text in a way that depends on the day."""
OF_DATES = frozenset(
    [
        "day",
        "dayofmonth",
        "dayofweek",
        "dayofyear",
        "month",
        "quarter",
        "weekday",
        "weekofyear",
        "year",
        "date_add",
        "date_sub",
        "date_diff",
        "datediff",
        "trunc",
        "unix_date",
    ]
)
"""Functions of dates. Spark makes one of a text."""
OF_BOTH = frozenset(
    [
        "date_format",
        "date_trunc",
        "trunc",
        "concat",
        "concat_ws",
        "format_string",
        "printf",
        "named_struct",
        "struct",
        "to_json",
        "to_date",
        "to_timestamp",
        "try_to_timestamp",
        "unix_timestamp",
        "to_unix_timestamp",
        "xxhash64",
        "hash",
        "map",
        "date_add",
        "date_sub",
        "from_unixtime",
        "regexp_replace",
        "replace",
    ]
)
"""Functions that take times beside texts and compare nothing."""
