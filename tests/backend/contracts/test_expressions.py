"""Expressions that come from somebody else: what Spark gets of them, and what their results can
become."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings, strategies as st

from topicproof.backend.contracts import expressions
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.expression_fields import each_in_sql, in_sql
from topicproof.backend.contracts.expression_functions import FUNCTIONS
from topicproof.backend.contracts.expression_limits import RECORD
from topicproof.backend.contracts.expression_patterns import pattern_cost
from topicproof.backend.contracts.expressions import (
    check_expression,
    measured_size,
    require_little_of_stored,
    spark_sql,
    stored_sql,
)
from topicproof.backend.errors import ContractError
from topicproof.validators.expected import NUMBER_TEXT

NOW = (
    *("'now'::timestamp", "cast(('now') as timestamp)", "timestamp(lower('NOW'))"),
    *("cast('now' || '' as timestamp)", "timestamp(concat('n','ow'))", r"timestamp '\x6eow'"),
    *("to_timestamp(concat('n','ow'))", "cast(X'6e6f77' as timestamp)", "cast('n' 'ow' as date)"),
    *(r"timestamp '\u006eow'", "date 'today UTC'", "timestamp r'now'", "try_cast('now' as date)"),
    *("timestamp > 'now'", "timestamp in ('now')", "timestamp between key and 'now'"),
    *("case when true then timestamp else 'now' end", "if(true, timestamp, 'now')"),
    *("coalesce(timestamp, 'now')", "array(timestamp, 'now')", "datediff(timestamp, 'today')"),
    *("value + interval 1 day", "'now' + interval 1 day", "value - negative(interval 1 day)"),
    *("coalesce(timestamp, '2026-01-01') > value", "value + (interval 1 day + interval 2 hours)"),
    *("year('now')", "hour('now')", "date_format('now', 'HH')", "date_trunc('day', 'now')"),
    *("transform(array('now'), t -> cast(t as timestamp))", "greatest(timestamp, lower('NOW'))"),
    *(
        "array_contains(array(timestamp), 'now')",
        "map(timestamp, 1)['now']",
        "nullif(timestamp, 'now')",
    ),
    *(
        "case timestamp when 'now' then 1 end",
        "nvl2(key, timestamp, 'now')",
        "cast('epoch' as date)",
    ),
    *(
        "element_at(map(timestamp, 1), 'now')",
        "zip_with(array(timestamp), array('now'), (a, b) -> a = b)",
    ),
    *(
        "date(substr(typeof(named_struct('now', key)), 8, 3))",
        "date(char(110) || char(111) || char(119))",
    ),
    *(
        "cast(value as timestamp)",
        "cast('12:00' as timestamp)",
        "timestamp '12:00:00'",
        "hour(value)",
    ),
    *(
        "to_timestamp(value)",
        "timestamp = value",
        "from_json(value, 'at timestamp')",
        "value::timestamp_ntz",
    ),
    *(
        "from_json(value, 'at struct<on: date>')",
        "cast(array('now') as array<date>)",
        "unix_timestamp()",
    ),
    *(
        "named_struct('a', timestamp) = named_struct('a', 'now')",
        "array(timestamp) || array('now')",
    ),
    *(
        "concat(array(timestamp), array('now'))",
        "timestamp - 'now'",
        "current_date",
        "now()",
        "curdate()",
    ),
)
FOREIGN = (
    *(
        "transform(array(1), _metadata -> 1)[0] + length(_metadata.file_path)",
        "_metadata.file_path",
    ),
    *("transform(headers, value -> value)", "transform(headers, x -> transform(headers, x -> x))"),
    *(
        "transform(headers, x -> 1)[0] + x",
        "transform(headers, `_metadata` -> 1)",
        "input_file_name()",
    ),
    *(
        "exists(values 1)",
        "value in (values '0')",
        "array(values 1)",
        "(values 1)",
        "exists(from a)",
    ),
    *("exists(table a)", "(table a)", "value in (select 1)", "exists((select 1))", "named => 1"),
    *(
        "x -> 1",
        "upper(x -> x)",
        "filter(headers, (a, b, c) -> true)",
        "transform(headers, (a, a) -> a)",
    ),
    *(
        "decoded.reason",
        "decoded.`field:id`",
        "field(value)",
        "raise_error('x')",
        "rand()",
        "uuid()",
    ),
    *(
        "reflect('a', 'b')",
        "`reflect`('a', 'b')",
        "system.builtin.reflect('a')",
        "xpath(value, '/a')",
    ),
    *(
        "str_to_map(value)",
        "aggregate(headers, '', (a, h) -> a || a)",
        "identifier('key')",
        ":key",
        "?",
    ),
    *(
        "value -- x",
        "value /* x */",
        "value; value",
        "value as x",
        "value over ()",
        "count(1)",
        "*",
    ),
    *(
        "'a' collate utf8_lcase",
        "value\u00a0|| key",
        "field('a${env:HOME}')",
        "headers[0].`${env:HOME}`",
    ),
)
LARGE = (
    *("array_join(split(value, ''), value)", "regexp_replace(value, '', value)"),
    *("array_join(transform(split(value, ''), x -> value), '')", "replace(value, 'a', value)"),
    *("concat_ws(value, split(value, ''))", "transform(split(value, ''), x -> x || value)"),
    *("filter(split(value, ''), x -> instr(value, x) > 0)", "array_join(headers, value)"),
    *("transform(headers, x -> transform(headers, y -> x))", "levenshtein(key, value)"),
    *("regexp_extract_all(value, '(?=(.*))', 1)", "regexp_replace(value, '(?=(.*))', '$1')"),
    *(
        "repeat(repeat(value, 90), 90)",
        "repeat(value, 10000)",
        "repeat(value, offset)",
        "space(1e9)",
    ),
    *("repeat(repeat('a', 10000), 10000)", "transform(sequence(1, 9999), x -> space(9999))"),
    *("format_string('%1000000000d', offset)", "format_string(value, key)", "lpad(value, 1000000)"),
    *("to_json(transform(split(value, ''), x -> named_struct(repeat('a', 99), x)))",),
    *("format_string(repeat('%s', 99), value)", f"format_string('{'%1$s' * 99}', value)"),
    *(
        "printf('%-99999s', value)",
        "sequence(1, offset)",
        "sequence(0, 99999999)",
        "from_json(value, key)",
    ),
    *(f"from_json(value, 'array<struct<{','.join(f'a{n}:int' for n in range(99))}>>')",),
    *("repeat(get_json_object(value, '$.a'), 20)", "format_string('%5S', value)"),
    *(
        " || ".join(["value"] * 150),
        "date_format(timestamp, value)",
        "regexp_replace(key, 'a', value)",
    ),
    *(
        "(" * 2_000 + "1" + ")" * 2_000,
        "-" * 2_000 + "1",
        "not " * 2_000 + "true",
        "array(" * 1_000,
    ),
    *(" + ".join(["offset"] * 900), "value" + "[0]" * 1_000, "cast(" * 500 + "1"),
)
SLOW = (
    *(
        r"value rlike '^(\\w|-)+$'",
        "value rlike '(a+)+$'",
        "value rlike '(a*)*'",
        "value rlike '(a|a)*b'",
    ),
    *(
        "value rlike '(a?){40}a'",
        "value rlike '(a{0,40}){40}b'",
        "value rlike '(ab)*'",
        "value rlike '(a|b)+'",
    ),
    *(
        f"value rlike '{'a?' * 40}{'a' * 40}'",
        "value rlike '(.*)(.*)(.*)(.*)b'",
        "value rlike '.*a.*b'",
    ),
    *(
        "value rlike 'a+b'",
        r"value rlike '\\s+$'",
        "value rlike '(?:a|b){1000}'",
        r"value rlike '(a*)\\1'",
    ),
    *(
        "value rlike '(?:(?:a{500}){500}){500}'",
        "value rlike '(?:a*b|a)*+'",
        "value rlike '(?<=a*)b'",
    ),
    *(
        "value rlike '((a|ab)(c|bcd)(d*))*'",
        "value regexp key",
        "regexp_like(value, key)",
        "split(value, key)",
    ),
    *("regexp(value, '(a+)+')", "regexp_count(value, '.*a')", "regexp_substr(value, 'a*b')"),
    *(
        "regexp_instr(value, '(x+x+)+y')",
        "regexp_extract(value, '(.+)+', 1)",
        "split(value, '(,|;)*')",
    ),
    *("value like '%a%b%c%'", "value like key", "value ilike '%a%b%'", "value not like '%a%b%c%'"),
    *(
        "value like any ('%a%b%c%', 'x')",
        "value ilike all (key)",
        "value like '%!%a%b%' escape '!'",
    ),
    *(
        "value rlike '(?m)^a*$b'",
        "value rlike '(?x)a'",
        "value rlike '[a'",
        "value rlike '(?=(a+))'",
    ),
    *(f"value {like}" for like in ("like '%%x'", "ilike '%%%%%%x'", "like any ('a%%b', 'c')")),
    *(
        f"{text} rlike 'a*a*a*b'"
        for text in (
            "ltrim('x', value)",
            "rtrim('x', value)",
            "trim('x', value)",
            "overlay('x', value, 1)",
            "soundex(value)",
            "upper(substr(value, 1, 158))",
            f"typeof(named_struct('{'a' * 5_000}', 1))",
            "get_json_object(substr(value, 1, 170), '$')",
            f"to_json(cast(struct(value = '1') as struct<{'a' * 500}: boolean>))",
            f"to_json(struct(named_struct('{'a' * 500}', 1).{'a' * 500}))",
            "cast(overlay(5, value, 1) as string)",
            "cast(array(named_struct('a', named_struct('b', value), 'b', 1))['a'].b as string)",
            "decode(substr(value, 1, 170), 'ISO-8859-1')",
        )
    ),
    f"value rlike '[{''.join(map(chr, range(256, 300)))}]{{240}}x'",
    "cast(reverse(5) as timestamp) > timestamp",
    f"{'right(' * 26}value{', 1)' * 26}",
    f"if(true, {'nullif(' * 24}value{', key)' * 24}, '')",
    f"{'case ' * 7}value{' when 1 then 2 when 3 then 4 when 5 then 6 when 7 then 8 end' * 7}",
    f"if({'(' * 24}value{' between 1 and 2)' * 24}, 1, 2)",
    "cast((array(null) || array(value))[1] as timestamp) > timestamp",
    "cast((array(null) || array(value))[1] as string) rlike 'a*a*a*b'",
    "trim(value, repeat('b', 1900)) = ''",
    "levenshtein(soundex(value), value)",
    "value ilike 'X%X%X%a' escape 'X'",
    "repeat(soundex(value), 5000)",
    *(rf"value rlike r'{pattern}'" for pattern in (r"\bfoo\b", r"a\B", r"(?:a|\b)c", r"(?=\b)a")),
    *(rf"value rlike r'{pattern}'" for pattern in (r"^\Xa", r"^\b{g}a", r"^(?:a\b){2,}+b")),
    *(rf"value rlike r'{pattern}'" for pattern in ("(?<=a{1,450}c)x", r"(?<=\bfoo)x")),
    *(rf"value rlike r'{pattern}'" for pattern in (r"\c\QX[\E|a*a*a*b]", r"\c\QX[\E|(a|b)*c]")),
    *(rf"value rlike r'{pattern}'" for pattern in (r"\Q(a+)+\E", r"[\c\QX]a*b\E]", r"a\E")),
    *(rf"value rlike r'{pattern}'" for pattern in (r"\ca", r"\0101", r"\N{SPACE}", r"[\ca]")),
    *(rf"value rlike r'{pattern}'" for pattern in ("(?iu:\u017f)", "a(?i)b", "(?u)a", "(?-i:a)")),
    *(rf"value rlike r'{pattern}'" for pattern in (r"\ud83d\ude00*", r"\x{", r"\p{a\Q}", r"\y")),
    *(
        rf"value rlike r'^\p{{{name}}}'"
        for name in ("IsThai", "InGreek", "Nothing", "sc=Thai", "LC")
    ),
    *(rf"value rlike r'^{pattern}'" for pattern in (r"\P{IsThai}", r"[^a\p{javaLetter}]", r"\pC")),
    *(rf"value rlike r'{pattern}'" for pattern in ("(?<=(?:a{9}){1,50})x", "(?<!a|b{101})x")),
    *("parse_url(value, 'QUERY', '((a|a)*)c')", r"parse_url(value, 'QUERY', '(a)\\1')"),
    *(f"parse_url(value, 'QUERY', '{name}')" for name in ("a.b", "a{9}", "", "a" * 101)),
    *("exists(split(value, ','), x -> contains(x, x))", f"contains(value, '{'a' * 3_000}')"),
    *("array_distinct(split(value, ','))", "array_distinct(transform(headers, h -> h.key))"),
    *(f"{name}(value, r'\\Ga(?=.*b)')" for name in ("regexp_count", "regexp_extract_all", "split")),
    *("array_distinct(headers)", "array_distinct(transform(headers, h -> h.value))"),
    *("array_distinct(array(split(value, ',')))", f"get_json_object(value, '${'[*]' * 2_000}')"),
    "string(decimal(" * 11 + "value" + "))" * 11,
    *("to_number(value, '9,999')", "try_to_number(key, '99G999')"),
    *("map(1.5, 'a')[value]", "map(1, 'a', 1.5, 'b')[substr(value, 1, 9)]", "map(1, 2)['1e-9999']"),
    *("if(key = '', map(1.5, 1), map('a', value))[value]", "map(1, 'a')[coalesce(value, 1)]"),
)


LONG_MATCH = "rlike(substr(value, 1, 20000), '^s*s*x')"
"""A second of a core."""
TOGETHER = (
    " or ".join([LONG_MATCH] * 40),
    " || ".join(["split(substr(value, 1, 900), '^s*s*s*x')[0]"] * 40),
    "exists(split(value, ','), x -> rlike(substr(x, 1, 160), '^s*s*s*s*x'))",
    "exists(split(value, ','), x -> substr(x, 1, 200) like '%a%a%b')",
    "size(filter(sequence(1, 9999), i -> rlike(substr(value, i, 2000), '^s*s*x'))) = 1",
    "exists(split(value, ''), x -> exists(split(x, ''), y -> substr(value, 1, 99) rlike 'a*b'))",
    " or ".join([f"value rlike '^(?:{'|'.join('abcdefghijklmnopqrst' * 4)})++$'"] * 30),
)


HOURS = (
    *(
        "cast(value as boolean)",
        "boolean(value)",
        "value = true",
        "value is not true",
        "true <=> key",
    ),
    *("coalesce(value, true)", "cast(split(value, ',') as array<boolean>)[0]", "true and value"),
    *("case value when true then 1 end", "value in (true)", "array_contains(array(value), true)"),
    *(" or ".join([f"{call} = key"] * 200) for call in ("upper(value)", "initcap(value)")),
    *(" or ".join([f"{call} = key"] * 90) for call in ("url_encode(value)", "hex(upper(value))")),
    " or ".join(["split_part(value, ',', 1) = key"] * 150),
    " or ".join(["split(value, ',')[0] = key"] * 40),
    " or ".join(["substring_index(value, ',', -1) = key"] * 200),
    " or ".join(["get_json_object(value, '$.a') = key"] * 200),
    " or ".join(["regexp_replace(value, '.', '') = key"] * 200),
    " or ".join(["translate(value, 'ab', '') = key"] * 200),
    " or ".join(["json_array_length(value) = 1"] * 200),
    " or ".join(["size(from_json(value, 'array<int>')) = 1"] * 50),
    " or ".join([r"value rlike r'^[^\p{Lu}\p{Sc}b-cd-ef-gh-ij-k]*+$'"] * 60),
    "exists(split(value, ''), x -> "
    + " or ".join(["try_to_timestamp(x, 'yyyy-MM-dd') = timestamp"] * 4)
    + ")",
    f"{'nullif(' * 9}upper(value){', key)' * 9} = key",
    "(" * 6 + "upper(value)" + " like 'a%b')::string" * 6 + " = key",
    "exists(sequence(1, 10000), i -> value is null)",
    "exists(sequence(1, 10000), i -> headers[0].value is null)",
    "exists(sequence(1, 10000), i -> exists(sequence(1, 10), j -> value = 'x'))",
    "exists(headers, h -> h.key = key)",
    "forall(split(value, ','), x -> x = value)",
    *(f"{name}(" * 14 + "value" + ", key)" * 14 + " = key" for name in ("coalesce", "nvl")),
    "ifnull(" * 14 + "value" + ", key)" * 14 + " = key",
    "nanvl(" * 14 + "offset" + ", 1)" * 14 + " = 1",
    "(case when " * 13 + "value" + " = 'a' then 'b' when key = 'c' then 'd' end)" * 13 + " = key",
)
"""Calls that take up to hundreds of times as long as a copy of the record, or that Spark writes
several times; columns that Spark copies for each element; choices within choices."""

UNSTABLE = (
    *(f"format_string('%{mark}', headers[0].value)" for mark in ("s", "h", "1$s", "-9s", "b")),
    *("format_string('%s', headers)", "printf('%s', array(key))", "printf('%s', timestamp)"),
    *("printf('%s', map(key, value))", "printf('%d', date '2026-01-31')"),
    *("printf('%s', named_struct('a', key))", "format_string('%s', coalesce(key, offset))"),
    *(f"format_string('a%{mark}b', offset)" for mark in ("tH", "TH", "1$tY", "n", "h", "H", "<tZ")),
    *(
        f"printf('%d %{mark}', offset)"
        for mark in ("", "-", "a", "A", "B", "C", "5", "\u00e9", "\\n")
    ),
)
"""Formats of what Java prints otherwise each time, or on another server."""
TWO_NAMES = (
    *(f"{call}(named_struct('i\u0307', 1, 'i', value).`\u0130`)" for call in ("length", "decimal")),
    *("named_struct('i\u0307', 1, 'i', value)['\u0130']", "named_struct('s', value).`\u017f`"),
    "cast(from_json(value, '`i\u0307` int, i string').`\u0130` as decimal(38, 0))",
    "cast(named_struct('a', 1, 'b', value) as struct<`i\u0307`: int, i: string>).`\u0130`",
    *("from_json(value, 'i string').`\u0130`", "from_json(value, 'i string')['\u0131']"),
    *("from_json(value, 'array<struct<`\u0130`: int>>')", "named_struct('\u00e4', 1)"),
    *("headers[0].`\u212aey`", "headers.`\u212aey`", "`\u212aey`", "struct(headers[0].`\u212aey`)"),
    *("transform(headers, `\u212a` -> k)", "transform(headers, k -> `\u212a`)"),
    *("named_struct('', 1)", "named_struct('a\\n', 1)", "named_struct('a', 1)['b']"),
)
"""Names of which Python and Spark take two for one otherwise."""
OF_DOUBLES = (
    *("cast(split(value, ',') as array<double>)[0]", "double(headers[0].value)", "not value"),
    *("cast(named_struct('a', value) as struct<a: float>).a", "array(1.5D) || split(value, ',')"),
    *("cast(from_json(value, 'map<string, string>') as map<string, real>)['a']", "not lower(key)"),
    *("array(array(1.5D), split(value, ','))", "coalesce(array(1.5D), split(value, ','))[0]"),
    *("split(value, ',') in (array(1.5D))", "concat(array(1.5D), array(value))[0]"),
    *("if(key = '', array(value), array(1.5D))[0]", "coalesce(key, 1.5D) > value"),
    *("sqrt(coalesce(value, 1))", "case when key = '' then array(value) else array(1D) end[0]"),
    *("map(array(1.5D), 1, array(value), 2)", "nvl2(key, array(value), array(1.5D))[0]"),
)
"""Doubles and booleans of long texts, which Spark makes lower case in quadratic time."""
NESTED = tuple(
    f"{call} = timestamp" if "to_t" in call else call
    for form in ("[" * 4_900 + "yyyy" + "]" * 4_900, "[" * 6 + "yyyy", "']'[" * 6, "y" * 101)
    for call in (
        *(f'try_to_timestamp(value, "{form}")', f"to_timestamp('2026', \"{form}\")"),
        *(f'to_date(value, "{form}")', f'date_format(timestamp, "{form}")'),
        *(f'unix_timestamp(value, "{form}")', f'from_unixtime(offset, "{form}")'),
    )
    if len(call) < 10_000
)
"""Formats of times on which Java recurses."""


REFUSALS = (
    "takes|"
    "not allowed|compares a time with|takes no interval|an interval only|a capital letter"
    "|a time in a schema|has no field|a record has|cannot be called"
    "|a lambda|the lambda|not one plain|not parse|takes one literal|a name cannot|an argument"
    "|the square of a record|what regexp_replace puts in|beside the match|as large as its record"
    "|must be a? ?literal|bytes|is above|is wider than|apart|without an end|repeats a choice"
    "|more than linear|refers back|10,000 times|not a valid regular|two variables|which is no field"
    "|several parts|quadratic time"
    "|looks behind|name of a parameter|compares each pair|ns for each byte"
    "|whose keys are no texts|patterns together|has no field|ranges, escapes or|Spark would make"
    "|a conversion that is not|format_string takes texts|of a time is too large"
    "|beyond printable ASCII|becomes a number|a property that Java is slow at"
)


@pytest.mark.parametrize(
    "text",
    [*NOW, *FOREIGN, *LARGE, *SLOW, *TOGETHER, *HOURS, *UNSTABLE, *TWO_NAMES, *OF_DOUBLES, *NESTED],
)
def test_attacks_are_refused(text: str) -> None:
    """Story: a foreign contract asks for the time, another file, a query, gigabytes, or years.
    Each is refused before Spark, with a sentence."""
    with pytest.raises(ValueError, match=REFUSALS):
        check_expression(text)


def test_all_fields_of_an_output_have_one_limit_of_steps() -> None:
    """Story: each field of a contract, and each field that evidence keeps, has a pattern of a
    second. Two of them pass and a hundred do not; hundreds of plain fields do."""
    fields = {f"f{number}": LONG_MATCH for number in range(100)}
    terms = {"source": {"topic": "a"}, "sink": {"topic": "b"}, "identity": "key"}
    make_contract({**terms, "value": {name: fields[name] for name in ("f1", "f2")}})
    with pytest.raises(ContractError, match="all patterns together may take"):
        make_contract({**terms, "value": fields})
    with pytest.raises(ValueError, match="all patterns together may take"):
        stored_sql(each_in_sql(fields))
    with pytest.raises(ValueError, match="all patterns together may take"):
        require_little_of_stored(map(in_sql, fields.values()))
    plain = {f"f{number}": f"upper(trim(field('f{number}')))" for number in range(500)}
    make_contract({**terms, "value": plain})
    assert stored_sql(each_in_sql(plain)) == each_in_sql(plain)


def test_all_expressions_of_a_contract_have_one_limit_of_characters() -> None:
    """Story: a contract of a megabyte holds a hundred expressions, each within its own limit. It is
    refused before they are checked, and a count of a sink is among them."""
    text = " || ".join(["topic"] * 1_000)
    terms = {"source": {"topic": "a"}, "sink": {"topic": "b"}, "identity": "key"}
    with pytest.raises(ContractError, match=r"value.f11: all expressions .* more than 100,000"):
        make_contract({**terms, "value": {f"f{number}": text for number in range(100)}})
    sinks = [{"topic": f"b{number}", "count": f"length({text})"} for number in range(50)]
    del terms["sink"]
    with pytest.raises(ContractError, match=r"sinks.11.count: all expressions of a contract"):
        make_contract({**terms, "sinks": sinks, "expect": "one_to_many"})


def test_what_is_accepted_is_not_written_again_for_each_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: a long expression within many functions was written for each of them, for a refusal
    that did not come. Checking it took half a second."""
    quoted: list[object] = []
    monkeypatch.setattr(expressions._Checker, "_quote", lambda _, node: quoted.append(node))
    check_expression("trim(" * 20 + " || ".join(["topic"] * 50) + ")" * 20)
    assert quoted == []


def test_fields_that_are_apart_are_no_more_than_their_record() -> None:
    """Story: hundreds of fields of a record share its bytes. A field within a field counts twice,
    and so does one that is named in other letters."""
    for names, times in (
        (("a", "b", "c.d", "items[0]", "items[1]"), 1),
        (("a", "a.b", "a.b[0].c", "ab", "a.c"), 3),
        (("order_id", "orderId", "other"), 2),
    ):
        text = " || ".join(f"field('{name}')" for name in names)
        assert measured_size(text)[RECORD] == times
    assert measured_size("field('a') || key_field('a') || value")[RECORD] == 2


ORDINARY = (
    "cast(cast(key as bigint) * 2 - 3 % 2 as string)",
    "-cast(key as int) * 2 + 1 || '-' || offset",
    "not key = '7' and value is null or offset <=> 1",
    "offset between 1 and 2 + 3 and key in ('7', 'x')",
    "value like 'a%' or key not like any ('7', '%x') and not key is distinct from '7'",
    "case key when '7' then 'seven' else 'other' end",
    "1 | 2 ^ 3 & 4 << 1 + 1",
    "~partition || 5 div 2",
    "size(filter(headers, h -> h.key = 'x'))",
    "transform(headers, (h, i) -> h.key || i)[0]",
    "headers[0].key || headers.key[0] || cast(headers[0]['value'] as string)",
    "zip_with(array(1, 2), array(3), (a, b) -> coalesce(a, 0) + coalesce(b, 0))[0]",
    r"'it''s' \"a\" '\t\\d\%\101\u00e9' || r'\d'".replace('\\"', '"'),
    "regexp_replace(value, r'[aeiou]', '<$0>')",
    r"regexp_extract(value, '^(\\w)\\w*', 1)",
    "split(value, ',')[0]",
    "get_json_object('{\"a\": [1]}', '$.a[0]')",
    "to_json(named_struct('a', key, 'b', array(offset)))",
    "from_json('{\"a\": 1}', 'a int').a + 1",
    "date '2026-01-31' + interval 1 day > date(timestamp)",
    "date_format(timestamp, 'yyyy') || year(timestamp) || unix_millis(timestamp)",
    "to_timestamp('2026-01-31', 'yyyy-MM-dd') > timestamp",
    "timestamp > '2026-01-31'",
    r"try_to_timestamp(value, 'yyyy[-MM[-dd[ HH[:mm[:ss]]]]][\'[[[\'XXX]') > timestamp",
    "-9223372036854775808 || 1.50 || 2L || 1e3 || 1.5BD",
    "map('a', 1)['a'] || element_at(array(1, 2), -1)",
    "headers[0].KEY || struct(headers[0].KEY).Key || from_json(value, 'Id int')['iD']",
    "cast(null as decimal(9, 2)) is not true",
    "format_string('%s-%05d', key, offset) || printf('%s', value)",
    "printf('%-8X %o%% %.2f %e %g %b %c %s %<s %1$,d', 10, 8, 1.5D, 2D, 3D, true, 65, key)",
    "substr(value, -2) || left(value, 1) || reverse(value)",
    "cast(from_json(value, 'id bigint').id as string) || string(size(split(value, ',')))",
    "if(key = '7', value, key)::binary::string",
    "'${env:HOME}' = concat('$', '{env:HOME}') || ''",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_expressions_pass_and_stay(text: str) -> None:
    """Story: what a contract needs. What Spark gets of it is accepted again, as it is."""
    sql = spark_sql(text)
    assert stored_sql(sql) == sql and "${" not in sql


def test_spark_gets_the_own_name_of_each_field() -> None:
    """Story: a contract takes the fields of structs by names in other letters. A key of a map is no
    name, and stays."""
    assert spark_sql("headers[0].KEY || headers.Value[0]") == (
        "(`headers`[0].`key` || `headers`.`value`[0])"
    )
    assert (
        spark_sql("struct(headers[0].KEY).key") == "named_struct('KEY', `headers`[0].`key`).`KEY`"
    )
    assert spark_sql("from_json(value, 'Id int')['iD']") == "from_json(`value`, 'Id int')['Id']"
    assert spark_sql("map('\u00c4', 1)['\u00e4']") == "map('\u00c4', 1)['\u00e4']"


SEARCHES = (
    *("startswith(value, key)", "contains('abc', value)", "trim(value)", "find_in_set(key, value)"),
    *(r"value rlike r'^foo\b'", r"substr(value, 1, 1000) rlike r'\bfoo\b'"),
    *(r"value rlike r'(?<!\w)foo(?!\w)'", r"value rlike r'(?<=ab|c{3})\R'"),
    *("parse_url(value, 'QUERY', 'order_id')", "get_json_object(value, '$.a[*].b')"),
    *("to_number(value, '9999')", "to_number(substr(value, 1, 100), '9,999')"),
    *(
        "cast('true' as boolean)",
        "cast(substr(value, 1, 20) as boolean)",
        "(value = 'true') = true",
    ),
    "exists(split(field('tags'), ','), x -> x = field('main'))",
    *(
        "array_contains(headers.key, key)",
        "exists(split(substr(value, 1, 100), ','), x -> x = key)",
    ),
    "coalesce(nvl(ifnull(coalesce(key, value), topic), 'a'), nvl(value, 'c'), '')",
    "exists(array('a', 'b'), x -> value = x and exists(headers, h -> h.key = x))",
    "exists(split(value, ','), x -> x = topic or x = '7')",
    *("map('a', 1)[value]", "map(1, 'a')[cast(value as int)]", "from_json(value, 'a int')['a']"),
)


@pytest.mark.parametrize("text", SEARCHES)
def test_searches_of_limited_size_pass(text: str) -> None:
    """Story: a contract looks for a literal, or for part of another field. None is refused."""
    assert check_expression(text) == text


@given(
    st.lists(st.sampled_from((*r"\QEcxuNpbRk0[]^&(){}|?:*+aZ1i", "\\\\")), max_size=14).map("".join)
)
@example(r"\c\QX[\E|a*b]")
@settings(max_examples=1_000, deadline=None)
def test_java_sees_no_quotation_that_the_parser_does_not_see(pattern: str) -> None:
    r"""Story: Java replaces `\Q...\E` before it parses a pattern. It takes characters as pairs
    behind each backslash, and as nothing else. No pattern that passes has a pair that is not on the
    list of escapes, whatever stands around it."""
    try:
        pattern_cost(pattern)
    except ValueError:
        return
    pairs = re.findall(r"\\(.)", pattern, re.DOTALL)
    letters = {second for second in pairs if second.isalnum()}
    assert letters <= set("dDwWsShHvVtnrfaepPxubBAGZzR"), pattern
    assert "(?i" not in pattern[1:], pattern


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (r"\c\QX[\E|a*b]", r"has the escape \\c, which is not allowed"),
        (r"\Qa.b\E", r"has the escape \\Q, which is not allowed. Write the character itself"),
        (r"[\b]", r"has the escape \\b, which is not allowed in a class"),
        ("a(?i)b", r"changes flags, which is not allowed. Write \(\?i\)"),
    ],
)
def test_the_refusal_of_an_escape_says_what_to_write(pattern: str, says: str) -> None:
    """Story: a pattern has what Java and the parser might read differently."""
    with pytest.raises(ValueError, match=says):
        pattern_cost(pattern)


def test_the_refusal_of_a_boundary_says_what_to_write() -> None:
    r"""Story: a pattern has `\b`, and the message says what to write."""
    with pytest.raises(ValueError, match=r"write \(\?<!\\w\)"):
        check_expression(r"value rlike r'\bfoo'")


_TEXTS = st.sampled_from(("key", "value", "topic", "'ab'", "headers[0].key", "upper(value)"))
_NUMBERS = st.sampled_from(("offset", "partition", "length(value)", "3", "size(headers)"))
_LITERALS = st.sampled_from(("'a'", "','", "''", "'ab'", "'\\u00e9'"))
_SMALL = st.integers(0, 9).map(str)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arrays = st.one_of(
        st.builds("split({}, '{}')".format, inner, st.sampled_from((",", "", "[a-c]"))),
        st.builds("regexp_extract_all({}, '[^,]', 0)".format, inner),
        st.builds("array({}, {})".format, inner, inner),
        st.builds("transform(split({}, ','), x -> x || {})".format, inner, _LITERALS),
        st.builds("filter(split({}, ''), x -> x > {})".format, inner, _LITERALS),
        st.builds("transform(sequence(1, {}), x -> substr({}, x, 9))".format, _SMALL, inner),
    )
    return st.one_of(
        st.builds("({} || {})".format, inner, inner),
        st.builds("concat({}, {}, {})".format, inner, inner, _NUMBERS),
        st.builds("repeat({}, {})".format, inner, _SMALL),
        st.builds("lpad({}, {}, {})".format, inner, _SMALL, inner),
        st.builds("replace({}, {}, {})".format, inner, _LITERALS, _LITERALS),
        st.builds("regexp_replace({}, '{}', {})".format, inner, st.just("[a-c]?"), _LITERALS),
        st.builds("translate({}, {}, {})".format, inner, _LITERALS, _LITERALS),
        st.builds("array_join({}, {})".format, arrays, _LITERALS),
        st.builds("to_json({})".format, arrays),
        st.builds("concat_ws({}, {}, {})".format, _LITERALS, arrays, inner),
        st.builds("format_string('%s%9s', {}, {})".format, inner, inner),
        st.builds("substr({}, 1, {})".format, inner, _SMALL),
        st.builds("translate({}, {}, 'a')".format, inner, inner),
        st.builds("if({} = {}, {}, {})".format, inner, _LITERALS, inner, inner),
        st.builds("case when {} like {} then {} end".format, inner, _LITERALS, inner),
        *(
            st.builds(f"{name}({{}})".format, inner)
            for name in (
                "hex",
                "base64",
                "upper",
                "initcap",
                "reverse",
                "trim",
                "url_encode",
                "md5",
            )
        ),
    )


EXPRESSIONS = st.recursive(_TEXTS, _grown, max_leaves=6)


def is_accepted(text: str) -> bool:
    try:
        return bool(check_expression(text))
    except ValueError as refusal:
        if re.search("as large as|the square|bytes|another variable|ns for each", str(refusal)):
            return False
        raise


@settings(max_examples=50, deadline=None)
@given(EXPRESSIONS.filter(is_accepted))
def test_what_spark_gets_is_accepted_and_stays(text: str) -> None:
    """Story: evidence keeps what Spark got, and `verify` checks it again."""
    sql = spark_sql(text)
    assert stored_sql(sql) == sql
    assert measured_size(sql) == measured_size(text)


MOMENTS = st.builds(
    "{}{}{}".format,
    st.sampled_from(("", " ", "\t")),
    st.sampled_from(("now", "NOW", "Today", "epoch", "tomorrow", "yesterday", "12:00", "T12:00")),
    st.sampled_from(("", " ", " UTC", " +01:00")),
)


def _spelled(moment: str) -> st.SearchStrategy[str]:
    middle = len(moment) // 2
    escaped = "".join(f"\\u{ord(sign):04x}" for sign in moment)
    return st.sampled_from(
        (
            f"'{moment}'",
            f'"{moment}"',
            f"r'{moment}'",
            f"'{escaped}'",
            f"('{moment}')",
            f"'{moment[:middle]}' '{moment[middle:]}'",
            f"concat('{moment[:middle]}', '{moment[middle:]}')",
            f"('{moment[:middle]}' || '{moment[middle:]}')",
            f"lower(upper('{moment}'))",
            f"reverse('{moment[::-1]}')",
            f"array('{moment}')[0]",
            f"map('a', '{moment}')['a']",
            f"named_struct('a', '{moment}').a",
            f"if(true, '{moment}', 'x')",
            f"nvl(null, '{moment}')",
            f"case when key = 'x' then '{moment}' else '{moment}' end",
            f"filter(array('{moment}'), x -> true)[0]",
            f"from_json('[\"{moment}\"]', 'array<string>')[0]",
            f"cast(cast('{moment}' as binary) as string)",
            f"substr(typeof(named_struct('{moment}', 1)), 8, {len(moment)})",
        )
    )


_AS_TIMES = st.sampled_from(
    (
        *(
            "{}::timestamp",
            "cast({} as timestamp)",
            "try_cast({} as timestamp_ntz)",
            "timestamp({})",
        ),
        *("to_timestamp({})", "try_to_timestamp({})", "hour({})", "minute({})", "second({})"),
        *("date_format({}, 'HH')", "date_trunc('hour', {})", "timestamp = {}", "{} < timestamp"),
        *("timestamp in ({})", "timestamp between timestamp and {}", "coalesce(timestamp, {})"),
        *("greatest({}, timestamp)", "if(key = 'x', {}, timestamp)", "array(timestamp, {})"),
        *("case when true then timestamp else {} end", "case timestamp when {} then 1 end"),
        *("array_contains(array(timestamp), {})", "array_position(array(timestamp), {})"),
        *("nullif(timestamp, {})", "{} <=> timestamp", "timestamp is distinct from {}"),
        *("transform(array({}), x -> x::timestamp)", "exists(array({}), x -> x > timestamp)"),
        *("map(timestamp, 1)[{}]", "map_contains_key(map(timestamp, 1), {})", "timestamp - {}"),
        *("named_struct('a', timestamp) = named_struct('a', {})", "unix_millis({})"),
    )
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_spelling_of_the_moment_is_accepted(data: st.DataObject) -> None:
    """Story: the time of the check is a text, in many spellings, and becomes a time in many
    ways."""
    text = data.draw(_AS_TIMES).format(data.draw(data.draw(MOMENTS.map(_spelled))))
    with pytest.raises(ValueError, match=REFUSALS):
        check_expression(text)


def test_every_function_has_a_test_of_its_arguments() -> None:
    """Story: a function is called with no argument, and with too many."""
    for name in FUNCTIONS:
        for arguments in ("", ", ".join(["key"] * 201)):
            with pytest.raises(ValueError, match=REFUSALS):
                check_expression(f"{name}({arguments})")


@pytest.mark.parametrize(
    "text",
    [
        *("1e600000000BD > 0", "offset = -1e-600000000BD", "timestamp_seconds(1E+0001000BD) = 1"),
        *("from_json(value, 'a decimal(10,2)').a > 0", "from_json(value, 'a array<dec>').a[0] > 0"),
        *("cast(split(value, ',') as array<decimal(3,1)>)[0] > 0", "decimal(headers[0].value) > 0"),
        *("cast(coalesce(value, offset) as decimal(9,2)) > 0", "round(offset * 1.5D, offset) > 0"),
        *(f"{name}(offset * 1.5D, {n}) > 0" for name in ("round", "bround", "floor", "ceil")
          for n in (600_000_000, -600_000_000, 401)),
    ],
)  # fmt: skip
def test_a_number_of_millions_of_digits_is_refused(text: str) -> None:
    """Story: a few characters are a decimal that Spark writes out with all of its digits."""
    with pytest.raises(ValueError, match=r"digits|decimal"):
        check_expression(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("cast(value as decimal(10,2))", 1),
        ("value::numeric", 1),
        ("try_cast(field('a') as dec(9,2))", 1),
        ("decimal(value)", 1),
        ("ceil(value, 2) = floor(substr(value, 1, 50), -2)", 2),
        ("to_char(key, '9')", 1),
        ("exists(split(value, ','), x -> cast(x as decimal(9,2)) > 0)", 1),
        ("cast('7' as decimal(1,0))", 1),
        ("cast(value as decimal(19,0)) * cast(string(decimal(key)) as decimal(19,0))", 3),
        ("ceil(value)", 1),
        ("cast(length(value) as decimal(9,2))", 0),
        ("cast(timestamp as decimal(19,2))", 0),
        ("cast(1.5D as decimal(9,2))", 0),
    ],
)
def test_a_decimal_is_made_of_a_short_text_alone(text: str, count: int) -> None:
    """Story: one record of 12 bytes is 1e-600000000. Each text passes a pattern before Spark makes
    a decimal of it, and what evidence keeps stays the same."""
    sql = spark_sql(text)
    assert sql.count("regexp_extract(") == count
    assert stored_sql(sql) == sql and stored_sql(stored_sql(sql)) == sql


def test_texts_of_decimals_pass_and_long_ones_do_not() -> None:
    pattern = re.compile(expressions.DECIMAL_TEXT)
    for text in ("7", " -1.50\t", "+.5", "1.", "1e3", "-1.5E-300", "0" * 300, "\x0b1\x00"):
        assert pattern.search(text), text
    for text in ("1e-600000000", "1e1000", "1e+0001000", "9" * 301, "x", "1 2", "0x7", "\u00a01"):
        assert not pattern.search(text), text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *((f"{name}(value)", 1) for name in ("double", "float", "sqrt", "abs", "isnan", "log")),
        *((f"{name}(value, key)", 2) for name in ("pow", "mod", "pmod", "nanvl", "try_divide")),
        *((f"cast(value as {name})", 1) for name in ("double", "float", "real")),
        *(
            (f"value {sign} 1.5", 1)
            for sign in ("+", "/", "%", "=", "<=>", ">", "is distinct from")
        ),
        *(("-value", 1), ("+field('a')", 1), ("value * 2 / key", 1), ("value / key / 2", 2)),
        *(("try_cast(value as double)", 1), ("value::float", 1), ("round(value, 2)", 1)),
        *(("value in (1.5, key, '2')", 2), ("value between 1 and 1.5", 1)),
        *(("case value when 1.5 then 1 end", 1), ("case when true then 1.5 else value end", 1)),
        *(
            (f"{name}(value, 1.5D)", 1)
            for name in ("coalesce", "nvl", "nullif", "array", "try_add")
        ),
        *(("if(value is null, 1.5D, value)", 1), ("nvl2(key, value, 1.5D)", 1)),
        *(("map(1.5D, 1, value, 2)", 1), ("exists(split(value, ','), x -> x > 1.5)", 1)),
        *(
            ("zip_with(array(1D), split(value, ','), (a, b) -> a = b)", 1),
            ("value = length(key)", 1),
        ),
        *(("value > 99999999999999999999", 1), ("sqrt('123456789012345678901')", 1)),
        *(("double(string(double(value)) || key)", 2), ("double(decimal(value))", 1)),
        *(("value > 7", 0), ("field('a') * 2 + 1 > offset", 0), ("value = 'x'", 0)),
        *(("double(length(value))", 0), ("double(substr(value, 1, 20))", 0), ("'1.5' > offset", 0)),
        *(
            ("double(substr(value, 1, 21))", 1),
            ("concat(value, 1.5D)", 0),
            ("bigint(value) / 2", 0),
        ),
        *(("substr(value, 1, 9) > '1.5'", 0), ("split(value, ',')[0] || 1.5D", 0)),
    ],
)
def test_a_double_is_made_of_a_short_text_alone(text: str, count: int) -> None:
    """Story: a producer sends a megabyte of capital sigmas, of which a contract makes a double:
    Spark makes the text lower case, for an hour. Each text passes a pattern before, written or not,
    and what evidence keeps stays the same."""
    sql = spark_sql(text)
    assert sql.count("regexp_extract(") == count, sql
    assert stored_sql(sql) == sql


def test_texts_of_doubles_pass_and_long_ones_do_not() -> None:
    pattern = re.compile(NUMBER_TEXT)
    for text in ("7", " -1.50\t\n", "1e-999999", "NaN", "-Infinity", "0x1.8p3", "1d", "\x7f1\x00"):
        assert pattern.search(text), text
    for text in ("9" * 301, "\u03a3" * 2, "1 2", "1\u2028", "\u00a01", "\u0661"):
        assert not pattern.search(text), text


@pytest.mark.parametrize(
    "text",
    [
        *("contains(value, {})", "instr(value, {}) > 0", "locate({}, value) > 0"),
        *("position({}, value) > 0", "replace(value, {}) = ''", "replace(value, {}, 'x') = ''"),
        *("split_part(value, {}, 1) = ''", "substring_index(value, {}, 1) = ''"),
        *(f"{name}({{}}, value) = ''" for name in ("trim", "btrim", "ltrim", "rtrim")),
    ],
)
def test_a_search_for_a_long_text_is_refused(text: str) -> None:
    """Story: Spark looks for the whole key at each place of the value: hours for a megabyte."""
    with pytest.raises(ValueError, match="grows with the square of a record"):
        check_expression(text.format("key"))
    for short in ("substr(key, 1, 100)", "'abc'", "topic"):
        check_expression(text.format(short))


def test_the_refusal_of_a_column_in_a_lambda_says_what_to_write() -> None:
    """Story: a lambda compares each header with the key. A shorter key is copied whole, too."""
    for text in ("key", "substr(key, 1, 100)"):
        with pytest.raises(ValueError, match="Use it outside, as in array_contains"):
            check_expression(f"exists(headers, h -> h.key = {text})")
