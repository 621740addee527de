"""The part of the Check page that follows a check to its end."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st

from topicproof.app import wording
from topicproof.app.run import run_progress
from topicproof.app.session.access import open_history, show_errors
from topicproof.app.shell.url_state import verdict_params
from topicproof.backend.history.store import Run, State
from topicproof.backend.judging.judge import STEPS
from topicproof.backend.runs.context import stop
from topicproof.backend.settings import Settings


def progress(settings: Settings, run_id: str) -> None:
    """Shows a check while it goes on, with a button that stops it, and its result."""
    with show_errors():
        history = open_history(settings)
        run = history.get(run_id)
    if st.session_state.get("check_going") == run_id and not run.alive:
        # The rest of the page knew it as alive.
        st.session_state["check_going"] = None
        st.rerun()
    if not run.alive:
        result(settings, run)
        return
    st.session_state["check_going"] = run_id
    left, right = st.columns([5, 1], vertical_alignment="center")
    at = STEPS.index(run.progress.stage) if run.progress.stage in STEPS else -1
    steps = " → ".join(
        f"**{step}**" if n == at else f":gray[✓ {step}]" if n < at else f":gray[{step}]"
        for n, step in enumerate(STEPS)
    )
    left.markdown(
        f"**{wording.plain(run.facts.source)}** → **{wording.plain(run.facts.sink)}**: {steps}"
    )
    took = (datetime.now(UTC).replace(tzinfo=None) - run.created_at).total_seconds()
    left.progress(
        (at + 0.5) / len(STEPS) if at >= 0 else 0.0,
        text=f"{wording.duration(took)}, {run.progress.tasks:,} Spark tasks finished",
    )
    if right.button(
        "Stop",
        icon=":material/stop:",
        key="stop_check",
        width="stretch",
        disabled=run.stop_requested,
        help="Ends the check without a verdict. Nothing of it stays but its entry in History.",
    ):
        with show_errors():
            stop(history, run_id)
        st.rerun(scope="fragment")


def result(settings: Settings, run: Run) -> None:
    """Shows how a check ended, and the way to its verdict."""
    if run.state is State.STOPPED:
        st.info(
            "It was stopped before its verdict, so it proves nothing.",
            title="The check was stopped",
            icon=":material/stop_circle:",
        )
    elif run.verdict is None and run.error is None:
        st.error(
            "Its process ended before the verdict, so it proves nothing. Check again.",
            title="The check was interrupted",
            icon=":material/error:",
        )
    run_progress.conclusion(settings, run)
    if run.verdict is not None:
        with st.container(horizontal=True):
            st.page_link(
                "views/verdict.py",
                label="Open the verdict and sign it",
                icon=":material/gavel:",
                query_params={"run": run.id},
            )
            # A table has one level, and no page of its own.
            if not run.facts.database:
                st.page_link(
                    "views/compare.py",
                    label="Compare both levels of the sink",
                    icon=":material/compare:",
                    query_params={"topic": run.facts.sink, **verdict_params(run.id)},
                )
