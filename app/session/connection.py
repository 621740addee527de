"""The cluster of this page: its settings, its Kafka, its topics, and the decoders of payloads."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from topicproof.backend.address import Address
from topicproof.backend.errors import TopicproofError
from topicproof.backend.formats.cache import Allowance
from topicproof.backend.formats.formats import Formats
from topicproof.backend.formats.limits import NEW_SCHEMAS_SECONDS_MAX
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.client import require_reachable
from topicproof.backend.properties.registry_properties import RegistryFacts
from topicproof.backend.services.keeper import Services, embedded_cluster_id, services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.watch.cluster_look import cluster_id

CLUSTER_PARAMETER = "cluster"
"""The parameter of the URL that names a cluster."""


def page_settings() -> Settings:
    """Returns the settings, for the cluster in the URL if it is a known one."""
    base = read_settings()
    cluster = st.query_params.get(CLUSTER_PARAMETER)
    if cluster and cluster in base.named_clusters:
        return read_settings(cluster=cluster)
    return base


@dataclass(frozen=True)
class RunningServices:
    """The services, kept running as long as this dashboard needs them."""

    services: Services
    stack: ExitStack


def running_kafka(settings: Settings) -> Services:
    """Returns the running Kafka; starts the embedded one if necessary. Raises ClusterError,
    SetupError."""
    running = _running(str(settings.home), settings.bootstrap, settings.brokers, settings)
    require_reachable(running.services.address)
    return running.services


def _answers(running: RunningServices) -> bool:
    """Whether Kafka still answers. An embedded Kafka that does not was stopped from outside; its
    keeper starts it again on the next request."""
    try:
        require_reachable(running.services.address)
    except TopicproofError:
        return False
    return True


@st.cache_resource(
    max_entries=4,
    show_spinner="Connecting to Kafka, which is started if it is not running…",
    validate=_answers,
    on_release=lambda running: running.stack.close(),
)
def _running(
    home: str,  # noqa: ARG001 - part of the key
    bootstrap: str | None,  # noqa: ARG001 - part of the key
    brokers: int,  # noqa: ARG001 - part of the key
    _settings: Settings,
) -> RunningServices:
    stack = ExitStack()
    return RunningServices(stack.enter_context(services(_settings, spark=False)), stack)


def page_cluster_id(settings: Settings) -> str:
    """Returns what the page's cluster calls itself; empty if it does not answer. Starts nothing."""
    if settings.bootstrap is None:
        return embedded_cluster_id(settings)
    return _cluster_id(settings.bootstrap, settings)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _cluster_id(bootstrap: str, _settings: Settings) -> str:
    try:
        return cluster_id(Address(bootstrap, _settings.client))
    except TopicproofError:
        return ""


def decoders(settings: Settings) -> Formats:
    """Returns the decoders of keys and values. Raises UsageError for a schema file that cannot be
    read."""
    return _formats(settings.registry, tuple(settings.avro_files.items()))


@st.cache_resource(max_entries=4, show_spinner=False, on_release=Formats.close)
def _formats(registry: RegistryFacts | None, avro: tuple[tuple[str, Path], ...]) -> Formats:
    return Formats(registry, dict(avro), Allowance(NEW_SCHEMAS_SECONDS_MAX))


def topic_names(settings: Settings, kafka: Services, topic: str | None) -> list[str]:
    """Returns the names of the cluster's topics; asks again if `topic` is not among them."""
    names = _topics(kafka.bootstrap, settings)
    if topic is not None and topic not in names:
        _topics.clear()
        names = _topics(kafka.bootstrap, settings)
    return names


@st.cache_data(ttl=5, max_entries=4, show_spinner="Asking Kafka for its topics…")
def _topics(bootstrap: str, _settings: Settings) -> list[str]:
    return Cluster(Address(bootstrap, _settings.client)).topics()
