"""Home: what this is, how the cluster does at this moment, the last verdicts, and three doors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import streamlit as st

from topicproof.app import wording
from topicproof.app.run.picture_facts import drawable
from topicproof.app.run.picture_player import POLL_S as PICTURE_S, show_picture
from topicproof.app.run.stories import STORIES, start_story
from topicproof.app.session.access import open_history, show_error, show_errors
from topicproof.app.session.cluster_reads import cluster_overview
from topicproof.app.session.connection import page_settings, running_kafka
from topicproof.app.session.run_reads import newest_runs
from topicproof.app.topic.topic_list import ONLY, WITHHELD
from topicproof.backend.errors import TopicproofError
from topicproof.backend.evidence.folder import evidence_hash
from topicproof.backend.history import trend
from topicproof.backend.history.signoff import (
    RunSignoffs,
    Standing,
    read_chain,
    standing,
    standing_text,
)
from topicproof.backend.history.store import Run
from topicproof.backend.kafka.browse.overview import Overview
from topicproof.validators.sentences import brief

POLL_S = 5.0
VERDICTS_SHOWN = 5
OPEN_SHOWN = 3

settings = page_settings()


def page() -> None:
    st.title("Topicproof", anchor=False)
    st.markdown(
        "See, and prove, what Kafka transactions did to your topics: what was committed, what was"
        " aborted, what is withheld, and whether each input was delivered exactly once."
    )
    doors()
    picture_slot, health_slot = st.container(), st.container()
    with show_errors():
        runs = newest_runs(settings)
        verdicts(runs)
    # Last: an embedded Kafka may have to start first.
    with health_slot:
        st.header("The cluster now", anchor=False)
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
            st.switch_page("views/demos.py", query_params=params)
        st.page_link("views/demos.py", label="All six stories", icon=":material/theater_comedy:")
    with inspect.container(border=True, height="stretch"):
        st.markdown("**Look into a topic.** Both isolation levels, the fate of each offset.")
        if st.button("Inspect a topic", icon=":material/topic:", width="stretch"):
            st.switch_page("views/topics.py", query_params={"view": "cluster"})
        st.page_link("views/transactions.py", label="Transactions", icon=":material/timeline:")
    with check.container(border=True, height="stretch"):
        st.markdown("**Judge a pipeline.** Any program, any two topics, by a contract.")
        if st.button("Check a pipeline", icon=":material/fact_check:", width="stretch"):
            st.switch_page("views/check.py")
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
    """Shows the cluster at a glance, again and again."""
    try:
        kafka = running_kafka(settings)
        cluster = cluster_overview(kafka.bootstrap, settings.client)
    except TopicproofError as error:
        show_error(error)
        st.caption(f"The figures come when Kafka answers: tried every {POLL_S:.0f} s.")
        return
    st.caption(
        f"{wording.plain(kafka.bootstrap)} · {wording.count(cluster.brokers, 'broker')} ·"
        f" {wording.count(len(cluster.topics), 'topic')} ·"
        f" asked at {cluster.taken_at:%H:%M:%S} UTC, again every {POLL_S:.0f} s"
    )
    for why in cluster.not_heard:
        st.warning(wording.plain(why), title="Some figures are missing")
    if not cluster.topics:
        st.info(
            "This cluster has no topics yet. Watch a demo: it makes its own.",
            icon=":material/info:",
        )
        return
    figures(cluster)
    slowest(cluster)
    open_ones(cluster)


def figures(cluster: Overview) -> None:
    """Shows the four figures that an operator looks at first."""
    hanging = [transaction for transaction in cluster.opened if transaction.hanging]
    pending = [transaction for transaction in cluster.opened if not transaction.hanging]
    oldest = max((transaction.age_ms for transaction in pending), default=None)
    silent = max((transaction.age_ms for transaction in hanging), default=None)
    lag = cluster.worst
    metrics = (
        (
            "Open transactions",
            f"{len(pending):,}",
            "none" if oldest is None else f"oldest: {brief(oldest)}",
            "One that is open on several topics counts once. Their coordinators abort them after"
            " their timeouts.",
        ),
        (
            "Hanging transactions",
            f"{len(hanging):,}",
            "none" if silent is None else f"last write {brief(silent)} ago",
            "No coordinator knows of them, so only an operator ends them.",
        ),
        (
            "Records withheld",
            f"{cluster.withheld_records:,}",
            f"in {wording.count(cluster.withheld, 'offset')}",
            "They lie at or above the last stable offset (LSO): read_committed consumers do not see"
            " them before the open transactions end.",
        ),
        (
            "Worst lag",
            "–" if lag is None else f"{'' if lag.exact else '≤ '}{lag.records:,}",
            "no group yet" if lag is None else "at read_committed",
            "Records that the group can read now, without markers, aborted and withheld ones.",
        ),
    )
    columns = st.columns(4)
    for column, (name, value, under, meaning) in zip(columns, metrics, strict=True):
        column.metric(
            name,
            value,
            under,
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            help=meaning,
        )


def slowest(cluster: Overview) -> None:
    """Names the group that is most behind, and groups that wait for something else than the open
    transactions that are named below."""
    named = {group for transaction in cluster.opened for group in cluster.held_back(transaction)}
    for stuck in cluster.stuck:
        if stuck.group not in named:
            st.markdown(
                f"Group **{wording.plain(stuck.group)}** has read all it can of"
                f" **{wording.plain(stuck.topic)}**: an open transaction withholds the rest."
            )
            named.add(stuck.group)
    lag = cluster.worst
    if lag is not None and lag.records:
        most = "" if lag.exact else "at most "
        st.markdown(
            f"Group **{wording.plain(lag.group)}** is most behind: it has {most}"
            f"{wording.count(lag.records, 'record')} of **{wording.plain(lag.topic)}** to read."
        )


def open_ones(cluster: Overview) -> None:
    """Names the open transactions, hanging ones first."""
    for transaction in cluster.opened[:OPEN_SHOWN]:
        topic, worst = transaction.worst
        left, right = st.columns([1, 3.4], vertical_alignment="center")
        further_topics = len(transaction.topics) - 1
        left.page_link(
            "views/transactions.py",
            label=wording.plain(topic)
            + (f" and {further_topics:,} more" if further_topics else ""),
            icon=":material/timeline:",
            query_params={"topic": topic, "outcome": "open"},
        )
        right.markdown(
            f"{wording.badge(wording.open_word(worst))}"
            f" {wording.plain(wording.without_badge(transaction.why, wording.open_word(worst)))}"
            f"{wording.held_back(cluster.held_back(transaction))}"
        )
    further = len(cluster.opened) - OPEN_SHOWN
    if further > 0:
        st.page_link(
            "views/topics.py",
            label=f"{wording.count(further, 'more open transaction')}: all topics that withhold"
            " records",
            icon=":material/topic:",
            query_params={"view": "cluster", "only": ONLY[WITHHELD]},
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
        decision = signed(run, chain.of(run.id, run.verdict))
        right.markdown(f"{decision}  \n:small[{when}]")


def signed(run: Run, signoffs: RunSignoffs) -> str:
    """Returns who decided on the run, or that nobody did."""
    digest, today = evidence_hash(run.folder(settings)), datetime.now(UTC).date()
    status, decided = standing(signoffs, digest, today), signoffs.decided
    badge = wording.badge(wording.STANDING_WORDS[status], standing_text(signoffs, digest, today))
    if decided is None or status is Standing.NOT_VOUCHED:
        return badge
    return f"{badge} by {wording.plain(decided.who)}"


page()
