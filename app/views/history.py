"""History: every run and check with its standing, a comparison of two, and one pipeline over time.

`?scenario=`, `?contract=`, `?guarantee=`, `?verdict=`, `?decision=`, `?on=` (the cluster) and
`?topic=` filter; `?before=` and `?after=` compare; `?of=` and `?measure=` select the trend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.charts.trend_chart import trend_figure
from topicproof.app.session.access import open_history, show_errors
from topicproof.app.session.connection import page_settings
from topicproof.app.session.page_masks import shown_error
from topicproof.app.session.reports import kept_report
from topicproof.app.session.run_reads import RUNS_SHOWN, newest_runs, signoff_standings
from topicproof.app.shell import downloads
from topicproof.app.shell.places import if_drawn
from topicproof.backend.history import trend
from topicproof.backend.history.comparison import Comparison, compare
from topicproof.backend.history.contract_of_run import changed_terms
from topicproof.backend.history.pipelines import clusters
from topicproof.backend.history.signoff import Standing
from topicproof.backend.history.store import Run

EVERY = "every"
ROW = 3
"""Small figures beside each other."""
settings = page_settings()


def page() -> None:
    st.title("History", anchor=False)
    with show_errors():
        runs = newest_runs(settings)
        standings = signoff_standings(settings, runs)
    if not runs:
        st.info("No runs or checks yet. Each one is kept here.", icon=":material/info:")
        st.page_link("views/run.py", label="Start a run", icon=":material/play_circle:")
        st.stop()
    if len(runs) == RUNS_SHOWN:
        st.caption(
            f"The newest {RUNS_SHOWN:,}; `topicproof runs` and the database have all of them."
        )
    doubted = [run.id for run in runs if standings[run.id] == Standing.NOT_VOUCHED]
    if doubted:
        st.error(
            f"No key that is trusted here vouches for the sign-offs of {len(doubted):,} of them."
            " `topicproof keys chain` names each entry.",
            title="Sign-offs are not vouched for",
            icon=":material/gpp_bad:",
        )
    matches = filtered(runs, standings)
    if not matches:
        st.info("None of them matches these filters.", icon=":material/filter_alt_off:")
    else:
        listed(matches, standings)
    judged = [run for run in matches if run.verdict]
    if judged:
        over_time(judged)
    side_by_side([run for run in runs if run.verdict])


def filtered(runs: Sequence[Run], standings: Mapping[str, str]) -> list[Run]:
    """Returns the runs that pass the filters. Unknown filter values of the URL are reported and
    ignored. A filter with nothing to choose from is not shown."""
    facets = {
        "scenario": ("Scenario", [trend.scenario(run) for run in runs]),
        "contract": ("Contract", [str(run.plan.get("contract", "")) for run in runs]),
        "guarantee": ("Guarantee", [str(run.plan.get("guarantee", "")) for run in runs]),
        "verdict": ("Verdict", [run.verdict or "none" for run in runs]),
        "decision": ("Decision", [standings[run.id].partition(" with ")[0] for run in runs]),
        "on": ("Cluster", [clusters(run) for run in runs]),
    }
    choices = dict.fromkeys(facets, EVERY)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for name, (label, values) in facets.items():
            options = sorted(set(filter(None, values)))
            if name in st.query_params or len(set(values)) > 1:
                choices[name] = _choice(label, name, [EVERY, *options])
        topic = st.text_input(
            "Topic", key="topic", bind="query-params", placeholder="part of a name"
        )
    of_runs = zip(*(values for _label, values in facets.values()), strict=True)
    return [
        run
        for run, values in zip(runs, of_runs, strict=True)
        if all(choices[name] in (EVERY, value) for name, value in zip(facets, values, strict=True))
        and (not topic or any(topic in name for name in trend.topics(run)))
    ]


def listed(runs: Sequence[Run], standings: Mapping[str, str]) -> None:
    frame = pd.DataFrame(
        {
            "run": [
                f"verdict?run={run.id}" if run.verdict else f"run?run={run.id}" for run in runs
            ],
            "verdict": [wording.verdict_short(run) for run in runs],
            "sign-off": [standings[run.id] for run in runs],
            "started": [run.created_at for run in runs],
            "what": [trend.subject(run) for run in runs],
            "cluster": [clusters(run) for run in runs],
            "kind": [run.kind for run in runs],
            "state": [wording.run_state(run).word for run in runs],
            "took": pd.Series([trend.took_s(run) for run in runs], dtype=float),
            "why": [run.why or shown_error(settings, run) or "" for run in runs],
        }
    )
    st.dataframe(
        frame,
        hide_index=True,
        alt="Runs and checks, newest first",
        column_config={
            "run": st.column_config.LinkColumn(display_text=r"run=(.*)$", width="medium"),
            "started": st.column_config.DatetimeColumn(
                "started (UTC)", format="YYYY-MM-DD HH:mm:ss"
            ),
            "what": st.column_config.TextColumn("scenario, or topics", width="medium"),
            "took": st.column_config.NumberColumn("took, s", format="%.1f"),
            "why": st.column_config.TextColumn(width="large"),
        },
    )
    st.caption(
        f"{wording.count(len(runs), 'entry', 'entries')}. A name opens its verdict, or the run"
        " without one."
    )


def over_time(runs: Sequence[Run]) -> None:
    """Shows one scenario or one pair of topics over time."""
    st.header("Over time", anchor=False)
    subjects: dict[str, int] = {}
    for run in runs:
        subjects[trend.subject(run)] = subjects.get(trend.subject(run), 0) + 1
    often = sorted(subjects, key=lambda subject: -subjects[subject])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        of = _choice("Of", "of", often)
        measure = _choice("Figure", "measure", list(trend.MEASURES))
    subject_runs = [run for run in reversed(runs) if trend.subject(run) == of]
    with show_errors():
        by_run = {run.id: kept_report(settings, run) for run in subject_runs}
    reports = {name: report for name, report in by_run.items() if report is not None}
    judged = [run for run in subject_runs if run.id in reports]
    if not judged:
        st.info("None of these has a report that can be read.", icon=":material/folder_off:")
        return
    frame = trend.frame(judged, reports, measure)
    figure = None
    if frame["figure"].count() > 1:
        figure = trend_figure(frame, measure)
        st.plotly_chart(
            figure,
            config=downloads.PICTURE_ONLY,
            alt=f"{measure} of {of} over time; the table below has the same figures",
        )
    else:
        st.info(
            f"A trend of {measure} needs two reports that have it. Repeat the run or the check.",
            icon=":material/show_chart:",
        )
    others = {name: trend.frame(judged, reports, name)["figure"] for name in trend.MEASURES}
    small_figures({name: values for name, values in others.items() if name != measure})
    with st.expander("The figures", icon=":material/table:"):
        st.dataframe(
            frame.assign(**others).drop(columns="figure"),
            hide_index=True,
            alt="Every figure of every report",
        )
        caption = wording.plain(f"{measure} of {of}. Times are UTC.")
        downloads.offer_table(
            "over-time", lambda: frame, caption, None if figure is None else lambda: figure
        )


def small_figures(figures: Mapping[str, pd.Series[float]]) -> None:
    """Shows the newest of each figure, with a line of all of them."""
    present = {name: values.dropna() for name, values in figures.items()}
    filled = {name: values for name, values in present.items() if len(values)}
    if not filled:
        return
    columns = [column for _row in range(0, len(filled), ROW) for column in st.columns(ROW)]
    for column, (name, values) in zip(columns, filled.items(), strict=False):
        column.metric(
            name[0].upper() + name[1:],
            _figure(float(values.iloc[-1])),
            chart_data=values.tolist() if len(values) > 1 else None,
            border=True,
            height="stretch",
            help="The newest report. The line shows all of them, the oldest first.",
        )


def side_by_side(runs: Sequence[Run]) -> None:
    """Compares two reports side by side."""
    st.header("Two side by side", anchor=False)
    if len(runs) < 2:
        st.caption("A comparison needs two verdicts.")
        return
    names = [run.id for run in runs]
    same = [run.id for run in runs[1:] if trend.is_comparable(run, runs[0])]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        before = _choice("Before", "before", names, same[0] if same else names[1])
        after = _choice("After", "after", names, names[0])
    by_id = {run.id: run for run in runs}
    with show_errors():
        reports = [kept_report(settings, by_id[name]) for name in (before, after)]
    for name, report in zip((before, after), reports, strict=True):
        if report is None:
            st.warning(
                f"The report of {wording.plain(name)} is gone or cannot be read.",
                icon=":material/folder_off:",
            )
    if reports[0] is None or reports[1] is None:
        return
    comparison = compare(reports[0], reports[1])
    columns = st.columns(2)
    for column, name, report in zip(
        columns, (before, after), (comparison.before, comparison.after), strict=True
    ):
        word = wording.report_word(report)
        with column.container(border=True, height="stretch"):
            st.markdown(
                f"{wording.badge(word)} **{wording.plain(name)}** ·"
                f" {wording.plain(report.guarantee)}"
            )
            st.markdown(wording.plain(report.why))
            st.page_link(
                "views/verdict.py",
                label="Verdict",
                icon=":material/gavel:",
                query_params={"run": name},
            )
    different = different_contracts(by_id[before], by_id[after])
    st.markdown(wording.plain(different + comparison.told(wording.KIND_TITLES)))
    tables(comparison)


def different_contracts(before: Run, after: Run) -> str:
    """Says if two checks answered different questions; empty if they did not."""
    if not before.kind == after.kind == "check":
        return ""
    labels = [trend.contract_label(run) or run.id for run in (before, after)]
    terms = changed_terms(open_history(settings), before, after)
    # Evidence that is gone tells nothing of them.
    if not terms and (terms is not None or labels[0] == labels[1]):
        return ""
    names = ", ".join(dict.fromkeys(labels))
    changed = "By different contracts" if labels[0] != labels[1] else "By changed terms"
    return f"{changed} ({names}): not comparable one to one. "


def tables(comparison: Comparison) -> None:
    left, right = st.columns(2)
    figures = [
        (
            figure.name,
            *map(_figure, (figure.before, figure.after)),
            _figure(figure.change, "+") if figure.change else "",
        )
        for figure in comparison.figures
    ]
    right_aligned = st.column_config.TextColumn(alignment="right")
    left.dataframe(
        pd.DataFrame(figures, columns=["figure", "before", "after", "change"]),
        hide_index=True,
        alt="Figures of both reports",
        column_config=dict.fromkeys(("before", "after", "change"), right_aligned),
    )
    kinds = [
        (
            wording.kind_title(kind.kind),
            *(
                f"{side.count:,} {side.outcome}" if side else "–"
                for side in (kind.before, kind.after)
            ),
            kind.word,
        )
        # Changes come first.
        for kind in sorted(
            comparison.kinds,
            key=lambda kind: (kind.word == "the same", kind.word.startswith("only")),
        )
    ]
    right.dataframe(
        pd.DataFrame(kinds, columns=["finding", "before", "after", "change"]),
        hide_index=True,
        alt="Findings of both reports",
    )


def _figure(value: float | None, sign: str = "") -> str:
    """Returns a figure as text, with one decimal, or with two digits if it is small."""
    if value is None:
        return "–"
    short = round(value, 1) if abs(value) >= 10 else float(f"{value:.2g}")
    return f"{short:{sign},}".removesuffix(".0")


def _choice(label: str, key: str, options: Sequence[str], default: str | None = None) -> str:
    """Shows a select box bound to the URL. An unknown value in the URL falls back to the
    default."""
    requested = st.query_params.get(key)
    chosen = requested if requested is not None and requested in options else default or options[0]
    if requested is not None and requested not in options:
        st.caption(
            f"There is no {key} {wording.plain(requested)}: showing {wording.plain(chosen)}."
        )

    def changed() -> None:
        st.query_params[key] = st.session_state[f"history_{key}"]

    st.session_state[f"history_{key}"] = chosen
    st.selectbox(label, list(options), key=f"history_{key}", on_change=if_drawn(changed))
    return chosen


page()
