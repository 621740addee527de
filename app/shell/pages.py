"""What stands above each page: the selector of named clusters, if there is more than one, and who
has signed in, with the way out.

The URL has the choice of the cluster as `?cluster=`.
Without it, a run's page shows the run's own cluster, and any other page the last choice of this
browser tab. The empty name is the cluster that has none: the given address, or the embedded Kafka.
Without a login nobody is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from topicproof.app.session.access import page_identity
from topicproof.app.session.connection import CLUSTER_PARAMETER, page_settings
from topicproof.app.session.run_reads import run_of_url
from topicproof.app.shell.places import if_drawn
from topicproof.app.wording import plain
from topicproof.backend.errors import UsageError
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.trust.identity import How

PARAM = CLUSTER_PARAMETER
SELECTOR_PX = 240
KEPT, CHOICE = "cluster_kept", "cluster_choice"


def choose_cluster() -> None:
    """Shows the selector and puts the choice into the URL. Raises UsageError for a wrong file of
    clusters."""
    base = read_settings()
    names = list(base.named_clusters)
    options = names if base.cluster else ["", *names]
    if len(options) < 2:
        return
    chosen = _candidate(base, options)
    st.session_state[KEPT] = chosen
    keep_in_url()
    # The choice also changes by links, so the widget follows it on every rerun.
    st.session_state[CHOICE] = chosen
    base_name = base.bootstrap or "embedded Kafka"
    # A sidebar would take a fifth of each page for it.
    with st.container(horizontal=True, horizontal_alignment="right"):
        st.selectbox(
            "Cluster",
            options,
            key=CHOICE,
            format_func=lambda name: f"Cluster: {name or base_name}",
            on_change=if_drawn(_changed),
            label_visibility="collapsed",
            width=SELECTOR_PX,
        )


def keep_in_url() -> None:
    """Puts the choice back into the URL. Pages write their own parameters over it."""
    chosen = st.session_state.get(KEPT)
    if chosen and st.query_params.get(PARAM) != chosen:
        st.query_params[PARAM] = chosen


def _changed() -> None:
    st.session_state[KEPT] = chosen = st.session_state[CHOICE]
    # Topics, partitions and runs of the URL belong to the cluster before.
    st.query_params.from_dict({PARAM: chosen} if chosen else {})


def _candidate(base: Settings, options: Sequence[str]) -> str:
    requested = st.query_params.get(PARAM)
    if requested is not None and requested not in options:
        st.warning(f"There is no cluster {plain(requested)} in {plain(str(base.clusters_file))}.")
    default = base.cluster or options[0]
    candidates = (requested, _of_run(base), st.session_state.get(KEPT), default)
    return next(name for name in candidates if name is not None and name in options)


def _of_run(base: Settings) -> str | None:
    """Returns the cluster of the run in the URL; None without a run, or if it is unknown: the page
    says so."""
    try:
        run = run_of_url(base)
    except UsageError:
        return None
    return None if run is None else run.facts.cluster.name or ""


def show_person() -> None:
    """Shows the person's name and roles. Raises NotPermitted if the login has ended."""
    by = page_identity(page_settings())
    if not by.authenticated:
        return
    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    ):
        st.caption(f"{plain(by.name)}: {by.roles_shown}", width="content")
        if by.how is How.OPENID:
            st.button("Sign out", type="tertiary", icon=":material/logout:", on_click=st.logout)
