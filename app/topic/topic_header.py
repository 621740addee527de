"""What is the same on every tab of a topic: the choice of the topic, the newest verdict on it, a
refresh button, and the tabs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from topicproof.app import wording
from topicproof.app.session.access import open_history, show_error, show_errors
from topicproof.app.session.connection import running_kafka, topic_names
from topicproof.app.session.reports import judged_run
from topicproof.app.session.run_reads import newest_runs, run_of_url
from topicproof.app.shell.places import COMPARE, TOPICS, TRANSACTIONS, Tab, go_on, if_drawn, tabs
from topicproof.app.shell.url_state import GROUPS, PARTITIONS, RECORDS, SETTINGS, TAIL
from topicproof.app.topic import topic_strip
from topicproof.app.topic.snapshot import Snapshot, page_snapshot, request_new_snapshot
from topicproof.backend.errors import ClusterError, TopicproofError, UsageError
from topicproof.backend.history.store import Run
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

POLL_S = 2.0
RETRY_S = 3.0
KEPT = ("view", "level")
"""What stays of a page's address when another topic is chosen."""
Body = Callable[[Services, Snapshot, bool], None]
COMPARE_TAB, TRANSACTIONS_TAB = "Compare", "Transactions"
VIEW_TABS = {
    RECORDS: "Records",
    TAIL: "Live tail",
    GROUPS: "Groups",
    PARTITIONS: "Partitions",
    SETTINGS: "Configuration",
}
"""The views of the page Topics that are about one topic, as tabs."""


def topic_tabs(topic: str) -> tuple[Tab, ...]:
    """Returns the tabs of a topic."""
    views = {
        view: Tab(label, TOPICS, {"topic": topic, "view": view})
        for view, label in VIEW_TABS.items()
    }
    compare = Tab(COMPARE_TAB, COMPARE, {"topic": topic})
    transactions = Tab(TRANSACTIONS_TAB, TRANSACTIONS, {"topic": topic})
    return compare, views.pop(RECORDS), views.pop(TAIL), transactions, *views.values()


def page(settings: Settings, tab: str, body: Body, follow: bool = True) -> None:
    """Draws the frame, then `body(kafka, snapshot, live)`. While the topic's run goes on, redraws
    the body automatically, unless `follow` is False."""
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    row.title("Topics", anchor=False, width="content")
    topic_slot, verdict_slot, button_slot = (
        row.container(width=width) for width in ("stretch", "content", "content")
    )
    with show_errors():
        kafka = connected(settings)
        if kafka is None:
            st.stop()
        names = topic_names(settings, kafka, st.query_params.get("topic"))
        runs = newest_runs(settings)
    if not names:
        st.info(
            "This cluster has no topics yet. Start a run: you can look at its sink while it runs."
        )
        st.page_link("views/run.py", label="Start a run", icon=":material/play_circle:")
        st.stop()
    sinks = {run.facts.sink: run for run in reversed(runs) if run.kind == "run" and run.facts.sink}
    newest = next((name for name in reversed(sinks) if name in names), names[0])
    # A link of the navigation names no topic: stay with the one that was shown.
    last = st.session_state.get("last_topic")
    requested = st.query_params.get("topic", last if last in names else newest)
    choose(requested if requested in names else None, names, sinks, topic_slot, button_slot)
    if requested not in names:
        st.error(
            f"This cluster has no topic {wording.plain(requested)}. It may have been deleted, or be"
            " on another cluster. Choose another topic above.",
            title="No such topic",
            icon=":material/search_off:",
        )
        st.stop()
    topic = st.session_state["last_topic"] = requested
    run = sinks.get(topic)
    judged = _run_of_address(settings, topic) or judged_run(runs, topic)
    word = None if judged is None else wording.run_word(judged)
    if judged is not None and word is not None:
        verdict_slot.page_link(
            "views/verdict.py",
            label="Verdict",
            icon=word.symbol,
            query_params={"run": judged.id},
            help=wording.plain(f"{judged.id}, {word.word}: {judged.why}"),
        )
    choices = topic_tabs(topic)
    tabs("Of the topic", choices, next(each for each in choices if each.label == tab), topic)
    following = follow and run is not None and run.alive

    def looked_at() -> None:
        go_on()
        with show_errors():
            live = following and run is not None and open_history(settings).get(run.id).alive
            snapshot = page_snapshot(settings, kafka, topic, live)
        if following and not live:
            request_new_snapshot(topic)
            st.rerun()
        body(kafka, snapshot, live)

    st.fragment(looked_at, run_every=POLL_S if following else None)()


def _run_of_address(settings: Settings, topic: str) -> Run | None:
    """Returns the run that the address names; None if it names none that exists, or one without a
    verdict on this topic."""
    try:
        run = run_of_url(settings)
    except UsageError:
        return None
    return None if run is None else judged_run([run], topic)


def connected(settings: Settings) -> Services | None:
    """Returns the running Kafka. If it does not answer, shows why, and draws the page again when
    Kafka is back. Raises SetupError."""
    try:
        return running_kafka(settings)
    except ClusterError as error:
        show_error(error)
    st.caption(f"The page opens when Kafka is back: tried every {RETRY_S:.0f} s.")
    st.fragment(wait_for_kafka, run_every=RETRY_S)(settings)
    return None


def wait_for_kafka(settings: Settings) -> None:
    """Draws the page again once Kafka answers."""
    try:
        running_kafka(settings)
    except TopicproofError:
        return  # The error is on the page already, and the next try follows.
    st.rerun()


def empty(snapshot: Snapshot) -> bool:
    """Whether the topic is empty; if so, shows its balance and a notice."""
    if not snapshot.bounds.offsets:
        topic_strip.balance(snapshot)
        st.info(
            "This topic is empty: HW and log start are the same in every partition. Refresh once"
            " something has been written.",
            title="Empty topic",
        )
    return not snapshot.bounds.offsets


def choose(
    topic: str | None,
    names: Sequence[str],
    sinks: dict[str, Run],
    left: DeltaGenerator,
    right: DeltaGenerator,
) -> None:
    """Asks for the topic: sinks of runs first, newest first, then the others by name."""
    st.session_state["topic_chosen"] = topic
    ordered = [name for name in reversed(sinks) if name in names]
    ordered += [name for name in names if name not in sinks]

    def name(topic_name: str) -> str:
        if topic_name not in sinks:
            return topic_name
        run = sinks[topic_name]
        # A run's own topics begin with its id.
        of = "sink" if topic_name.startswith(run.id) else f"sink of {run.id}"
        return f"{topic_name}  ({of}, {wording.run_state(run).word})"

    def chosen() -> None:
        parameters = {name: st.query_params[name] for name in KEPT if name in st.query_params}
        st.query_params.from_dict({"topic": st.session_state["topic_chosen"], **parameters})

    left.selectbox(
        "Topic: sinks of runs first, the newest first, then every other topic of the cluster",
        ordered,
        label_visibility="collapsed",
        key="topic_chosen",
        placeholder="Choose a topic",
        format_func=name,
        on_change=if_drawn(chosen),
    )
    right.button(
        "Refresh",
        icon=":material/refresh:",
        width="stretch",
        key="refresh",
        disabled=topic is None,
        on_click=request_new_snapshot,
        args=(topic,),
        help=(
            "Ask for log start, LSO and HW again, and read what has arrived since. Until then the"
            " page stays as it is."
        ),
    )
