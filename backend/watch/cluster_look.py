"""One look at a cluster, as a watch takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kafka.errors import KafkaError

from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.overview import overview
from topicproof.backend.kafka.log.client import cluster_error
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.origin import spelled
from topicproof.backend.watch.conditions import ClusterLook
from topicproof.backend.watch.group_offsets import Place, group_offsets

CLIENT_ID = "topicproof-watch"
"""By which brokers' quotas and logs tell its reading from others'."""


def own_client(address: Address) -> Address:
    """Return the address with the client id of a watch, unless the properties name another."""
    return replace(address, client={"client.id": CLIENT_ID, **address.client})


def cluster_id(address: Address) -> str:
    """Return what the cluster calls itself. Raises ClusterError."""
    try:
        with connect(address) as kafka:
            return str(kafka.with_retries(kafka.metadata_of_all).cluster_id)
    except KafkaError as error:
        raise cluster_error(address, error) from error


def look_at(address: Address) -> ClusterLook:
    """Look at a cluster once. Raises ClusterError if its topics cannot be listed."""
    budget, notes = LookBudget(), []
    offsets: Mapping[Place, int] = {}
    topic_ids: Mapping[str, str] = {}
    try:
        with connect(address) as kafka:
            answer = kafka.with_retries(kafka.metadata_of_all)
            topic_ids = listed_ids(answer)
            offsets = group_offsets(kafka, budget)
    except KafkaError as error:
        notes.append(str(cluster_error(address, error)))
    notes += filter(None, [budget.note])
    return ClusterLook(overview(address), offsets, topic_ids, tuple(notes))


def listed_ids(answer: Any) -> dict[str, str]:
    """Return the topic ids of a Metadata response."""
    return {
        topic.name: topic_id
        for topic in answer.topics
        if (topic_id := spelled(topic.topic_id)) is not None
    }
