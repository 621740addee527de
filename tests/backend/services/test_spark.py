"""Reaching the Spark Connect server, or failing quickly if it is not there."""

from __future__ import annotations

import fcntl
import logging.config
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F

from tests.conftest import wait_until
from tests.ports import free_ports
from topicproof.backend.errors import SparkError
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import Run
from topicproof.backend.runs import clean
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark import MEANING
from topicproof.backend.services.spark_session import (
    ANY_SETTING,
    _mean_the_same,
    connect,
    kept_alive,
    session_id,
    spark_session,
)
from topicproof.backend.settings import Settings

ENDLESS_TASK = """
import fcntl, sys, time
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import read_settings

def hold(batches, path=sys.argv[1]):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(3600)
    yield from batches

with services(read_settings(), kafka=False) as up, spark_session(up.spark_remote) as spark:
    spark.range(1).mapInArrow(hold, "id long").collect()
"""
"""A program with a task in Spark that holds a lock until it ends."""


def test_nobody_there_is_said_in_one_sentence() -> None:
    address = f"sc://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(
        SparkError, match=f"Spark does not answer at {address}. Check SPARK_REMOTE."
    ) as told:
        spark_session(address).__enter__()
    assert "\n" not in str(told.value)


def test_what_is_no_address_is_said() -> None:
    with pytest.raises(
        SparkError,
        match=r"^kafka:9092 is not the address of a Spark Connect server. Check SPARK_REMOTE.$",
    ):
        spark_session("kafka:9092").__enter__()


def test_a_proxy_of_the_surroundings_is_not_asked_for_this_machine(
    cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with spark_session(cluster.spark_remote) as spark:
        assert spark.range(3).where(F.col("id") > 0).count() == 2


def test_a_plan_names_no_line_of_the_program(spark: SparkSession) -> None:
    """Story: a verdict on few records sends 20 plans. With the line of each expression they were
    three times as long, and took Spark a twentieth more processor time."""
    plan: Any = spark.range(1).select(F.col("id") + 1)._plan
    sent = plan.to_proto(spark.client).SerializeToString()
    assert Path(__file__).name.encode() not in sent


def test_a_session_that_waits_is_asked_for_until_it_ends(spark: SparkSession) -> None:
    """Story: a scan of a large log takes longer than the server keeps an unused session. The
    server is asked all the while. A question that fails is left to the owner of the session."""
    asked = list[str]()

    def ask() -> None:
        asked.append(str(spark.conf.get(ANY_SETTING)))

    with kept_alive(ask, every_s=0.001):
        wait_until(lambda: len(asked) > 2, 60, "questions")

    def refuse() -> None:
        asked.clear()
        raise PySparkException("the server is gone")

    with kept_alive(refuse, every_s=0.001):
        wait_until(lambda: not asked, 60, "a question that fails")


def test_expressions_mean_the_same_on_any_server(spark: SparkSession) -> None:
    """Story: a given Spark has other settings, with which a long text in lower case takes hours."""
    mapping = "spark.sql.icu.caseMappings.enabled"
    spark.conf.set(mapping, "false")
    _mean_the_same(cast("Any", spark), "")
    assert {name: spark.conf.get(name) for name in MEANING} == {**MEANING, mapping: "true"}


def test_an_error_in_an_expression_shows_no_record_in_a_log(
    cluster: Services, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Story: an expression fails on a value that is a secret. Who called hears of it, and no log
    does, also not after another library has configured logging as uvicorn does."""
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    with (
        spark_session(cluster.spark_remote) as spark,
        pytest.raises(PySparkException, match="4711x"),
    ):
        spark.sql("select cast(id as string) || '711x' as n from range(4, 5)").selectExpr(
            "cast(n as int)"
        ).collect()
    assert "4711x" not in "".join(capfd.readouterr()) + caplog.text


def test_tasks_of_a_killed_process_end(
    cluster: Services, settings: Settings, tmp_path: Path
) -> None:
    """Story: a check is killed with -9 while another command uses the same Spark. Its task would
    keep its place there until nobody has asked for its session for a minute. The keeper releases
    the session at once."""
    assert cluster.spark_remote
    lock = tmp_path / "lock"

    def is_held() -> bool:
        if not lock.exists():
            return False
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    environment = {**os.environ, "TOPICPROOF_HOME": str(settings.home)}
    command = [sys.executable, "-P", "-c", ENDLESS_TASK, str(lock)]
    with subprocess.Popen(command, env=environment) as process:
        wait_until(is_held, 60, "the task")
        process.kill()
    wait_until(lambda: not is_held(), 10, "the end of the task")


def test_a_session_that_ends_while_its_query_is_stopped_is_left_behind(
    cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a killed run is resumed while the keeper releases its session. The resumed run must
    not keep the dead session as its active one: its query would ask it, and fail."""
    killed = connect(cluster.spark_remote)
    run = cast(Run, SimpleNamespace(facts=Facts(session=session_id(killed))))
    orphans: list[SparkSession] = []

    def connect_as_it_ends(remote: str) -> SparkSession:
        orphans.append(connect(remote))
        killed.stop()
        return orphans[0]

    monkeypatch.setattr(clean, "connect", connect_as_it_ends)
    clean.stop_orphan(cluster, run)
    (orphan,) = orphans
    assert orphan.is_stopped  # type: ignore[attr-defined]
