"""Check: judge two topics of any program by a contract. `?source=T&sink=T` drafts one,
`?contract=NAME@VERSION` opens a kept one, `?run=ID` shows a check and its contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import pandas as pd
import streamlit as st

from topicproof.app import checking, live, session, wording
from topicproof.app.check_state import (
    CheckState,
    default_name,
    mistake_line,
    read_check,
    topic_of,
    write_check,
)
from topicproof.app.checking import Drafted, Origin
from topicproof.app.contract_form import form
from topicproof.app.payload import verbatim
from topicproof.backend.errors import ContractError, Mistake, TopicproofError
from topicproof.backend.history.contracts import contracts, keep, versions
from topicproof.backend.history.store import Run, State
from topicproof.backend.judging.contract import (
    PLACEHOLDER,
    make_contract,
    parse_fields,
    question_of,
)
from topicproof.backend.judging.contract_preview import Match, Preview, identity_only, preview
from topicproof.backend.judging.contract_text import spell
from topicproof.backend.judging.judge import STEPS
from topicproof.backend.kafka.browse.records import as_text
from topicproof.backend.runs.launch import start_check
from topicproof.backend.runs.sides import chosen
from topicproof.backend.services.keeper import Services

POLL_S = 1.0
IDENTITY_CHARACTERS = 60
PLACES_SHOWN = 3
TABLE_PX = 300
RECENT = 6
SIDES = "source", "sink"
FILE_WORDS = (
    f"write one_to_one if outputs above 1 are duplicates ({PLACEHOLDER} is no count)",
    "choose “exactly one” if outputs above 1 are duplicates",
)
"""The draft's advice to somebody who edits a file, and the same for this form."""
MATCH_SYMBOLS = {Match.MATCHED: "✓", Match.NO_INPUT: "?", Match.NO_OUTPUT: "?"}

settings = session.settings()


def page() -> None:
    title, source_slot, sink_slot, kept_slot, import_slot = st.columns(
        [0.9, 2, 2, 1.7, 0.9], vertical_alignment="bottom"
    )
    title.title("Check", anchor=False)
    state, notices = read_check(st.query_params)
    with session.said():
        kafka = session.kafka(settings)
        names = session.topics(settings, kafka, state.source)
    run = shown_run(state)
    origin = origin_of(state, run)
    fields = state.terms if state.terms is not None else origin.fields if origin else None
    state = with_topics(state, fields)
    choose_topics(state, names, source_slot, sink_slot)
    choose_kept(state, origin, kept_slot)
    with import_slot:
        import_contract()
    for notice in notices:
        st.warning(wording.plain(notice), icon=":material/info:")
    if run is not None:
        with st.container(border=True):
            st.fragment(progress, run_every=POLL_S if run.alive else None)(run.id)
    if fields is None and (state.source is None or state.sink is None):
        welcome()
        return
    missing = [one for one in (state.source, state.sink) if one is not None and one not in names]
    if missing:
        st.error(
            wording.plain(
                f"This cluster has no topic {' and no topic '.join(missing)}. It may have been"
                " deleted, or be on another cluster. Choose another topic above."
            ),
            title="No such topic",
            icon=":material/search_off:",
        )
    found = None if missing else sampled(kafka, state)
    if fields is None:
        fields = drafted_fields(state, found)
    edit(kafka, state, origin, fields, found, run)


def shown_run(state: CheckState) -> Run | None:
    """Returns the check in the URL; None, with a notice, if it is not in the history."""
    if state.run is None:
        return None
    try:
        run = session.history(settings).get(state.run)
    except TopicproofError:
        run = None
    if run is None or run.kind != "check":
        st.warning(
            wording.plain(f"The history has no check {state.run}. Choose two topics above."),
            title="That check is not in the history",
            icon=":material/info:",
        )
        return None
    return run


def origin_of(state: CheckState, run: Run | None) -> Origin | None:
    """Returns the contract in the URL; None if it is to be drafted."""
    try:
        if state.contract is not None:
            return checking.kept(settings, state.contract)
        return None if run is None else checking.of_run(settings, run)
    except TopicproofError as error:
        st.warning(
            wording.plain(str(error)),
            title="That contract does not open",
            icon=":material/info:",
        )
        return None


def with_topics(state: CheckState, fields: Mapping[str, Any] | None) -> CheckState:
    """Returns the state with the topics of its contract."""
    if fields is None:
        return state
    return replace(state, source=topic_of(fields, "source"), sink=topic_of(fields, "sink"))


def go(state: CheckState) -> None:
    st.query_params.from_dict(write_check(state))


def choose_topics(state: CheckState, names: Sequence[str], source: Any, sink: Any) -> None:
    """Asks for both topics. Another pair of topics gets a draft of its own."""
    st.session_state["check_source"] = state.source if state.source in names else None
    st.session_state["check_sink"] = state.sink if state.sink in names else None

    def chosen() -> None:
        picked = {side: st.session_state[f"check_{side}"] for side in ("source", "sink")}
        go(CheckState(**picked))

    for slot, side, title, says in (
        (source, "source", "Source", "Topic that was read"),
        (sink, "sink", "Sink", "Topic that was written"),
    ):
        slot.selectbox(
            title, names, key=f"check_{side}", placeholder=says, on_change=chosen, help=says
        )


def choose_kept(state: CheckState, origin: Origin | None, slot: Any) -> None:
    """Offers the kept contracts, and the other versions of the one that is open."""
    with session.said():
        history = session.history(settings)
        known = contracts(history)
        own = versions(history, origin.name) if origin and origin.name and origin.version else []
    labels = list(dict.fromkeys([*(one.label for one in own), *(one.label for one in known)]))
    if not labels:
        return
    opened = f"{origin.name}@{origin.version}" if origin and origin.version else None
    st.session_state["check_kept"] = opened if opened in labels else None

    def chosen() -> None:
        picked = st.session_state["check_kept"]
        go(CheckState(contract=picked) if picked else CheckState(state.source, state.sink))

    slot.selectbox(
        "Kept contract",
        labels,
        key="check_kept",
        placeholder="Open one",
        on_change=chosen,
        help="Contracts that were kept in this history, with their versions.",
    )


def import_contract() -> None:
    """Takes a contract as a file, keeps it under the file's name, and opens it."""
    with st.popover("Import", width="stretch"):
        file = st.file_uploader("A contract as YAML", type=["yaml", "yml"], key="check_import")
        if file is None or st.session_state.get("imported") == file.file_id:
            return
        st.session_state["imported"] = file.file_id
        try:
            text = file.getvalue().decode()
            one = keep(session.history(settings), PurePath(file.name).stem, text)
        except UnicodeDecodeError:
            st.error("The file is not UTF-8 text. Save it as UTF-8, and choose it again.")
        except ContractError as error:
            st.error(mistakes_text(error.mistakes), title="That is not a contract yet")
        except TopicproofError as error:
            st.error(wording.plain(str(error)), title="The contract was not kept")
        else:
            go(CheckState(contract=one.label))
            st.rerun()


def welcome() -> None:
    """Shows what to do first, and the newest checks."""
    st.info(
        "Choose the topic that your pipeline reads and the topic that it writes. A contract is"
        " drafted from their newest records: what identifies an input, how many outputs it has, in"
        " which order. You change what is wrong, see what it matches, and check. Nothing is"
        " written to your cluster.",
        title="Choose a source and a sink above",
        icon=":material/arrow_upward:",
    )
    with session.said():
        checks = [run for run in session.runs(settings) if run.kind == "check"][:RECENT]
    if not checks:
        return
    st.markdown("##### Newest checks")
    for run in checks:
        word = wording.run_word(run) or wording.run_state(run)
        left, right = st.columns([1.4, 3], vertical_alignment="center")
        left.page_link(
            "views/check.py",
            label=f"{run.facts.source} → {run.facts.sink}",
            icon=":material/replay:",
            query_params={"run": run.id},
        )
        right.markdown(
            f"{wording.badge(word)} {wording.moment(run.created_at)}"
            f" · {wording.plain(run.why or run.error or '')}"
        )


def sampled(kafka: Services, state: CheckState) -> Drafted | None:
    """Returns samples of both topics; None, with a notice, if they cannot be had."""
    if state.source is None or state.sink is None or state.source == state.sink:
        return None
    try:
        return checking.drafted(settings, kafka, state.source, state.sink)
    except TopicproofError as error:
        said = str(error).removesuffix(" Fill it first.")
        st.warning(
            wording.plain(f"{said} Nothing can be drafted or previewed until it does."),
            title="No sample of both topics",
            icon=":material/info:",
        )
        return None


def drafted_fields(state: CheckState, found: Drafted | None) -> Mapping[str, Any]:
    """Returns the drafted contract; without a draft, one whose identity is yet to be chosen."""
    if found is not None and found.draft.found:
        return parse_fields(found.draft.text)
    named = {side: {"topic": topic} for side, topic in vars(state).items() if side in SIDES}
    return {"guarantee": "exactly_once", **named, "identity": PLACEHOLDER}


def edit(
    kafka: Services,
    state: CheckState,
    origin: Origin | None,
    fields: Mapping[str, Any],
    found: Drafted | None,
    run: Run | None,
) -> None:
    """Shows the contract as a form beside what it would match, and the button that checks."""
    left, right = st.columns([1.1, 1], gap="medium")
    with left, st.container(border=True):
        name = contract_name(state, origin)
        if found is not None and origin is None and state.terms is None:
            draft_note(found)
        labels = {} if found is None else found.labels
        form(fields, labels, lambda after: go(state.with_fields(after)))
    with right:
        ready = st.container()
        shown = st.container()
    text = as_kept(state, origin, fields)
    mistakes = checking.mistakes(fields)
    with ready:
        starting(kafka, name, text, fields, mistakes, run)
        slow = st.empty()
    with shown:
        show_preview(fields, found)
        with st.expander("The contract as YAML", icon=":material/code:"):
            verbatim(text)
            st.download_button(
                "Download",
                text,
                file_name=f"{name}.yaml",
                mime="application/yaml",
                icon=":material/download:",
                on_click="ignore",
            )
    if not mistakes:
        with slow:
            spark_lint(fields)


def as_kept(state: CheckState, origin: Origin | None, fields: Mapping[str, Any]) -> str:
    """Returns the contract's text: with its comments, as long as nobody has changed it."""
    unchanged = state.terms is None and origin is not None and origin.text is not None
    return origin.text if unchanged and origin and origin.text else spell(fields)


def contract_name(state: CheckState, origin: Origin | None) -> str:
    """Asks for the name to keep the contract by."""
    name = state.name or default_name(state.sink, origin.name if origin else None)
    st.session_state["check_name"] = name

    def named() -> None:
        go(replace(state, name=st.session_state["check_name"].strip() or None))

    kept = f"{origin.name}@{origin.version}" if origin and origin.version else None
    said = f"Opened: {kept}. " if kept else ""
    st.text_input(
        "Contract name",
        key="check_name",
        on_change=named,
        help=(
            f"{said}A check keeps its contract under this name. Changed terms become the next"
            " version; earlier versions stay."
        ),
    )
    return name


def draft_note(found: Drafted) -> None:
    """Shows what the draft was made from."""
    if not found.draft.found:
        st.warning(
            wording.plain(found.draft.why).replace(", so no contract was written", ""),
            title="Choose the identity yourself",
            icon=":material/fingerprint:",
        )
        return
    inputs, outputs = len(found.inputs.rows), len(found.outputs.rows)
    st.markdown(f"Drafted from the newest {inputs:,} inputs and {outputs:,} outputs. Review it.")
    notes = (one.replace(*FILE_WORDS) for one in found.draft.notes)
    st.caption("  \n".join(wording.plain(note) for note in notes))


def starting(
    kafka: Services,
    name: str,
    text: str,
    fields: Mapping[str, Any],
    mistakes: Sequence[Mistake],
    run: Run | None,
) -> None:
    """Shows the button that checks, and what is still wrong with the contract."""
    going = run is not None and run.alive
    pressed = st.button(
        "Check again" if run is not None else "Check now",
        type="primary",
        icon=":material/fact_check:",
        width="stretch",
        disabled=bool(mistakes) or going,
        help="Reads both topics whole, and judges them. It goes on if you close this page.",
    )
    if mistakes:
        title = wording.count(len(mistakes), "mistake") + " to correct first"
        st.error(mistakes_text(mistakes), title=title, icon=":material/error:")
    if pressed:
        begin(kafka, name, text, fields)


def begin(kafka: Services, name: str, text: str, fields: Mapping[str, Any]) -> None:
    """Keeps the contract, starts the check in its own process, and opens it."""
    try:
        wrong = checking.spark_mistakes(settings, fields)
        if wrong:
            raise ContractError(*wrong)
        given = parse_fields(text)
        for one in make_contract(given).each():
            sides = chosen(one, settings)
            own = kafka.address if one.of.cluster is None else sides.sink.address
            question_of(one, given, *sides.clusters(own))
        with st.status("Starting the check…") as status:
            kept = keep(session.history(settings), name, text)
            started = start_check(
                settings, kept.label, lambda line: status.update(label=wording.plain(line))
            )
    except ContractError as error:
        st.error(mistakes_text(error.mistakes), title="The check cannot start")
    except TopicproofError as error:
        st.error(wording.plain(str(error)), title="The check cannot start")
    else:
        go(CheckState(run=started))
        st.rerun()


def spark_lint(fields: Mapping[str, Any]) -> None:
    """Shows the mistakes of expressions, which only Spark knows."""
    try:
        wrong = checking.spark_mistakes(settings, fields)
    except TopicproofError as error:
        st.warning(
            wording.plain(f"{error} The check itself will look at the expressions."),
            title="The expressions were not checked",
        )
        return
    if wrong:
        st.error(mistakes_text(wrong), title="Spark refuses this", icon=":material/error:")


def mistakes_text(mistakes: Sequence[Mistake]) -> str:
    return "  \n".join(mistake_line(one.field, one.why) + "\\." for one in mistakes)


def show_preview(fields: Mapping[str, Any], found: Drafted | None) -> None:
    """Shows which newest outputs belong to which newest inputs."""
    terms = identity_only(fields)
    if found is None or terms is None:
        st.caption(
            "The preview comes when one source, one sink and an identity are chosen."
            if found is not None or terms is None
            else "No preview: there is no sample of both topics."
        )
        return
    seen = preview(found.inputs, found.outputs, terms)
    st.markdown("##### What the identity matches")
    columns = st.columns(2)
    for column, title, part, whole in (
        (columns[0], "Outputs with an input", seen.outputs_matched, seen.outputs),
        (columns[1], "Inputs with an output", seen.inputs_matched, seen.inputs),
    ):
        column.metric(
            title,
            f"{part:,}",
            f"of {whole:,}",
            delta_color="off",
            delta_arrow="off",
            border=True,
        )
    said = st.success if seen.good else st.warning
    icon = ":material/check_circle:" if seen.good else ":material/rule:"
    said(wording.plain(seen.why), icon=icon)
    pairs_table(seen)


def pairs_table(seen: Preview) -> None:
    if not seen.pairs:
        return
    frame = pd.DataFrame(
        {
            "identity": [as_text(one.identity, IDENTITY_CHARACTERS) for one in seen.pairs],
            "result": [f"{MATCH_SYMBOLS.get(one.match, '✕')} {one.match}" for one in seen.pairs],
            "input": [places(one.inputs) for one in seen.pairs],
            "outputs": [len(one.outputs) for one in seen.pairs],
            "at": [places(one.outputs) for one in seen.pairs],
        }
    )
    st.dataframe(
        frame,
        hide_index=True,
        height=TABLE_PX,
        alt="Identities of the newest records, with their inputs and outputs, the worst first",
        column_config={
            "input": st.column_config.TextColumn(help="Partition/offset in the source"),
            "at": st.column_config.TextColumn(help="Partition/offset in the sink"),
        },
    )
    cut = "" if sum(seen.counts.values()) == len(seen.pairs) else f" The first {len(seen.pairs):,}."
    st.caption(
        f"Newest records only, worst first.{cut} Partners may lie outside of the sample; the check"
        " reads both topics whole."
    )


def places(found: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{partition}/{offset}" for partition, offset in found[:PLACES_SHOWN])
    return f"{shown}, …" if len(found) > PLACES_SHOWN else shown


def progress(run_id: str) -> None:
    """Shows a check while it goes on, with a button that stops it, and its result."""
    with session.said():
        history = session.history(settings)
        run = history.get(run_id)
    if st.session_state.get("check_going") == run_id and not run.alive:
        # The rest of the page knew it as alive.
        st.session_state["check_going"] = None
        st.rerun()
    if not run.alive:
        result(run)
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
        with session.said():
            history.request_stop(run_id)
        st.rerun(scope="fragment")


def result(run: Run) -> None:
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
    live.conclusion(run)
    if run.verdict is not None:
        with st.container(horizontal=True):
            st.page_link(
                "views/verdict.py",
                label="Open the verdict and sign it",
                icon=":material/gavel:",
                query_params={"run": run.id},
            )
            st.page_link(
                "views/compare.py",
                label="Compare both levels of the sink",
                icon=":material/compare:",
                query_params={"topic": run.facts.sink},
            )


page()
