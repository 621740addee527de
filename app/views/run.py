"""Run: configure a run, start it, watch it live, stop it, resume it.

`?run=ID` reopens this run; `?plan_records=` and the like fill in the form.
"""

from __future__ import annotations

from typing import Any, get_args

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.run import balances, run_progress
from topicproof.app.run.picture_facts import drawable
from topicproof.app.run.picture_player import POLL_S as PICTURE_S, explain_picture, show_picture
from topicproof.app.session.access import open_history, show_error, show_errors
from topicproof.app.session.connection import page_settings
from topicproof.app.session.page_masks import hides_parts, shown_error
from topicproof.app.session.run_reads import newest_runs, run_of_url
from topicproof.app.shell import places
from topicproof.app.shell.places import if_drawn
from topicproof.app.topic.payload import verbatim
from topicproof.backend.errors import TopicproofError
from topicproof.backend.faults.kinds import KINDS, choices
from topicproof.backend.history.store import Run
from topicproof.backend.runs.context import stop
from topicproof.backend.runs.launch import said, start_resume, start_run
from topicproof.backend.runs.plan import RunPlan, make_plan
from topicproof.backend.runs.scenarios import SCENARIOS
from topicproof.backend.sink.delivery_options import OPTIONS, Option
from topicproof.backend.sink.hooks import Step

POLL_S, DETAILS_S = 1.0, 3.0
END_S = 0.5
RECENT = 12

settings = page_settings()


def form() -> None:
    """Shows the form with everything a plan needs; one click starts it."""
    with st.form("plan", border=True):
        st.markdown("##### Start a run")
        scenario = st.selectbox(
            "Scenario",
            [name for name, scenario in SCENARIOS.items() if scenario.value is not None],
            # A whole title would be cut.
            format_func=lambda name: f"{name}: {SCENARIOS[name].title.partition(':')[0]}",
            key="plan_scenario",
            bind="query-params",
            help=(
                "Where the inputs come from, and what the pipeline on Spark makes of each. For"
                " topics of your own, write a plan and start it from the command line: topicproof"
                " run PLAN.yaml (contracts/yours.yaml)."
            ),
        )
        # Choices have a row of their own: half of one would cut their words in a narrow window.
        guarantee = st.selectbox(
            "Guarantee",
            get_args(RunPlan.model_fields["guarantee"].annotation),
            key="plan_guarantee",
            bind="query-params",
            help="What the run promises, and what its verdict is measured against.",
        )
        left, right = st.columns(2)
        fields: dict[str, Any] = {
            "scenario": scenario,
            "guarantee": guarantee,
            "records": left.number_input(
                "Records",
                min_value=1,
                value=20_000,
                step=10_000,
                key="plan_records",
                bind="query-params",
                help=(
                    "How many integers are written to the source. “Run until stopped” ignores it."
                ),
            ),
            "partitions": right.number_input(
                "Partitions",
                min_value=1,
                max_value=10_000,
                value=3,
                key="plan_partitions",
                bind="query-params",
                help=(
                    "Partitions of the source and of the sink. Each source partition has its own"
                    " transactional id."
                ),
            ),
            "per_transaction": left.number_input(
                "Records per transaction",
                min_value=1,
                value=1_000,
                step=100,
                key="plan_per_transaction",
                bind="query-params",
                help="How many inputs go into one transaction at most.",
            ),
            "abort_probability": right.number_input(
                "Abort probability",
                min_value=0.0,
                max_value=1.0,
                value=0.2,
                step=0.05,
                key="plan_abort_probability",
                bind="query-params",
                help=(
                    "Each transaction is aborted on purpose with this probability, and tried again:"
                    " its aborted records stay in the topic, where only read_uncommitted sees them."
                ),
            ),
        }
        faults = choices()
        chosen = st.selectbox(
            "Fault",
            list(faults),
            key="plan_fault",
            bind="query-params",
            help=(
                "What goes wrong on purpose. It happens once, or once per source partition if it"
                " strikes the worker. "
            )
            + " ".join(f"**{kind.name}**: {kind.says}" for kind in KINDS),
        )
        step = st.selectbox(
            "At step",
            list(Step),
            index=list(Step).index(Step.PRODUCED),
            key="plan_fault_step",
            bind="query-params",
            help=(
                "At which step of the transaction the fault strikes. Crash and error can strike at"
                " any step, zombie and hijack while the transaction is open."
            ),
        )
        left, right = st.columns(2)
        transaction = left.number_input(
            "In transaction",
            min_value=0,
            value=2,
            key="plan_fault_transaction",
            bind="query-params",
            help="The fault strikes in this transaction. 0: nothing goes wrong.",
        )
        fields["faults"] = (
            (faults[chosen].at(transaction, step or Step.PRODUCED),) if transaction else ()
        )
        fields["seed"] = right.number_input(
            "Seed",
            value=1,
            key="plan_seed",
            bind="query-params",
            help=(
                "Seeds every random draw: the same plan with the same seed aborts the same"
                " transactions again."
            ),
        )
        fields["rate"] = st.number_input(
            "Fill rate (records/s)",
            min_value=1.0,
            value=None,
            key="plan_rate",
            bind="query-params",
            placeholder="no limit",
            help="How fast the source is filled. Empty: as fast as possible.",
        )
        with st.expander("More options of delivery"):
            fields |= delivery_fields()
        fields["until_stopped"] = st.toggle(
            "Run until stopped",
            key="plan_until_stopped",
            bind="query-params",
            help=(
                "Fill and process at the same time until you press Stop; then judge what was"
                " committed."
            ),
        )
        fields["by_hand"] = st.toggle(
            "Break it by hand",
            key="plan_by_hand",
            bind="query-params",
            help=(
                "Buttons beside its picture kill workers and freeze the network while it runs. Best"
                " together with “Run until stopped”."
            ),
        )
        submitted = st.form_submit_button(
            "Start the run", type="primary", icon=":material/play_arrow:", width="stretch"
        )
    if submitted:
        begin(fields)


def delivery_fields() -> dict[str, Any]:
    """Shows a field for each option of delivery that has a label. Returns the values by name."""
    return {
        option.plan_name: option_field(option)
        for option in OPTIONS.values()
        if option.label is not None
    }


def option_field(option: Option) -> Any:
    key = f"plan_{option.plan_name}"
    if option.type is int:
        return st.number_input(
            option.label or option.name,
            min_value=option.least,
            max_value=option.most_in_plan,
            value=option.default,
            key=key,
            bind="query-params",
            placeholder="the producer's own default",
            help=option.help,
        )
    return st.selectbox(
        option.label or option.name,
        option.choices,
        index=None if option.default is None else option.choices.index(option.default),
        key=key,
        bind="query-params",
        placeholder="the producer's own default",
        help=option.help,
    )


def begin(fields: dict[str, Any]) -> None:
    """Starts the run in its own process and opens it."""
    with show_errors(), st.status("Starting a process for the run…") as status:
        run_id = start_run(
            open_history(settings),
            make_plan(fields),
            lambda line: status.update(label=wording.plain(line)),
        )
    open_run(run_id)


def open_run(run_id: str) -> None:
    st.query_params["run"] = run_id
    st.rerun()


def state(run_id: str) -> None:
    """Shows the state of a run. During the run this fragment is redrawn every second, so it is kept
    light."""
    with show_errors():
        run = open_history(settings).get(run_id)
    head(run)
    if run.kind == "run":
        run_progress.progress(run)
        if run.progress.trouble and run.alive:
            st.warning(
                wording.plain(run.progress.trouble),
                title="The last look was incomplete",
            )
    run_progress.ending(settings, run)
    run_progress.conclusion(settings, run)
    run_progress.ways(run)


def pictured(run_id: str) -> None:
    """Shows the picture of a run, and what may strike it."""
    with show_errors():
        run = open_history(settings).get(run_id)
    with st.container():
        run_progress.striking(settings, run, always=True)
    show_picture(settings, run, actions=run_progress.actions(settings, run))


def ended(run_id: str) -> None:
    """Draws nothing, so it can check often: when the run has ended, it reruns the page."""
    with show_errors():
        run = open_history(settings).get(run_id)
    if not run.alive:
        st.rerun()


def details(run_id: str) -> None:
    """Shows figures, sink and process output. Redrawn less often, because drawing takes time from
    the run."""
    with show_errors():
        run = open_history(settings).get(run_id)
    if run.kind == "run":
        run_progress.figures(run)
        run_progress.sink(run)
        balances.totals(settings, run)
    if not run_progress.young(run) and (text := said(settings, run.id)):
        with st.expander("Output of its process", icon=":material/terminal:"):
            if hides_parts(settings, run):
                st.caption("It may quote payloads that are masked for your role.")
            else:
                verbatim(text)


def head(run: Run) -> None:
    title, buttons = st.columns([3, 1.2], vertical_alignment="center")
    title.markdown(f"#### {wording.plain(run.id)}")
    summary = (
        wording.plain(wording.plan_sentence(run)) if run.kind == "run" else "a check of two topics"
    )
    title.caption(f"{summary} · started {wording.moment(run.created_at)}")
    if run.alive:
        buttons.button(
            "Stopping…" if run.stop_requested else "Stop",
            icon=":material/stop:",
            key="stop",
            disabled=run.stop_requested,
            width="stretch",
            help=(
                "The current transaction ends first; what was committed is judged. The run can be"
                " resumed."
            ),
            on_click=stop_run,
            args=(run.id,),
        )
    elif (
        run.state != "done"
        and run.facts.initial_offsets is not None
        and buttons.button(
            "Resume",
            icon=":material/resume:",
            key="resume",
            type="primary",
            width="stretch",
            help="Continue from what the run has committed, in a new process.",
        )
    ):
        resume(run)


def stop_run(run_id: str) -> None:
    try:
        stop(open_history(settings), run_id)
    except TopicproofError as error:
        show_error(error)


def resume(run: Run) -> None:
    with show_errors(), st.status("Starting a process that resumes the run…") as status:
        start_resume(
            open_history(settings),
            run.id,
            lambda line: status.update(label=wording.plain(line)),
        )
    st.rerun()


def recent(runs: list[Run]) -> None:
    """Lists the newest runs; a click opens one."""
    st.markdown("##### Recent runs")
    if not runs:
        st.info(
            "No runs yet. Start one with the form, or let a demo tell its story.",
            icon=":material/info:",
        )
        st.page_link("views/demos.py", label="Guided demos", icon=":material/theater_comedy:")
        return
    newest = runs[:RECENT]
    table = pd.DataFrame(
        {
            "run": [run.id for run in newest],
            "verdict": [wording.verdict_short(run) for run in newest],
            "state": [wording.run_state(run).word for run in newest],
            "started (UTC)": [run.created_at for run in newest],
            "why": [run.why or shown_error(settings, run) or "" for run in newest],
        }
    )

    def chosen() -> None:
        cells = st.session_state["recent"].selection.cells
        if cells and cells[0][0] < len(newest):
            st.query_params["run"] = newest[cells[0][0]].id

    st.dataframe(
        table,
        hide_index=True,
        key="recent",
        on_select=if_drawn(chosen),
        selection_mode="single-cell",
        alt="The newest runs; choose a cell to open its run",
        column_config={
            "run": st.column_config.TextColumn(width=125),
            "started (UTC)": st.column_config.DatetimeColumn(
                format="YYYY-MM-DD HH:mm:ss", width=150
            ),
            "state": st.column_config.TextColumn(width=85),
            "verdict": st.column_config.TextColumn(width=115),
        },
    )
    st.caption("Click a row to open its run here.")


def page() -> None:
    places.head(places.RUN)
    left, right = st.columns([1, 1.8], gap="large")
    with show_errors():
        runs = [run for run in newest_runs(settings) if run.kind == "run"]
    # First what the user waits for.
    with right:
        opened = None
        try:
            opened = run_of_url(settings)
        except TopicproofError as error:
            st.warning(wording.plain(str(error)), title="That run is not in the history")
        if opened is None and runs and runs[0].alive:
            opened = runs[0]
        if opened is not None:
            st.fragment(state, run_every=POLL_S if opened.alive else None)(opened.id)
            picture_slot = st.container()
            if drawable(opened) is not None:
                explain_picture()
            st.fragment(details, run_every=DETAILS_S if opened.alive else None)(opened.id)
            if opened.alive:
                st.fragment(ended, run_every=END_S)(opened.id)
            st.divider()
        recent(runs)
    with left:
        form()
    if opened is not None:
        # Last: an embedded Kafka may have to start first.
        with picture_slot:
            st.fragment(pictured, run_every=PICTURE_S if opened.alive else None)(opened.id)


page()
