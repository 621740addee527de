"""The whole cluster at a glance: brokers, every topic, and their newest records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import streamlit as st

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicproofError
from topicproof.backend.kafka.browse.all_groups import ClusterGroup, all_groups, group_names
from topicproof.backend.kafka.browse.describe import (
    ClusterView,
    Placement,
    Setting,
    describe_cluster,
    describe_topic,
)
from topicproof.backend.kafka.browse.overview import (
    NewestRecords,
    Overview,
    TopicOverview,
    newest_records,
    overview as take_overview,
)
from topicproof.backend.kafka.coordination.ended import EndedTransaction
from topicproof.backend.kafka.coordination.transactions import recently_ended
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Bounds

OVERVIEW_AGE_MAX_S = 5


@st.cache_data(ttl=30, max_entries=4, show_spinner="Asking for brokers and topics…")
def cluster_view(bootstrap: str, _client: Mapping[str, str]) -> ClusterView:
    return describe_cluster(Address(bootstrap, _client))


@st.cache_resource(
    ttl=OVERVIEW_AGE_MAX_S,
    max_entries=4,
    show_spinner="Asking about every topic and group…",
    # A page that polls shows the last answer while the next one is on its way.
    refresh_mode="background",
)
def cluster_overview(bootstrap: str, _client: Mapping[str, str]) -> Overview:
    """Returns every topic at a glance. Raises ClusterError."""
    return take_overview(Address(bootstrap, _client))


@st.cache_resource(
    ttl=OVERVIEW_AGE_MAX_S, max_entries=4, show_spinner="Asking every group for its offsets…"
)
def cluster_groups(
    bootstrap: str, _client: Mapping[str, str]
) -> tuple[tuple[ClusterGroup, ...], str]:
    """Returns every group of the cluster, and what was left out. Raises ClusterError."""
    budget = LookBudget()
    address = Address(bootstrap, _client)
    groups = all_groups(address, cluster_overview(bootstrap, _client), budget=budget)
    return groups, budget.note


@st.cache_resource(
    ttl=OVERVIEW_AGE_MAX_S, max_entries=4, show_spinner="Reading the coordinators’ own log…"
)
def ended_in_cluster(
    bootstrap: str, _client: Mapping[str, str]
) -> tuple[tuple[EndedTransaction, ...], str]:
    """Returns the transactions of the cluster that ended last, and what was left out, or why there
    are none: the log of the coordinators needs a right of its own."""
    budget = LookBudget()
    try:
        return recently_ended(Address(bootstrap, _client), budget=budget), budget.note
    except ClusterError as error:
        return (), str(error)


@st.cache_resource(ttl=OVERVIEW_AGE_MAX_S, max_entries=4, show_spinner="Asking for groups…")
def cluster_group_names(bootstrap: str, _client: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the cluster's groups. Raises ClusterError."""
    return group_names(Address(bootstrap, _client), budget=LookBudget())


def newest_records_of(
    settings: Settings, kafka: Services, topics: Sequence[TopicOverview]
) -> tuple[dict[str, NewestRecords], dict[str, str]]:
    """Returns the newest records (`newest_records`) of the topics that `read_newest_records` has
    read, and why others could not be read."""
    cache = _newest(kafka.bootstrap, settings.client)
    results = {
        overview.topic: cache[overview.topic][1]
        for overview in topics
        if overview.topic in cache and cache[overview.topic][0] == overview.bounds
    }
    newest = {topic: result for topic, result in results.items() if not isinstance(result, str)}
    refused = {topic: result for topic, result in results.items() if isinstance(result, str)}
    return newest, refused


def read_newest_records(
    settings: Settings, kafka: Services, topics: Sequence[TopicOverview], budget_s: float
) -> None:
    """Reads the newest batch headers of topics that moved since they were read, as many as the
    budget allows. Raises ClusterError."""
    cache = _newest(kafka.bootstrap, settings.client)
    deadline = time.monotonic() + budget_s
    with connect(Address(kafka.bootstrap, settings.client)) as client:
        for overview in topics:
            if overview.topic in cache and cache[overview.topic][0] == overview.bounds:
                continue
            try:
                cache[overview.topic] = overview.bounds, newest_records(client, overview.bounds)
            except TopicproofError as error:
                cache[overview.topic] = overview.bounds, str(error)
            if time.monotonic() > deadline:
                return


@st.cache_resource(ttl="10m", max_entries=4, show_spinner=False)
def _newest(
    bootstrap: str,  # noqa: ARG001 - part of the key
    _client: Mapping[str, str],
) -> dict[str, tuple[Bounds, NewestRecords | str]]:
    return {}


@st.cache_data(ttl=30, max_entries=16, show_spinner="Asking for the topic’s settings…")
def topic_view(
    bootstrap: str, topic: str, _client: Mapping[str, str]
) -> tuple[tuple[Placement, ...], tuple[Setting, ...]]:
    return describe_topic(Address(bootstrap, _client), topic)
