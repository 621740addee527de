"""What to do about a verdict that could not be given: a contract that can be answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from topicproof.app import checking, wording
from topicproof.app.check_state import CheckState, topic_of, write_check
from topicproof.backend.errors import ContractError
from topicproof.backend.history.store import Run
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

NOTHING = "Nothing to look at"


def answerable(report: Report) -> tuple[list[str], list[str]] | None:
    """Return the kinds that the topics can answer, and those that they cannot; None if the verdict
    is not UNKNOWN only because the sink has no transactions."""
    uncounted = {one.kind for one in report.not_checked}
    counting = [one for one in report.findings if one.kind not in uncounted]
    silent = [one for one in counting if one.outcome is Outcome.UNKNOWN]
    held = [one.kind for one in counting if one.outcome is Outcome.HOLDS]
    never = not report.transactions.committed and not report.fates["markers"]
    mute = all(one.why.startswith(NOTHING) for one in silent)
    if not report.of_topic or report.doubts or not never:
        return None
    if report.verdict is not Outcome.UNKNOWN or not silent or not held or not mute:
        return None
    return held, [one.kind for one in silent]


def offer(settings: Settings, run: Run, report: Report) -> None:
    """Offer the contract that answers an UNKNOWN verdict of topics without transactions."""
    found = answerable(report) if run.kind == "check" else None
    if found is None:
        return
    held, silent = found
    try:
        fields: Mapping[str, Any] = checking.of_run(settings, run).fields
    except ContractError:
        return  # The contract's own page names its mistakes.
    left = ", ".join(wording.KIND_TITLES.get(kind, kind).lower() for kind in silent)
    with st.container(border=True):
        st.markdown(
            "**This check can still get a verdict.** The sink was written without transactions, so"
            f" these kinds cannot be judged: {left}. Check again with a contract that requires only"
            " the kinds that hold."
        )
        st.page_link(
            "views/check.py",
            label="Check again with this contract",
            icon=":material/fact_check:",
            query_params=write_check(
                CheckState(
                    topic_of(fields, "source"),
                    topic_of(fields, "sink"),
                    terms={**fields, "require": held},
                )
            ),
        )
