"""A run in progress or after its end: its progress, figures, sink and conclusion."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC
from functools import partial
from typing import Any

import streamlit as st

from topicproof.app import wording
from topicproof.app.charts.picture_words import worker_names
from topicproof.app.charts.withheld import withheld_figure
from topicproof.app.session.access import may, open_history, show_errors
from topicproof.app.session.page_masks import shown_error
from topicproof.app.shell import downloads
from topicproof.app.shell.url_state import verdict_params
from topicproof.backend.commands.show import side_effects
from topicproof.backend.faults.by_hand import FREEZE_S, Freeze, Kill, Strike
from topicproof.backend.faults.fault import Side
from topicproof.backend.faults.kinds import parse_fault
from topicproof.backend.history.store import Run
from topicproof.backend.runs.context import finish, holds_open, release, why_no_finish
from topicproof.backend.runs.monitor import RATE_WINDOW_S
from topicproof.backend.runs.strikes import sources, strike, why_no_freeze, why_no_kill
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.validators.finding import Outcome

END, FINISH = "End the transaction", "Finish and judge"
FREEZE = f"Freeze the network for {FREEZE_S} s"
ASKED_S = 30.0
"""How long a strike that was asked for is marked, if the journal never gets it."""
ASKED_MAX = 8
WORKERS_MAX = 4
"""Workers with a button of their own where a picture fills the screen."""
RATES_KEPT = 60
WORKER_PX = 170
CHARTS_AFTER_S = 10.0
"""Age of a run from which its charts are drawn. On the same cores, drawing costs a browser as much
as a second of the run, and a short run needs no charts."""


def bar(run: Run) -> None:
    """Shows the stage, the progress, the rate and the remaining time."""
    st.markdown(wording.stages(run))
    st.progress(
        wording.progress_share(run.progress), text=wording.progress_text(run.progress, run.alive)
    )


def progress(run: Run) -> None:
    """Shows `bar`, the progress of each stage if there are several, and side effects that a replay
    repeats."""
    bar(run)
    if stages := run.progress.stages:
        phrases = (f"{stage.name} {stage.processed:,} of {stage.there:,}" for stage in stages)
        st.caption(wording.plain(f"Offsets that each stage has processed: {' · '.join(phrases)}"))
    if effects := side_effects(run.progress):
        st.caption(
            f"{effects.capitalize()}. A replay repeats them; the outputs are committed once."
        )


def figures(run: Run) -> None:
    """Shows the run's figures, each with its total."""
    counts = run.progress
    total = counts.total
    # Not in columns: in a narrow window they wrap, where columns would cut their words.
    row = st.container(horizontal=True)
    row.metric(
        "Inputs",
        f"{counts.processed:,}",
        "committed" if total is None else f"of {total:,}",
        delta_color="off",
        delta_arrow="off",
        border=True,
        help="Inputs whose outputs are committed, counted by the offsets that the transactions"
        " carry.",
    )
    fenced = counts.fenced
    row.metric(
        "Transactions declared",
        f"{counts.committed:,} committed",
        f"{counts.aborted:,} aborted" + (f", {fenced:,} fenced" if fenced else ""),
        delta_color="off",
        delta_arrow="off",
        border=True,
        help=(
            "Committed transactions, and below them aborted ones, as the journal declares them."
            " Fenced ones were taken over by another producer. A killed worker declares nothing, so"
            " its transaction is missing here."
        ),
    )
    sides = [parse_fault(fault).kind.side for fault in run.plan.get("faults", ())]
    # All sources of all stages count.
    partitions = sum(
        len(of_topic)
        for of_stage in (run.facts.initial_offsets or {}).values()
        for of_topic in of_stage.values()
    )
    most = sides.count(Side.WORKER) * partitions + sides.count(Side.RUN)
    planned = [f"of at most {most:,}"] if most else []
    planned += ["by hand"] if run.plan.get("by_hand") else []
    row.metric(
        "Faults fired",
        f"{counts.faults:,}",
        " and ".join(planned) or "none planned",
        delta_color="off",
        delta_arrow="off",
        border=True,
        help=(
            f"{wording.plain(wording.faults_sentence(run))}. A worker fault strikes every source"
            " partition once."
        ),
    )
    if run.alive:
        rates = st.session_state.setdefault("rates", {}).setdefault(run.id, [])
        rates.append(counts.records_per_s)
        del rates[:-RATES_KEPT]
        history = None if young(run) else rates
        row.metric(
            "Inputs per second",
            f"{counts.records_per_s:,.0f}",
            f"over the last {RATE_WINDOW_S:.0f} s",
            delta_color="off",
            delta_arrow="off",
            border=True,
            chart_data=history,
        )
    else:
        took = (run.ended_at - run.created_at).total_seconds() if run.ended_at else None
        row.metric(
            "Took",
            wording.duration(took),
            "from creation to end",
            delta_color="off",
            delta_arrow="off",
            border=True,
        )


def sink(run: Run, at_once: bool = False) -> None:
    """Shows the sink's last stable offset against its high watermark. `at_once`: draws the chart
    even while the run is young."""
    partitions = run.progress.sink
    if database := run.facts.database:
        st.markdown(f"**{wording.plain(run.facts.sink)}** is a table of {wording.plain(database)}.")
    if not partitions:
        return
    above = sum(p.hw - p.lso for p in partitions)
    offsets = sum(p.hw - p.start for p in partitions)
    if not offsets:
        st.markdown(f"**{wording.plain(run.facts.sink)}** holds nothing yet.")
        return
    sentence = (
        f"{above:,} of {wording.count(offsets, 'offset')} lie at or above the last stable offset"
        " (LSO)"
    )
    st.markdown(
        f"**{wording.plain(run.facts.sink)}** · {sentence}"
        + (
            ": withheld from read\\_committed consumers until their transactions end."
            if above
            else "."
        )
    )
    if young(run) and not at_once:
        return
    st.plotly_chart(
        withheld_figure(partitions),
        key=f"withheld {run.id}",
        config=downloads.PICTURE_ONLY,
        alt=(
            f"Last stable offset against high watermark of every partition of {run.facts.sink}:"
            f" {sentence}"
        ),
    )


def young(run: Run) -> bool:
    """Whether the run is in progress and has just begun."""
    return run.alive and run.age_s < CHARTS_AFTER_S


def ending(settings: Settings, run: Run) -> None:
    """Offers to end what the run's fault holds open."""
    if not can_end(run):
        return
    if st.button(
        END,
        key=f"release {run.id}",
        icon=":material/lock_open:",
        type="primary",
        help="Its producer aborts it. Then the last stable offset moves on.",
    ):
        end_transaction(settings, run)


def can_end(run: Run) -> bool:
    """Whether the run's fault holds something open that a person may end."""
    return bool(holds_open(run) and run.progress.faults)


def end_transaction(settings: Settings, run: Run) -> None:
    with show_errors():
        release(open_history(settings), run)
        _remember_request(run, None)
        st.toast("The transaction is being ended.", icon=":material/lock_open:")


def actions(settings: Settings, run: Run) -> dict[str, Callable[[], None]]:
    """Returns what this person can do to a live run now, by label: for a picture that fills the
    screen and hides the page's buttons."""
    offered: dict[str, Callable[[], None]] = {}
    if run.alive and can_end(run):
        offered[END] = partial(end_transaction, settings, run)
    if not (run.alive and run.plan.get("by_hand")):
        return offered
    places = sources(run)
    names = worker_names(places)
    if may(Action.STRIKE):
        if not why_no_kill(run):
            for place in places[:WORKERS_MAX]:
                kill = Kill(place[1], place[0])
                offered[f"Kill {names[place]}"] = partial(ask_strike, settings, run, kill)
        if not why_no_freeze(settings, run):
            offered[FREEZE] = partial(ask_strike, settings, run, Freeze())
    if may(Action.STOP) and not why_no_finish(settings, run):
        offered[FINISH] = partial(end_run, settings, run)
    return offered


def ask_strike(settings: Settings, run: Run, request: Strike) -> None:
    """Asks for a strike, and says so at once: until it is in the journal, the picture marks whom it
    is for."""
    with show_errors():
        strike(open_history(settings), run, request)
        _remember_request(run, request)
        st.toast(
            "The kill is asked for. It takes effect in a moment."
            if isinstance(request, Kill)
            else f"The freeze of {request.seconds} s is asked for.",
            icon=":material/bolt:" if isinstance(request, Kill) else ":material/ac_unit:",
        )


def end_run(settings: Settings, run: Run) -> None:
    with show_errors():
        finish(open_history(settings), run)
        st.toast("The run processes what is there, and is judged then.", icon=":material/flag:")


def _remember_request(run: Run, request: Strike | None) -> None:
    """Remembers what this person asked for; None: the end of the open transaction."""
    requests = st.session_state.setdefault(f"asked {run.id}", [])
    requests.append((time.time(), request))
    del requests[:-ASKED_MAX]


def asked_at(run: Run) -> float:
    """Returns when this person last asked for something, in seconds since 1970; 0: never."""
    requests = st.session_state.get(f"asked {run.id}", ())
    return float(requests[-1][0]) if requests else 0.0


def asked_of(run: Run) -> list[dict[str, Any]]:
    """Returns the strikes that this session asked for in the last moments: the number of the worker
    (-1: all), what, and when, in ms since the run was created."""
    places, now = sources(run), time.time()
    began = run.created_at.replace(tzinfo=UTC).timestamp()
    return [
        {
            "worker": places.index((request.topic or "", request.partition))
            if isinstance(request, Kill)
            else -1,
            "what": "kill asked" if isinstance(request, Kill) else "freeze asked",
            "at": round((at - began) * 1000),
        }
        for at, request in st.session_state.get(f"asked {run.id}", ())
        if request is not None and now - at < ASKED_S
    ]


def is_endless(run: Run) -> bool:
    """Whether the run goes on until somebody stops it, and nobody has."""
    return run.alive and bool(run.plan.get("until_stopped")) and not run.stop_requested


def striking(settings: Settings, run: Run, always: bool = False) -> None:
    """Offers to kill a worker and to freeze the network, for a run that may be struck by hand.
    `always`: shows why not for any other live run."""
    planned, places = bool(run.plan.get("by_hand")), sources(run)
    if not places or not (planned or (always and run.alive)):
        return
    refused = None if may(Action.STRIKE) else "Your role may not strike a run."
    no_kill = refused or wording.plain(why_no_kill(run) or "")
    no_freeze = refused or wording.plain(why_no_freeze(settings, run) or "")
    names = worker_names(places)
    request: Strike | None = None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        place = st.selectbox(
            "Worker",
            places,
            format_func=lambda option: f"worker of {wording.plain(names[option])}",
            key=f"worker {run.id}",
            label_visibility="collapsed",
            disabled=bool(no_kill),
            width=WORKER_PX,
        )
        if st.button(
            "Kill this worker now",
            key=f"kill {run.id}",
            icon=":material/bolt:",
            disabled=bool(no_kill) or place is None,
            help=no_kill
            or "Kills its process with SIGKILL as soon as it runs a task. To Kafka it looks like a"
            " power cut.",
        ):
            request = Kill(place[1], place[0])
        if st.button(
            FREEZE,
            key=f"freeze {run.id}",
            icon=":material/ac_unit:",
            disabled=bool(no_freeze),
            help=no_freeze
            or "Nothing passes between the workers and the brokers. Connections stay open.",
        ):
            request = Freeze()
        no_finish = None if may(Action.STOP) else "Your role may not stop a run."
        no_finish = no_finish or wording.plain(why_no_finish(settings, run) or "")
        if planned and st.button(
            FINISH,
            key=f"finish {run.id}",
            icon=":material/flag:",
            disabled=bool(no_finish),
            help=no_finish
            or "Stops the fill, processes the inputs that are in the source, then judges the run.",
        ):
            end_run(settings, run)
    if request is not None:
        ask_strike(settings, run, request)


def conclusion(settings: Settings, run: Run) -> None:
    """Shows the result of a run that has ended."""
    if run.verdict is not None:
        boxes = {Outcome.HOLDS: st.success, Outcome.VIOLATED: st.error, Outcome.UNKNOWN: st.warning}
        word = wording.run_word(run) or wording.OUTCOME_WORDS[Outcome(run.verdict)]
        box = st.warning if word is wording.IN_PART else boxes[Outcome(run.verdict)]
        box(wording.plain(run.why or ""), title=word.word, icon=word.symbol)
    if error := shown_error(settings, run):
        st.error(wording.plain(error), title="What went wrong", icon=":material/error:")


def ways(run: Run) -> None:
    """Shows links to the next pages."""
    with st.container(horizontal=True):
        if run.verdict is not None:
            st.page_link(
                "views/verdict.py",
                label="Open the verdict",
                icon=":material/gavel:",
                query_params={"run": run.id},
            )
        if run.facts.sink and not run.facts.database:
            st.page_link(
                "views/compare.py",
                label="Compare both levels of the sink",
                icon=":material/compare:",
                query_params={
                    "topic": run.facts.sink,
                    **(verdict_params(run.id) if run.verdict is not None else {}),
                },
            )
            st.page_link(
                "views/transactions.py",
                label="Transactions of the sink",
                icon=":material/timeline:",
                query_params={"topic": run.facts.sink},
            )
