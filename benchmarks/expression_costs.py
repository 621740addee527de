"""What each function of an expression costs at worst: nanoseconds of a core for a byte of a text,
for a call on a short text (an element of an array), and for an element of an array. Run as
`make bench-expressions`; `ARGS="--megabytes N --only NAME,NAME"` changes the amounts.

The weights in `backend/contracts/expression_functions.py` are compared with it. Spark compiles a
call, which is applied within its process, without a query, to each content; then again to a longer
text of the worst content, so that what is not linear shows. Processor time of the thread counts, so
that the load of the machine is not in it. What Spark refuses of a content is left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from rich.console import Console
from rich.progress import track
from rich.table import Table

CONSOLE = Console(highlight=False, soft_wrap=True)
SHORT_BYTES = 60_000
ELEMENTS = 10_000
ROUNDS = 2
SCHEMA = "v string, a array<string>, partition int, offset bigint, timestamp timestamp"
CONTENTS = {
    "a": "a",
    "comma": ",",
    "space": " ",
    "word": "a ",
    "digit": "1",
    "sharp s": "\u00df",
    "ligature": "\ufb03",
    "capital": "\u0130",
    "sigma": "\u03a3",
    "emoji": "\U0001f600",
    "control": "\x01",
    "quote": '"',
    "percent": "%41",
    "numbers": "1,",
}
WHOLE = {
    "array": ("[", "1,", "1]"),
    "texts": ("[", '"",', '""]'),
    "object": ('{"a":[', '{"a":1},', "1]}"),
    "keys": ("{", '"a":1,', '"b":1}'),
    "escapes": ('{"a":"', "\\u0001", '"}'),
    "controls": ('{"a":"', "\\u0080", '"}'),
    "nested": ('{"a":', "[1],", "[1]}"),
    "url": ("http://a/?", "a=1&", "a=1"),
    "base64": ("", "QUFB", ""),
}
"""Before, again and again, after."""
SHORT = {**CONTENTS, "empty": "", "object": '{"a":1}', "url": "http://a/?a=1"}
SHORT["time"] = "2026-01-31 12:00:00"
CALLS: dict[str, tuple[str, ...]] = {
    **{
        name: (f"{name}({{}})",)
        for name in (
            *("upper", "lower", "initcap", "reverse", "url_encode", "url_decode", "hex", "unhex"),
            *("base64", "unbase64", "md5", "sha1", "crc32", "hash", "xxhash64", "to_binary"),
            *("trim", "ltrim", "rtrim", "length", "ascii", "json_array_length"),
            *("json_object_keys", "double", "bigint", "boolean", "to_date", "string", "binary"),
            *("array", "struct", "coalesce", "octet_length", "isnull"),
        )
    },
    "array_join": ("array_join(split({}, ''), ',')",),
    "btrim2": ("btrim({}, 'xyzéa,1 ')", "trim('xyzéa,1 ', {})"),
    "trim2": ("ltrim('xa,1 é', {})", "rtrim('xa,1 é', {})"),
    "cast": (
        "cast({} as binary)",
        "try_cast({} as int)",
        "try_cast({} as double)",
        "try_cast({} as boolean)",
        "try_cast({} as date)",
    ),
    "||": ("{} || {}", "concat({}, {}, 'a')"),
    "concat_ws": ("concat_ws(',', {}, {})",),
    "=": ("{0} = concat({0}, '')", "{0} < concat({0}, 'a')"),
    "conv": ("conv({}, 10, 16)", "conv({}, 36, 2)"),
    "contains": ("contains({}, 'ab')", "contains({}, ',,,,,,,,,,b')"),
    "decode": (
        *("decode({}, 'UTF-8')", "decode({}, 'UTF-16')", "decode({}, 'ISO-8859-1')"),
        "decode({}, 'US-ASCII')",
    ),
    "encode": (
        *("encode({}, 'UTF-8')", "encode({}, 'UTF-16')", "encode({}, 'UTF-32')"),
        "encode({}, 'ISO-8859-1')",
    ),
    "elt": ("elt(1, {}, 'a')",),
    "endswith": ("endswith({}, 'ab')", "startswith({}, 'ab')"),
    "find_in_set": ("find_in_set('ab', {})", "find_in_set({}, 'a,b')"),
    "format_string": (
        *("format_string('%s', {})", "format_string('%S', {})", "format_string('%.9s', {})"),
    ),
    "from_json": (
        *("from_json({}, 'array<int>')", "from_json({}, 'array<string>')"),
        *("from_json({}, 'a array<struct<a: int>>')", "from_json({}, 'map<string, string>')"),
        *("from_json({}, 'a string')", "from_json({}, 'a array<array<int>>')"),
        *("from_json({}, 'array<double>')", "from_json({}, 'map<string, int>')"),
    ),
    "get_json_object": (
        *("get_json_object({}, '$')", "get_json_object({}, '$.a')"),
        *("get_json_object({}, '$.b')", "get_json_object({}, '$.a[*].a')"),
        *("get_json_object({}, '$[*]')", "get_json_object({}, '$.a[*][*]')"),
    ),
    "if": ("if(partition = 0, {}, 'a')",),
    "instr": ("instr({}, 'ab')", "locate('ab', {}, 2)", "position('ab', {})"),
    "left": ("left({}, 1000000000)", "right({}, 3)", "substr({}, 3)", "substr({}, -3, 2)"),
    "lpad": ("lpad({}, 9999, 'ab')", "rpad({}, 9999, 'ab')", "lpad({}, 9, 'é')"),
    "nullif": ("nullif({}, 'a')", "nvl2({}, {}, 'a')", "greatest({0}, concat({0}, 'a'))"),
    "parse_url": (
        *("parse_url({}, 'QUERY')", "parse_url({}, 'HOST')", "parse_url({}, 'QUERY', 'b')"),
    ),
    "like": ("{} like '%ab%'", "{} ilike '%ab%'", "{} like 'ab%'", "{} ilike 'ab'"),
    "rlike": (
        *("rlike({}, 'ab')", "rlike({}, '(?i)ab')", "rlike({}, '^[^x]*$')"),
        *("rlike({}, '^[^ABCDEFGHIJKx]*$')", "rlike({}, '^(?:(?:[^xy]))*+$')"),
        *(
            r"rlike({}, r'^[^\p{Lu}\p{Sc}\p{Mn}b-cd-ef-gh-ij-k\x{999}\x{998}]*$')",
            r"rlike({}, r'(?i)^[^\p{Lu}\p{Sc}\p{Mn}b-cd-ef-gh-ij-k\x{999}\x{998}]*$')",
            r"rlike({}, r'^[^àéîõü]*$')",
        ),
    ),
    "regexp_count": ("regexp_count({}, '.')", "regexp_count({}, '')"),
    "regexp_extract": ("regexp_extract({}, '^(.)', 1)", "regexp_substr({}, '.*')"),
    "regexp_extract_all": ("regexp_extract_all({}, '.', 0)", "regexp_extract_all({}, '', 0)"),
    "regexp_instr": ("regexp_instr({}, 'ab')",),
    "regexp_replace": (
        *("regexp_replace({}, '.', 'x')", "regexp_replace({}, '', 'x')"),
        *("regexp_replace({}, '(.)', '$1$1')", "regexp_replace({}, '.', '')"),
    ),
    "repeat": ("repeat({}, 3)",),
    "replace": (
        *("replace({}, ',', 'x')", "replace({}, 'a', '')", "replace({}, '1', 'aa')"),
        *("replace({}, 'é', '')", "replace({}, 'ab', 'c')"),
    ),
    "sha2": ("sha2({}, 256)", "sha2({}, 512)", "sha2({}, 224)"),
    "split": ("split({}, ',')", "split({}, '')", "split({}, '[,a1 ]')", "split({}, 'ab')"),
    "split_part": (
        *("split_part({}, ',', 1)", "split_part({}, ',', -1)", "split_part({}, 'a', 999999999)"),
        "split_part({}, ' ', 5)",
    ),
    "substring_index": (
        *("substring_index({}, ',', 999999999)", "substring_index({}, ',', -999999999)"),
        "substring_index({}, 'a', -1)",
    ),
    "named_struct": ("named_struct('a', {}, 'b', {})", "map({}, 1)", "map('a', {})['a']"),
    "to_json": (
        *("to_json(named_struct('a', {}))", "to_json(array({}))", "to_json(split({}, ''))"),
        "to_json(split({}, ','))",
    ),
    "translate": (
        *("translate({}, 'abc,1 ', 'xyzéuv')", "translate({}, 'é', 'e')"),
        "translate({}, 'ß, a1', '')",
    ),
    "to_number": ("to_number({}, '9999')", "try_to_number({}, '9999')"),
    "to_timestamp": (
        *("try_to_timestamp({}, 'yyyy-MM-dd HH:mm:ss')", "try_to_timestamp({}, 'y')"),
        *("try_to_timestamp({}, '[yyyy][MM][dd][EEEE][a][VV]')",),
        "try_to_timestamp({}, 'yyyy-MM-dd''T''HH:mm:ss.SSSSSSXXX')",
    ),
    "date_format": (
        *("date_format(timestamp, 'yyyy-MM-dd HH:mm:ss') || {}",),
        "date_format(timestamp, 'EEEE MMMM yyyy-MM-dd HH:mm:ss.SSSSSSSSS VV OOOO') || {}",
    ),
    "times": (
        *("unix_timestamp(timestamp) || {}", "date_trunc('week', timestamp)::string || {}"),
        *("trunc(timestamp, 'year')::string || {}", "hour(timestamp) || {}"),
        *("from_unixtime(offset, 'EEEE yyyy') || {}", "weekofyear(timestamp) || {}"),
        *("timestamp::string || {}", "(timestamp + interval 1 month)::string || {}"),
    ),
    "numbers": (
        *("format_number(offset, 4) || {}", "to_char(offset, '999,999,999.99') || {}"),
        *("(offset * 1.5D)::string || {}", "pow(offset, 1.5D)::string || {}"),
        *("cast(offset as decimal(38, 9))::string || {}", "offset::string || {}"),
        *("round(offset * 1.5D, 300)::string || {}", "bin(offset) || {}"),
        *("exp(offset)::string || {}", "log(3, offset + 1)::string || {}"),
        "cast(regexp_extract({}, '^[0-9]*', 0) as decimal(38, 0))",
    ),
}
ARRAYS: dict[str, str] = {
    name: f"{name}({{}})"
    for name in [
        "array_max",
        "array_min",
        "reverse",
        "size",
        "to_json",
        "array_size",
        "hash",
        "xxhash64",
    ]
} | {
    "array_contains": "array_contains({}, 'ab')",
    "array_position": "array_position({}, 'ab')",
    "array_join": "array_join({}, ',')",
    "array_sort": "array_sort({}, (x, y) -> length(x) - length(y))",
    "concat": "concat({}, {})",
    "concat_ws": "concat_ws(',', {})",
    "slice": "slice({}, 2, 999999999)",
    "string": "string({})",
    "transform": "transform({}, x -> x)",
    "filter": "filter({}, x -> true)",
    "exists": "exists({}, x -> false)",
    "zip_with": "zip_with({}, {}, (x, y) -> x)",
    "named_struct": "transform({}, x -> named_struct('a', x, 'b', x))",
    "case": "transform({}, x -> case when x = 'b' then 1 when x = 'c' then 2 else 3 end)",
    "arithmetic": "transform({}, (x, i) -> i * 3 + 1 - 7)",
    "element_at": "element_at({}, -1)",
    "=": "{0} = concat({0}, array('a'))",
    "cast": "cast({} as array<binary>)",
    "map": "map({}, 1)",
}


class Java:
    """A Spark in a process of its own, and expressions compiled in it."""

    def __init__(self) -> None:
        settings: dict[str, bool | float | int | str | None] = {
            "spark.master": "local[1]",
            "spark.driver.memory": "3g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
        }
        self.spark = cast(Any, SparkSession.builder.config(map=settings).getOrCreate())
        self.jvm = self.spark._jvm
        self.gateway = self.spark.sparkContext._gateway
        session = self.spark._jsparkSession
        schema = StructType.fromDDL(SCHEMA).json()
        empty = self.spark.sparkContext._jsc.emptyRDD()
        self.frame = session.createDataFrame(empty, session.parseDataType(schema))
        management = self.jvm.java.lang.management.ManagementFactory
        self.threads = management.getThreadMXBean()

    def compiled(self, *expressions: str) -> Any:
        """Return a function of a row. Raises Py4JJavaError if Spark refuses an expression."""
        texts = self.gateway.new_array(self.jvm.String, len(expressions))
        for at, text in enumerate(expressions):
            texts[at] = text
        plan = self.frame.selectExpr(texts).queryExecution().sparkPlan()
        create = self.jvm.org.apache.spark.sql.catalyst.expressions.UnsafeProjection.create
        return create(plan.projectList(), plan.child().output())

    def row(self, text: str, element: str) -> Any:
        """Return a row of these two columns of `SCHEMA`, as SQL."""
        others = (
            "0 as partition",
            "1234567L as offset",
            "timestamp '2026-01-31 12:00:00' as timestamp",
        )
        row = self.compiled(f"{text} as v", f"array_repeat({element}, {ELEMENTS}) as a", *others)
        return row.apply(self.jvm.org.apache.spark.sql.catalyst.expressions.UnsafeRow(0)).copy()

    def seconds(self, function: Any, row: Any, rounds: int = ROUNDS) -> float | None:
        """Return the least seconds of a core that a call takes; None if it fails."""
        times = []
        for _ in range(rounds):
            before = self.threads.getCurrentThreadCpuTime()
            try:
                function.apply(row)
            except Py4JJavaError:
                return None
            times.append(self.threads.getCurrentThreadCpuTime() - before)
        return float(min(times)) / 1e9


def literal(text: str) -> str:
    return "r'" + text.replace("'", "\\x27") + "'" if "\\" in text else f"'{text}'"


def content(name: str, size: int) -> str:
    """Return a long text as SQL."""
    before, seed, after = WHOLE.get(name, ("", CONTENTS.get(name, ""), ""))
    times = size // len(seed.encode())
    return f"{literal(before)} || repeat({literal(seed)}, {times}) || {literal(after)}"


def filled(call: str, argument: str) -> str:
    return call.replace("{0}", argument).replace("{}", argument)


def worst(java: Java, call: str, rows: dict[str, Any], free: str, parts: int) -> tuple[float, str]:
    """Return the most nanoseconds for one of so many parts of a row, beyond those of the expression
    `free`, and the content that takes them."""
    function, nothing = java.compiled(f"{call} as x"), java.compiled(f"{free} as x")
    figures = []
    for name, row in rows.items():
        seconds = java.seconds(function, row)
        if seconds is not None:
            figures.append(((seconds - (java.seconds(nothing, row) or 0)) / parts * 1e9, name))
    return max(figures, default=(0, "none"))


def measured(java: Java, size: int, only: set[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the text of each call and its figures."""
    texts = {name: java.row(content(name, SHORT_BYTES), "''") for name in (*CONTENTS, *WHOLE)}
    elements = {name: java.row("''", literal(seed)) for name, seed in SHORT.items()}
    calls = [sql for name, sqls in CALLS.items() if not only or name in only for sql in sqls]
    arrays = [sql for name, sql in ARRAYS.items() if not only or name in only]
    for sql in track(calls, console=CONSOLE):
        short, name = worst(java, filled(sql, "v"), texts, "octet_length(v)", SHORT_BYTES)
        row: dict[str, object] = {"ns/byte": round(short, 1), "of": name}
        if name != "none":
            function = java.compiled(filled(sql, "v") + " as x")
            long = java.seconds(function, java.row(content(name, size), "''")) or 0
            row["longer"] = round(long / size * 1e9, 1)
        body = f"exists(a, x -> isnull({filled(sql, 'x')}))"
        most, name = worst(java, body, elements, "exists(a, x -> isnull(x))", ELEMENTS)
        yield sql, row | {"ns/call": round(most), "of ": name}
    for sql in track(arrays, console=CONSOLE):
        most, name = worst(java, filled(sql, "a"), elements, "size(a)", ELEMENTS)
        yield sql.replace("{}", "[]"), {"ns/element": round(most), "of  ": name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    java = Java()
    only = set(filter(None, options.only.split(",")))
    figures: dict[str, dict[str, object]] = {}
    for call, row in measured(java, int(options.megabytes * 1e6), only):
        figures[call] = row
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1))
    columns = ("ns/byte", "of", "longer", "ns/call", "of ", "ns/element", "of  ")
    table = Table("call", *columns)
    for call, row in figures.items():
        table.add_row(call.replace("[", r"\["), *(str(row.get(name, "")) for name in columns))
    CONSOLE.print(table)
    java.spark.stop()


if __name__ == "__main__":
    main()
