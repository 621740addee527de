"""The stateful stage: running totals whose outputs are committed once, whatever is killed or
replayed."""

from __future__ import annotations

import json
import re
import shutil
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.conftest import wait_until
from tests.postgresql import new_database
from tests.runs import read_all, run_to_end, write_committed
from topicproof.backend.address import Address
from topicproof.backend.commands.show import balances
from topicproof.backend.errors import CheckpointMismatch, OffsetMissing, OffsetsMoved, UsageError
from topicproof.backend.faults.injecting import InjectingStatefulSink
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.client_configs import idempotent_producer_config, spark_source_options
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.duplicates import Cause
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.query import explained
from topicproof.backend.runs.resume import resume
from topicproof.backend.runs.stage_verdicts import RunVerdicts
from topicproof.backend.runs.totals import (
    Balance,
    account,
    current_totals,
    payment,
    total_text,
    totals,
)
from topicproof.backend.runs.windows import BY_CLOCK, BY_EVENT_TIME, check_values
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.sink.entries import Declared, FaultFired, TransactionEnded
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.journal import read_journal
from topicproof.backend.sink.stateful import STATEFUL_FORMAT, commit_batch_floor
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.compact import lineage_of
from topicproof.validators.lineage.headers import Lineage

PARTITIONS = 2
PER_BATCH = 200


Output = tuple[bytes | None, bytes | None, Lineage | None]
"""Key, value and lineage of a record."""


def committed(bootstrap: str, sink: str) -> Counter[Output]:
    """What a plain consumer gets."""
    return Counter(
        (message.key, message.value, lineage_of(message.headers))
        for message in read_all(bootstrap, sink)
    )


def _balances(cluster: Services, sink: str) -> list[Balance]:
    kafka = Cluster(Address(cluster.bootstrap))
    return current_totals(kafka, sink, budget=LookBudget()).balances


def due(bootstrap: str, source: str) -> Counter[Output]:
    """What it must get, added up here and now from the payments."""
    sums: defaultdict[str, int] = defaultdict(int)
    made: Counter[Output] = Counter()
    for message in read_all(bootstrap, source):
        one = json.loads(message.value or b"")
        sums[one["account"]] += one["cents"]
        value = total_text(one["id"], one["account"], one["cents"], sums[one["account"]])
        made[
            one["account"].encode(),
            value,
            Lineage(source, message.partition, message.offset, 0),
        ] += 1
    return made


@dataclass
class Stage:
    """A program with the stateful sink: its topics, its group, and where its checkpoint lies
    now."""

    bootstrap: str
    checkpoint: Path
    name: str = field(default_factory=lambda: f"totals-{uuid.uuid4().hex[:6]}")
    filled: int = 0

    def __post_init__(self) -> None:
        self.cluster = Cluster(Address(self.bootstrap))
        for topic, partitions in (
            (self.source, PARTITIONS),
            (self.sink, PARTITIONS),
            (self.journal, 1),
        ):
            self.cluster.create_topic(topic, partitions)
        commit_batch_floor(self.cluster, self.name, PARTITIONS)

    @property
    def source(self) -> str:
        return f"{self.name}-payments"

    @property
    def sink(self) -> str:
        return f"{self.name}-totals"

    @property
    def journal(self) -> str:
        return f"{self.name}-journal"

    def fill(self, count: int) -> None:
        """Append so many payments."""
        producer = Producer(idempotent_producer_config(Address(self.bootstrap)))
        for number in range(self.filled, self.filled + count):
            producer.produce(self.source, payment(number), account(number))
        assert producer.flush(20) == 0
        self.filled += count

    def start(
        self,
        spark: SparkSession,
        options: Mapping[str, str] | None = None,
        per_batch: int = PER_BATCH,
        deduplicate_s: int | None = None,
    ) -> StreamingQuery:
        """The query, over what the source holds now."""
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        spark.dataSource.register(InjectingStatefulSink)
        source = {
            **spark_source_options(Address(self.bootstrap), "read_committed"),
            "subscribe": self.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(per_batch),
        }
        sink = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.sink,
            "group": self.name,
            "transactionalIdPrefix": self.name,
            "journal": self.journal,
            "checkpointLocation": self.checkpoint.as_uri(),
        }
        rows = totals(spark.readStream.format("kafka").options(**source).load(), deduplicate_s)
        return (
            rows.writeStream.format(STATEFUL_FORMAT)
            .options(**sink, **(options or {}))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, spark: SparkSession, options: Mapping[str, str] | None = None) -> None:
        """The query, to its end."""
        self.start(spark, options).awaitTermination()

    def refusal(self, spark: SparkSession) -> Exception:
        """What the query is refused with, when it would take all that is new for one batch."""
        with pytest.raises(PySparkException) as refused:
            self.start(spark, per_batch=self.filled).awaitTermination()
        return explained(refused.value)

    def declared(self) -> int:
        """Entries of the journal."""
        return len(read_journal(Address(self.bootstrap), self.journal))

    def has_declared(self, count: int, query: StreamingQuery) -> bool:
        """Whether the journal has so many entries. Raises the query's own failure."""
        if failure := query.exception():
            raise failure
        return self.declared() >= count

    def is_exact(self) -> bool:
        return committed(self.bootstrap, self.sink) == due(self.bootstrap, self.source)

    def in_order(self) -> bool:
        """Whether every account's totals follow one another: each is the one before plus its
        payment."""
        last: defaultdict[str, int] = defaultdict(int)
        for message in read_all(self.bootstrap, self.sink):
            one = json.loads(message.value or b"")
            if one["total"] != last[one["account"]] + one["cents"]:
                return False
            last[one["account"]] = one["total"]
        return True


@pytest.fixture
def stage(bootstrap: str, tmp_path: Path) -> Stage:
    return Stage(bootstrap, tmp_path / "checkpoint")


def test_totals_killed_ten_times_are_those_of_an_uninterrupted_run(
    stage: Stage, spark: SparkSession
) -> None:
    """Story: ten workers and more are killed -9, at every step of a transaction, and transactions
    abort by a draw. The query is stopped in the middle of a batch and started again, twice. Every
    total is committed once, in order."""
    faults = [
        f"crash@transaction={number},step={step}" for number, step in enumerate(Step, start=1)
    ]
    stage.fill(PER_BATCH * 4)
    options = {"faults": " ".join(faults), "abortProbability": "0.3", "seed": "4"}
    for _stop in range(2):
        query = stage.start(spark, options)
        enough = stage.declared() + 4
        wait_until(partial(stage.has_declared, enough, query), 600, "some work")
        query.stop()
    stage.fill(PER_BATCH * (len(faults) - 4) + 1)
    stage.run(spark, options)
    assert stage.is_exact() and stage.in_order()
    journal = read_journal(Address(stage.bootstrap), stage.journal)
    assert sum(isinstance(entry, FaultFired) for entry in journal) == len(faults) * PARTITIONS >= 10
    outcomes = Counter(entry.outcome for entry in journal if isinstance(entry, TransactionEnded))
    assert outcomes[Declared.ABORTED] > 0
    ends = {p.partition: p.hw for p in stage.cluster.bounds(stage.source).partitions}
    assert stage.cluster.committed(stage.name, stage.source) == ends, (
        "how far it is, for people and tools"
    )


def test_a_checkpoint_that_does_not_belong_to_the_sink_is_refused(
    stage: Stage, spark: SparkSession
) -> None:
    """Story: three batches, with a copy of the checkpoint after each. Started without its
    checkpoint, with one that is two batches old, and with one that is a batch old and would make
    other outputs, the query is refused and nothing is written. The right checkpoint, moved to
    another folder, goes on."""
    copies: list[Path] = []
    for _batch in range(3):
        stage.fill(PER_BATCH)
        stage.run(spark)
        copies.append(stage.checkpoint.with_name(f"copy-{len(copies)}"))
        shutil.copytree(stage.checkpoint, copies[-1])
    assert stage.is_exact()
    stage.fill(PER_BATCH // 2)
    before = stage.cluster.bounds(stage.sink)
    for copy, says in (
        (
            None,
            (
                r"its checkpoint, which holds the state, was deleted or replaced. Put back the"
                r" checkpoint"
            ),
        ),
        (
            copies[0],
            (
                r"waits for batch 3 of query .* but the checkpoint is at batch 1: an older one was"
                r" put in"
            ),
        ),
        (copies[1], r"Batch 2 of .* is in the sink with other records than it makes now"),
    ):
        shutil.rmtree(stage.checkpoint)
        if copy is not None:
            shutil.copytree(copy, stage.checkpoint)
        refused = stage.refusal(spark)
        assert isinstance(refused, CheckpointMismatch)
        assert re.search(says, str(refused))
        assert [p.lso for p in stage.cluster.bounds(stage.sink).partitions] == [
            p.lso for p in before.partitions
        ]
    stage.checkpoint = copies[2]
    stage.run(spark)
    assert stage.is_exact()
    stage.fill(1)
    stage.cluster.delete_group(stage.name)
    assert isinstance(stage.refusal(spark), OffsetMissing)


def test_a_run_of_totals_goes_on_in_another_home(cluster: Services, tmp_path: Path) -> None:
    """Story: a run of the scenario crashes in its second batch, aborts by a draw, and is stopped.
    Its home is moved to another folder and resumed there: the verdict holds, and the totals are
    those of an uninterrupted run. Its checkpoint lies at a URL of its own."""
    settings = read_settings(home=tmp_path / "home")
    plan = make_plan(
        {
            "scenario": "totals",
            "records": 1_000,
            "partitions": PARTITIONS,
            "per_transaction": 100,
            "abort_probability": 0.3,
            "faults": ["crash@transaction=2"],
            "checkpoints": (tmp_path / "durable").as_uri(),
            "seed": 2,
        }
    )
    history = History(settings)
    run = create(settings, cluster, history, plan)
    stop = threading.Event()
    context = make_context(settings, cluster, history, run, stop)
    journal = run.facts.journal

    def crashed() -> bool:
        entries = read_journal(Address(cluster.bootstrap), journal)
        return sum(isinstance(entry, FaultFired) for entry in entries) == PARTITIONS

    with ThreadPoolExecutor(1) as pool:
        executing = pool.submit(execute, context)
        wait_until(lambda: crashed() or executing.done(), 600, "the crash")
        stop.set()
        report = executing.result()
    assert report is not None and report.verdict is Outcome.HOLDS, report and report.why
    assert history.get(run.id).state is State.STOPPED and report.not_processed > 0
    shutil.move(settings.home, tmp_path / "moved")
    settings = read_settings(home=tmp_path / "moved")
    report = resume(settings, cluster, History(settings), run.id)
    assert report is not None and report.verdict is Outcome.HOLDS, report and report.why
    assert (
        report.not_processed == 0
        and report.fates["committed"] == 1_000
        and (report.fates["aborted"] or 0) > 0
    )
    assert (tmp_path / "durable" / run.id / "total" / "state").exists()
    assert committed(cluster.bootstrap, run.facts.sink) == due(cluster.bootstrap, run.facts.source)
    right = amounts(range(1_000))
    known = _balances(cluster, run.facts.sink)
    assert {one.account: one.cents for one in known} == right and {
        one.payments for one in known
    } == {50}


def test_totals_are_exact_under_every_fault_of_the_worker(
    settings: Settings, cluster: Services
) -> None:
    """Story: workers of a stateful stage are killed, raise, become zombies, have their
    transactional id taken and a record refused, each in another batch. Zombies and hijacked ones
    are fenced, and every total is there once."""
    faults = [
        "crash@transaction=1",
        "zombie@transaction=2",
        "hijack@transaction=3",
        "error@transaction=4",
    ]
    faults.append("refused@transaction=5")
    plan = {"records": 1_200, "partitions": PARTITIONS, "per_transaction": 100, "faults": faults}
    done = run_to_end(settings, cluster, scenario="totals", **plan)
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    assert committed(cluster.bootstrap, done.sink) == due(cluster.bootstrap, done.source)
    journal = read_journal(Address(cluster.bootstrap), done.run.facts.journal)
    fired = Counter(entry.fault for entry in journal if isinstance(entry, FaultFired))
    assert fired == dict.fromkeys(faults, PARTITIONS)
    fenced = [
        one
        for one in journal
        if isinstance(one, TransactionEnded) and one.outcome is Declared.FENCED
    ]
    assert {(one.source_partition, one.sequence) for one in fenced} == {
        (partition, sequence) for partition in range(PARTITIONS) for sequence in (2, 3)
    }


@pytest.mark.parametrize("how", ["rewound", "forwarded"])
def test_totals_whose_batches_were_counted_anew_are_refused(
    stage: Stage, spark: SparkSession, how: str
) -> None:
    """Story: after its second batch somebody moves the number that fences it, back or forward, and
    Spark runs the batch again. It would be written twice, or the next one be skipped: the sink
    refuses and says what was moved."""
    stage.fill(PER_BATCH * 4)
    with pytest.raises(PySparkException) as refused:
        stage.run(spark, {"faults": f"offsets@transaction=2,how={how}"})
    error = explained(refused.value)
    assert isinstance(error, OffsetsMoved)
    assert f"somebody moved it {'back' if how == 'rewound' else 'forward'}" in str(error)
    assert not committed(stage.bootstrap, stage.sink) - due(stage.bootstrap, stage.source)


def test_windows_of_event_time_are_counted_anew_and_those_of_the_clock_are_unknown(
    settings: Settings, cluster: Services
) -> None:
    """Story: payments are counted by the minute, by their own time and by the clock, under crashes
    and aborts. Both are there once. The counts by event time are right; of the others nobody can
    tell. One that is put in with another value is found, and then breaks the run's verdict."""
    plan = {
        "records": 600,
        "partitions": PARTITIONS,
        "per_transaction": 100,
        "abort_probability": 0.3,
        "seed": 2,
    }
    done = run_to_end(settings, cluster, scenario="windows", faults=["crash@transaction=2"], **plan)
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    topics = done.run.facts.topics
    by_event, by_clock = (
        read_all(cluster.bootstrap, topics[name]) for name in (BY_EVENT_TIME, BY_CLOCK)
    )
    minutes = Counter((account(n).decode(), f"2026-01-01T00:{n // 60:02}:00Z") for n in range(600))
    made = Counter(
        (one["account"], one["window"], one["count"])
        for one in (json.loads(m.value or b"") for m in by_event)
    )
    assert made == Counter(
        (*of, count) for of, all_of in minutes.items() for count in range(1, all_of + 1)
    )
    last = {
        (one["account"], one["window"]): one["count"]
        for one in (json.loads(m.value or b"") for m in by_clock)
    }
    assert len(by_clock) == sum(last.values()) == 600
    assert {name: said.verdict for name, said in done.run.facts.results.values.items()} == {
        BY_EVENT_TIME: "HOLDS",
        BY_CLOCK: "UNKNOWN",
    }
    write_committed(cluster.bootstrap, topics[BY_EVENT_TIME], [replace(by_event[0], value=b"{}")])
    values = check_values(Cluster(Address(cluster.bootstrap)), topics)
    assert values[BY_EVENT_TIME].why.startswith("1 of 601 counts differ")
    judged = RunVerdicts(done.report, values=values)
    assert (judged.verdict, judged.why[:23]) == (Outcome.VIOLATED, "Values of by-event-time")


@pytest.mark.parametrize(
    ("cause", "deduplicate_s"),
    [(Cause.INGEST, None), (Cause.RESTART, 3_600), (Cause.TRANSFER, None)],
)
def test_a_run_whose_payments_come_twice_says_by_how_much_it_is_wrong(
    settings: Settings, cluster: Services, cause: Cause, deduplicate_s: int | None, postgresql: str
) -> None:
    """Story: payments come from a client that posts again where no answer came, from a filler that
    was killed and started again, and from a transfer that reads its table in PostgreSQL from the
    start again. The run is exactly-once, and adds twice what came twice: each account is wrong by
    just that, and the run says so. With the plan's step that drops them, the totals are right."""
    source = (
        {"url": new_database(postgresql, f"twice-{uuid.uuid4().hex[:6]}")}
        if cause is Cause.TRANSFER
        else {}
    )
    plan = {
        "records": 300,
        "partitions": PARTITIONS,
        "per_transaction": PER_BATCH,
        "source": source,
    }
    finished = run_to_end(
        settings, cluster, scenario="totals", duplicates=cause, deduplicate_s=deduplicate_s, **plan
    )
    assert finished.report.verdict is Outcome.HOLDS, finished.report.why
    came = Counter(
        json.loads(m.value or b"")["id"] for m in read_all(cluster.bootstrap, finished.source)
    )
    again = sorted(int(number) for number, count in came.items() if count == 2)
    assert set(came) == {str(number) for number in range(300)} and sum(came.values()) == 300 + len(
        again
    )
    # The server loses every seventh answer; a life of the filler and of the transfer is half as
    # long as the whole.
    assert len(again) == 49 if cause is Cause.INGEST else again == list(range(150))
    wrong = {} if deduplicate_s else dict(amounts(again))
    known = _balances(cluster, finished.sink)
    assert {one.account: one.due_cents for one in known} == amounts(range(300))
    assert {one.account: one.cents for one in known} == amounts(
        [*range(300), *(again if wrong else [])]
    )
    assert finished.run.facts.results.wrong_by == wrong
    said = balances(finished.run.facts)
    assert said.startswith(
        f"totals: {len(wrong)} of 20 accounts are wrong" if wrong else "totals: all 20 accounts"
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"scenario": "squares"},
            "duplicates: squares has no payments. Choose the scenario totals",
        ),
        ({"until_stopped": True}, "always runs to its end. Remove until_stopped"),
        (
            {"source": {"url": "sqlite:////payments.db"}},
            "source.url: only a transfer reads a database",
        ),
        (
            {"duplicates": "nonsense"},
            "duplicates: Input should be 'ingest', 'restart' or 'transfer'",
        ),
    ],
)
def test_duplicates_that_cannot_be_are_refused(fields: dict[str, Any], says: str) -> None:
    """Story: a plan wants payments twice where there are none, or of a database that nothing reads.
    Refused."""
    with pytest.raises(UsageError) as refused:
        make_plan({"scenario": "totals", "duplicates": "ingest", **fields})
    assert says in str(refused.value)


def amounts(numbers: Iterable[int]) -> Counter[str]:
    """What these payments come to, by account."""
    sums: Counter[str] = Counter()
    for number in numbers:
        one = json.loads(payment(number))
        sums[one["account"]] += one["cents"]
    return sums
