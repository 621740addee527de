"""Home: what is wrong with the cluster at this moment, three doors, the newest run, and the last
verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from topicproof.app import wording
from topicproof.app.run.picture_facts import drawable
from topicproof.app.run.picture_player import POLL_S as PICTURE_S, show_picture
from topicproof.app.run.stories import STORIES, start_story
from topicproof.app.session.access import open_history, show_error, show_errors
from topicproof.app.session.cluster_reads import cluster_overview
from topicproof.app.session.connection import page_settings, running_kafka
from topicproof.app.session.run_reads import decision_line, newest_runs
from topicproof.app.shell.places import CHECK, DEMOS, TOPICS, open_page
from topicproof.app.shell.url_state import (
    ALL_GROUPS,
    ALL_TRANSACTIONS,
    CLUSTER,
    TransactionsState,
    write_transactions,
)
from topicproof.backend.errors import TopicproofError
from topicproof.backend.history import trend
from topicproof.backend.history.signoff import read_chain
from topicproof.backend.history.store import Run
from topicproof.backend.kafka.browse.causes import Cause, CauseKind, Severity, causes
from topicproof.backend.kafka.browse.overview import Overview
from topicproof.validators.facts.log_facts import OPEN

POLL_S = 5.0
VERDICTS_SHOWN = 5
CAUSES_SHOWN, CAUSES_DRAWN = 4, 50
"""Causes that are shown at once, and on demand."""
COMMANDS_SHOWN = 3
"""Each partition of a hanging transaction has a command of its own."""

settings = page_settings()


def page() -> None:
    st.title("Topicproof", anchor=False)
    causes_slot = st.container()
    st.markdown(
        "See, and prove, what Kafka transactions did to your topics: what was committed, what was"
        " aborted, what is withheld, and whether each input was delivered exactly once."
    )
    doors()
    picture_slot = st.container()
    with show_errors():
        runs = newest_runs(settings)
        verdicts(runs)
    # Last: an embedded Kafka may have to start first.
    with causes_slot:
        st.fragment(health, run_every=POLL_S)()
    with picture_slot:
        newest_run(runs)


def doors() -> None:
    """Shows the three ways in."""
    demo, inspect, check = st.columns(3, gap="medium")
    with demo.container(border=True, height="stretch"):
        st.markdown("**Show it to somebody.** A real run, explained while it happens.")
        if st.button("Watch a demo", icon=STORIES[0].icon, type="primary", width="stretch"):
            with show_errors():
                params = start_story(settings, STORIES[0])
            open_page(DEMOS, params)
        st.page_link("views/demos.py", label="All six stories", icon=":material/theater_comedy:")
    with inspect.container(border=True, height="stretch"):
        st.markdown("**Look into a topic.** Both isolation levels, the fate of each offset.")
        if st.button("Inspect a topic", icon=":material/topic:", width="stretch"):
            open_page(TOPICS, {"view": CLUSTER})
        st.page_link("views/transactions.py", label="Transactions", icon=":material/timeline:")
    with check.container(border=True, height="stretch"):
        st.markdown("**Judge a pipeline.** Any program, any two topics, by a contract.")
        if st.button("Check a pipeline", icon=":material/fact_check:", width="stretch"):
            open_page(CHECK)
        st.page_link("views/history.py", label="Earlier verdicts", icon=":material/history:")


def newest_run(runs: Sequence[Run]) -> None:
    """Shows the picture of the newest run on this cluster."""
    st.header("The newest run", anchor=False)
    cluster_runs = (
        run for run in runs if (run.facts.cluster.name or "") == (settings.cluster or "")
    )
    run = next((run for run in cluster_runs if drawable(run) is not None), None)
    if run is None:
        st.info(
            "Watch a demo to see its records here: how workers write them, how markers commit or"
            " abort them, and which ones wait at the last stable offset.",
            icon=":material/animation:",
        )
        return
    st.page_link(
        "views/run.py",
        label=f"{wording.plain(run.id)}, {wording.run_state(run).word}",
        icon=wording.run_state(run).symbol,
        query_params={"run": run.id},
    )
    st.fragment(pictured, run_every=PICTURE_S if run.alive else None)(run.id)


def pictured(run_id: str) -> None:
    """Shows the picture, live while the run goes on."""
    with show_errors():
        run = open_history(settings).get(run_id)
    show_picture(settings, run, small=True, plays=True)


def health() -> None:
    """Shows what is wrong with the cluster, again and again."""
    try:
        kafka = running_kafka(settings)
        cluster = cluster_overview(kafka.bootstrap, settings.client)
    except TopicproofError as error:
        show_error(error)
        st.caption(f"The list comes when Kafka answers: tried every {POLL_S:.0f} s.")
        return
    listed = causes(cluster, settings.cluster_options)
    trouble = [cause for cause in listed if cause.severity is not Severity.NOTE]
    for why in cluster.not_heard:
        st.warning(wording.plain(why), title="Not everything was answered")
    if not trouble:
        nothing_wrong(cluster)
    for cause in trouble[:CAUSES_SHOWN]:
        show_cause(cause)
    further = len(trouble) - CAUSES_SHOWN
    if further > 0:
        with st.expander(f"{wording.count(further, 'further cause')}"):
            for cause in trouble[CAUSES_SHOWN:CAUSES_DRAWN]:
                show_cause(cause)
            if trouble[CAUSES_DRAWN:]:
                st.caption(f"{len(trouble) - CAUSES_DRAWN:,} more: `topicproof status` has all.")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(glance(kafka.bootstrap, cluster), width="content")
        st.page_link(
            "views/topics.py",
            label="All transactions",
            icon=":material/timeline:",
            query_params={"view": ALL_TRANSACTIONS},
            width="content",
        )


def nothing_wrong(cluster: Overview) -> None:
    """Says that nothing is wrong, as far as it was answered."""
    if not cluster.topics:
        st.info(
            "This cluster has no topics yet. Watch a demo: it makes its own.",
            icon=":material/info:",
        )
    elif not cluster.not_heard:
        st.success(
            "Nothing is wrong now: no transaction hangs or has been open for long, and no group"
            " with members is far behind.",
            icon=":material/check_circle:",
        )


def show_cause(cause: Cause) -> None:
    """Shows one cause: who holds what back from whom, since when, and what to do."""
    is_error = cause.severity is Severity.ERROR
    box = st.error if is_error else st.warning
    since = "" if cause.since is None else f" Since {cause.since:%Y-%m-%d %H:%M:%S} UTC."
    with st.container(gap="xxsmall"):
        box(
            f"{wording.cause_sentence(cause)}  \n"
            f":small[It {wording.plain(cause.status)}.{since} {wording.plain(cause.advice)}]",
            icon=wording.CONDITION_WORDS[cause.condition].symbol,
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            if cause.kind is CauseKind.HANGING_TRANSACTION:
                st.code("\n".join(cause.commands[:COMMANDS_SHOWN]), language=None)
            cause_link(cause)


def cause_link(cause: Cause) -> None:
    """Leads to the transaction or the group."""
    if cause.producer_id is not None:
        selection = TransactionsState(cause.topics[0], producer=cause.producer_id, outcomes=(OPEN,))
        st.page_link(
            "views/transactions.py",
            label="Show the transaction",
            icon=":material/timeline:",
            query_params=write_transactions(selection),
        )
        return
    st.page_link(
        "views/topics.py",
        label="Show the group",
        icon=":material/groups:",
        query_params={"view": ALL_GROUPS, "group": cause.holder},
    )


def glance(bootstrap: str, cluster: Overview) -> str:
    """Returns the figures of the cluster in a line."""
    opened = len(cluster.opened)
    lag = cluster.worst
    if lag is None or not lag.records:
        behind = "no group has a lag"
    else:
        most = "" if lag.exact else "at most "
        behind = (
            f"worst lag {most}{wording.count(lag.records, 'record')}"
            f" ({wording.plain(lag.group)} of {wording.plain(lag.topic)})"
        )
    return " · ".join(
        (
            wording.plain(bootstrap),
            wording.count(cluster.brokers, "broker"),
            wording.count(len(cluster.topics), "topic"),
            wording.count(opened, "open transaction"),
            f"{wording.count(cluster.withheld, 'offset')} withheld",
            behind,
            f"asked at {cluster.taken_at:%H:%M:%S} UTC, again every {POLL_S:.0f} s",
        )
    )


def verdicts(runs: Sequence[Run]) -> None:
    """Shows the last verdicts, and who signed them."""
    st.header("Last verdicts", anchor=False)
    judged = [run for run in runs if run.verdict is not None][:VERDICTS_SHOWN]
    if not judged:
        st.info(
            "Nothing has been judged yet. A demo ends with a verdict, and so does a check.",
            icon=":material/gavel:",
        )
        return
    chain = read_chain(open_history(settings))
    for run in judged:
        word = wording.run_word(run)
        left, middle, right = st.columns([1.5, 2.6, 1.3], vertical_alignment="center")
        left.page_link(
            "views/verdict.py",
            label=wording.plain(trend.subject(run)),
            icon=":material/gavel:" if word is None else word.symbol,
            query_params={"run": run.id},
        )
        badge = "" if word is None else wording.badge(word)
        middle.markdown(f"{badge} {wording.plain(run.why or '')}")
        # Not a caption: a badge in one is too pale to be read.
        when = wording.moment(run.ended_at or run.created_at)
        decision = decision_line(settings, run, chain.of(run.id, run.verdict))
        right.markdown(f"{decision}  \n:small[{when}]")


page()
