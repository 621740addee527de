"""Whole runs on the real Kafka and Spark: exactly once under crashes and aborts, and broken sinks
are caught."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.conftest import wait_until
from tests.runs import SMALL, Finished, Message, read_all, run_to_end, write_committed
from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import (
    AttemptsExhausted,
    ClusterError,
    Fenced,
    OffsetMissing,
    ShuffledInput,
    SourceGap,
    TopicError,
    TopicproofError,
)
from topicproof.backend.faults.injecting import InjectingSink
from topicproof.backend.faults.member import join
from topicproof.backend.history.run_state import Progress
from topicproof.backend.history.store import History, State
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import spark_source_options
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs import query as process_module
from topicproof.backend.runs.clean import clean
from topicproof.backend.runs.context import Context, make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.fill import fill
from topicproof.backend.runs.monitor import HOSTS_MAX, Monitor, _counted
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import FaultFired, WorkerBegan
from topicproof.backend.sink.journal import JournalReader, append_to_journal
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.compact import lineage_of
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question
from topicproof.validators.report import Report


@pytest.fixture(scope="module")
def original(settings: Settings, cluster: Services) -> Finished:
    """A run of few records, whose sink is copied with mistakes: each record is looked at there."""
    return run_to_end(settings, cluster, **{**SMALL, "records": 300, "per_transaction": 20})


def judge_copy(
    cluster: Services,
    original: Finished,
    folder: Path,
    messages: list[Message],
    identity: Identity = Identity.LINEAGE,
) -> Report:
    """Write these messages to a topic of their own and judge it against the run's source."""
    kafka = Cluster(Address(cluster.bootstrap))
    sink = f"{original.sink}-{folder.name.replace('_', '-')}"[:200]
    kafka.create_topic(sink, 3)
    write_committed(cluster.bootstrap, sink, messages)
    question = Question(source=kafka.bounds(original.source), sink=sink, identity=identity)
    with spark_session(cluster.spark_remote) as spark:
        return judge_topics(spark, Sides(Address(cluster.bootstrap)), question, folder)


def primary(report: Report) -> dict[str, int]:
    """Rows that no other kind explains, per kind that counts for the verdict."""
    uncounted = {one.kind for one in report.not_checked}
    return {
        one.kind: one.primary
        for one in report.findings
        if one.primary and one.kind not in uncounted
    }


def test_a_crash_and_aborts_leave_every_square_committed_once(
    finished: Finished, cluster: Services
) -> None:
    """Story: every worker is killed once and a third of the transactions aborts. A plain
    read_committed consumer still finds exactly the squares, in order, and the report says so with a
    balance that closes."""
    report, fates = finished.report, finished.report.fates
    assert report.verdict is Outcome.HOLDS and report.exit_code == 0
    assert fates["committed"] == SMALL["records"]
    assert (fates["aborted"] or 0) > 0 and fates["pending"] == 0 and fates["unexplained"] == 0
    assert report.sink.offsets == sum(
        fates[name] or 0 for name in ("committed", "aborted", "markers", "gone")
    )
    told = {finding.kind: finding for finding in report.findings if finding.count}
    information = {"aborted_volume", "identity_change", "unknown_outcome"}
    assert set(told) == information, "and nothing else"
    assert {finding.outcome for finding in report.findings} <= {Outcome.HOLDS, Outcome.UNKNOWN}
    assert told["identity_change"].count == SMALL["partitions"], "each worker was replaced"
    assert told["aborted_volume"].count >= (report.transactions.aborted or 0) > 0
    assert finished.run.progress.faults == SMALL["partitions"]
    delivered = read_all(cluster.bootstrap, finished.sink)
    assert sorted(int(m.value or b"") for m in delivered) == [
        n * n for n in range(SMALL["records"])
    ]
    everything = read_all(cluster.bootstrap, finished.sink, "read_uncommitted")
    assert len(everything) - len(delivered) == fates["aborted"]


def test_the_report_is_kept_with_its_evidence(finished: Finished, settings: Settings) -> None:
    """Story: somebody opens the run's folder later. The report there is the one that was given,
    beside its readings."""
    folder = settings.runs / finished.run.id
    assert Report.from_json((folder / "report.json").read_text()) == finished.report
    names = {path.name for path in (folder / "evidence").iterdir()}
    assert {
        "sink-read_committed",
        "sink-read_uncommitted",
        "source-read_committed",
        "ledger",
    } <= names


def test_each_mistake_is_named_where_it_is_and_nothing_else(
    original: Finished, cluster: Services, tmp_path: Path
) -> None:
    """Story: of the committed records one is missing in partition 0, one is produced again at the
    end of partition 1, and two neighbours change places in partition 2. The gap names the input
    that has no output. The duplicate is named at its offset, and explains the order that it breaks.
    The other inversion is at the offset of the record that comes too late."""
    lines: list[list[Message]] = [[], [], []]
    for message in read_all(cluster.bootstrap, original.sink):
        lines[message.partition].append(message)
    missing = lines[0].pop(7)
    lines[1].append(lines[1][5])
    lines[2][1:3] = lines[2][2], lines[2][1]
    report = judge_copy(cluster, original, tmp_path, [each for line in lines for each in line])
    assert report.verdict is Outcome.VIOLATED and report.exit_code == 1
    assert primary(report) == {"duplicate": 1, "gap": 1, "order": 1}
    findings = {finding.kind: finding for finding in report.findings}
    intruder = findings["intruder"]
    assert (
        intruder.primary > 0
        and "3 transactional ids: copies of another log" in intruder.examples[0].why
    )
    lineage = lineage_of(missing.headers)
    assert lineage is not None
    assert [each.lineage for each in findings["gap"].examples] == ["{}/{}/{}".format(*lineage)]
    repeated, late = (1, len(lines[1]) - 1), (2, 2)
    assert [(each.partition, each.offset) for each in findings["duplicate"].examples] == [repeated]
    order = findings["order"]
    assert (order.count, order.primary, order.explained_by) == (2, 1, "duplicate")
    assert {(each.partition, each.offset) for each in order.examples} == {repeated, late}


def test_the_key_is_identity_enough_where_nobody_wrote_lineage(
    original: Finished, cluster: Services, tmp_path: Path
) -> None:
    """Story: another program wrote the sink, without our headers. By key the verdict is the same:
    healthy holds, and a repeated and a missing record are found."""
    plain = [replace(m, headers=()) for m in read_all(cluster.bootstrap, original.sink)]
    healthy = judge_copy(cluster, original, tmp_path / "healthy", plain, Identity.KEY)
    assert (healthy.verdict, primary(healthy)) == (Outcome.HOLDS, {}), healthy.to_json()
    broken = judge_copy(
        cluster, original, tmp_path / "broken", [*plain[1:], plain[9]], Identity.KEY
    )
    assert broken.verdict is Outcome.VIOLATED and primary(broken) == {"duplicate": 1, "gap": 1}


def test_aborting_always_ends_after_the_stated_attempts(
    settings: Settings, cluster: Services
) -> None:
    """Story: every transaction is aborted. The run stops after the plan's number of attempts,
    everything in the sink is ABORTED, and the verdict does not hold."""
    finished = run_to_end(
        settings,
        cluster,
        records=100,
        partitions=1,
        per_transaction=50,
        abort_probability=1.0,
        attempts_max=3,
    )
    assert finished.run.state is State.FAILED
    assert "Transaction 1 of" in str(finished.run.error) and "was aborted 3 times" in str(
        finished.run.error
    )
    assert finished.report.verdict is not Outcome.HOLDS and finished.report.exit_code != 0
    assert finished.report.fates["aborted"] == 3 * 50 and finished.report.fates["committed"] == 0


@pytest.fixture
def unfinished(settings: Settings, cluster: Services) -> Iterator[Context]:
    """A run that was made and filled, and whose pipeline has not started."""
    history = History(settings)
    plan = make_plan({"records": 2_000, "partitions": 2, "per_transaction": 100})
    run = create(settings, cluster, history, plan)
    context = make_context(settings, cluster, history, run)
    fill(context.cluster, context.names.source, 2_000)
    context.remember(filled=True)
    yield context
    clean(settings, cluster, history, run.id)


def test_a_run_that_cannot_be_made_leaves_nothing_behind(
    settings: Settings, cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the brokers create the topics of a run, and refuse its initial offsets. The run has
    failed, and `clean` deletes the topics."""
    error = ClusterError("GROUP_AUTHORIZATION_FAILED")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Cluster, "commit_offsets", refuse)
    history, kafka = History(settings), Cluster(Address(cluster.bootstrap))
    before = set(kafka.topics())
    with pytest.raises(ClusterError, match="GROUP_AUTHORIZATION_FAILED"):
        create(settings, cluster, history, make_plan({"records": 10}))
    (run,) = history.list(1)
    made = set(kafka.topics()) - before
    assert run.state is State.FAILED and made == set(run.facts.made) and len(made) == 3
    assert set(clean(settings, cluster, history, run.id)) == made
    assert not made & set(kafka.topics())


@pytest.mark.parametrize("replaced", [False, True])
def test_clean_deletes_only_what_the_home_knows_to_be_the_runs(
    settings: Settings, cluster: Services, replaced: bool
) -> None:
    """Story: an administrator of the database adds a topic of others to a run's row. Another topic,
    whose name the plan chose, was deleted and made again by somebody else, or was not."""
    history, kafka = History(settings), Cluster(Address(cluster.bootstrap))
    chosen, other = (f"{name}-{uuid.uuid4().hex[:6]}" for name in ("chosen", "payments"))
    plan = make_plan({"records": 10, "sink": {"topic": chosen}})
    run = create(settings, cluster, history, plan)
    kafka.create_topic(other, 1)
    if replaced:
        kafka.delete_topics([chosen])
        kafka.create_topic(chosen, 1)
    history.remember(run.id, replace(run.facts, made=(*run.facts.made, other)))
    sentences: list[str] = []
    deleted = clean(settings, cluster, history, run.id, sentences.append)
    stay = sorted({other, chosen} if replaced else {other})
    assert sentences == [
        f"{name} stays: nothing in this home shows that {run.id} created it." for name in stay
    ]
    assert {*deleted} == {*run.facts.made} - {*stay}
    assert {*stay} == {*run.facts.made, other} & {*kafka.topics()}
    kafka.delete_topics(stay)


def test_figures_survive_a_look_that_fails(unfinished: Context) -> None:
    """Story: the brokers do not answer in the moment in which the journal had news. The next look
    counts this news, and the page no longer shows the trouble."""
    fired = FaultFired("task", "error@transaction=1", unfinished.names.source, 0, 1)
    append_to_journal(unfinished.cluster.address, unfinished.names.journal, fired)
    monitor = Monitor(replace_cluster(unfinished, Cluster(Address("127.0.0.1:1"))))
    monitor.journal = JournalReader(unfinished.cluster.address, unfinished.names.journal)
    monitor.ended.set()
    monitor.run()
    assert (monitor.figures.faults, monitor.figures.trouble is None) == (1, False)
    monitor.context = unfinished
    monitor.run()
    assert (monitor.figures.faults, monitor.figures.trouble) == (1, None)
    assert monitor.figures.total == 2_000 == monitor.figures.filled


def test_a_monitor_that_fails_ends_its_run(unfinished: Context) -> None:
    """Story: a fault of the program ends the monitor's look. The run ends with it, rather than go
    on without a lease, which another process would take. Of invented machines few are noted."""

    class Broken(Monitor):
        def _look(self) -> Progress:
            raise ArithmeticError("a fault of the program")

    monitor = Broken(unfinished)
    monitor.run()
    assert isinstance(monitor.error, ArithmeticError) and unfinished.stop.is_set()
    monitor.journal.close()
    unfinished.stop.clear()
    began = [WorkerBegan("task", "numbers", 0, f"host-{n}", 1, 1.0) for n in range(500)]
    assert len(_counted(Progress(), began).elsewhere) == HOSTS_MAX


def replace_cluster(context: Context, cluster: Cluster) -> Context:
    other = copy(context)
    other.cluster = cluster
    return other


def test_a_deleted_group_offset_is_refused(unfinished: Context) -> None:
    """Story: somebody deletes the group's offsets. Nobody knows what was processed, so the run
    refuses to guess."""
    unfinished.cluster.delete_group(unfinished.names.group)
    with pytest.raises(OffsetMissing, match="has no committed offset"):
        execute(unfinished)
    assert (
        read_all(unfinished.cluster.address.bootstrap, unfinished.names.sink, "read_uncommitted")
        == []
    )


def test_a_checkpoint_that_was_never_finished_is_no_obstacle(unfinished: Context) -> None:
    """Story: the query was stopped while it wrote the first batch into its checkpoint, and left
    half a file. Meanwhile another consumer is a member of the group, and leaves. The run waits for
    that, and is exact. What is in the folder stays there: a plan may have named it."""
    stage = unfinished.stages[0][0].name
    half = unfinished.folder / "checkpoint" / stage / "offsets" / ".0.half.tmp"
    half.parent.mkdir(parents=True)
    half.touch()
    leave = join(unfinished.cluster, unfinished.names.group, unfinished.names.source)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(execute, unfinished)
        wait_until(lambda: unfinished.stage is State.PROCESSING, 60, "the start")
        assert "owned 2 partitions" in leave()
        report = done.result()
    assert report is not None and report.verdict is Outcome.HOLDS, report
    assert half.exists()


def test_a_source_trimmed_past_the_committed_offset_is_refused(unfinished: Context) -> None:
    """Story: retention removes records that were not processed. They are lost, and the run says so
    and stops."""
    trimmed = [TopicPartition(unfinished.names.source, 0, 10)]
    unfinished.cluster.admin.delete_records(trimmed)[trimmed[0]].result()
    with pytest.raises(
        SourceGap,
        match="offset 0 is next, but the source was trimmed up to 10; 10 offsets are lost",
    ):
        execute(unfinished)
    assert (
        read_all(unfinished.cluster.address.bootstrap, unfinished.names.sink, "read_uncommitted")
        == []
    )


@pytest.mark.parametrize("options", [{"minPartitions": "8"}, {"maxRecordsPerPartition": "300"}])
def test_a_split_source_partition_loses_nothing(
    unfinished: Context,
    options: dict[str, str],
    spark_sessions: Callable[[], SparkSession],
    tmp_path: Path,
) -> None:
    """Story: a program uses the sink with an option that splits source partitions over tasks, past
    every check of a plan. Whatever the sink refuses, what it committed is a prefix of each
    partition, without a hole."""
    names, kafka, spark = unfinished.names, unfinished.cluster, spark_sessions()
    spark.dataSource.register(InjectingSink)
    source = spark.readStream.format("kafka").options(
        **spark_source_options(kafka.address, "read_committed"), **options
    )
    rows = source.option("subscribe", names.source).option("startingOffsets", "earliest").load()
    stage, _ = unfinished.stages[0]
    ready = process_module.PreparedStage(
        stage, names, process_module.transform(rows, stage, unfinished.work)
    )
    query = process_module.start_query(
        ready, kafka, unfinished.plan, (tmp_path / "checkpoint").as_uri()
    )
    refusal = refusal_of(query)
    assert refusal is None or isinstance(refusal, ShuffledInput | SourceGap | Fenced), refusal
    committed = assert_prefix(unfinished)
    assert refusal is not None or committed == 2_000, (
        "a query that succeeds has committed everything"
    )


def refusal_of(query: process_module.Query) -> TopicproofError | None:
    try:
        query.awaitTermination()
    except PySparkException as error:
        return process_module.explained(error)
    return None


def test_a_repartition_before_the_sink_is_refused(
    unfinished: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody adds a repartition before the sink, which spreads one source partition's rows
    over tasks. The run refuses before a record is written."""
    straight = process_module.transform
    monkeypatch.setattr(process_module, "transform", lambda *given: straight(*given).repartition(4))
    with pytest.raises(ShuffledInput, match="The stream is shuffled before the sink"):
        execute(unfinished)
    assert (
        read_all(unfinished.cluster.address.bootstrap, unfinished.names.sink, "read_uncommitted")
        == []
    )


def assert_prefix(context: Context) -> int:
    """What is committed are the first inputs of each partition, up to the group's offset and not
    one further; gives how many."""
    committed = context.cluster.committed(context.names.group, context.names.source)
    found: dict[int, list[int]] = {partition: [] for partition in committed}
    for message in read_all(context.cluster.address.bootstrap, context.names.sink):
        lineage = lineage_of(message.headers)
        assert lineage is not None
        found[lineage.partition].append(lineage.offset)
    assert found == {partition: list(range(offset)) for partition, offset in committed.items()}
    return sum(committed.values())


def test_an_empty_source_is_refused_before_anything_is_made(
    settings: Settings, cluster: Services
) -> None:
    """Story: the source exists and holds nothing. No run is made; the sentence says what to do."""
    kafka = Cluster(Address(cluster.bootstrap))
    kafka.create_topic("nothing-in-it", 1)
    with pytest.raises(TopicError, match="nothing-in-it holds no record"):
        run_to_end(settings, cluster, source={"topic": "nothing-in-it"})


def test_attempts_exhausted_is_an_error_of_the_sink() -> None:
    """Story: the sink gives up on a worker, and Spark hands its error on as text. We find our own
    sentence in it."""
    text = (
        "[STREAM_FAILED] Query [id = 1d-2, runId = 3e-4] terminated with exception:"
        " [PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent"
        ' call last):\n  File "worker.py", line 1, in main\n    process()\n'
        "topicproof.backend.errors.AttemptsExhausted: Transaction 1 of a-0 was aborted 3 times\n"
        " SQLSTATE: 38000 SQLSTATE: XXKST\n"
    )
    assert isinstance(process_module.explained(PySparkException(text)), AttemptsExhausted)
