"""The ids of a cluster and its topics, from Kafka's metadata. A recreated topic has a new id."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.validators.finding import Bounds, Origin, Origins
from topicproof.validators.merged_topics import split


def topic_names(*bounds: Bounds) -> tuple[str, ...]:
    """Return each topic once."""
    return tuple(dict.fromkeys(part.topic for each in bounds for part, _ in split(each)))


def fetch_origin(address: Address, topics: Iterable[str]) -> Origin:
    """Raises TopicError for a topic that does not exist, ClusterError when no broker answers."""
    with connect(address) as kafka:
        return kafka.with_retries(lambda: _ask(kafka, tuple(topics)))


def fetch_origins(
    address: Address, other: Address | None, sources: Sequence[str], sinks: Sequence[str]
) -> Origins:
    """Return the ids of these topics. `other` is the sources' cluster, if it is not the sinks'.
    Raises TopicError for a topic that does not exist, ClusterError."""
    if other is None:
        origin = fetch_origin(address, dict.fromkeys((*sources, *sinks)))
        return Origins(replace(origin, name=address.called if address.name else None))
    sink, source = (
        replace(fetch_origin(cluster, topics), name=cluster.called)
        for cluster, topics in ((address, sinks), (other, sources))
    )
    return Origins(sink, source)


def fetch_replaced(
    address: Address, recorded: Mapping[str, str | None], since: str
) -> tuple[str, ...]:
    """Return a clause for each topic that no longer has its recorded id. Topics without a recorded
    id are not asked about. Raises ClusterError when no broker answers."""
    if not any(recorded.values()):
        return ()
    with connect(address) as kafka:
        return find_replaced(kafka, recorded, since)


def find_replaced(
    kafka: Connection, recorded: Mapping[str, str | None], since: str
) -> tuple[str, ...]:
    """Return what `fetch_replaced` does, by an open connection."""
    clauses = []
    for topic, topic_id in recorded.items():
        if topic_id is None:
            continue
        try:
            now = spelled(kafka.metadata(topic).topics[0].topic_id)
        except TopicError:
            clauses.append(f"topic {topic} was deleted {since}: its id was {topic_id}")
            continue
        if now != topic_id:
            clauses.append(
                f"topic {topic} was deleted and made again {since}: its id was {topic_id} and"
                f" is {now}, so offsets of the old one say nothing about the new one"
            )
    return tuple(clauses)


def _ask(kafka: Connection, topics: tuple[str, ...]) -> Origin:
    ids: dict[str, str | None] = {}
    cluster = None
    for topic in topics:
        answer = kafka.metadata(topic)
        cluster, ids[topic] = answer.cluster_id, spelled(answer.topics[0].topic_id)
    return Origin(cluster, ids)


def spelled(topic_id: uuid.UUID | str | bytes | None) -> str | None:
    """Return the id as Kafka's own tools print it; None for Kafka's id of zeros, which means
    none."""
    if not topic_id:
        return None
    raw = topic_id if isinstance(topic_id, bytes) else uuid.UUID(str(topic_id)).bytes
    return base64.urlsafe_b64encode(raw).decode().rstrip("=") if any(raw) else None
