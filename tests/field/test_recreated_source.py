"""A topic that is deleted and made again under its name: franz-go 1426, librdkafka 3255,
KAFKA-12257. Its old offsets are valid, so old outputs look like outputs of the new records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.conftest import wait_until
from tests.field.reports import require_sentence
from tests.runs import run_to_end
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.store import History, State
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.kafka.client_configs import (
    admin_config,
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.check import check
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.resume import resume
from topicproof.backend.runs.stage_verdicts import Until, judge_run
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings, read_settings
from topicproof.validators.finding import Outcome
from topicproof.validators.incarnations import SKEW_MS
from topicproof.validators.lineage.headers import LINEAGE_HEADER, Lineage, format_lineage
from topicproof.validators.report import Report

NewTopic = Callable[..., str]
YEAR_2020_MS = 1_577_836_800_000


@dataclass(frozen=True)
class Pair:
    """A source and a sink of one partition. Keys are unique over all incarnations."""

    bootstrap: str
    source: str
    sink: str

    @property
    def cluster(self) -> Cluster:
        return Cluster(Address(self.bootstrap))

    def fill(self, keys: Iterable[int], timestamp: int = 0) -> None:
        producer = Producer(idempotent_producer_config(Address(self.bootstrap)))
        for key in keys:
            producer.produce(self.source, b"v", b"%d" % key, timestamp=timestamp)
        assert producer.flush(30) == 0

    def process(
        self, offsets: Sequence[int], key_of_0: int, *, transactional: bool, timestamp: int = 0
    ) -> None:
        """Write the outputs of these inputs as our sink does."""
        address = Address(self.bootstrap)
        config = (
            transactional_producer_config(address, f"{self.sink}-writer")
            if transactional
            else idempotent_producer_config(address)
        )
        producer = Producer(config)
        if transactional:
            producer.init_transactions(30)
            producer.begin_transaction()
        for offset in offsets:
            lineage = format_lineage(Lineage(self.source, 0, offset, 0))
            headers: list[tuple[str, str | bytes | None]] = [(LINEAGE_HEADER, lineage)]
            key = b"%d" % (key_of_0 + offset)
            producer.produce(self.sink, b"v", key, headers=headers, timestamp=timestamp)
        assert producer.flush(30) == 0
        if transactional:
            producer.commit_transaction(30)

    def make_source_again(self) -> None:
        self.cluster.delete_topics([self.source])
        self.cluster.create_topic(self.source, 1)

    def let_clocks_pass(self) -> None:
        """Wait until new records are younger than old ones beyond any difference of clocks."""
        later = time.time() + 1.5 * SKEW_MS / 1000
        wait_until(lambda: time.time() > later, 5, "the next second")

    def judge(
        self, spark: SparkSession, folder: Path, payloads: Payloads = Payloads.NONE, **terms: Any
    ) -> Report:
        fields = {"source": {"topic": self.source}, "sink": {"topic": self.sink}, **terms}
        question = question_of(make_contract(fields), self.cluster)
        return judge_topics(
            spark,
            Sides(Address(self.bootstrap)),
            question,
            folder / "report",
            JudgeOptions(payloads=payloads),
        )


@pytest.fixture
def pair(bootstrap: str, new_topic: NewTopic) -> Pair:
    return Pair(bootstrap, new_topic(), new_topic())


def kinds(report: Report, outcome: Outcome) -> dict[str, int]:
    return {one.kind: one.count for one in report.findings if one.count and one.outcome is outcome}


@pytest.mark.parametrize(
    ("transactional", "payloads"),
    [(True, Payloads.NONE), (False, Payloads.ALL)],
    ids=["transactions", "plain"],
)
def test_old_outputs_are_none_of_a_new_source(
    pair: Pair, transactional: bool, payloads: Payloads, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: 150 inputs are processed. The source is made again with 150 others, and none is
    processed. At last all are, into the same sink: by lineage that can still not be told, and keys
    tell it."""
    pair.fill(range(150))
    pair.process(range(150), 0, transactional=transactional)
    pair.let_clocks_pass()
    pair.make_source_again()
    pair.fill(range(5_000, 5_150))
    report = pair.judge(spark, tmp_path, payloads)
    assert (report.verdict, report.exit_code) == (Outcome.UNKNOWN, 3), report.why
    assert kinds(report, Outcome.UNKNOWN) == {"recreated": 150}
    require_sentence("twmb/franz-go#1426", report.why)
    assert report.why == (
        "Could not be judged: recreated: all 150 committed records may be outputs of an earlier"
        " source topic, deleted and made again under its name. Name an `identity:` that no two"
        " inputs share, old ones included; or let the pipeline write to a new sink, and check that"
        " one: it then processes every input again."
    )
    pair.process(range(150), 5_000, transactional=transactional)
    report = pair.judge(spark, tmp_path)
    assert report.verdict is Outcome.UNKNOWN, report.why
    # The new outputs repeat none of the old ones, and do not come after them.
    assert not kinds(report, Outcome.VIOLATED)
    report = pair.judge(spark, tmp_path, identity="key", require=["gap", "duplicate", "order"])
    assert report.verdict is Outcome.HOLDS, report.why


def test_a_group_continues_at_its_old_offset_in_the_new_source(
    pair: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: 100 inputs are processed. The new source has 150, and the group continues at 100. By
    key, the 100 before are lost."""
    pair.fill(range(100))
    pair.process(range(100), 0, transactional=True)
    pair.let_clocks_pass()
    pair.make_source_again()
    pair.fill(range(5_000, 5_150))
    pair.process(range(100, 150), 5_000, transactional=True)
    report = pair.judge(spark, tmp_path)
    assert report.verdict is Outcome.UNKNOWN, report.why
    assert kinds(report, Outcome.UNKNOWN) == {"recreated": 100}
    report = pair.judge(spark, tmp_path, identity="key", require=["gap", "duplicate"])
    assert report.verdict is Outcome.VIOLATED, report.why
    assert kinds(report, Outcome.VIOLATED) == {"gap": 100}


@pytest.mark.parametrize(
    ("config", "source_ms", "sink_ms", "transactional"),
    [
        ({}, YEAR_2020_MS, 0, True),
        ({}, YEAR_2020_MS, YEAR_2020_MS, False),
        # A pipeline that gives its outputs the time of an event.
        ({}, 0, YEAR_2020_MS, True),
        ({"message_timestamp_type": "LogAppendTime"}, YEAR_2020_MS, YEAR_2020_MS, False),
    ],
    ids=["replayed", "mirrored", "event time", "append time"],
)
def test_times_of_the_past_are_healthy(
    bootstrap: str,
    new_topic: NewTopic,
    spark: SparkSession,
    tmp_path: Path,
    config: dict[str, str],
    source_ms: int,
    sink_ms: int,
    transactional: bool,
) -> None:
    pair = Pair(bootstrap, new_topic(**config), new_topic(**config))
    pair.fill(range(10), source_ms)
    pair.process(range(10), 0, transactional=transactional, timestamp=sink_ms)
    report = pair.judge(spark, tmp_path)
    assert report.verdict is Outcome.HOLDS, report.why


def test_a_sink_that_keeps_more_than_its_source_is_healthy(
    pair: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: retention removed the oldest inputs, and the sink still has their outputs. These are
    older than all that is left of the source."""
    pair.fill(range(5))
    pair.process(range(5), 0, transactional=True)
    pair.let_clocks_pass()
    pair.fill(range(5, 10))
    pair.process(range(5, 10), 0, transactional=True)
    admin = AdminClient(admin_config(Address(pair.bootstrap)))
    for future in admin.delete_records([TopicPartition(pair.source, 0, 5)]).values():
        future.result()
    report = pair.judge(spark, tmp_path, range="retained")
    assert report.verdict is Outcome.HOLDS, report.why


def test_a_run_knows_its_topics_by_their_ids(
    settings: Settings, cluster: Services, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the source of a finished run is made again, with records that keep old times. A check
    here compares ids with the history. A check on another machine compares them with the journal.
    A judge who has neither compares them with those in the headers of the outputs, with and
    without payloads."""
    run = run_to_end(settings, cluster, records=100, partitions=1)
    assert (run.run.state, run.run.verdict) == (State.DONE, "HOLDS"), run.run.error or run.run.why
    pair = Pair(cluster.bootstrap, run.source, run.sink)
    fields = {"source": {"topic": run.source}, "sink": {"topic": run.sink}}
    elsewhere = read_settings(home=tmp_path / "elsewhere")

    def verdicts() -> list[Report]:
        question = question_of(make_contract(fields), pair.cluster)
        return [check(one, cluster, History(one), question) for one in (settings, elsewhere)]

    reports = [*verdicts(), pair.judge(spark, tmp_path)]
    assert [report.verdict for report in reports] == [Outcome.HOLDS] * 3
    pair.make_source_again()
    pair.fill(range(5_000, 5_100), YEAR_2020_MS)
    for report in verdicts():
        assert (report.verdict, report.exit_code) == (Outcome.UNKNOWN, 3), report.why
        was = run.run.facts.topic_ids[run.source]
        assert f"topic {run.source} was deleted and made again" in report.why
        assert f"its id was {was} and is " in report.why
        assert "the first entry of their run's journal says" in report.why
    for payloads in (Payloads.NONE, Payloads.ALL):
        report = pair.judge(spark, tmp_path, payloads)
        assert (report.verdict, report.exit_code) == (Outcome.UNKNOWN, 3), report.why
        assert kinds(report, Outcome.UNKNOWN)["recreated"] == 100
        assert not kinds(report, Outcome.VIOLATED)


@pytest.mark.parametrize("role", ["source", "sink", "journal"])
def test_a_run_does_not_continue_on_a_topic_that_was_made_again(
    settings: Settings, cluster: Services, spark: SparkSession, role: str
) -> None:
    history = History(settings)
    run = create(settings, cluster, history, make_plan({"records": 10, "partitions": 1}))
    topic = getattr(run.facts, role)
    Pair(cluster.bootstrap, topic, run.facts.sink).make_source_again()
    with pytest.raises(UsageError, match=f"topic {topic} was deleted and made again") as error:
        resume(settings, cluster, history, run.id)
    assert "Start a new run" in str(error.value)
    report = judge_run(make_context(settings, cluster, history, run), spark, Until.END).report
    assert report.verdict is Outcome.UNKNOWN
    assert f"topic {topic} was deleted and made again since its outputs" in report.why
