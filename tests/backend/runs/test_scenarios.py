"""Scenarios: each from its topics to its verdict, on a real Kafka and a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.runs import Finished, read_all, run_to_end
from topicproof.backend.address import Address
from topicproof.backend.commands.outcome import exit_code
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.copy import copy_all
from topicproof.backend.evidence.folder import evidence_hash, evidence_in
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs import scenarios
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.file_server import bad, name, payments, serving
from topicproof.backend.runs.files import REASON_HEADER
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.stage_verdicts import RunVerdicts, Until, carried_through, judged_range
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.local_servers import HOST
from topicproof.backend.settings import Settings
from topicproof.backend.verifying.unchanged import unchanged
from topicproof.backend.verifying.verify import verify
from topicproof.backend.yaml_fields import PLAN_FIELDS, read_yaml
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.compact import lineage_of


def put(
    bootstrap: str,
    topic: str,
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]],
) -> None:
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key, value, headers in records:
        producer.produce(topic, value, key, headers=list(headers))
    assert producer.flush(10) == 0
    producer.close()


def test_yours_takes_spark_sql_over_any_topic(settings: Settings, cluster: Services) -> None:
    """Story: somebody has a topic of texts with a header, and wants keys and values of their own
    making. Bytes that are not text pass as they are; the verdict holds under aborts and a crash."""
    Cluster(Address(cluster.bootstrap)).create_topic("words", 2)
    words = [(f"k{n % 7}".encode(), f"word {n}".encode(), [("lang", b"en")]) for n in range(400)]
    put(cluster.bootstrap, "words", [*words, (b"raw", b"\xff\xfe", []), (None, None, [])])
    finished = run_to_end(
        settings,
        cluster,
        scenario="yours",
        source={"topic": "words"},
        key="coalesce(cast(headers[0].value as string), key)",
        value="if(key = 'raw', value, upper(value))",
        per_transaction=50,
        abort_probability=0.3,
        faults=["crash@transaction=2"],
        seed=3,
    )
    assert finished.report.verdict is Outcome.HOLDS, finished.report.to_json()
    made = sorted(
        (m.key, m.value) for m in read_all(cluster.bootstrap, finished.sink) if m.key is not None
    )
    assert made == sorted(
        [*((b"en", f"WORD {n}".encode()) for n in range(400)), (b"raw", b"\xff\xfe")]
    )


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("value", "upper(valeu)", "names valeu, and a record has key, value, topic"),
        ("value", "upper(value", "does not parse"),
        ("value", "no_such_function(value)", "the function no_such_function is not allowed"),
        ("value", "reflect('java.lang.System', 'exit', 3)", "the function reflect is not allowed"),
        ("value", "length(headers)", "Spark rejects the expression"),
        ("key", "split(value, ' ')", "gives array<string>, not a string. Use to_json(...)"),
        ("value", "count(value)", "an aggregate (count) is not allowed"),
    ],
)
def test_an_expression_that_spark_does_not_take_is_refused_by_line(
    settings: Settings, cluster: Services, tmp_path: Path, field: str, text: str, says: str
) -> None:
    """Story: an expression of the plan is wrong. The file's line is named before a topic or a run
    is made."""
    kafka = Cluster(Address(cluster.bootstrap))
    kafka.create_topic("letters", 1, exists_ok=True)
    put(cluster.bootstrap, "letters", [(b"a", b"a", [])])
    path = tmp_path / "plan.yaml"
    other = {"key": "value: value", "value": "key: key"}[field]
    path.write_text(f'scenario: yours\nsource: {{topic: letters}}\n{other}\n{field}: "{text}"\n')
    before = kafka.topics()
    with pytest.raises(UsageError, match=r"plan\.yaml, line 4: ") as refused:
        create(settings, cluster, History(settings), make_plan(read_yaml(path, PLAN_FIELDS)))
    assert says in str(refused.value) and "SQLSTATE" not in str(refused.value)
    assert kafka.topics() == before and refused.value.exit_code == 64


def test_a_topic_that_is_not_there_is_refused_before_anything_is_made(
    settings: Settings, cluster: Services
) -> None:
    """Story: the source's name is misspelled. No run and no topic is made."""
    kafka = Cluster(Address(cluster.bootstrap))
    before = kafka.topics(), len(History(settings).list())
    plan: dict[str, Any] = {"scenario": "yours", "source": {"topic": "wrods"}, "value": "value"}
    with pytest.raises(Exception, match="There is no topic wrods"):
        create(settings, cluster, History(settings), make_plan(plan))
    assert (kafka.topics(), len(History(settings).list())) == before


FILES: dict[str, Any] = {
    "scenario": "files",
    "records": 200,
    "partitions": 3,
    "per_transaction": 60,
    "abort_probability": 0.3,
    "faults": ["crash@transaction=2"],
    "seed": 1,
    "files": {"timeout_s": 2, "attempts": 2},
}


def test_files_become_payments_or_one_dead_letter(settings: Settings, cluster: Services) -> None:
    """Story: 200 files, two bad ones in each of five ways, under a crash and aborts. What is
    committed are the payments of every good file, all of them once, and ten dead letters with their
    reasons; the verdict, which counts every file again with other code, holds over both topics. The
    server received more requests than there are files."""
    finished = run_to_end(settings, cluster, **FILES)
    assert finished.report.verdict is Outcome.HOLDS, finished.report.to_json()
    served = finished.run.facts.served
    made = sorted((m.key, m.value) for m in read_all(cluster.bootstrap, finished.sink))
    good = [n for n in range(200) if bad(n) is None]
    assert made == sorted(
        (f"{served}{name(n)}".encode(), json.dumps(payment).encode())
        for n in good
        for payment in payments(n)
    )
    letters = read_all(cluster.bootstrap, f"{finished.sink}.dead-letters")
    reasons = {(m.value or b"").decode(): dict(m.headers)[REASON_HEADER].decode() for m in letters}
    assert len(letters) == 10
    assert {url: reason.partition(":")[0] for url, reason in reasons.items()} == {
        f"{served}{name(n)}": str(bad(n)) for n in range(200) if bad(n) is not None
    }
    phantom = next(f for f in finished.report.findings if f.kind == "phantom")
    assert f"All {len(made) + 10:,} committed" in phantom.why
    progress = finished.run.progress
    assert progress.downloads is not None and progress.downloaded == 200 < progress.downloads
    assert progress.attempted > progress.kept == progress.processed == 200


def test_a_payment_that_the_second_look_misses_is_a_gap(
    settings: Settings, cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: in the recount, one file holds one payment more than was committed. Exactly that
    output is missing."""
    Cluster(Address(cluster.bootstrap)).create_topic("few-files", 1)
    counted = [(0, n, len(payments(n)) + (n == 5)) for n in range(12)]
    stage = replace(
        scenarios.FILES.stages[0],
        count=lambda reading, _work: reading.sparkSession.createDataFrame(
            counted, "partition int, offset long, count long"
        ),
    )
    monkeypatch.setitem(scenarios.SCENARIOS, "files", replace(scenarios.FILES, stages=(stage,)))
    with serving(0, settings.home / "few.log") as server:
        base = f"http://{HOST}:{server.server_address[1]}/"
        put(
            cluster.bootstrap,
            "few-files",
            [(b"x", f"{base}{name(n)}".encode(), []) for n in range(12)],
        )
        finished = run_to_end(settings, cluster, scenario="files", source={"topic": "few-files"})
    assert finished.report.verdict is Outcome.VIOLATED
    gap = next(f for f in finished.report.findings if f.kind == "gap")
    assert gap.primary == 1 and gap.examples[0].lineage == f"few-files/0/5/{len(payments(5))}"


@pytest.fixture(scope="module")
def chain(settings: Settings, cluster: Services) -> Finished:
    """A chain under aborts and crashes in each of its three stages."""
    return run_to_end(
        settings,
        cluster,
        scenario="chain",
        records=600,
        partitions=2,
        per_transaction=100,
        seed=2,
        abort_probability=0.3,
        faults=["crash@transaction=2"],
    )


def test_a_chain_is_judged_stage_by_stage_and_end_to_end(
    chain: Finished, cluster: Services
) -> None:
    """Story: three stages, one of them a filter. What comes out are the labels of the even numbers'
    squares, once each; every stage holds by itself, and the last sink against the first source."""
    assert chain.report.verdict is Outcome.HOLDS, chain.report.to_json()
    verdicts = {name: one.verdict for name, one in chain.run.facts.results.verdicts.items()}
    assert verdicts == {"keep": "HOLDS", "square": "HOLDS", "label": "HOLDS"}
    assert (chain.run.verdict, exit_code(chain.run, chain.report)) == (Outcome.HOLDS, 0)
    assert (chain.report.source.topic, chain.report.source_records) == (chain.source, 600)
    made = sorted(
        int(json.loads(m.value or b"")["square"]) for m in read_all(cluster.bootstrap, chain.sink)
    )
    assert made == [n * n for n in range(0, 600, 2)]
    assert len(read_all(cluster.bootstrap, chain.run.facts.topics["kept"])) == 300


def test_a_chain_is_proven_by_the_evidence_of_each_stage(
    chain: Finished, settings: Settings, spark_sessions: Callable[[], SparkSession], tmp_path: Path
) -> None:
    """Story: an auditor gets the evidence of a chain: end to end and of each stage. It is judged
    again with the same result; a byte that is changed in one stage is named there, and the hash
    that is signed is another one."""
    run = chain.run.folder(settings)
    copy_all(run, tmp_path / "proof")
    places = evidence_in(tmp_path / "proof")
    assert {one.parent.name for one in places} == {"proof", "keep", "square", "label"}
    # End to end, and the stage that reads what a stage wrote and is read by another; the other two
    # are like it.
    found = [
        verify(spark_sessions(), one) for one in places if one.parent.name in ("proof", "square")
    ]
    assert [(one.exit_code, one.contradictions) for one in found] == [(0, ())] * 2
    assert found[0].judged is not None and found[0].judged.findings == chain.report.findings
    signed = evidence_hash(tmp_path / "proof")
    assert signed == evidence_hash(run)
    (tmp_path / "proof" / "stages" / "square" / "evidence" / "journal.jsonl").write_bytes(b"")
    (changed,) = (one for one in map(unchanged, places) if one.differences)
    assert (changed.folder.parent.name, changed.exit_code) == ("square", 4)
    assert [one.file for one in changed.differences] == ["journal.jsonl"]
    manifest = places[1] / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    assert evidence_hash(tmp_path / "proof") != signed


def test_a_run_is_as_good_as_its_worst_stage(chain: Finished) -> None:
    """Story: end to end all is well, but a stage between has a phantom. The run's verdict names the
    stage."""
    worse = replace(chain.report, verdict=Outcome.VIOLATED, why="Not exactly once: 1 phantom.")
    judged = RunVerdicts(chain.report, {"keep": chain.report, "square": worse})
    assert (judged.verdict, judged.why) == (
        Outcome.VIOLATED,
        "Stage square: Not exactly once: 1 phantom.",
    )
    assert exit_code(replace(chain.run, verdict=Outcome.VIOLATED), chain.report) == 1


def test_a_stopped_chain_is_judged_as_far_as_it_was_carried_through(
    chain: Finished,
    settings: Settings,
    cluster: Services,
    spark_sessions: Callable[[], SparkSession],
) -> None:
    """Story: the last stage was stopped on its way. End to end is judged up to the first input of
    each source partition whose square it had not labelled."""
    context = make_context(settings, cluster, History(settings), chain.run)
    (_, keep), (_, square), (_, label) = context.stages

    def inputs(topic: str) -> dict[tuple[int, int], tuple[int, int]]:
        """Where the input of each record lies, by where the record does."""
        lineages = ((m, lineage_of(m.headers)) for m in read_all(bootstrap, topic))
        return {
            (m.partition, m.offset): (lineage.partition, lineage.offset)
            for m, lineage in lineages
            if lineage is not None
        }

    bootstrap = cluster.bootstrap
    kept, squares = inputs(square.source), inputs(label.source)
    partition, stopped = sorted(squares)[100]
    context.cluster.commit_offsets(label.group, label.source, {partition: stopped})
    left = [
        kept[squares[place]] for place in squares if place[0] == partition and place[1] >= stopped
    ]
    source, _ = judged_range(context, keep, Until.END)
    found = {
        p.partition: p.lso for p in carried_through(context, spark_sessions(), source).partitions
    }
    assert left and found == {
        p.partition: min((offset for of, offset in left if of == p.partition), default=p.lso)
        for p in source.partitions
    }


def test_a_merge_is_torn_by_no_crash(
    settings: Settings, cluster: Services, spark_sessions: Callable[[], SparkSession]
) -> None:
    """Story: two sources, two sinks, one stage, under aborts and a crash. Each input is in both
    sinks or in neither, and the verdict spans all four topics; so does its evidence."""
    finished = run_to_end(
        settings,
        cluster,
        scenario="merge",
        records=600,
        partitions=2,
        per_transaction=100,
        seed=4,
        abort_probability=0.3,
        faults=["crash@transaction=2"],
    )
    assert finished.report.verdict is Outcome.HOLDS, finished.report.to_json()
    topics = finished.run.facts.topics
    bookings, audit = (read_all(cluster.bootstrap, topics[one]) for one in ("bookings", "audit"))
    assert sorted(int(m.value or b"") for m in bookings) == sorted([*range(600), *range(600)])
    assert sorted((m.value or b"").decode() for m in audit) == sorted(
        f"{source} {n}" for source in ("invoices", "payments") for n in range(600)
    )
    assert finished.report.source_records == 1_200 and len(finished.report.sink.parts) == 2
    gap = next(f for f in finished.report.findings if f.kind == "gap")
    assert "2,400 expected outputs" in gap.why
    (evidence,) = evidence_in(finished.run.folder(settings))
    again = verify(spark_sessions(), evidence)
    assert (
        again.exit_code == 0
        and again.judged is not None
        and again.judged.sink == finished.report.sink
    )
