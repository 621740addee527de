"""Contracts: what they say, what is refused and on which line, and which expressions may reach
Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicproof.backend.contracts.contract import make_contract, read_contract
from topicproof.backend.contracts.expressions import check_expression
from topicproof.backend.errors import ContractError
from topicproof.backend.settings import ROOT
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Order
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.thresholds import Thresholds

TOPICS = "source: {topic: a}\nsink: {topic: b}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "contract.yaml"
    path.write_text(text)
    return path


EXAMPLES = sorted(
    path.name for path in (ROOT / "contracts").glob("*.yaml") if path.name != "yours.yaml"
)
"""yours.yaml is a plan."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_contracts(name: str) -> None:
    """Story: somebody copies an example. It is read without a complaint."""
    contract = read_contract(ROOT / "contracts" / name)
    assert contract.source.topic and contract.kinds


def test_a_contract_says_what_is_asked() -> None:
    """Story: the example of another program's topics. Each field arrives where it is judged."""
    contract = read_contract(ROOT / "contracts" / "orders.yaml")
    assert (contract.by, contract.expected.kind, contract.order) == (
        Identity.KEY,
        Expect.ONE_TO_MANY,
        Order.NONE,
    )
    match, warn = Match("json:$.id", "header:order-id"), Thresholds(pending=0)
    assert contract.terms({0: 7}) == ContractTerms(
        match, None, {0: 7}, None, warn, group=contract.group
    )
    assert contract.kinds == (
        "duplicate",
        "gap",
        "aborted_read",
        "phantom",
        "offset_ahead",
        "offset_behind",
    )


def test_one_identity_for_both_sides() -> None:
    """Story: `identity: value` is short for the value on both sides."""
    fields = {"source": {"topic": "a"}, "sink": {"topic": "b"}, "identity": "value"}
    assert make_contract(fields).terms(None).match == Match("value", "value")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sorce: {topic: a}\nsink: {topic: b}", "line 1: sorce: there is no such field."),
        (
            "source: {topic: a}\nsink: {topic: a}",
            "line 2: sink.topic: source and sink are the same topic.",
        ),
        ("source: {topic: a}\nsink: {}", "line 2: sink.topic: name the topic."),
        (
            "source: {topic: a}\nsink:\n  topics: [b, a]",
            "line 3: sink.topics: source and sink are the same topic.",
        ),
        (
            "source: {topic: a}\nsink: {topics: [b, b]}",
            "line 2: sink.topics: a topic appears twice.",
        ),
        (
            "source: {topic: a, topics: [c, d]}\nsink: {topic: b}",
            "line 1: source.topics: give either topic or topics, not both.",
        ),
        (
            TOPICS + "dead_letters: {topic: b, origin: connect}",
            "line 3: dead_letters.topic: the dead letters are in the source or the sink itself.",
        ),
        (
            TOPICS + "dead_letters: {topic: b.dlq, origin: flink}",
            "line 3: dead_letters.origin: expected kip-1191, connect, streams, spring, {header:",
        ),
        (
            TOPICS + "dead_letters: {topic: b.dlq, origin: {header: id}}",
            "line 3: dead_letters.origin: a dead letter that holds an identity needs an",
        ),
        (TOPICS + "dead_letters: {topic: null, origin: spring}", "line 3: dead_letters.topic: Inp"),
        (
            "source: {topic: a}\nsinks: [{topic: b}]\ndead_letters: {topic: c, origin: spring}",
            "line 3: dead_letters: dead letters belong to one sink. Write a contract for each",
        ),
        (
            "source: {topic: a, cluster: x}\nsink: {topic: b}\nidentity: key\n"
            "dead_letters: {topic: c, origin: spring}",
            "line 4: dead_letters: dead letters of two clusters are not judged yet.",
        ),
        (
            "sink: {topic: b}\nunique: key\ndead_letters: {topic: c, origin: spring}",
            "line 3: dead_letters: a contract with unique is about the sink alone.",
        ),
        (
            TOPICS + "warn: {dead_letter_share: 0.1}",
            "line 3: warn.dead_letter_share: no dead letters are named to warn of.",
        ),
        (TOPICS + "require: [both_outcomes]", "line 3: require.0: both_outcomes needs a dead_let"),
        (TOPICS + "guarantee: twice", "line 3: guarantee: Input should be"),
        (
            TOPICS + "identity: kee",
            "line 3: identity.source: expected key, value, {header: NAME}, {json: $.path}, {field:",
        ),
        (
            TOPICS + "identity:\n  source: key\n  sink: {jsn: $.a}",
            "line 5: identity.sink: expected key",
        ),
        (
            TOPICS + "identity: {json: id}",
            "line 3: identity.source: the path 'id' does not begin with $, as $.id does.",
        ),
        (
            TOPICS + "identity: {json: $..id}",
            "line 3: identity.source: a path cannot search all levels (..)",
        ),
        (TOPICS + "value: reflect('a','b')", "line 3: value: the function reflect is not allowed"),
        (
            TOPICS + "value: cast(value as",
            "line 3: value: the expression 'cast(value as' does not parse",
        ),
        (
            TOPICS + "expect: one_to_many",
            "line 3: expect: one_to_many needs a count of outputs per input.",
        ),
        (
            TOPICS + "expect: one_to_many\ncount: 2\nvalue: key",
            "line 5: value: one expression cannot give",
        ),
        (
            TOPICS + "expect: zero_or_one\ncount: 1\nfiltered: unchecked",
            "line 5: filtered: only zero_or_one without a count leaves open what was filtered.",
        ),
        (TOPICS + "filtered: unchecked", "line 3: filtered: only zero_or_one without a count"),
        (TOPICS + "expect: zero_or_one\nfiltered: yes", "line 4: filtered: Input should be"),
        (TOPICS + "require: [duplicates]", "line 3: require.0: there is no kind 'duplicates'."),
        (TOPICS + "require: []", "line 3: require: Tuple should have at least 1 item"),
        (
            TOPICS + "require: [offset_ahead]",
            "line 3: require.0: offset_ahead needs a group to compare with.",
        ),
        (
            TOPICS + "order: none\nrequire: [order]",
            "line 3: order: order is required, but none is promised.",
        ),
        (
            TOPICS + "warn: {aborted_share: 2}",
            "line 3: warn.aborted_share: Input should be less than or equal to 1.",
        ),
        (TOPICS + "warn: {pendng: 1}", "line 3: warn.pendng: there is no such field."),
        (TOPICS + "guarantee: [", "not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    """Story: a contract with one mistake. The sentence names the line and the field, and nothing is
    judged."""
    with pytest.raises(ContractError) as told:
        read_contract(written(tmp_path, text))
    assert says in str(told.value) and told.value.exit_code == 3


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Story: a contract with mistakes in five fields, one of them misspelt, and two fields that
    disagree. All are listed, by line, and none that only follows from another."""
    text = """guarantee: twice
sorce: {topic: a}
sink: {topic: a}
identity: {source: {json: $..id}, sink: kee}
count: reflect('a', 'b')
order: none
require: [order, offset_ahead]
"""
    with pytest.raises(ContractError) as told:
        read_contract(written(tmp_path, text))
    assert [(one.line, one.field) for one in told.value.mistakes] == [
        (1, "guarantee"),
        (2, "sorce"),
        (4, "identity.source"),
        (4, "identity.sink"),
        (5, "count"),
        (6, "order"),
        (7, "require.1"),
    ]
    with pytest.raises(ContractError) as told:
        read_contract(written(tmp_path, TOPICS + "require: [duplicates]"))
    assert [one.field for one in told.value.mistakes] == ["require.0"]
    with pytest.raises(ContractError) as told:
        read_contract(written(tmp_path, text))
    assert str(told.value).splitlines() == list(told.value.sentences)
    assert told.value.sentences[5] == (
        f"{tmp_path / 'contract.yaml'}, line 6: order: order is required, but none is promised."
    )


def test_a_field_that_is_missing_is_told_beside_another_unknown_one(tmp_path: Path) -> None:
    """Story: a side is missing, and a field of another name is there. Nothing was misspelt, so both
    are listed."""
    with pytest.raises(ContractError) as told:
        read_contract(written(tmp_path, "source: {topic: a}\ncolour: red\n"))
    assert [(one.line, one.field) for one in told.value.mistakes] == [(2, "colour"), (None, "sink")]


@pytest.mark.parametrize(
    "text",
    [
        "cast(cast(value as bigint) * cast(value as bigint) as string)",
        "cast(substring_index(key, '.', -1) as int) % 2 = 1",
        "get_json_object(value, '$.id') || '-' || offset",
        "size(filter(headers, h -> h.key = 'x'))",
        "case when value like 'a%' then 1 else 0 end",
        "value in ('a', 'b') and not (key is null)",
        "try_cast(value as decimal(19,0)) between 1 and 5",
        r"regexp_extract(value, '(\\d+)', 1)",
        "headers[0].key = 'reflect(1)'",
    ],
)
def test_plain_expressions_pass(text: str) -> None:
    """Story: what a contract needs: numbers, texts, JSON, headers, conditions."""
    assert check_expression(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "reflect('java.lang.System', 'exit')",
            "java_method('a', 'b')",
            "try_reflect('a', 'b')",
            "REFLECT ('a', 'b')",
        ),
        *("`reflect`('a', 'b')", "reflect/**/('a', 'b')", "system.builtin.reflect('a', 'b')"),
        *("transform(headers, h -> reflect('a', 'b'))", "value || reflect('a', 'b')"),
        *(
            "(select 1)",
            "exists(select 1)",
            "key from numbers",
            "key, value",
            "key as name",
            "*",
            "key; drop table t",
        ),
        *(
            "count(*)",
            "sum(offset)",
            "row_number() over (order by offset)",
            "value -- comment",
            "value /*+ hint */",
        ),
        *(
            "rand()",
            "uuid()",
            "current_timestamp()",
            "current_timestamp",
            "current_user",
            "input_file_name()",
        ),
        *("unix_timestamp()", "UNIX_TIMESTAMP ( )", "timestamp 'now'", 'date"Today UTC"'),
        *("to_date(('tomorrow'))", "cast(' yesterday' as date)", "date('today') > date(value)"),
        *("version()", "read_files('/etc')", "kay", "", "a'b"),
    ],
)
def test_what_runs_code_or_is_no_plain_expression_never_reaches_spark(text: str) -> None:
    """Story: a contract comes from somebody else. Code, queries, files, and answers that change are
    refused."""
    with pytest.raises(ValueError, match=r"not allowed|not one plain|not parse|a record has"):
        check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        *("unix_timestamp(value)", "timestamp '2026-01-01 00:00:00'", "date(value)"),
        *("if(value = 'now', date(key), null)", "upper('date today')", "cast('now' as string)"),
    ],
)
def test_times_that_stay_the_same_are_allowed(text: str) -> None:
    assert check_expression(text) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("value rlike key", "a regular expression must be a literal text"),
        (
            "regexp_extract(value, concat('a', key), 0)",
            "a regular expression must be a literal text",
        ),
        ("`rlike`(value, key)", "a regular expression must be a literal text"),
        ("value regexp any ('a', 'b')", "is not allowed"),
        ("regexp(value, '(a+)+')", "repeats a repetition"),
        ("split(value, '(.*)*')", "repeats a repetition"),
        ("split(value, r'(?:x(\\d+y)?)*')", "repeats a repetition"),
        ("regexp_replace(value, '(a{2,})*?', '')", "repeats a repetition"),
        ("value rlike '[a'", r"a \[ has no \]"),
        ("value rlike '(a'", r"a \( has no \)"),
        ("value rlike 'a)'", r"a \) has no \("),
        ("value rlike '*a'", r"nothing precedes \*"),
        ("value rlike 'a|+'", r"nothing precedes \+"),
        ("value rlike 'a{,3}'", r"a { is not followed by a number"),
        ("value rlike 'a{3,2}'", r"\{3,2\} ends before it begins"),
        ("value rlike r'a\\y'", r"has the escape \\y, which is not allowed"),
        ("value rlike '(?'", r"begins with \(\? and an unknown character"),
        (f"value rlike '{'a' * 1_001}'", "has 1,001 characters; 1,000 are allowed"),
        ("repeat(value, 10001)", "the size 10,001 that repeat is given is above 10,000"),
        ("repeat(value, offset)", "the size that repeat is given must be a literal number"),
        ("space(1000000)", "the size 1,000,000 that space is given is above 10,000"),
        ("lpad(value, offset, '0')", "must be a literal number"),
        ("rpad(value, 2 * 3, '0')", "must be a literal number"),
        ("format_number(offset, 20000)", "the size 20,000 that format_number is given"),
        ("format_string('%20000d', offset)", "a format is wider than 10,000 characters"),
        ("printf(value, offset)", "a format must be a literal text"),
        ("size(sequence(1, offset))", "both ends of a sequence must be literal numbers"),
        ("sequence(-9999, 9999)", "ends of a sequence are more than 10,000 apart"),
        ("repeat(repeat(value, 200), 200)", "may become 200 times as large as its record"),
        (
            "transform(sequence(1, 200), one -> repeat(value, 200))",
            "may become 200 times as large as its record",
        ),
        ("lpad(str => value, len => 5)", "an argument cannot be named"),
        ("value" + " || value" * 1_200, "has 10,805 characters; 10,000 are allowed"),
        ("(" * 3_000 + "1" + ")" * 3_000, "nested too deeply"),
    ],
)
def test_an_expression_that_may_cost_too_much_is_refused(text: str, says: str) -> None:
    """Story: a pattern that never ends on some text, and a result of gigabytes. Both are refused
    before Spark."""
    with pytest.raises(ValueError, match=says):
        check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        r"value rlike r'^[\w.+-]+@[\w-]+\.[a-z]{2,}$'",
        r"regexp_replace(value, r'(?i)(?<year>\d{4})-(\d+)', '$1')",
        "transform(split(value, ','), item -> trim(item))",
        "split(substr(value, 1, 10000), r'\\s*,\\s*')",
        "value rlike '^(?:[^,]*,){12}'",
        "value rlike '^(a++b)*+'",
        "value rlike '^(?>ab)*+'",
        r"substr(value, 1, 400) rlike r'[]a]*+[^]]?[a-z&&[^b]]+\p{L}*\x{41}'",
        r"value rlike r'^\pL\P{Nd}[^\p{Punct}\p{Sc}]*+$'",
        "lpad(value, 30, '0') || rpad(key, 10000, ' ')",
        "transform(sequence(1, 10001), one -> one + 1)",
        "split_part(value, substr(key, 1, 100), 1)",
        "format_string('%05d', offset)",
    ],
)
def test_patterns_and_sizes_that_end_pass(text: str) -> None:
    """Story: patterns as people write them, and texts that are padded. None is refused."""
    assert check_expression(text) == text


APART = "source: {topic: a, cluster: east}\nsink: {topic: a}\n"


def test_topics_of_two_clusters_may_have_one_name(tmp_path: Path) -> None:
    """Story: a topic is mirrored under its own name. The contract names the source's cluster, or
    the command does; then records are matched by identity."""
    named = read_contract(written(tmp_path, f"{APART}identity: key\n"))
    assert named.across() and named.source.cluster == "east"
    same = "source: {topic: a}\nsink: {topic: a}\nidentity: value\n"
    told = read_contract(written(tmp_path, same), across=True)
    assert told.across(has_source_cluster=True) and not told.across()
    with pytest.raises(ContractError, match=r"line 2: sink\.topic: source and sink are the same"):
        read_contract(written(tmp_path, same))


def test_offsets_of_two_clusters_are_never_compared(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="identity: records of two clusters are matched by id"):
        read_contract(written(tmp_path, APART))
    with pytest.raises(ContractError, match="identity: records of two clusters are matched by id"):
        read_contract(written(tmp_path, TOPICS), across=True)


def test_each_sink_names_its_cluster_or_none_does(tmp_path: Path) -> None:
    """Story: one topic is mirrored to two clusters. A sink without a name would be looked for on
    the command's cluster."""
    source = "source: {topic: a, cluster: east}\nidentity: key\n"
    both = f"{source}sinks: [{{topic: a, cluster: west}}, {{topic: a, cluster: north}}]\n"
    each = read_contract(written(tmp_path, both)).each()
    assert [one.of.cluster for one in each] == ["west", "north"]
    assert all(one.across() for one in each)
    with pytest.raises(ContractError, match="line 3: sinks: some sinks name a cluster and others"):
        read_contract(
            written(
                tmp_path, both.replace(", cluster: north", "").replace("{topic: a}", "{topic: b}")
            )
        )


def test_a_contract_may_be_about_the_sink_alone(tmp_path: Path) -> None:
    """Story: somebody asks whether one topic, or two together, repeat an id. Nothing else is said,
    and the sink stands for the source too."""
    for sink in ("{topic: lines}", "{topics: [lines, more]}"):
        contract = read_contract(written(tmp_path, f"sink: {sink}\nunique: {{json: $.id}}\n"))
        assert contract.source == contract.sink and contract.kinds == ("duplicate",)
        terms = contract.terms(None)
        assert (terms.unique, terms.match) == (True, Match("json:$.id", "json:$.id"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("source: {topic: orders}", "line 3: source: a contract with unique is about the sink"),
        ("group: app", "line 3: group: a contract with unique is about the sink alone. Remove"),
        ("order: per_key", "line 3: order: a contract with unique is about the sink alone."),
        ("guarantee: at_least_once", "line 3: guarantee: a contract with unique is about the sink"),
        ("identity: {header: id}", "line 3: identity: a contract with unique is about the sink"),
        ("expect: zero_or_one", "line 3: expect: a contract with unique is about the sink alone."),
        ("require: [gap]", "line 3: require: a contract with unique is about the sink alone."),
    ],
)
def test_what_says_more_than_the_sink_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """Story: a contract about the sink alone names something of a source. The line says to remove
    it."""
    with pytest.raises(ContractError) as error:
        read_contract(written(tmp_path, f"sink: {{topic: lines}}\nunique: key\n{text}\n"))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sink: {topic: lines}\nunique: lineage\n", "line 2: unique: expected key, value"),
        ("sink: {topic: lines}\nunique: FILL_IN\n", "line 2: unique: choose what identifies"),
        ("sink: {topik: lines}\nunique: key\n", "sink.topik: there is no such field."),
        ("unique: key\n", "sink: a contract with unique is about one sink."),
        ("unique: key\nsinks: [{topic: a}, {topic: b}]\n", "sink: a contract with unique is about"),
    ],
)
def test_a_mistake_of_the_sink_alone_is_told_once(text: str, says: str, tmp_path: Path) -> None:
    """Story: the identity or the sink is wrong. One sentence says so, and none is about a source
    that nobody named."""
    with pytest.raises(ContractError) as error:
        read_contract(written(tmp_path, text))
    assert says in str(error.value) and "source" not in str(error.value)
