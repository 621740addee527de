"""What to do about a verdict that could not be given: a contract that can be answered."""

from __future__ import annotations

import streamlit as st
import yaml

from topicproof.app import wording
from topicproof.app.payload import verbatim
from topicproof.backend.history.store import Run
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

NOTHING = "Nothing to look at"


def answerable(run: Run, report: Report) -> str | None:
    """Drafts a contract that requires only what the topics can answer; None if the verdict is not
    UNKNOWN only because the sink has no transactions."""
    uncounted = {one.kind for one in report.not_checked}
    counting = [one for one in report.findings if one.kind not in uncounted]
    silent = [one for one in counting if one.outcome is Outcome.UNKNOWN]
    held = [one.kind for one in counting if one.outcome is Outcome.HOLDS]
    never = not report.transactions.committed and not report.fates["markers"]
    mute = all(one.why.startswith(NOTHING) for one in silent)
    if run.kind != "check" or not report.of_topic or report.doubts or not never:
        return None
    if report.verdict is not Outcome.UNKNOWN or not silent or not held or not mute:
        return None
    terms = {
        "guarantee": str(report.guarantee),
        "source": {"topic": report.source.topic},
        "sink": {"topic": report.sink.topic},
        "identity": run.plan.get("identity", "lineage"),
        "require": held,
    }
    left = ", ".join(one.kind for one in silent)
    note = f"# The sink was written without transactions, so these are not asked: {left}.\n"
    return note + yaml.safe_dump(terms, sort_keys=False)


def offer(run: Run, report: Report) -> None:
    """Offers the contract that answers an UNKNOWN verdict of topics without transactions."""
    text = answerable(run, report)
    if text is None:
        return
    with st.container(border=True):
        st.markdown(
            "**This contract can be answered.** The sink was written without transactions, so"
            " nothing can be told about them. The contract requires only what records show."
        )
        verbatim(text)
        st.download_button(
            "Download the contract",
            text,
            file_name=f"{report.sink.topic}.contract.yaml",
            mime="application/yaml",
            icon=":material/download:",
            on_click="ignore",
        )
        st.caption(
            wording.plain(
                "Then: topicproof check --contract"
                f" {report.sink.topic}.contract.yaml, which gives a verdict on them."
            )
        )
