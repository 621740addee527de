"""All checks of the doctor, in the order of what depends on what."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from topicproof.backend.doctor import machine, services
from topicproof.backend.doctor.diagnosis import Diagnosis, Health, failed
from topicproof.backend.errors import TopicproofError
from topicproof.backend.kafka.acls import Task
from topicproof.backend.settings import Settings


def examine(
    settings: Settings | TopicproofError,
    task: Task = Task.CHECK,
    topics: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> tuple[Diagnosis, ...]:
    """Examine the machine and the given services; starts and changes nothing. `settings` may be the
    error for which there are none: the rest is still examined."""
    if isinstance(settings, TopicproofError):
        return (
            *(machine.python(), machine.packages(), machine.java_found(needed=True)),
            *(machine.memory(embedded=True), machine.ports(), failed("settings", settings)),
        )
    embedded = settings.bootstrap is None or settings.spark_remote is None
    with ThreadPoolExecutor() as pool:
        # Each may wait for a network that does not answer.
        brokers = pool.submit(_brokers, settings, task, topics, groups)
        spark = pool.submit(services.spark, settings)
        return (
            *(machine.python(), machine.packages(), machine.java_found(embedded)),
            *(machine.memory(embedded), machine.disk(settings), machine.ports()),
            *(machine.jars(settings, embedded), *brokers.result(), spark.result()),
        )


def _brokers(
    settings: Settings, task: Task, topics: Sequence[str], groups: Sequence[str]
) -> tuple[Diagnosis, ...]:
    broker = services.broker(settings, task)
    if settings.bootstrap is None or broker.health is Health.FAILED:
        return (broker,)
    try:
        return (broker, *services.rights(settings, task, topics, groups))
    except TopicproofError as error:
        return (broker, failed("rights", error))
