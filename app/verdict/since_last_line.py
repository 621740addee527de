"""What changed since the last verdict of the same pipeline: a line on the page, and a mark in a
list."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import open_history
from topicproof.app.session.reports import kept_report
from topicproof.backend.characters import visible
from topicproof.backend.history.contract_of_run import TermChange, changed_terms
from topicproof.backend.history.pipelines import verdict_before
from topicproof.backend.history.since_last import SinceLast, since_last
from topicproof.backend.history.store import Kind, Run
from topicproof.backend.history.trend import contract_label
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Finding
from topicproof.validators.report import Report

COLOURS = {"New": "red", "Changed": "orange", "Gone": "green", "No longer judged": "gray"}
SYMBOLS = {
    "New": ":material/add_circle:",
    "Changed": ":material/change_circle:",
    "Gone": ":material/check_circle:",
    "No longer judged": ":material/visibility_off:",
}
TERMS_NAMED = 6
TERM_CHARACTERS = 300
"""Of a term in a table."""


def since_last_line(settings: Settings, run: Run, report: Report, stage: str | None = None) -> None:
    """Shows what changed since the last verdict: one quiet line if nothing did. A run of the Lab by
    another plan is another experiment: nothing is compared."""
    history = open_history(settings)
    before = verdict_before(history, run)
    if before is None:
        st.caption(":material/history: The first verdict of this pipeline.")
        return
    terms = changed_terms(history, before, run)
    if terms and run.kind != Kind.CHECK:
        return
    report_before = kept_report(settings, before, stage)
    with st.container(gap="xxsmall"):
        if report_before is None:
            text = f"{wording.moment(before.created_at)}: {before.verdict}"
            line(before, stage, f"The report of the last verdict ({text}) is gone.")
            return
        since = since_last(report_before, report, terms)
        if since.is_quiet:
            line(before, stage, wording.plain(since.quiet_sentence))
        else:
            line(before, stage, f"**Since last time:** {badges(since)}")
        terms_line(since, before, run)
        if not since.is_quiet:
            with st.expander("What changed", icon=":material/difference:"):
                details(since, before, run)


def line(before: Run, stage: str | None, text: str) -> None:
    """Shows one line, with the way to the last verdict."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f":material/history: {text}", width="content")
        st.page_link(
            "views/verdict.py",
            label=f"Last verdict, {before.created_at:%Y-%m-%d %H:%M} UTC",
            icon=":material/gavel:",
            query_params={"run": before.id, **({"stage": stage} if stage else {})},
            width="content",
        )


def badges(since: SinceLast) -> str:
    """Returns what changed as badges, for Markdown."""
    before, after = (
        wording.report_word(report) for report in (since.comparison.before, since.comparison.after)
    )
    parts = [
        f":{COLOURS[name]}-badge[{SYMBOLS[name]} {name}: {wording.plain(text)}]"
        for name, text in since.groups(wording.KIND_TITLES).items()
    ]
    if before.word != after.word:
        parts.append(f":gray-badge[was {before.word}]")
    if since.has_other_doubts:
        parts.append(":gray-badge[:material/help: other doubts]")
    if since.terms:
        parts.append(":blue-badge[:material/edit_document: other terms]")
    return " ".join(parts)


def mark(since: SinceLast | None) -> str:
    """Returns what changed in short, for Markdown."""
    if since is None:
        return ":gray[:material/history: first verdict]"
    if not since.is_quiet:
        return badges(since)
    unclear = ", if its terms are the same" if since.terms is None else ""
    return f":gray[:material/history: as last time{unclear}]"


def terms_line(since: SinceLast, before: Run, after: Run) -> None:
    """Says which terms changed, as findings may come from them."""
    what = "contract" if after.kind == Kind.CHECK else "plan"
    labels = dict.fromkeys(filter(None, map(contract_label, (before, after))))
    versions = f" ({' → '.join(map(wording.plain, labels))})" if len(labels) == 2 else ""
    if since.terms is None:
        st.caption(f"Whether the {what}{versions} changed is not known: one cannot be read.")
    elif since.terms:
        named = [wording.plain(term.name) for term in since.terms[:TERMS_NAMED]]
        further = len(since.terms) - len(named)
        more = f" and {further:,} more" if further else ""
        st.markdown(
            f":material/edit_document: The {what} changed{versions}: **{', '.join(named)}**{more}."
            " What differs may come from that."
        )


def details(since: SinceLast, before: Run, after: Run) -> None:
    """Shows the findings and the terms that changed, before and after."""
    if since.findings:
        rows = [
            (
                wording.kind_title(each.change.kind),
                _found(each.change.before),
                _found(each.change.after),
                str(each.shift),
            )
            for each in since.findings
        ]
        st.dataframe(
            pd.DataFrame(rows, columns=["finding", "last time", "now", "change"]),
            hide_index=True,
            alt="Findings that changed since the last verdict",
        )
    if since.terms:
        st.dataframe(
            pd.DataFrame(map(_term, since.terms), columns=["term", "last time", "now"]),
            hide_index=True,
            alt="Terms that changed since the last verdict",
        )
    st.page_link(
        "views/history.py",
        label="All figures, side by side",
        icon=":material/compare_arrows:",
        query_params={"before": before.id, "after": after.id},
    )


def _term(term: TermChange) -> tuple[str, str, str]:
    before, after = (visible(text)[:TERM_CHARACTERS] or "–" for text in (term.before, term.after))
    return visible(term.name)[:TERM_CHARACTERS], before, after


def _found(finding: Finding | None) -> str:
    return "–" if finding is None else f"{finding.count:,} {finding.outcome}"
