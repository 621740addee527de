"""Plans: what is refused, and with which words, before anything is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from topicproof.backend.errors import UsageError
from topicproof.backend.faults.fault import Kind
from topicproof.backend.faults.injecting import Faults, without_faults
from topicproof.backend.faults.kinds import KINDS, choices, parse_fault
from topicproof.backend.runs.plan import RunPlan, make_plan
from topicproof.backend.runs.plan_fields import DeliveryPlan
from topicproof.backend.sink.delivery_options import OPTIONS
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.yaml_fields import PLAN_FIELDS, read_yaml


def test_a_plan_round_trips_through_json() -> None:
    """Story: a plan is stored with its run. Read back, it is the same plan."""
    plan = make_plan(
        {
            "records": 5,
            "per_transaction": 7,
            "faults": ["crash@transaction=3"],
            "source": {"isolation": "read_uncommitted"},
        }
    )
    document = plan.model_dump(mode="json", by_alias=True)
    assert (RunPlan.model_validate(document), document["per_transaction"]) == (plan, 7)


def test_the_sink_knows_every_option_that_a_plan_sets() -> None:
    """Story: a plan asks for a certain delivery and for faults. The sink takes each option under
    its own name, with the plan's value."""
    plan = make_plan(
        {
            "guarantee": "at_least_once",
            "idempotence": False,
            "lineage": "off",
            "judged": False,
            "per_transaction": 7,
            "commit_interval_ms": 30,
            "transaction_timeout_ms": 5_000,
            "attempts_max": 4,
            "offsets_forced": True,
            "abort_probability": 0.25,
            "seed": 9,
            "slow_motion_ms": 11,
        }
    )
    options = {
        "kafka.bootstrap.servers": "localhost:1",
        "group": "g",
        "transactionalIdPrefix": "p",
        **plan.sink_options,
    }
    sink = SinkOptions.parse(without_faults(options))
    delivery = {name: getattr(plan, name) for name in DeliveryPlan.model_fields}
    of_sink = vars(sink) | vars(sink.delivery)
    assert {name: of_sink[name] for name in delivery} == delivery
    assert Faults.parse(options) == Faults((), abort_probability=0.25, seed=9, slow_motion_ms=11)


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.type is int])
def test_plan_and_sink_refuse_the_same_numbers(name: str) -> None:
    """Story: somebody writes the same number into a plan and into the options of a sink. Both take
    the least one, and both refuse the one below it."""
    option = to_camel(name)
    least = OPTIONS[name].least
    required = {"kafka.bootstrap.servers": "localhost:1", "group": "g"}
    required["transactionalIdPrefix"] = "p"
    sink = SinkOptions.parse({**required, option: str(least)})
    assert getattr(sink.delivery, name) == getattr(make_plan({name: least}), name) == least
    with pytest.raises(UsageError, match=option):
        SinkOptions.parse({**required, option: str(least - 1)})
    with pytest.raises(UsageError, match=OPTIONS[name].plan_name):
        make_plan({name: least - 1})


def test_every_fault_that_a_form_offers_is_one_that_a_plan_takes() -> None:
    """Story: somebody picks each fault on the page, in transaction 2, where transactions are
    open."""
    offered = choices()
    assert {choice.kind.name for choice in offered.values()} == {kind.name for kind in KINDS}
    for choice in offered.values():
        (fault,) = make_plan({"faults": [choice.at(2, Step.PRODUCED)]}).faults
        assert parse_fault(fault).transaction == 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_fault_is_written_in_its_shortest_form(kind: Kind) -> None:
    """Story: a fault is given with every key. Its text omits the defaults, and means the same
    fault."""
    chosen = {key.name: key.words[-1] if key.words else str(key.least + 1) for key in kind.keys}
    fault = parse_fault(
        f"{kind.name}@{','.join(f'{name}={value}' for name, value in chosen.items())}"
    )
    assert fault.place == chosen
    assert parse_fault(str(fault)) == fault
    assert str(parse_fault("crash@transaction=03,step=produced")) == "crash@transaction=3"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"scenario": "cubes"}, "Unknown scenario 'cubes'. Known: squares"),
        ({"abort_probability": 2}, "abort_probability: Input should be less than or equal to 1"),
        ({"records": -1}, "records: Input should be greater than or equal to 1"),
        ({"faults": ["flood@noon"]}, "Unknown fault 'flood@noon'. Known: crash@transaction=N"),
        (
            {"faults": ["hijack@transaction=2"], "guarantee": "at_least_once"},
            "at_least_once has none",
        ),
        (
            {"faults": ["crash@transaction=2,step=committing"], "guarantee": "at_most_once"},
            "at_most_once has none",
        ),
        ({"faults": ["error@transaction=2,step=committing"]}, "unknown step 'committing'"),
        ({"faults": ["crash"]}, "Unknown fault 'crash'"),
        ({"faults": ["crash@"]}, "expected key=value, each key once, but found ''"),
        ({"faults": ["crash@step=begun"]}, "transaction is missing; add transaction=N"),
        (
            {"faults": ["crash@transaction=0"]},
            "transaction is '0'; it must be a whole number from 1",
        ),
        (
            {"faults": ["crash@transaction=2,transaction=3"]},
            "each key once, but found 'transaction=3'",
        ),
        (
            {"faults": ["crash@transaction=1,colour=red"]},
            "unknown key 'colour'. crash takes transaction=N, step=",
        ),
        (
            {"faults": ["crash@transaction=1,step=lunch"]},
            "unknown step 'lunch'. Known: begun, producing",
        ),
        (
            {"guarantee": "twice"},
            "guarantee: Input should be 'exactly_once', 'at_least_once' or 'at_most_once'",
        ),
        ({"idempotence": False}, "exactly_once needs idempotence. Choose at_least_once"),
        (
            {"guarantee": "at_least_once", "acks": "0"},
            "at_least_once needs acks=all. Choose at_most_once",
        ),
        (
            {"lineage": "off", "scenario": "merge"},
            "lineage: without lineage a run is judged by key, which needs one",
        ),
        (
            {"lineage": "off", "scenario": "totals"},
            "lineage: without lineage a run is judged by key, which needs one",
        ),
        (
            {"lineage": "off", "source": {"topic": "a"}},
            "let the run fill its source, or say judged: false.",
        ),
        ({"lineage": "off", "faults": ["crash@transaction=2"]}, "lineage: faults needs lineage"),
        (
            {"lineage": "off", "sink": {"dead_letters": True}},
            "lineage: sink.dead_letters needs lineage",
        ),
        ({"lineage": "off", "scenario": "table"}, "lineage: table needs lineage"),
        (
            {"lineage": "packed"},
            "lineage: packed was removed. Write record, which names the input in headers of each"
            " record, or off",
        ),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        (
            {"source": {"topic": "a"}, "sink": {"topic": "a"}},
            "source and sink are the same topic, a",
        ),
        ({"source": {"topic": "a/b"}}, "a topic's name has"),
        (
            {"source": {"options": {"minPartitions": "8"}}},
            "minPartitions is refused: it splits a source partition",
        ),
        (
            {"source": {"options": {"maxRecordsPerPartition": "8"}}},
            "maxRecordsPerPartition is refused",
        ),
        (
            {"source": {"options": {"failOnDataLoss": "false"}}},
            "failOnDataLoss is refused: false loses",
        ),
        ({"source": {"options": {"kafka.isolation.level": "x"}}}, "set source.isolation instead"),
        ({"source": {"options": {"kafka.max.poll.records": "${f:a}"}}}, "needs a whole number"),
        *(
            ({"source": {"options": {name: "1"}}}, f"{name} is refused: a plan sets only how much")
            for name in (
                "kafka.sasl.kerberos.kinit.cmd",
                "kafka.config.providers",
                "kafka.metric.reporters",
                "kafka.security.providers",
                "kafka.ssl.engine.factory.class",
                "kafka.sasl.jaas.config",
                "kafka.sasl.login.callback.handler.class",
                "kafka.bootstrap.servers",
                "KAFKA.Client.Id",
                "groupIdPrefix",
                "path",
            )
        ),
    ],
)
def test_a_bad_plan_is_refused_with_the_field_and_the_reason(
    fields: dict[str, Any], says: str
) -> None:
    """Story: somebody writes a plan that cannot be run soundly. One sentence names the field and
    why."""
    with pytest.raises(UsageError) as refused:
        make_plan(fields)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("file:///ada#/../ada/offsets", "file:///ada?/../ada", "file:///ada/../root"),
        *("file:///ada/..", "file:///ada/./c", "file:///ada/%2e%2e/root", "file:///ada\\c"),
        *("file:////ada", "file:///ada//c", "file:///ada\n", "file:///ada/\0", "file:///a b"),
        *("file://root/ada", "s3a://../c", "/ada", "ada:", "${env:HOME}:/ada", "file:/{a,b}"),
    ],
)
def test_checkpoints_name_one_place_for_every_reader(url: str) -> None:
    """Story: the author of a plan names a place that Spark, Python and pyarrow read differently,
    so that one of them looks at a folder which another did not write."""
    with pytest.raises(UsageError, match="expected a URL that Spark can write"):
        make_plan({"scenario": "totals", "checkpoints": url})


@pytest.mark.parametrize(
    "url", ["file:///var/c-1/d.e", "file:/ada", "s3a://b", "hdfs://n:8020/a", "abfss://c@a.net/x"]
)
def test_checkpoints_may_lie_wherever_spark_writes(url: str) -> None:
    """Story: the places that people use."""
    assert make_plan({"scenario": "totals", "checkpoints": f"{url}/"}).checkpoints == url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("records: [1", "line 1: not YAML"),
        ("- squares", "expected a mapping"),
        ("just words", "expected a mapping"),
    ],
)
def test_a_plan_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Story: the plan file is broken. The error names the file, and the line where there is one."""
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_yaml(path, PLAN_FIELDS)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (
            "scenario: squares\nrecords: 10\nfaults:\n  - crash@transaction=1\n  - flood@noon\n",
            5,
            "Unknown fault",
        ),
        ("records: 10\nabort_probability: 2\n", 2, "less than or equal to 1"),
        ("# a comment\n\nrecords: -1\n", 3, "greater than or equal to 1"),
        ("records: 10\nscenario: cubes\n", 2, "Unknown scenario 'cubes'. Known: squares"),
        (
            "source: {topic: a}\nsink:\n  partitions: 3\n  topic: a\n",
            4,
            "the same topic, a. Choose another sink",
        ),
        ("records: 10\nrecodrs: 10\n", 2, "recodrs: Extra inputs are not permitted"),
        ("source:\n  topic: a\n  options: {minPartitions: '8'}\n", 1, "minPartitions is refused"),
        ("records: 10\nseed: 1\nrecords: 20\n", 3, "records appears twice. Keep one"),
        ("scenario: yours\nsource: {topic: a}\n", 1, "yours needs a value"),
        (
            "records: 10\nvalue: upper(value)\n",
            2,
            "squares takes no expression. Choose the scenario yours",
        ),
        (
            "value: value\nscenario: yours\n",
            2,
            "yours fills no topic: name an existing one in source.topic",
        ),
        ("checkpoints: s3a://KEY:hid@bucket/c\n", 1, "checkpoints: the address has a password"),
        ("acks: '0'\n", 1, "exactly_once needs acks=all"),
        ("guarantee: at_least_once\nfaults:\n- hijack@transaction=1\n", 3, "strikes transactions"),
        (
            "scenario: yours\nsource: {topic: a}\nvalue: reflect('a', 'b')\n",
            3,
            "the function reflect is not allowed",
        ),
        ("files:\n  timeout_s: 0\n", 2, "files.timeout_s: Input should be greater than 0"),
    ],
)
def test_a_bad_plan_file_is_refused_with_the_line(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    """Story: a plan file has a mistake. The error names its line, the field and what to do."""
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        make_plan(read_yaml(path, PLAN_FIELDS))
    assert str(refused.value).startswith(f"{path}, line {line}: ") and says in str(refused.value)
    assert refused.value.exit_code == 64


def test_a_field_that_an_option_changed_is_in_no_line(tmp_path: Path) -> None:
    """Story: the file is right and an option wins over it with something wrong. No line of the file
    is blamed."""
    path = tmp_path / "plan.yaml"
    path.write_text("records: 10\n")
    fields = read_yaml(path, PLAN_FIELDS)
    fields["records"] = -1
    with pytest.raises(UsageError) as refused:
        make_plan(fields)
    assert str(refused.value).startswith(f"{path}: records: ")


def test_a_missing_plan_file_is_named(tmp_path: Path) -> None:
    """Story: the plan file is not there. The error says which."""
    with pytest.raises(UsageError, match=r"plan\.yaml cannot be read"):
        read_yaml(tmp_path / "plan.yaml", PLAN_FIELDS)
