"""Creation of a run: its topics, tables, initial offsets and history entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topicproof.backend.errors import TopicproofError
from topicproof.backend.history.audit import note, require_noted
from topicproof.backend.history.run_state import DEAD_LETTERS, Facts, Names, RanOn
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.client_configs import KEEPS_UNCOMPRESSED
from topicproof.backend.kafka.cluster import Cluster, require_records
from topicproof.backend.kafka.coordinator_logs import require_coordinator_logs
from topicproof.backend.kafka.origin import fetch_origin
from topicproof.backend.runs.creations import Creations, is_named_by, keep_creations
from topicproof.backend.runs.own_names import keep_names
from topicproof.backend.runs.plan import RunPlan
from topicproof.backend.runs.query import require_expressions, transactional_ids
from topicproof.backend.runs.scenarios import Scenario, Stage, scenario
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.local_servers import HOST
from topicproof.backend.services.processes import free_ports
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import RunTopics
from topicproof.backend.sink.journal import append_to_journal
from topicproof.backend.sink.stateful import commit_batch_floor
from topicproof.backend.sink.table import make_tables, require_no_table, shown_url
from topicproof.backend.trust.identity import Action
from topicproof.validators.finding import Guarantee

TABLES = "tables.db"
"""File in a run's folder: the SQLite database with its tables."""
NO_FACTS = Facts()


def create(settings: Settings, services: Services, history: History, plan: RunPlan) -> Run:
    """Create a run's topics, commit its initial offsets, and enter it in the history. Raises
    ClusterError, TopicError, NotPermitted."""
    require_noted(history, Action.LAUNCH, plan.scenario)
    cluster = Cluster(services.address)
    cluster.check()
    require_coordinator_logs(cluster)
    chosen = scenario(plan.scenario)
    if plan.source.topic is not None and not plan.until_stopped:
        require_records(cluster.bounds(plan.source.topic))
    if chosen.expressions:
        with spark_session(services.spark_remote) as spark:
            require_expressions(spark, plan)
    if plan.sink.url is not None and plan.sink.topic is not None:
        require_no_table(plan.sink.url, plan.sink.topic)
    run = history.create("run", plan.scenario, plan.model_dump(mode="json", by_alias=True))
    note(history, Action.LAUNCH, run.id)
    created: list[str] = []
    try:
        facts = _make(settings, cluster, plan, run.id, created)
        _keep_creations(settings, run.id, created, facts)
        keep_names(settings.runs / run.id, facts)
        history.remember(run.id, replace(facts, launched_by=(history.by,)))
    except TopicproofError as error:
        # `clean` deletes what there is.
        _keep_creations(settings, run.id, created)
        where = RanOn(settings.bootstrap, settings.brokers, settings.cluster)
        left = Facts(made=tuple(created), cluster=where, launched_by=(history.by,))
        history.remember(run.id, left)
        history.end(run.id, State.FAILED, None, None, str(error))
        raise
    return history.get(run.id)


def _keep_creations(
    settings: Settings, run_id: str, created: Sequence[str], facts: Facts = NO_FACTS
) -> None:
    """Write down what the run created under names that its plan chose, if anything."""
    topics = {
        topic: facts.topic_ids.get(topic) for topic in created if not is_named_by(run_id, topic)
    }
    tables = tuple(
        (names.database, names.sink)
        for names in facts.stages
        if names.database is not None and not is_named_by(run_id, names.sink)
    )
    if topics or tables:
        keep_creations(settings.runs / run_id, Creations(topics, tables))


def _make(
    settings: Settings, cluster: Cluster, plan: RunPlan, run_id: str, created: list[str]
) -> Facts:
    """Create the topics, tables and initial offsets. Returns the facts to remember. `created` gets
    each topic that is created, even if a later one fails."""
    chosen = scenario(plan.scenario)
    topics = topics_of(run_id, plan, chosen)
    journal = f"{run_id}-journal"
    cluster.create_topic(journal, 1, exists_ok=False, **KEEPS_UNCOMPRESSED)
    created.append(journal)
    _make_topics(cluster, plan, chosen, topics, created)
    database = _database(settings, run_id, plan) if chosen.tables else None
    stages = [
        replace(stage_names(run_id, stage, topics, journal), database=database)
        for stage in chosen.stages
    ]
    for stage, names in zip(chosen.stages, stages, strict=True):
        if stage.stateful:
            partitions = len(cluster.partitions(names.source))
            created.append(commit_batch_floor(cluster, names.group, partitions))
    if plan.sink.dead_letters:
        stages = [_with_dead_letters(cluster, names, created) for names in stages]
    sinks = [] if database else [sink for names in stages for sink in names.sinks]
    if settings.bootstrap is not None and Guarantee(plan.guarantee) is Guarantee.EXACTLY_ONCE:
        # A coordinator that lets nobody begin is named now. On Spark's workers each try would wait
        # for it again, for minutes.
        cluster.fence_and_abort(transactional_ids(cluster, chosen.stages[0], stages[0])[:1])
    topic_ids = fetch_origin(cluster.address, (journal, *_kafka_topics(stages))).topics
    append_to_journal(cluster.address, journal, RunTopics(topic_ids))
    return Facts(
        topic_ids=topic_ids,
        source=topics[chosen.sources[0]],
        sink=topics[chosen.sinks[0]],
        journal=journal,
        group=stages[0].group,
        topics=topics,
        stages=tuple(stages),
        made=tuple(created),
        cluster=RanOn(settings.bootstrap, settings.brokers, settings.cluster),
        initial_offsets={
            names.stage: _commit_initial_offsets(cluster, plan, names, topics, chosen)
            for names in stages
        },
        sink_from={
            sink: {str(p.partition): p.hw for p in cluster.bounds(sink).partitions}
            for sink in sinks
        },
        database=shown_url(database) if database else None,
        filled=not plan.fills,
        # The port is chosen once: the URLs in the source must remain valid after a resume.
        served=f"http://{HOST}:{free_ports(1)[0]}/" if chosen.serves and plan.fills else "",
    )


def _kafka_topics(stages: Sequence[Names]) -> tuple[str, ...]:
    """Return all sources and sinks but tables."""
    return tuple(
        topic
        for names in stages
        for topic in (*names.sources, *(names.sinks if names.database is None else ()))
    )


def topics_of(run_id: str, plan: RunPlan, chosen: Scenario) -> dict[str, str]:
    """Return Kafka's name of each topic of the scenario. Dead-letter topics are named after their
    sink."""
    topics = {topic: f"{run_id}-{topic}" for topic in chosen.topics}
    topics[chosen.sources[0]] = plan.source.topic or topics[chosen.sources[0]]
    sink = chosen.sinks[0]
    topics[sink] = plan.sink.topic or topics[sink]
    if f"{sink}{DEAD_LETTERS}" in topics:
        topics[f"{sink}{DEAD_LETTERS}"] = f"{topics[sink]}{DEAD_LETTERS}"
    return topics


def _database(settings: Settings, run_id: str, plan: RunPlan) -> str:
    """Return the URL of the run's tables: in the run's folder, unless the plan names a database."""
    if plan.sink.url is not None:
        return plan.sink.url
    folder = settings.runs / run_id
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / TABLES}"


def stage_names(run_id: str, stage: Stage, topics: Mapping[str, str], journal: str) -> Names:
    """Return the names of a run's stage in Kafka."""
    sources, sinks = ([topics[topic] for topic in of] for of in (stage.sources, stage.sinks))
    prefix = f"{run_id}-{stage.name}"
    return Names(stage.name, tuple(sources), tuple(sinks), journal, prefix, prefix)


def _with_dead_letters(cluster: Cluster, names: Names, created: list[str]) -> Names:
    """Create a stage's dead-letter topic, if it is missing."""
    if names.dead_letters is not None:
        return names
    topic = f"{names.sink}{DEAD_LETTERS}"
    if topic not in cluster.topics():
        cluster.create_topic(topic, 1)
        created.append(topic)
    return replace(names, sinks=(*names.sinks, topic))


def _make_topics(
    cluster: Cluster, plan: RunPlan, chosen: Scenario, topics: Mapping[str, str], created: list[str]
) -> None:
    """Create the missing topics of a run, and add their names to `created`."""
    if plan.fills:
        for source in chosen.sources:
            cluster.create_topic(topics[source], plan.partitions)
            created.append(topics[source])
    partitions = len(cluster.partitions(topics[chosen.sources[0]]))
    existing = cluster.topics() if plan.sink.topic is not None else []
    for role in chosen.topics:
        topic = topics[role]
        if role not in (*chosen.sources, *chosen.tables) and topic not in existing:
            cluster.create_topic(topic, plan.sink.partitions or partitions)
            created.append(topic)


def _commit_initial_offsets(
    cluster: Cluster, plan: RunPlan, names: Names, topics: Mapping[str, str], chosen: Scenario
) -> dict[str, dict[str, int]]:
    """Commit a stage's initial offsets. From now on a missing offset is an error, never a fresh
    start.

    Returns offsets by topic and partition. `latest` in a plan applies to the run's own sources. A
    topic between two stages is read from its end at the run's creation.
    """
    initial: dict[str, dict[str, int]] = {}
    outer = {topics[source] for source in chosen.sources}
    for source in names.sources:
        earliest = source in outer and plan.source.starting == "earliest"
        bounds = cluster.bounds(source)
        offsets = {p.partition: p.start if earliest else p.lso for p in bounds.partitions}
        if names.database is None:
            cluster.commit_offsets(names.group, source, offsets)
        initial[source] = {str(p): offset for p, offset in offsets.items()}
    if names.database is not None:
        begun = {
            (source, int(p)): offset
            for source, of_topic in initial.items()
            for p, offset in of_topic.items()
        }
        make_tables(names.database, names.sink, names.group, begun, Guarantee(plan.guarantee))
    return initial
