"""Deletion of a run: its topics, tables, groups, folder and history entry."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Set

from pyspark.errors import PySparkException

from topicproof.backend.errors import SparkError
from topicproof.backend.history.store import DAMAGED, History, Run
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.origin import fetch_origin
from topicproof.backend.runs.creations import Creations, is_named_by, read_creations
from topicproof.backend.runs.duplicates import table_of
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark import with_session
from topicproof.backend.services.spark_session import connect
from topicproof.backend.settings import Settings
from topicproof.backend.sink.table import drop_table, drop_tables
from topicproof.backend.storage import withdraw

MEMBERS_LEAVE_S = 60.0
"""A dead consumer is a member for its session timeout, 45 s by default."""


def clean(
    settings: Settings,
    services: Services,
    history: History,
    run_id: str,
    say: Callable[[str], None] = lambda _text: None,
) -> list[str]:
    """Delete a run's topics (only those that it created), tables, groups, folder and history entry.
    Returns the names of the deleted topics and tables. `say` receives a sentence for each that the
    history names, and that nothing in the home shows to be the run's. Raises ClusterError if a
    group still has a member."""
    run = history.take(run_id)
    if "facts" in run.damaged:
        say(f"{DAMAGED}: what {run.id} created in Kafka is not known, and stays.")
    stop_orphan(services, run)
    cluster = Cluster(services.address)
    creations = read_creations(settings.runs / run.id)
    stages = [names for names in run.facts.stages if is_named_by(run.id, names.group)]
    # Groups first: a member refuses the deletion, and then nothing is lost yet.
    for names in stages:
        cluster.delete_group(names.group, MEMBERS_LEAVE_S)
    existing = {*run.facts.made} & {*cluster.topics()}
    own_topics = _own_topics(cluster, run, existing, creations)
    deleted = cluster.delete_topics(own_topics)
    for name in sorted(existing - own_topics):
        say(f"{name} stays: nothing in this home shows that {run.id} created it.")
    for names in stages:
        if names.database is None:
            continue
        if is_named_by(run.id, names.sink) or (names.database, names.sink) in creations.tables:
            drop_tables(names.database, names.sink, names.group)
            deleted.append(names.sink)
        else:
            say(f"{names.sink} stays: nothing in this home shows that {run.id} created it.")
    source = run.plan.get("source")
    # A check names its source only.
    url = source.get("url") if isinstance(source, dict) else None
    if url and is_named_by(run.id, run.facts.source):
        drop_table(url, table_of(run.facts.source))
    shutil.rmtree(settings.runs / run.id, ignore_errors=True)
    withdraw(services.storage, settings.runs / run.id)
    history.forget(run_id)
    return deleted


def _own_topics(cluster: Cluster, run: Run, topics: Set[str], creations: Creations) -> set[str]:
    """Return those of the topics that are the run's: by their name, or by the file in its folder
    and the id that the topic still has. Raises ClusterError, TopicError."""
    noted = topics & creations.topics.keys()
    ids = fetch_origin(cluster.address, noted).topics if noted else {}
    return {
        topic
        for topic in topics
        if is_named_by(run.id, topic)
        or (topic in noted and creations.topics[topic] in (None, ids[topic]))
    }


def stop_orphan(services: Services, run: Run) -> None:
    """Stop the query of a killed run that is still in the Spark server."""
    left = run.facts.session
    if not left or not services.spark_remote:
        return
    try:
        spark = connect(with_session(services.spark_remote, left))
        try:
            for query in spark.streams.active:
                query.stop()
        finally:
            # Its keeper may end it meanwhile. What is not stopped stays the active session here,
            # and the run that goes on would ask it.
            spark.stop()
    except (SparkError, PySparkException) as error:
        # The server has restarted or has ended the session, so the query is gone.
        if "INVALID_HANDLE" not in f"{error} {error.__cause__}":
            raise
