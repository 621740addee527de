"""What coordinators and leaders know of a topic, besides its log: open transactions, producers,
and what groups still have to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pandas as pd
import streamlit as st

from topicproof.app.topic.snapshot import Snapshot
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.coordination.coordinator import (
    PRODUCER_COLUMNS,
    open_transactions,
    topic_producers,
)
from topicproof.backend.kafka.coordination.lag import GroupLag, group_lags
from topicproof.backend.kafka.coordination.reasons import abort_reasons, transactional_ids
from topicproof.backend.kafka.coordination.share import ShareGroup, share_groups
from topicproof.backend.kafka.coordination.transaction_state import (
    TOPIC as STATE_TOPIC,
    client_versions,
    is_exposed,
    read_states,
)
from topicproof.backend.kafka.log.rawlog import connect, fetch_bounds
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.mirror_offsets import Checkpoint, checkpoints
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.coordinator import OpenTransaction, short_name
from topicproof.validators.finding import Bounds

COORDINATION_AGE_MAX_S = 5


@dataclass(frozen=True)
class Coordination:
    """What coordinators and leaders know of a topic's transactions, besides its log."""

    opened: tuple[OpenTransaction, ...]
    producers: pd.DataFrame
    names: Mapping[int, str]
    """Transactional ids by producer id, as far as they are still remembered."""
    reasons: Mapping[tuple[int, int], str]
    """Why a transaction was aborted (`reasons`), by partition and first offset; only proven
    reasons."""
    exposed: Mapping[str, bool | None]
    """Whether late requests can reach the next transaction (`is_exposed`), by transactional id;
    only ids in the coordinators' log."""
    not_heard: str | None
    """Which brokers did not answer, and why; their information is missing above."""
    note: str = ""
    """What was left out; empty if nothing was."""


def topic_coordination(settings: Settings, kafka: Services, snapshot: Snapshot) -> Coordination:
    """Queries once per snapshot, and again after a moment, because open transactions age."""
    return _coordination(
        kafka.bootstrap, snapshot.bounds.topic, snapshot.taken_at, settings.client, snapshot
    )


@st.cache_resource(
    ttl=COORDINATION_AGE_MAX_S, max_entries=12, show_spinner="Asking the transaction coordinators…"
)
def _coordination(
    bootstrap: str,
    topic: str,
    taken_at: datetime,  # noqa: ARG001 - part of the key
    _client: Mapping[str, str],
    _snapshot: Snapshot,
) -> Coordination:
    budget = LookBudget()
    try:
        with connect(Address(bootstrap, _client)) as kafka:
            opened = open_transactions(
                kafka, topic, _snapshot.bounds, _snapshot.ranges, budget=budget
            )
            producers = topic_producers(kafka, topic, budget=budget)
    except ClusterError as error:
        nobody = pd.DataFrame(columns=list(PRODUCER_COLUMNS))
        return Coordination((), nobody, {}, {}, {}, str(error))
    remembered = producers.dropna(subset=["transactional_id"])
    names = dict(zip(remembered["producer_id"], remembered["transactional_id"], strict=True))
    short = producers["transactional_id"].map(short_name, na_action="ignore")
    producers = producers.assign(transactional_id=short)
    if _snapshot.transactions.empty:
        return Coordination(opened, producers, _short(names), {}, {}, None, budget.note)
    try:
        reasons, log_names, exposed = _read_coordinator_log(
            bootstrap, _snapshot.bounds, _client, _snapshot.transactions, names
        )
    except ClusterError as error:
        unheard = f"The coordinators' own log: {error}"
        return Coordination(opened, producers, _short(names), {}, {}, unheard, budget.note)
    every_name = _short(log_names | names)
    return Coordination(opened, producers, every_name, reasons, exposed, None, budget.note)


def _short(names: Mapping[int, str]) -> dict[int, str]:
    """Returns the names as pages show them: each stands in each row of its producer."""
    return {producer_id: short_name(name) for producer_id, name in names.items()}


@st.cache_resource(ttl="1h", max_entries=12, show_spinner="Reading the coordinators’ own log…")
def _read_coordinator_log(
    bootstrap: str,
    within: Bounds,
    _client: Mapping[str, str],
    _ended: pd.DataFrame,
    _names: Mapping[int, str],
) -> tuple[dict[tuple[int, int], str], dict[int, str], dict[str, bool | None]]:
    """Returns why the transactions within these bounds were aborted, the transactional ids, and
    which of these are exposed. Reads once, because ended transactions do not change. Raises
    ClusterError."""
    # An id's log is in one partition; if a name is unknown, all partitions must be read.
    all_named = set(_ended["producer_id"]) <= _names.keys()
    bounds = fetch_bounds(Address(bootstrap, _client), STATE_TOPIC)
    states = read_states(
        Address(bootstrap, _client),
        bounds,
        set(_names.values()) if all_named else None,
        topics=(within.topic,),
        budget=LookBudget(),
    )
    places = zip(_ended["partition"], _ended["first_offset"], strict=True)
    placed_reasons = zip(places, abort_reasons(within.topic, _ended, states), strict=True)
    reasons = {place: reason for place, reason in placed_reasons if reason is not None}
    exposed = {
        short_name(name): is_exposed(version) for name, version in client_versions(states).items()
    }
    return reasons, transactional_ids(states), exposed


@st.cache_data(
    ttl=COORDINATION_AGE_MAX_S,
    max_entries=12,
    show_spinner="Asking for the groups’ committed offsets…",
)
def topic_lags(
    bootstrap: str,
    topic: str,
    taken_at: datetime,
    _client: Mapping[str, str],
    _snapshot: Snapshot,
) -> tuple[tuple[GroupLag, ...], str]:
    """Returns the lags of the topic's groups, and what was left out."""
    budget = LookBudget()
    opened = _coordination(bootstrap, topic, taken_at, _client, _snapshot).opened
    with connect(Address(bootstrap, _client)) as kafka:
        lags = group_lags(kafka, topic, _snapshot.bounds, _snapshot.ranges, opened, budget=budget)
    return lags, budget.note


@st.cache_data(
    ttl=COORDINATION_AGE_MAX_S,
    max_entries=12,
    show_spinner="Asking where share groups begin…",
)
def topic_share_groups(
    bootstrap: str,
    topic: str,
    taken_at: datetime,
    _client: Mapping[str, str],
    _snapshot: Snapshot,
) -> tuple[tuple[ShareGroup, ...], str]:
    """Returns the topic's share groups, and what was left out."""
    budget = LookBudget()
    opened = _coordination(bootstrap, topic, taken_at, _client, _snapshot).opened
    with connect(Address(bootstrap, _client)) as kafka:
        groups = share_groups(
            kafka, topic, _snapshot.bounds, _snapshot.ranges, opened, budget=budget
        )
    return groups, budget.note


@st.cache_data(
    ttl=COORDINATION_AGE_MAX_S,
    max_entries=12,
    show_spinner="Asking for offsets that MirrorMaker translated…",
)
def mirrored_offsets(
    bootstrap: str, topic: str, _client: Mapping[str, str]
) -> tuple[tuple[Checkpoint, ...], str]:
    """Returns the offsets that mirrors translated, and what was left out."""
    budget = LookBudget()
    mirrors = checkpoints(Address(bootstrap, _client), [topic], budget=budget)
    return tuple(checkpoint for mirror in mirrors for checkpoint in mirror.found), budget.note
