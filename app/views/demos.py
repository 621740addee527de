"""Demos: six stories, one click each, told while they happen. `?story=NAME&runs=ID,ID` reopens
one."""

from __future__ import annotations

import streamlit as st

from topicproof.app import wording
from topicproof.app.check.watch_switch import run_switch
from topicproof.app.run import run_progress, stories
from topicproof.app.run.picture_player import explain_picture, show_picture
from topicproof.app.run.stories import STORIES, Story, start_story
from topicproof.app.session.access import open_history, page_identity, show_errors
from topicproof.app.session.connection import page_settings
from topicproof.app.session.reports import kept_report
from topicproof.app.shell import places
from topicproof.backend.errors import TopicproofError
from topicproof.backend.history.store import Run
from topicproof.backend.runs.context import stop
from topicproof.backend.watch.watch_list import read_list

POLL_S = 1.5

settings = page_settings()


def start(story: Story) -> None:
    """Starts the story's runs and opens it. Stops the runs of the story on the page that would go
    on forever, if this person started them."""
    with show_errors():
        before = opened(notices=False)
        if before is not None:
            runs = [open_history(settings).get(run_id) for run_id in before[1]]
            # Anybody can write an address. It stops nothing but what this person started here.
            for run in stories.own_runs(before[0], runs, page_identity(settings)):
                if run_progress.is_endless(run):
                    stop(open_history(settings), run.id)
        params = start_story(settings, story)
    st.query_params.from_dict(params)
    st.rerun()


def card(story: Story, opened: bool) -> None:
    """Shows a story that can be started: its button, and the question it answers."""
    with st.container(gap="xxsmall"):
        pressed = st.button(
            story.title,
            key=f"tell {story.name}",
            icon=story.icon,
            type="primary" if opened else "secondary",
            width="stretch",
            help=f"Starts {wording.count(len(story.parts), 'small real run')}: {story.takes}.",
        )
        st.caption(story.question)
    if pressed:
        start(story)


def look(story: Story, ids: list[str]) -> None:
    """Shows the story so far: its buttons and pictures first, where they stay."""
    with show_errors():
        runs = [open_history(settings).get(run_id) for run_id in ids]
    *past, now = stories.steps(story, runs)
    columns = st.columns(len(runs), gap="medium")
    for part, run, column in zip(story.parts, runs, columns, strict=True):
        with column:
            scene(story, part.title, run)
    st.info(wording.plain(now.text), title=now.title, icon=story.icon)
    columns = st.columns(len(runs), gap="medium")
    for run, column in zip(runs, columns, strict=True):
        with column:
            outcome(run)
    with st.container(gap="xsmall"):
        for step in past:
            st.markdown(f":green[✓ **{step.title}**] {wording.plain(step.text)}")
    if st.session_state.get("told") == ids and not any(run.alive for run in runs):
        st.session_state["told"] = None
        st.rerun()


def scene(story: Story, title: str, run: Run) -> None:
    """Shows one run of the story, and what can be done to it."""
    title = title[0].upper() + title[1:]
    st.markdown(f"#### {title}")
    with st.container():
        run_progress.ending(settings, run)
        run_progress.striking(settings, run)
    several = f" {title}." if len(story.parts) > 1 else ""
    # Before all that changes with the run's end, so that the browser goes on playing it then.
    show_picture(
        settings,
        run,
        plays=True,
        heading=f"{story.title}. {story.question}{several}",
        actions=run_progress.actions(settings, run),
    )


def outcome(run: Run) -> None:
    """Shows live figures while a run goes on, the conclusion and links when it has ended."""
    if run.plan.get("by_hand"):
        with show_errors():
            contracts = read_list(settings)
        run_switch(settings, contracts, run)
    if run.alive:
        run_progress.bar(run)
        tally(run)
        run_progress.sink(run, at_once=True)
    else:
        run_progress.conclusion(settings, run)
        tally(run)
        with show_errors():
            report = kept_report(settings, run)
        for way in stories.ways(run, report):
            st.page_link(
                f"views/{way.view}.py",
                label=wording.plain(way.label),
                icon=way.icon,
                query_params=dict(way.params),
            )
    st.caption(f"{wording.plain(run.id)} · {wording.plain(wording.plan_sentence(run))}")


def tally(run: Run) -> None:
    """Shows the counts of the run's journal."""
    counts = run.progress
    parts = [
        f"**{counts.committed:,}** committed",
        f"**{counts.aborted:,}** aborted",
        *([f"**{counts.fenced:,}** fenced"] if counts.fenced else []),
    ]
    fired = f" · **{wording.count(counts.faults, 'fault')}** fired" if counts.faults else ""
    # Without transactions, a portion is what is written between two committed offsets.
    noun = "Transactions" if run.plan.get("guarantee") == "exactly_once" else "Portions"
    crashes = any(fault.startswith("crash") for fault in run.plan.get("faults", ()))
    killed = crashes or run.plan.get("by_hand")
    silent = ". A killed worker declares nothing." if killed else ""
    st.markdown(f"{noun} that the pipeline declared: {', '.join(parts)}{fired}{silent}")


def opened(notices: bool = True) -> tuple[Story, list[str]] | None:
    """Returns the story in the URL and its runs; None, with a notice, if they are not in the
    history."""
    story = stories.find_story(st.query_params.get("story"))
    ids = [run_id for run_id in st.query_params.get("runs", "").split(",") if run_id]
    if story is None or len(ids) != len(story.parts):
        if notices and "story" in st.query_params:
            st.warning("That story cannot be opened again. Choose one.", icon=":material/info:")
        return None
    try:
        runs = [open_history(settings).get(run_id) for run_id in ids]
    except TopicproofError as error:
        if notices:
            title = "A run of that story is not in the history"
            st.warning(wording.plain(str(error)), title=title)
        return None
    if any(run.kind != "run" for run in runs):
        if notices:
            st.warning("A check of two topics is not a story. Choose one.", icon=":material/info:")
        return None
    return story, ids


def following(story: Story) -> None:
    """Offers the next story."""
    after = STORIES[(STORIES.index(story) + 1) % len(STORIES)]
    if st.button(f"Next: {after.question}", key="next story", icon=after.icon, help=after.title):
        start(after)


def page() -> None:
    places.head(places.DEMOS)
    left, right = st.columns([1, 2.4], gap="large")
    with right:
        opened_story = opened()
    with left:
        st.caption(
            "One click starts a story: real runs on a real Kafka, explained in plain words while"
            " they happen."
        )
        for story in STORIES:
            card(story, opened_story is not None and story is opened_story[0])
    with right:
        if opened_story is None:
            st.info(
                "A pipeline on Spark reads one topic, and writes the square of each number to"
                " another inside Kafka transactions. Each story shows what happens to the output"
                " in a different situation. The first one takes half a minute.",
                title="Choose a story on the left",
                icon=":material/arrow_back:",
            )
            return
        story, ids = opened_story
        st.markdown(f"### {story.title}")
        is_running = any(open_history(settings).get(run_id).alive for run_id in ids)
        st.session_state["told"] = ids if is_running else None
        st.fragment(look, run_every=POLL_S if is_running else None)(story, ids)
        explain_picture()
        if not is_running:
            following(story)


page()
