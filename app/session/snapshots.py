"""The newest snapshot of each topic, shared by all pages."""

from __future__ import annotations

from contextlib import nullcontext

import streamlit as st

from topicproof.app.topic.snapshot import Snapshot, Watch
from topicproof.app.wording import plain
from topicproof.backend.address import Address
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

REOPENED_AGE_MAX_S = 5.0
"""Maximum age of a snapshot when a page has just been opened."""
LIVE_AGE_MAX_S = 1.5


def page_snapshot(settings: Settings, kafka: Services, topic: str, live: bool) -> Snapshot:
    """Returns the topic's snapshot: a recent one for a page that was just opened, a current one
    while the topic is `live`, otherwise the previous one."""
    is_shown = st.session_state.get("snapshot_of") == topic
    age_max_s = LIVE_AGE_MAX_S if live else float("inf") if is_shown else REOPENED_AGE_MAX_S
    if st.session_state.pop("look_again", None) == topic:
        age_max_s = 0.0
    watch = _watch(kafka.bootstrap, topic)
    with nullcontext() if live else st.spinner(f"Reading the batch headers of {plain(topic)}…"):
        snapshot = watch.get(Address(kafka.bootstrap, settings.client), age_max_s)
    st.session_state["snapshot_of"] = topic
    return snapshot


def fresh_snapshot(settings: Settings, kafka: Services, topic: str, age_max_s: float) -> Snapshot:
    """Returns a snapshot of the topic that is at most so old, whatever other pages keep. Raises
    ClusterError, TopicError."""
    return _watch(kafka.bootstrap, topic).get(Address(kafka.bootstrap, settings.client), age_max_s)


def request_new_snapshot(topic: str) -> None:
    """Makes the next snapshot of the topic a new one."""
    st.session_state["look_again"] = topic


@st.cache_resource(max_entries=12, ttl="1h", show_spinner=False)
def _watch(bootstrap: str, topic: str) -> Watch:  # noqa: ARG001 - the address is part of the key
    return Watch(topic)
