"""Demos: five stories of one click each, told while they happen. `?story=NAME&runs=ID,ID` opens one again."""

from __future__ import annotations

import streamlit as st

from app import live, session, stories, wording
from app.stories import STORIES, Story
from backend.errors import TopicproofError
from backend.history.store import Run
from backend.launch import start_run
from backend.pipeline.plan import make_plan

POLL_S = 1.5

settings = session.settings()


def start(told: Story) -> None:
    """Start the story's runs and open it."""
    with session.said(), st.status("Starting…") as status:
        runs = [
            start_run(settings, make_plan(dict(part.plan)), lambda line: status.update(label=wording.plain(line)))
            for part in told.parts
        ]
    st.query_params.from_dict({"story": told.name, "runs": ",".join(runs)})
    st.rerun()


def card(told: Story, opened: bool) -> None:
    with st.container(border=True):
        st.markdown(f"##### {told.icon} {told.title}")
        st.caption(told.question)
        if st.button(
            "Tell it again" if opened else "Tell it",
            key=f"tell {told.name}",
            icon=":material/play_arrow:",
            type="secondary" if opened else "primary",
            help="Starts " + wording.count(len(told.parts), "small real run") + ": about half a minute.",
        ):
            start(told)


def look(told: Story, ids: list[str]) -> None:
    """The story as far as it has come."""
    with session.said():
        runs = [session.history(settings).get(one) for one in ids]
    st.info(stories.narration(told, runs), icon=told.icon)
    columns = st.columns(len(runs), gap="medium")
    for part, run, column in zip(told.parts, runs, columns, strict=True):
        with column:
            scene(part.title, run)
    if st.session_state.get("told") == ids and not any(run.alive for run in runs):
        st.session_state["told"] = None
        st.rerun()


def scene(title: str, run: Run) -> None:
    st.markdown(f"#### {title}")
    st.caption(f"{wording.plain(run.id)} · {wording.plain(wording.plan_sentence(run))}")
    live.progress(run)
    seen = run.progress
    st.markdown(
        f"**{seen.get('committed', 0):,}** transactions committed, **{seen.get('aborted', 0):,}** aborted, "
        f"**{seen.get('fenced', 0):,}** fenced · **{wording.count(seen.get('faults', 0), 'fault')}** fired"
    )
    live.sink(run)
    live.conclusion(run)


def opened() -> tuple[Story, list[str]] | None:
    """The story of the URL and its runs; None, with a notice, where they are not in the history."""
    told = stories.story(st.query_params.get("story"))
    ids = [one for one in st.query_params.get("runs", "").split(",") if one]
    if told is None or len(ids) != len(told.parts):
        if "story" in st.query_params:
            st.warning("That story cannot be opened again. Choose one.", icon=":material/info:")
        return None
    try:
        for one in ids:
            session.history(settings).get(one)
    except TopicproofError as error:
        st.warning(wording.plain(str(error)), title="A run of that story is not in the history")
        return None
    return told, ids


def page() -> None:
    st.title("Demos", anchor=False)
    st.caption(
        "Five stories of one click each: real runs on the real Kafka, and what happens meanwhile in plain words."
    )
    left, right = st.columns([1, 2.2], gap="large")
    with right:
        found = opened()
    with left:
        for told in STORIES:
            card(told, found is not None and told is found[0])
    with right:
        if found is None:
            st.info("Choose a story on the left. The first takes half a minute.", icon=":material/arrow_back:")
            return
        told, ids = found
        st.markdown(f"### {told.title}")
        going = any(session.history(settings).get(one).alive for one in ids)
        st.session_state["told"] = ids if going else None
        st.fragment(look, run_every=POLL_S if going else None)(told, ids)


page()
