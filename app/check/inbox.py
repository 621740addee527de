"""The pipelines that are checked from this history, what waits for a signature first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import streamlit as st

from topicproof.app import wording
from topicproof.app.check.check_all import CheckQueue, JobsProgress, check_queue, jobs_of
from topicproof.app.check.watch_switch import run_switch
from topicproof.app.session.access import may, open_history, show_error, show_errors
from topicproof.app.session.page_masks import hides_parts, shown_error
from topicproof.app.session.reports import kept_report
from topicproof.app.session.run_reads import DECIDED, decision_line, standing_of
from topicproof.app.verdict import since_last_line
from topicproof.backend.errors import TopicproofError
from topicproof.backend.history.audit import allow
from topicproof.backend.history.contract_of_run import changed_terms
from topicproof.backend.history.kept_contracts import KeptContract, contracts
from topicproof.backend.history.pipelines import (
    CheckedPipeline,
    Pipeline,
    checked_pipelines,
    verdict_before,
)
from topicproof.backend.history.signoff import RunSignoffs, read_chain
from topicproof.backend.history.since_last import SinceLast, since_last
from topicproof.backend.history.store import Kind, Run, State
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.watch.watch_list import ListedContract, read_list
from topicproof.validators.finding import Outcome

CHECKS_READ = 500
"""Newest checks whose pipelines are listed."""
ROWS = 20
"""Pipelines that are drawn at once, each with what changed between two reports."""
POLL_S = 1.0
SEVERITY = (Outcome.VIOLATED, Outcome.UNKNOWN, Outcome.HOLDS)
WORST_FIRST = (
    wording.OUTCOME_WORDS[Outcome.VIOLATED],
    wording.OUTCOME_WORDS[Outcome.UNKNOWN],
    None,  # No verdict: it proves nothing.
    wording.IN_PART,
    wording.OUTCOME_WORDS[Outcome.HOLDS],
)
NOT_CHECKED = wording.Word("not checked yet", "not checked yet", ":material/draft:", "gray")


@dataclass(frozen=True)
class Row:
    """A checked pipeline, and who decided on its newest verdict."""

    checked: CheckedPipeline
    signoffs: RunSignoffs | None
    """None without a verdict."""
    is_decided: bool
    passed_over: tuple[Run, ...] = ()
    """The violated verdicts before the newest one on which nobody has decided, newest first, up to
    the last violated one on which somebody has."""

    @property
    def waits(self) -> bool:
        """Whether it has a verdict that nobody has decided on. A newer one that holds, of weaker
        terms perhaps, does not settle a violation."""
        return self.checked.judged is not None and (not self.is_decided or bool(self.passed_over))

    @property
    def searched(self) -> str:
        """What a filter looks at."""
        pipeline = self.checked.pipeline
        return f"{pipeline.name} {pipeline.source} {pipeline.sink} {pipeline.cluster}"

    @property
    def rank(self) -> tuple[bool, int]:
        """What comes first: what waits for a signature, and of that the worst."""
        word = None if self.checked.judged is None else wording.run_word(self.checked.judged)
        return self.is_decided and not self.passed_over, WORST_FIRST.index(word)


def inbox(settings: Settings) -> bool:
    """Shows the pipelines. Returns False, and shows nothing, if there are none."""
    with show_errors():
        history = open_history(settings)
        checks = history.list(CHECKS_READ, Kind.CHECK)
        rows = rows_of(settings, checks)
        names = {row.checked.pipeline.name for row in rows}
        unchecked = [each for each in contracts(history) if each.name not in names]
        listed = read_list(settings)
    if not rows and not unchecked:
        return False
    queue = check_queue(str(settings.home))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header("Pipelines", anchor=False, width="content")
        st.markdown(summary(rows), width="content")
        part = st.text_input(
            "Pipeline",
            key="pipeline",
            bind="query-params",
            placeholder="Part of a name",
            label_visibility="collapsed",
            width=180,
        )
        unsigned = st.toggle("Unsigned only", key="unsigned", bind="query-params")
        matches = [row for row in rows if (row.waits or not unsigned) and part in row.searched]
        check_again(settings, queue, matches, is_filtered=bool(part) or unsigned)
    progress = queue.progress
    if progress.is_active:
        st.fragment(follow, run_every=POLL_S)(settings, queue)
    elif progress.not_begun:
        number = wording.count(progress.not_begun, "pipeline was", "pipelines were")
        st.info(f"Stopped: {number} not checked again.", icon=":material/stop_circle:")
    is_whole = len(checks) < CHECKS_READ
    if unsigned and not any(row.waits for row in rows):
        of = "" if is_whole else f" of the newest {CHECKS_READ:,} checks"
        st.success(
            f"The newest verdict of each pipeline{of} has been decided on, and no violation before"
            " it was passed over.",
            icon=":material/verified:",
        )
    rows = matches
    unchecked = [each for each in unchecked if not unsigned and part in each.name]
    if part and not rows and not unchecked:
        st.info("No pipeline matches.", icon=":material/filter_alt_off:")
    for row in drawn(rows):
        with st.container(border=True):
            show(settings, row, progress, listed)
    for contract in unchecked[:ROWS]:
        with st.container(border=True):
            show_unchecked(contract)
    if not is_whole:
        st.caption(f"Of the newest {CHECKS_READ:,} checks. History has older ones.")
    return True


def rows_of(settings: Settings, checks: Sequence[Run]) -> list[Row]:
    """Returns the pipelines of these checks, in the order in which they need somebody."""
    chain = read_chain(open_history(settings))

    def is_decided(run: Run) -> bool:
        return standing_of(settings, run, chain.of(run.id, run.verdict)) in DECIDED

    rows = []
    for checked in checked_pipelines(checks):
        judged = checked.judged
        if judged is None:
            rows.append(Row(checked, None, is_decided=False))
            continue
        # A verdict that holds settles no violation before it.
        violated = (run for run in checked.earlier if run.verdict == Outcome.VIOLATED)
        passed_over = tuple(takewhile(lambda run: not is_decided(run), violated))
        signoffs, newest_decided = chain.of(judged.id, judged.verdict), is_decided(judged)
        # A newest violation that waits speaks for those before it.
        if judged.verdict == Outcome.VIOLATED and not newest_decided:
            passed_over = ()
        rows.append(Row(checked, signoffs, newest_decided, passed_over))
    # Not by a number of seconds: a damaged row may have a year that has none.
    rows.sort(key=lambda row: row.checked.newest.created_at, reverse=True)
    return sorted(rows, key=lambda row: row.rank)


def summary(rows: Sequence[Row]) -> str:
    """Counts what waits for a signature, by verdict, for Markdown."""
    waiting = [row.checked.judged for row in rows if row.waits and not row.is_decided]
    waiting += [row.passed_over[0] for row in rows if row.passed_over]
    parts = []
    for outcome in SEVERITY:
        number = sum(run is not None and run.verdict == outcome for run in waiting)
        if number:
            word = wording.OUTCOME_WORDS[outcome]
            parts.append(wording.badge(word, f"{number:,} {word.word}"))
    return f"{' '.join(parts)} to sign" if parts else ""


def drawn(rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows to draw; asks which ones if they are many."""
    if len(rows) <= ROWS:
        return rows
    first = st.selectbox(
        "Pipelines",
        range(0, len(rows), ROWS),
        format_func=lambda at: f"{at + 1} to {min(at + ROWS, len(rows))} of {len(rows)}",
        key="inbox_rows",
        width=240,
        label_visibility="collapsed",
    )
    return rows[first : first + ROWS]


def show(
    settings: Settings, row: Row, progress: JobsProgress, listed: Sequence[ListedContract]
) -> None:
    """Shows one pipeline."""
    checked, judged = row.checked, row.checked.judged
    left, middle, right = st.columns([2, 4, 2], gap="medium")
    with left, st.container(gap="xxsmall"):
        word = wording.run_state(checked.newest) if judged is None else wording.run_word(judged)
        st.page_link(
            "views/check.py" if judged is None else "views/verdict.py",
            label=wording.plain(checked.pipeline.name),
            icon=":material/gavel:" if word is None else word.symbol,
            query_params={"run": checked.newest.id if judged is None else judged.id},
        )
        st.caption(wording.plain(about(checked.pipeline, settings)))
    with middle, st.container(gap="xxsmall"):
        if judged is not None and word is not None:
            st.markdown(f"{wording.badge(word)} {wording.plain(judged.why or '')}")
            st.markdown(change_mark(settings, judged, checked.before))
        attempt(settings, checked, progress)
    with right:
        if judged is not None and row.signoffs is not None:
            st.markdown(
                f"{decision_line(settings, judged, row.signoffs)}  \n"
                f":small[{wording.moment(judged.ended_at or judged.created_at)}]"
            )
        if row.passed_over:
            newest = row.passed_over[0]
            many = wording.count(len(row.passed_over), "earlier violation")
            st.page_link(
                "views/verdict.py",
                label=f"{many} that nobody decided on",
                icon=":material/report:",
                query_params={"run": newest.id},
            )
        run_switch(settings, listed, checked.newest)


def about(pipeline: Pipeline, settings: Settings) -> str:
    """Returns the topics of a pipeline, and its cluster if it is not that of the page."""
    topics = " → ".join(filter(None, (pipeline.source, pipeline.sink)))
    is_of_page = pipeline.cluster == (settings.cluster or settings.bootstrap or "embedded")
    return topics if is_of_page else f"{topics} · {pipeline.cluster}"


def change_mark(settings: Settings, run: Run, before: Run | None) -> str:
    """Returns what changed since the last verdict in short, for Markdown. `before`: the one with
    the last verdict, if it is among the checks that were read."""
    before = before or verdict_before(open_history(settings), run)
    if before is None:
        return since_last_line.mark(None)
    since = _since(settings, run, before)
    if since is None:
        return ":gray[:material/history: a report is gone: not compared with the last verdict]"
    return since_last_line.mark(since)


def _since(settings: Settings, run: Run, before: Run) -> SinceLast | None:
    reports = [kept_report(settings, each) for each in (before, run)]
    if reports[0] is None or reports[1] is None:
        return None
    terms = changed_terms(open_history(settings), before, run)
    return since_last(reports[0], reports[1], terms)


def attempt(settings: Settings, checked: CheckedPipeline, progress: JobsProgress) -> None:
    """Shows a check that came after the newest verdict: it goes on, failed or was stopped; or did
    not begin."""
    newest = checked.newest
    error = progress.errors.get(checked.pipeline)
    if error is not None and newest.created_at < progress.begun_at:
        if hides_parts(settings, newest):
            error = "Ask somebody who sees its topics whole."
        st.markdown(f":red[:material/error: Not checked again.] {wording.plain(error)}")
    if newest.verdict is not None:
        return
    word = wording.run_state(newest)
    why = shown_error(settings, newest) or ""
    if newest.alive:
        why = newest.progress.stage
    elif newest.state is State.STOPPED:
        why = "Stopped before its verdict."
    with st.container(horizontal=True, vertical_alignment="center"):
        label = f"check of {wording.moment(newest.created_at)}"
        st.markdown(f"{wording.badge(word)} {wording.plain(why)}", width="content")
        st.page_link(
            "views/check.py",
            label=label,
            icon=":material/fact_check:",
            query_params={"run": newest.id},
            width="content",
        )


def show_unchecked(contract: KeptContract) -> None:
    """Shows a contract that was kept and never checked."""
    left, middle, _right = st.columns([2, 4, 2], gap="medium")
    left.page_link(
        "views/check.py",
        label=wording.plain(contract.name),
        icon=NOT_CHECKED.symbol,
        query_params={"contract": contract.label},
    )
    middle.markdown(f"{wording.badge(NOT_CHECKED)} kept {wording.moment(contract.kept_at)}")


def check_again(
    settings: Settings, queue: CheckQueue, rows: Sequence[Row], *, is_filtered: bool
) -> None:
    """Shows the button that checks these pipelines again: all, or those that pass the filters."""
    may_check = may(Action.CHECK)
    listed = "this" if len(rows) == 1 else f"these {len(rows):,}"
    pressed = st.button(
        f"Check {listed} again" if is_filtered else "Check all again",
        icon=":material/replay:",
        key="check_all",
        disabled=not may_check or not rows or queue.progress.is_active,
        help=(
            "One after the other, each by the newest version of its contract. It goes on if you"
            " close this page."
            if may_check
            else "Your role may not check."
        ),
    )
    if not pressed:
        return
    try:
        what = wording.count(len(rows), "pipeline") if is_filtered else "all pipelines"
        allow(open_history(settings), Action.CHECK, what)
        queue.begin(jobs_of(settings, [row.checked.judged or row.checked.newest for row in rows]))
    except TopicproofError as error:
        show_error(error)
        return
    st.rerun()


def follow(settings: Settings, queue: CheckQueue) -> None:
    """Shows how far the checks are, and a button that stops them."""
    progress = queue.progress
    if st.session_state.get("checks_done", 0) != progress.done or not progress.is_active:
        # The rows are those of before.
        st.session_state["checks_done"] = progress.done
        st.rerun()
    assert progress.current is not None
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.progress(
        progress.done / progress.total,
        text=(
            f"{progress.done + 1:,} of {progress.total:,}:"
            f" {wording.plain(progress.current.name)}"
            f"{', stopping' if progress.stopping else ''}"
        ),
    )
    if right.button(
        "Stop",
        icon=":material/stop:",
        key="stop_checks",
        width="stretch",
        disabled=progress.stopping or not may(Action.STOP),
        help="Ends the check that runs without a verdict, and begins no further one. The verdicts"
        " that were reached stay.",
    ):
        with show_errors():
            history = open_history(settings)
            allow(history, Action.STOP, "all checks")
            queue.stop(history)
        st.rerun(scope="fragment")
