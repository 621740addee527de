"""The embedded Kafka and Spark: shared by their users, and gone with the last of them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import SetupError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import end_rest, services
from topicproof.backend.services.spark import EmbeddedSpark
from topicproof.backend.settings import read_settings

pytestmark = pytest.mark.services


def test_two_users_share_one_broker_and_the_last_one_ends_it(tmp_path: Path) -> None:
    """Story: a second command starts while the first still runs. Both see one broker; nothing is
    left at the end."""
    settings = read_settings(home=tmp_path)
    with services(settings, spark=False) as first, services(settings, spark=False) as second:
        assert first == second
        pids = [int(pid) for pid in json.loads((settings.services / "running.json").read_text())]
        assert len(pids) == 1 and psutil.pid_exists(pids[0])
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 20, "the end of the broker")


def test_a_broker_gives_way_and_who_starts_it_stays_as_it_was(tmp_path: Path) -> None:
    """Story: the broker shares its cores with Spark. None of its threads pushes another process off
    a core when it is woken; the keeper, which started it, does as before."""
    settings = read_settings(home=tmp_path)
    with services(settings, spark=False):
        broker = psutil.Process(
            int(next(iter(json.loads((settings.services / "running.json").read_text()))))
        )
        keeper = broker.parent()
        assert keeper is not None
        threads = [os.sched_getscheduler(one.id) for one in broker.threads()]
        assert len(threads) > 10 and set(threads) == {os.SCHED_BATCH}
        assert {os.sched_getscheduler(one.id) for one in keeper.threads()} == {os.SCHED_OTHER}


def test_what_a_killed_keeper_leaves_is_ended_by_the_next_command(tmp_path: Path) -> None:
    """Story: the keeper is killed -9, so its broker is orphaned. The next command ends that one and
    starts its own, whose partitions all have a leader at once. While the keeper is only stopped,
    commands name it instead of waiting."""
    settings = read_settings(home=tmp_path)
    record = settings.services / "running.json"
    with services(settings, spark=False) as first:
        Cluster(Address(first.bootstrap)).create_topic("kept", 20)
        orphan = int(next(iter(json.loads(record.read_text()))))
        keeper = psutil.Process(orphan).parent()
        assert keeper is not None
        keeper.suspend()
        wait_until(lambda: keeper.status() == psutil.STATUS_STOPPED, 10, "the stop")
        with (
            pytest.raises(SetupError, match=f"was stopped by a signal.*kill -CONT {keeper.pid}"),
            services(settings, spark=False),
        ):
            pass
        keeper.resume()
        with services(settings, spark=False):
            pass
        keeper.kill()
        keeper.wait(10)
    (rest := settings.services / "kafka-1/broker-1/tmp/left").touch()
    assert psutil.pid_exists(orphan)
    with services(settings, spark=False) as second:
        admin = AdminClient({"bootstrap.servers": second.bootstrap})
        kept = admin.list_topics("kept", timeout=30).topics["kept"].partitions.values()
        assert len(kept) == 20 and all(one.leader >= 0 for one in kept)
        assert str(orphan) not in json.loads(record.read_text())
        assert not rest.exists()
        assert (
            not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE
        )


def test_a_keeper_that_is_still_stopping_is_waited_for(tmp_path: Path) -> None:
    """Story: a command is called right after another one, whose Kafka takes long to stop. The
    second one says what it waits for, and starts its own when the first is gone."""
    settings = read_settings(home=tmp_path)
    settings.services.mkdir(parents=True)
    lock = (settings.services / "keeper.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        # The first one has stopped.
        lock.close()

    with services(settings, spark=False, say=hear) as found:
        assert "still stopping" in heard[0]
        assert found.bootstrap
    lock.close()


def test_what_is_left_of_a_killed_spark_is_ended(tmp_path: Path) -> None:
    """Story: Spark's server was killed. The process that forks its workers waits for it, and must
    not stay when the keeper starts another server."""
    spark = EmbeddedSpark(tmp_path, ())
    with (
        subprocess.Popen(["false"]) as spark.process,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as spark.forks,
    ):
        spark.process.wait()
        assert spark.forks.poll() is None
        end_rest(spark)
        assert spark.forks.poll() == 0
    end_rest(None)
