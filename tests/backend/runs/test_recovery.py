"""What a run comes back from: checkpoints that are gone or old, a Spark server that was killed,
partitions that were added. Each time the sink is exact."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.conftest import wait_until
from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.errors import Fenced, SparkError
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.resume import resume
from topicproof.backend.services.jars import SPARK, jar_files
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark import EmbeddedSpark
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import Declared, TransactionEnded
from topicproof.backend.sink.journal import read_journal

WAIT_S = 300
PLAN: dict[str, Any] = {
    "until_stopped": True,
    "rate": 1_000.0,
    "partitions": 2,
    "per_transaction": 100,
    "judged": False,
}


class Endless:
    """A run that goes on until somebody stops it, in a thread of this process, again and again."""

    def __init__(self, settings: Settings, services: Services, **more: Any) -> None:
        self.settings = settings
        self.history = History(settings)
        self.id = create(settings, services, self.history, make_plan({**PLAN, **more})).id
        self.cluster = Cluster(Address(services.bootstrap))
        self.begun = False

    @property
    def run(self) -> Run:
        return self.history.get(self.id)

    def offsets(self) -> dict[int, int]:
        return self.cluster.committed(self.run.facts.group, self.run.facts.source)

    def committed(self) -> int:
        return sum(self.offsets().values())

    @contextmanager
    def going(self, services: Services) -> Iterator[None]:
        """Processes until it has committed something new; then the block; then it is stopped.
        Raises what it raised."""
        stop = threading.Event()
        before = self.committed()

        def work() -> None:
            if not self.begun:
                self.begun = True
                execute(make_context(self.settings, services, self.history, self.run, stop))
            else:
                resume(self.settings, services, self.history, self.id, stop)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            try:
                wait_until(
                    lambda: done.done() or self.committed() > before + 200,
                    WAIT_S,
                    "new committed inputs",
                )
                yield
            finally:
                stop.set()
            done.result(WAIT_S)

    def fenced(self) -> list[str]:
        """Why its workers were fenced that were."""
        entries = read_journal(self.cluster.address, self.run.facts.journal)
        return [
            e.reason
            for e in entries
            if isinstance(e, TransactionEnded) and e.outcome is Declared.FENCED
        ]

    def assert_exact(self) -> None:
        """Every number that the group's offsets cover is in the sink once; no transaction is
        open."""
        facts = self.run.facts
        assert all(p.lso == p.hw for p in self.cluster.bounds(facts.sink).partitions)
        offsets = self.offsets()
        read = [
            m
            for m in read_all(self.cluster.address.bootstrap, facts.source)
            if m.offset < offsets[m.partition]
        ]
        squares = Counter[bytes | None](str(int(m.value or b"") ** 2).encode() for m in read)
        got = Counter(m.value for m in read_all(self.cluster.address.bootstrap, facts.sink))
        missing, extra = squares - got, got - squares
        assert not missing and not extra, (
            f"{offsets}: {len(missing)} missing {missing}, {len(extra)} extra {extra}"
        )
        assert set(squares.values()) == {1}


def test_checkpoints_come_and_go_and_partitions_are_added(
    settings: Settings, cluster: Services
) -> None:
    """Story: a run is stopped and resumed three times: with its checkpoint of an hour ago, without
    any, and with more partitions on both sides. Spark starts elsewhere each time; the sink is exact
    each time."""
    endless = Endless(settings, cluster)
    checkpoint = settings.runs / endless.id / "checkpoint"
    with endless.going(cluster):
        pass
    shutil.copytree(checkpoint, earlier := checkpoint.with_name("earlier"))
    with endless.going(cluster):
        pass
    endless.assert_exact()

    shutil.rmtree(checkpoint)
    earlier.rename(checkpoint)
    with endless.going(cluster):
        pass
    endless.assert_exact()

    shutil.rmtree(checkpoint)
    admin = AdminClient(admin_config(Address(cluster.bootstrap)))
    wanted = [
        NewPartitions(topic, 4) for topic in (endless.run.facts.source, endless.run.facts.sink)
    ]
    for added in admin.create_partitions(wanted).values():
        added.result()
    with endless.going(cluster):
        wait_until(lambda: all(endless.offsets().values()), WAIT_S, "inputs of the new partitions")
    endless.assert_exact()
    assert len(endless.offsets()) == 4


def test_two_runs_that_share_their_transactional_ids_fence_each_other(
    settings: Settings, cluster: Services
) -> None:
    """Story: by mistake a second run has the group and the transactional ids of one that goes on,
    and writes the same topics. The run that takes an id over fences the other, which says so. Still
    every number is in the sink once."""
    # Spark here runs two tasks at a time: with one partition they are those of the two runs.
    one = Endless(settings, cluster, partitions=1, per_transaction=50)
    topics = {
        "source": {"topic": one.run.facts.source},
        "sink": {"topic": one.run.facts.sink},
    }
    other = Endless(settings, cluster, partitions=1, per_transaction=50, **topics)
    (own,), (shared,) = other.run.facts.stages, one.run.facts.stages
    mistaken = replace(own, group=shared.group, prefix=shared.prefix)
    facts = replace(other.run.facts, stages=(mistaken,), group=shared.group)
    other.history.remember(other.id, facts)
    fights = (one, other)
    # Who has used up its attempts ends as fenced; else both go on until they are stopped.
    with suppress(Fenced), one.going(cluster), other.going(cluster):
        wait_until(
            lambda: any(fight.fenced() for fight in fights), WAIT_S, "a worker that is fenced"
        )
    said = [reason for fight in fights for reason in fight.fenced()]
    assert said and all(
        reason.startswith(f"{shared.prefix}-") and "was taken over" in reason for reason in said
    )
    one.assert_exact()


@pytest.fixture
def larger_spark(settings: Settings, tmp_path: Path) -> Iterator[EmbeddedSpark]:
    """A Spark server of this test's own, with more cores than that of the session."""
    server = EmbeddedSpark(tmp_path / "spark", jar_files(settings, SPARK))
    server.cores += 1
    server.start()
    yield server
    server.stop()


def test_a_killed_spark_server_is_followed_by_another(
    settings: Settings, cluster: Services, larger_spark: EmbeddedSpark
) -> None:
    """Story: the Spark server is killed during a run. The run fails with a sentence; with another
    server of fewer cores it is resumed, and the sink is exact."""
    endless = Endless(settings, cluster)

    def kill_it_on_the_way() -> None:
        with endless.going(replace(cluster, spark_remote=larger_spark.remote)):
            for pid in larger_spark.pids():
                psutil.Process(pid).kill()
            wait_until(lambda: endless.run.state is State.FAILED, WAIT_S, "the run's failure")

    with pytest.raises(SparkError, match="The Spark server has ended or can no longer be reached"):
        kill_it_on_the_way()
    with endless.going(cluster):
        pass
    assert endless.run.state is State.STOPPED
    endless.assert_exact()
