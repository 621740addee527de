"""Check: the pipelines that are checked, what waits for a signature first (`?unsigned=true`: that
alone). `?source=T&sink=T` drafts a contract, `?contract=NAME@VERSION` opens a kept one, `?run=ID`
shows a check and its contract. A contract about a table is in `terms` until it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from topicproof.app import wording
from topicproof.app.check import check_reads
from topicproof.app.check.check_outcome import progress
from topicproof.app.check.check_reads import TopicSamples
from topicproof.app.check.check_state import (
    CheckState,
    at_cluster,
    cluster_of,
    mistakes_text,
    read_check,
    topic_of,
    write_check,
)
from topicproof.app.check.contract_form import Offers, form
from topicproof.app.check.contract_import import import_contract
from topicproof.app.check.contract_matches import show_preview
from topicproof.app.check.inbox import inbox
from topicproof.app.check.table_form import A_TABLE, first_terms, table_name
from topicproof.app.check.table_reads import place_mistakes, shown_places, table_offers
from topicproof.app.check.watch_switch import watch_switch
from topicproof.app.session.access import may, open_history, show_errors
from topicproof.app.session.connection import page_settings, topic_names
from topicproof.app.shell import places
from topicproof.app.shell.places import if_drawn
from topicproof.app.topic import topic_header
from topicproof.app.topic.payload import download, verbatim
from topicproof.backend.characters import visible_lines
from topicproof.backend.contracts.contract import PLACEHOLDER, make_contract, parse_fields
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.contracts.contract_text import spell
from topicproof.backend.contracts.dead_letter_topics import letters_of
from topicproof.backend.contracts.sample import Sample
from topicproof.backend.contracts.sink_table import is_table
from topicproof.backend.errors import ContractError, Mistake, NothingToSample, TopicproofError
from topicproof.backend.history.audit import require_noted
from topicproof.backend.history.contract_of_run import Origin
from topicproof.backend.history.kept_contracts import contracts, versions
from topicproof.backend.history.pipelines import default_name
from topicproof.backend.history.store import Run
from topicproof.backend.runs.launch import start_check
from topicproof.backend.runs.sides import SideSettings, settings_of_sides
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import read_settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.watch.watch_list import read_list

POLL_S = 1.0
SIDES = "source", "sink"
SAME = "same"
SHOWN_CHARACTERS = 26
"""Of a topic's name, as a narrow window shows it in the box where it is chosen."""

settings = page_settings()


def page() -> None:
    head_slot = places.head(places.CHECK)
    state, notices = read_check(st.query_params)
    has_pipelines = False
    if state == CheckState():
        # Before Kafka is asked: it may be slow to start, or gone.
        has_pipelines = inbox(settings)
        if has_pipelines:
            st.header("Check another pipeline", anchor=False)
    else:
        head_slot.page_link(
            "views/check.py", label="All pipelines", icon=":material/arrow_back:", width="content"
        )
    run = shown_run(state)
    source_slot, sink_slot, kept_slot, import_slot = st.columns(
        [2, 2, 1.7, 0.9], vertical_alignment="bottom"
    )
    origin = origin_of(state, run)
    fields = state.terms if state.terms is not None else origin.fields if origin else None
    state = with_topics(state, fields)
    with show_errors():
        sides = clusters_of(state, fields or {})
        kafka = topic_header.connected(sides.sink)
        source_kafka = kafka if sides.source is None else topic_header.connected(sides.source)
        if kafka is None or source_kafka is None:
            st.stop()
        names = {
            "source": topic_names(sides.source or sides.sink, source_kafka, state.source),
            "sink": topic_names(sides.sink, kafka, state.sink),
        }
    of_table = fields if is_table(fields) else None
    choose_topics(state, of_table, names, source_slot, sink_slot)
    show_long_names(state)
    choose_source_cluster(state, of_table, sides)
    choose_kept(state, origin, kept_slot)
    with import_slot:
        import_contract(settings, lambda label: go(CheckState(contract=label)))
    for notice in notices:
        st.warning(wording.plain(notice), icon=":material/info:")
    if run is not None:
        with st.container(border=True):
            st.fragment(progress, run_every=POLL_S if run.alive else None)(settings, run.id)
    if fields is None and (state.source is None or state.sink is None):
        welcome(any(names.values()), has_pipelines)
        return
    missing = [
        name
        for side, name in (("source", state.source), ("sink", state.sink))
        if name is not None and name not in names[side]
    ]
    if missing:
        st.error(
            wording.plain(
                f"This cluster has no topic {' and no topic '.join(missing)}. It may have been"
                " deleted, or be on another cluster. Choose another topic above."
            ),
            title="No such topic",
            icon=":material/search_off:",
        )
    samples = None if missing else sampled(kafka, sides, state)
    if fields is None:
        fields = drafted_fields(state, samples)
    topics = FormTopics(names["sink"], sides, kafka, state.source)
    edit(kafka, state, origin, fields, samples, run, topics)


def shown_run(state: CheckState) -> Run | None:
    """Returns the check in the URL; None, with a notice, if it is not in the history."""
    if state.run is None:
        return None
    try:
        run = open_history(settings).get(state.run)
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
            return check_reads.kept(settings, state.contract)
        return None if run is None else check_reads.of_run(settings, run)
    except TopicproofError as error:
        st.warning(
            wording.plain(str(error)),
            title="That contract does not open",
            icon=":material/info:",
        )
        return None


def with_topics(state: CheckState, fields: Mapping[str, Any] | None) -> CheckState:
    """Returns the state with the topics of its contract, and the source's cluster."""
    if fields is None:
        return state
    return replace(
        state,
        source=topic_of(fields, "source"),
        sink=topic_of(fields, "sink"),
        source_cluster=cluster_of(fields, "source"),
    )


def clusters_of(state: CheckState, fields: Mapping[str, Any]) -> SideSettings:
    """Returns the clusters of both sides: those that contract or URL name, else the page's. Raises
    UsageError for an unknown one."""
    sink, source = cluster_of(fields, "sink"), state.source_cluster
    sink_settings = settings if sink in (None, settings.cluster) else read_settings(cluster=sink)
    if source in (None, sink_settings.cluster):
        return SideSettings(sink_settings)
    return SideSettings(sink_settings, read_settings(cluster=source))


def go(state: CheckState) -> None:
    st.query_params.from_dict(write_check(state))


def choose_topics(
    state: CheckState,
    of_table: Mapping[str, Any] | None,
    names: Mapping[str, Sequence[str]],
    source: Any,
    sink: Any,
) -> None:
    """Asks for the source, and for a topic or a table as the sink. Another pair of topics gets a
    draft of its own. `of_table`: the contract, if it is about a table."""
    for side in SIDES:
        topic = getattr(state, side)
        st.session_state[f"check_{side}"] = topic if topic in names[side] else None
    if of_table is not None:
        st.session_state["check_sink"] = A_TABLE

    def chosen() -> None:
        topic, other = (st.session_state[f"check_{side}"] for side in SIDES)
        if other == A_TABLE:
            go(with_table(state, of_table, topic, state.source_cluster))
        else:
            go(CheckState(topic, other, source_cluster=state.source_cluster))

    for slot, side, title, says, options in (
        (source, "source", "Source", "Topic that was read", names["source"]),
        (sink, "sink", "Sink", "Topic or table that was written", [A_TABLE, *names["sink"]]),
    ):
        slot.selectbox(
            title,
            options,
            key=f"check_{side}",
            placeholder=says,
            on_change=if_drawn(chosen),
            help=says,
        )


def with_table(
    state: CheckState, terms: Mapping[str, Any] | None, source: str | None, cluster: str | None
) -> CheckState:
    """Returns the state of a contract about a table, with this source on this cluster (None: the
    page's). `terms`: the contract; None: a first one, that keeps the identity of an input which the
    form has."""
    side = {} if source is None else at_cluster({"source": {"topic": source}}, cluster)
    if terms is not None:
        others = {name: value for name, value in terms.items() if name != "source"}
        return replace(state.with_fields(side | others), source=source, source_cluster=cluster)
    # The form's own widget has it, whether it was drafted, opened or chosen.
    identity = st.session_state.get("term_identity_source")
    first = first_terms(shown_places(settings), identity)
    return CheckState(source, source_cluster=cluster, terms=side | first)


def show_long_names(state: CheckState) -> None:
    """Shows both names whole if the boxes may cut one: long names often differ at their end."""
    names = [name for name in (state.source, state.sink) if name is not None]
    if any(len(name) > SHOWN_CHARACTERS for name in names):
        st.caption(" → ".join(map(wording.plain, names)))


def choose_source_cluster(
    state: CheckState, of_table: Mapping[str, Any] | None, sides: SideSettings
) -> None:
    """Asks for the source's cluster, if there are named ones. The page's cluster is the sink's."""
    others = [name for name in settings.named_clusters if name != sides.sink.cluster]
    if not others:
        return
    st.session_state["check_source_cluster"] = state.source_cluster or SAME
    sink_name = sides.sink.cluster or "this cluster"

    def chosen() -> None:
        picked = st.session_state["check_source_cluster"]
        cluster = None if picked == SAME else picked
        if of_table is not None:
            go(with_table(state, of_table, None, cluster))
        else:
            go(CheckState(sink=state.sink, source_cluster=cluster))

    st.segmented_control(
        "Cluster of the source",
        [SAME, *others],
        format_func=lambda name: (
            f"Source on {wording.plain(sink_name)}" + (", as the sink" if of_table is None else "")
            if name == SAME
            else f"on {wording.plain(name)}"
        ),
        key="check_source_cluster",
        on_change=if_drawn(chosen),
        required=True,
        label_visibility="collapsed",
        help="Records of two clusters are matched by an identity that they carry.",
    )


def choose_kept(state: CheckState, origin: Origin | None, slot: Any) -> None:
    """Offers the kept contracts, and the other versions of the one that is open."""
    with show_errors():
        history = open_history(settings)
        stored = contracts(history)
        other_versions = (
            versions(history, origin.name) if origin and origin.name and origin.version else []
        )
    labels = list(
        dict.fromkeys(
            [
                *(contract.label for contract in other_versions),
                *(contract.label for contract in stored),
            ]
        )
    )
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
        on_change=if_drawn(chosen),
        help="Contracts that were kept in this history, with their versions.",
    )


def welcome(has_topics: bool, has_pipelines: bool) -> None:
    """Shows what to do first. `has_topics`: whether there are any to choose."""
    if not has_topics:
        st.info(
            "This cluster has no topics yet. A demo makes a source and a sink, which can be checked"
            " here afterwards.",
            icon=":material/info:",
        )
        st.page_link("views/demos.py", label="Demos", icon=":material/theater_comedy:")
    elif has_pipelines:
        st.caption(
            "Choose the topic that it reads and the topic or table that it writes. For two topics a"
            " contract is drafted from their newest records."
        )
    else:
        st.info(
            "Choose the topic that your pipeline reads and the topic or table that it writes. For"
            " two topics a contract is drafted from their newest records: what identifies an input,"
            " how many outputs it has, in which order. You change what is wrong, see what it"
            " matches, and check. Nothing is written to your cluster. Checked pipelines are listed"
            " here, what waits for a signature first.",
            title="No pipeline has been checked yet: choose a source and a sink above",
            icon=":material/arrow_upward:",
        )


def sampled(kafka: Services, sides: SideSettings, state: CheckState) -> TopicSamples | None:
    """Returns samples of both topics; None, with a notice, if they cannot be had."""
    if state.source is None or state.sink is None:
        return None
    if state.source == state.sink and sides.source is None:
        return None
    try:
        return check_reads.drafted(sides, kafka, state.source, state.sink)
    except TopicproofError as error:
        reason = error.reason if isinstance(error, NothingToSample) else str(error)
        st.warning(
            wording.plain(
                f"{reason} Without a sample of both topics, no contract can be drafted or"
                " previewed."
            ),
            title="No sample of both topics",
            icon=":material/info:",
        )
        return None


def drafted_fields(state: CheckState, samples: TopicSamples | None) -> Mapping[str, Any]:
    """Returns the drafted contract; without a draft, one whose identity is yet to be chosen."""
    if samples is not None and samples.draft.found:
        # A draft names clusters only where both have names.
        return at_cluster(parse_fields(samples.draft.text), state.source_cluster)
    named = {side: {"topic": getattr(state, side)} for side in SIDES}
    return at_cluster(
        {"guarantee": "exactly_once", **named, "identity": PLACEHOLDER}, state.source_cluster
    )


@dataclass(frozen=True)
class FormTopics:
    """The topics that the form reads beside the two samples: those that may hold dead letters, and
    a source whose sink is a table."""

    topics: Sequence[str]
    sides: SideSettings
    kafka: Services
    source: str | None

    def read(self, topic: str) -> Sample | None:
        """Returns a sample; None if there is nothing that may be looked at."""
        try:
            return check_reads.sampled_letters(self.sides, self.kafka, topic)
        except TopicproofError:
            # The form and the check itself name what is wrong with the topic.
            return None

    def sample(self, fields: Mapping[str, Any]) -> Sample | None:
        """Returns a sample of the dead letters that a contract names."""
        topic = topic_of(fields, "dead_letters")
        return None if topic is None or topic not in self.topics else self.read(topic)

    def origin_of(self, topic: str) -> str | None:
        """Returns what names the inputs of a topic's dead letters, as their headers show it."""
        sample = self.read(topic)
        if sample is None or self.source is None:
            return None
        letters = letters_of(sample, self.source)
        return None if letters is None else letters.term.origin

    def source_labels(self) -> Mapping[str, Sequence[str]]:
        """Returns what can identify an input, by its side; empty if nothing may be looked at."""
        if self.source is None:
            return {}
        try:
            labels = check_reads.source_labels(self.sides, self.kafka, self.source)
        except TopicproofError:
            # The check itself names what is wrong with the topic. Any identity can be typed.
            return {}
        return {"source": labels}


def edit(
    kafka: Services,
    state: CheckState,
    origin: Origin | None,
    fields: Mapping[str, Any],
    samples: TopicSamples | None,
    run: Run | None,
    others: FormTopics,
) -> None:
    """Shows the contract as a form beside what it would match, and the button that checks."""
    with show_errors():
        mistakes = (*check_reads.mistakes(fields), *place_mistakes(settings, fields))
        of_table = table_offers(settings, fields)
    left, right = st.columns([1.1, 1], gap="medium")
    with left, st.container(border=True):
        name = contract_name(state, origin, fields)
        if samples is not None and origin is None and state.terms is None:
            draft_note(samples)
        labels = others.source_labels() if is_table(fields) else {}
        labels = labels if samples is None else samples.labels
        offers = Offers(labels, others.topics, others.origin_of, of_table)
        form(fields, offers, lambda after: go(state.with_fields(after)), mistakes)
    with right:
        start_slot = st.container()
        preview_slot = st.container()
    text = as_kept(state, origin, fields)
    with start_slot:
        starting(kafka, name, text, fields, mistakes, run)
        lint_slot = st.empty()
    with preview_slot:
        show_preview(fields, samples, others.sample(fields) if samples is not None else None)
        if visible_lines(text) != text:
            st.warning(
                "Something in it hides or reorders text on a screen. It is spelled out below, such"
                " as `\\u202e`. Read the contract there.",
                title="This contract reads otherwise than it is",
                icon=":material/visibility_off:",
            )
        with st.expander("The contract as YAML", icon=":material/code:"):
            verbatim(text)
            download("Download", f"{name}.yaml", text, "application/yaml")
    if not mistakes and may(Action.CHECK):
        # It starts Spark, which only somebody who may check has a use for.
        with lint_slot:
            spark_lint(fields)


def as_kept(state: CheckState, origin: Origin | None, fields: Mapping[str, Any]) -> str:
    """Returns the contract's text: with its comments, as long as nobody has changed it."""
    unchanged = state.terms is None and origin is not None and origin.text is not None
    return origin.text if unchanged and origin and origin.text else spell(fields)


def contract_name(state: CheckState, origin: Origin | None, fields: Mapping[str, Any]) -> str:
    """Asks for the name to keep the contract by."""
    sink = table_name(fields) if is_table(fields) else state.sink
    name = state.name or default_name(sink, origin.name if origin else None)
    st.session_state["check_name"] = name

    def named() -> None:
        go(replace(state, name=st.session_state["check_name"].strip() or None))

    label = f"{origin.name}@{origin.version}" if origin and origin.version else None
    prefix = f"Opened: {label}. " if label else ""
    st.text_input(
        "Contract name",
        key="check_name",
        on_change=if_drawn(named),
        help=(
            f"{prefix}A check that comes to a verdict keeps its contract under this name. Changed"
            " terms become the next version; earlier versions stay."
        ),
    )
    return name


def draft_note(samples: TopicSamples) -> None:
    """Shows what the draft was made from."""
    if not samples.draft.found:
        st.warning(
            wording.plain(samples.draft.why),
            title="Choose the identity yourself",
            icon=":material/fingerprint:",
        )
        return
    inputs, outputs = len(samples.inputs.rows), len(samples.outputs.rows)
    st.markdown(f"Drafted from the newest {inputs:,} inputs and {outputs:,} outputs. Review it.")
    st.caption("  \n".join(wording.plain(note) for note in samples.draft.notes))
    if samples.draft.question is not None:
        question = samples.draft.question.text("choose “exactly one”")
        st.warning(
            wording.plain(f"{question[:1].upper()}{question[1:]}."),
            title="To fill in first",
            icon=":material/help:",
        )
    if samples.draft.repeated:
        st.caption("Two outputs of one input:")
        verbatim("\n".join(samples.draft.repeated))


def starting(
    kafka: Services,
    name: str,
    text: str,
    fields: Mapping[str, Any],
    mistakes: Sequence[Mistake],
    run: Run | None,
) -> None:
    """Shows the button that checks, and what is still wrong with the contract."""
    is_running = run is not None and run.alive
    pressed = st.button(
        "Check again" if run is not None else "Check now",
        type="primary",
        icon=":material/fact_check:",
        width="stretch",
        disabled=bool(mistakes) or is_running or not may(Action.CHECK),
        help="Reads the topics whole, and judges them. It goes on if you close this page."
        if may(Action.CHECK)
        else "Your role may not check.",
    )
    with show_errors():
        contracts = read_list(settings)
    watch_switch(
        settings,
        contracts,
        name,
        lambda: text,
        key="watch",
        is_complete=not mistakes,
        shown_text=text,
    )
    if mistakes:
        title = wording.count(len(mistakes), "mistake") + " to correct first"
        st.error(mistakes_text(mistakes), title=title, icon=":material/error:")
    if pressed:
        begin(kafka, name, text, fields)


def begin(kafka: Services, name: str, text: str, fields: Mapping[str, Any]) -> None:
    """Starts the check in its own process, which keeps the contract at its end, and opens it."""
    try:
        history = open_history(settings)
        # Before Spark or another cluster is asked anything for this person.
        require_noted(history, Action.CHECK, name)
        wrong = check_reads.spark_mistakes(settings, fields)
        if wrong:
            raise ContractError(*wrong)
        for contract in make_contract(parse_fields(text)).each():
            sides = settings_of_sides(contract, settings)
            address = kafka.address if contract.sink_cluster is None else sides.sink.address
            question_of(contract, *sides.clusters(address))
        with st.status("Starting the check…") as status:
            started = start_check(
                history, name, text, lambda line: status.update(label=wording.plain(line))
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
        wrong = check_reads.spark_mistakes(settings, fields)
    except TopicproofError as error:
        st.warning(
            wording.plain(f"{error} The check itself will look at the expressions."),
            title="The expressions were not checked",
        )
        return
    if wrong:
        st.error(mistakes_text(wrong), title="Spark refuses this", icon=":material/error:")


page()
