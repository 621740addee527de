"""The switch *Watch this*: puts a contract on the list of what is watched, and starts the watch of
its cluster unless one is running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from topicproof.app import wording
from topicproof.app.check import check_reads
from topicproof.app.check.check_state import mistakes_text
from topicproof.app.session.access import may, open_history, show_error
from topicproof.app.session.connection import running_kafka
from topicproof.app.shell import places
from topicproof.app.shell.places import if_drawn
from topicproof.backend.contracts.contract_text import spell
from topicproof.backend.errors import ContractError, TopicproofError
from topicproof.backend.history.pipelines import pipeline_of
from topicproof.backend.history.store import Kind, Run
from topicproof.backend.runs.launch import start_watch
from topicproof.backend.runs.scenarios import SCENARIOS
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.watch.cluster_look import cluster_id
from topicproof.backend.watch.watch_list import ListedContract, list_contract, unlist_contract
from topicproof.validators.expected import Expect

RUN_WITHIN = "5s"
"""How long an output of a run may take, before its input is late: so short that a killed worker
is an alarm, until its successor has caught up."""
_TURNED = "watch_turned"
"""Session state: the key of the switch that somebody has just turned."""


def watch_switch(
    settings: Settings,
    contracts: Sequence[ListedContract],
    name: str,
    read_text: Callable[[], str],
    *,
    key: str,
    is_complete: bool = True,
    shown_text: str | None = None,
) -> None:
    """Shows whether a contract of the page's cluster is watched, and changes that. `contracts`: the
    list. `read_text` returns the contract as YAML, or raises TopicproofError. `key`: of the widget.
    `is_complete`: the contract has no mistakes. `shown_text`: the contract, where the page shows
    its terms."""
    listed = next((each for each in contracts if each.is_of(settings) and each.name == name), None)
    st.session_state[key] = listed is not None
    allowed = may(Action.UNWATCH if listed is not None else Action.WATCH)

    def turned() -> None:
        st.session_state[_TURNED] = key

    with st.container(horizontal=True, vertical_alignment="center"):
        st.toggle(
            "Watch this",
            key=key,
            on_change=if_drawn(turned),
            disabled=not allowed or not (is_complete or listed is not None),
            width="content",
            help=(
                "Judges the topics as they grow, from their oldest record on, until you switch it"
                " off. It goes on if you close this page, and if the dashboard starts again."
                if allowed
                else "Your role may not watch."
            ),
        )
        if listed is not None:
            st.page_link(
                places.WATCH.file,
                label="See how it stands",
                icon=places.WATCH.icon,
                width="content",
            )
    if listed is not None and shown_text not in (None, listed.text):
        st.caption("It is watched by earlier terms. Switch that off and on to take these.")
    if st.session_state.get(_TURNED) != key:
        return
    del st.session_state[_TURNED]
    try:
        if listed is not None:
            unlist_contract(open_history(settings), listed)
        else:
            begin_watch(settings, name, read_text())
    except ContractError as error:
        st.error(mistakes_text(error.mistakes), title="This contract cannot be watched")
    except TopicproofError as error:
        show_error(error)
    else:
        st.rerun()


def begin_watch(settings: Settings, contract_name: str, text: str) -> None:
    """Puts a contract on the list, and starts the watch of its cluster. Raises TopicproofError."""
    history = open_history(settings)
    kafka = running_kafka(settings)
    cluster = cluster_id(kafka.address)
    list_contract(history, ListedContract.at(settings, cluster, contract_name, text))
    with st.status("Starting the watch…") as status:
        start_watch(history, cluster, lambda line: status.update(label=wording.plain(line)))


def run_switch(settings: Settings, contracts: Sequence[ListedContract], run: Run) -> None:
    """Shows the switch for what a run or check judged; nothing for what no watch can judge, or on
    another cluster than the page's."""
    ran_on = run.facts.cluster
    if (ran_on.name, ran_on.bootstrap) != (settings.cluster, settings.bootstrap):
        return
    if run.kind == Kind.CHECK:
        name, read_text = pipeline_of(run).name, partial(_kept_text, settings, run)
    elif (text := run_contract(run)) is not None:
        name, read_text = run.facts.sink, partial(str, text)
    else:
        return
    watch_switch(settings, contracts, name, read_text, key=f"watch {run.id}")


def _kept_text(settings: Settings, run: Run) -> str:
    """Returns the contract of a check. Raises ContractError, EvidenceError."""
    origin = check_reads.of_run(settings, run)
    return origin.text or spell(origin.fields)


def run_contract(run: Run) -> str | None:
    """Returns the contract that a run keeps, as YAML: each input has one output, which has its
    lineage. None for runs of other kinds, into tables, or of several stages."""
    scenario, facts = SCENARIOS.get(str(run.plan.get("scenario"))), run.facts
    if run.kind != Kind.RUN or scenario is None or run.plan.get("lineage") == "off":
        return None
    is_one_to_one = scenario.expect is Expect.ONE_TO_ONE and len(scenario.topics) == 2
    if not (is_one_to_one and scenario.is_simple and facts.source and facts.sink):
        return None
    fields = {
        "guarantee": run.plan.get("guarantee"),
        "source": {"topic": facts.source},
        "sink": {"topic": facts.sink},
        "identity": "lineage",
        "within": RUN_WITHIN,
    }
    return spell(fields)
