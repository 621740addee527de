"""Deletion of a run: its topics, tables, groups, folder and history entry."""

from __future__ import annotations

import shutil

from pyspark.errors import PySparkException

from topicproof.backend.errors import SparkError
from topicproof.backend.history.store import History, Run
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.duplicates import table_of
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark import connect, with_session
from topicproof.backend.settings import Settings
from topicproof.backend.sink.table import drop_table, drop_tables
from topicproof.backend.storage import withdraw

MEMBERS_LEAVE_S = 60.0
"""A dead consumer is a member for its session timeout, 45 s by default."""


def clean(settings: Settings, services: Services, history: History, run_id: str) -> list[str]:
    """Delete a run's topics (only those that it created), tables, groups, folder and history entry.
    Returns the names of the deleted topics and tables. Raises ClusterError if a group still has a
    member."""
    run = history.take(run_id)
    stop_orphan(services, run)
    cluster = Cluster(services.address)
    # Groups first: a member refuses the deletion, and then nothing is lost yet.
    for names in run.facts.stages:
        cluster.delete_group(names.group, MEMBERS_LEAVE_S)
    deleted = cluster.delete_topics(run.facts.made)
    for names in run.facts.stages:
        if names.database is not None:
            drop_tables(names.database, names.sink, names.group)
            deleted.append(names.sink)
    source = run.plan.get("source")
    # A check names its source only.
    if isinstance(source, dict) and (url := source.get("url")):
        drop_table(url, table_of(run.facts.source))
    shutil.rmtree(settings.runs / run.id, ignore_errors=True)
    withdraw(services.storage, settings.runs / run.id)
    history.forget(run_id)
    return deleted


def stop_orphan(services: Services, run: Run) -> None:
    """Stop the query of a killed run that is still in the Spark server."""
    left = run.facts.session
    if not left or not services.spark_remote:
        return
    try:
        spark = connect(with_session(services.spark_remote, left))
        for query in spark.streams.active:
            query.stop()
        spark.stop()
    except (SparkError, PySparkException) as error:
        # The server has restarted or has ended the session, so the query is gone.
        if "INVALID_HANDLE" not in f"{error} {error.__cause__}":
            raise
