"""Verdict: what was found, out of how much, by which witnesses, and what was not examined.
`?run=ID` selects the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.charts.where import where_figure
from topicproof.app.check.check_reads import matched_by
from topicproof.app.check.watch_switch import run_switch
from topicproof.app.session.access import show_errors
from topicproof.app.session.connection import page_settings
from topicproof.app.session.page_masks import shown_error
from topicproof.app.session.reports import (
    findings_of,
    parsed_report,
    report_folder,
    report_text,
    shown_report,
)
from topicproof.app.session.run_reads import newest_runs, run_of_url
from topicproof.app.shell import downloads, places
from topicproof.app.shell.places import if_drawn
from topicproof.app.shell.url_state import example_position, verdict_params
from topicproof.app.topic import tables
from topicproof.app.topic.payload import download
from topicproof.app.topic.topic_findings import marks_sentence
from topicproof.app.verdict import signoff_form
from topicproof.app.verdict.since_last_line import since_last_line
from topicproof.backend.errors import EvidenceError, TopicproofError
from topicproof.backend.evidence.folder import evidence_hash
from topicproof.backend.history.run_reports import contradiction, require_report_of
from topicproof.backend.history.store import Run
from topicproof.backend.watch.watch_list import read_list
from topicproof.validators.finding import Check, Example, Finding, Outcome, Witness
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.next_steps import next_step
from topicproof.validators.report import Report, identified_sentence, place_of
from topicproof.validators.sentences import transaction_text
from topicproof.validators.who import who_sentence

EXAMPLES_OPEN = 5
ROW_PX = 28
END_TO_END = "end to end"
OF_RUNS = (Witness.JOURNAL, Witness.READER)

settings = page_settings()
QUESTIONS = {validator.NAME: validator.QUESTION for validator in VALIDATORS}


def page() -> None:
    slot = places.head(places.VERDICT)
    with show_errors():
        runs = newest_runs(settings)
    if not runs:
        st.info("No runs or checks yet. A run ends with a verdict.", icon=":material/info:")
        st.page_link("views/run.py", label="Start a run", icon=":material/play_circle:")
        st.stop()
    try:
        run = run_of_url(settings) or next(
            (candidate for candidate in runs if candidate.verdict), runs[0]
        )
    except TopicproofError as error:
        with slot:
            choose(None, runs)
        st.error(
            f"{wording.plain(str(error))} Choose another one above.",
            title="That run is not in the history",
            icon=":material/error:",
        )
        st.stop()
    with slot:
        choose(run, runs)
    stage = choose_stage(run)
    with show_errors():
        digest = evidence_hash(run.folder(settings))
        text = report_text(settings, run, stage)
    if text is None:
        without(run)
        return
    try:
        stored = parsed_report(text)
        require_report_of(run, stored, stage)
        doubt = contradiction(run, report_folder(settings, run, stage), stored)
        report = shown_report(settings, run, stored)
        text = text if report is stored else report.to_json()
    except (ValueError, KeyError, TypeError) as error:
        st.error(
            wording.plain(f"The report of {run.id} cannot be read: {error}"), title="Damaged report"
        )
        return
    except EvidenceError as error:
        st.error(
            wording.plain(str(error)), title="Not the report of this run", icon=":material/error:"
        )
        return
    if doubt is not None:
        st.error(
            wording.plain(doubt), title="Not what its evidence proves", icon=":material/error:"
        )
    if run.verdict is not None and run.verdict != report.verdict:
        # The report shown may hold, but the run is only as good as its worst stage.
        st.warning(
            wording.plain(run.why or ""),
            title=f"The verdict of the run as a whole is {run.verdict}",
        )
    left, right = st.columns([5, 1], vertical_alignment="center")
    with left:
        subject(run, report)
    if stage is None:
        with right, show_errors():
            run_switch(settings, read_list(settings), run)
    left, right = st.columns([2.5, 1], gap="medium")
    with left:
        outcome(run, report, stage)
        witnesses(run, report)
        address = verdict_params(run.id, stage)
        findings(run, report, address)
        uncounted(report, address)
        rest(run, report, text, address)
    with right, signoff_form.in_sight(), show_errors():
        signoff_form.signing(settings, run, signoff_form.Displayed(stored, stage, digest))
        signoff_form.evidence(settings, run)


def findings(run: Run, report: Report, address: Mapping[str, str]) -> None:
    """Shows what is violated, then what is not known, then what holds, as one table. `address`: the
    URL parameters of this verdict."""
    judged = [finding for finding in report.findings if finding not in report.aside]
    violated = [finding for finding in judged if finding.outcome is Outcome.VIOLATED]
    if any(finding.count for finding in violated):
        where(run, report, address.get("stage"))
    unknown = [finding for finding in judged if finding.outcome is Outcome.UNKNOWN]
    for finding in violated + unknown:
        with st.container(border=True, gap="small"):
            section(report, finding, address)
    holding = [finding for finding in judged if finding.outcome is Outcome.HOLDS]
    if holding:
        st.markdown(f"**Holds: {wording.count(len(holding), 'kind')} of finding**")
        table = tables.holding_table(holding, report.checked)
        st.dataframe(
            table,
            hide_index=True,
            row_height=ROW_PX,
            height=ROW_PX * (len(table) + 1) + 10,
            alt="What holds: the kind of finding, how many were found, out of how many, by which"
            " witnesses",
            column_config={
                "": st.column_config.TextColumn(width=30),
                "finding": st.column_config.TextColumn(width=200),
                "found": st.column_config.TextColumn(width=205),
            },
        )
    allowed = [finding for finding in holding if finding.examples]
    if allowed:
        named = ", ".join(wording.kind_label(finding.kind) for finding in allowed)
        with st.expander(f"Examples of what was found and is allowed: {named}"):
            for finding in allowed:
                section(report, finding, address)


def where(run: Run, report: Report, stage: str | None) -> None:
    """Draws where the findings lie in the judged ranges of sink and source."""
    if not report.of_topic:
        return
    breaks = {finding.kind for finding in report.findings if finding.outcome is Outcome.VIOLATED}
    # One topic may be both.
    places = {side.place(0)[0]: side for side in (report.source, report.sink) if side.partitions}
    for topic, bounds in reversed(places.items()):
        topic_findings = findings_of(settings, run, report, topic, stage)
        marks = (
            []
            if topic_findings is None
            else [mark for mark in topic_findings.marks if mark.kind in breaks]
        )
        if marks:
            st.markdown(
                f"**Where in {wording.plain(topic)}**: {wording.plain(marks_sentence(marks))}"
            )
            st.plotly_chart(
                where_figure(marks, bounds.partitions),
                key=f"where {topic}",
                config=downloads.PICTURE_ONLY,
                alt=f"Findings on the offsets of {topic}: {marks_sentence(marks)} The examples"
                " below name the worst ones.",
            )


def choose(run: Run | None, runs: Sequence[Run]) -> None:
    st.session_state["verdict_run"] = None if run is None else run.id
    by_id = {listed.id: listed for listed in [*runs, *([] if run is None else [run])]}

    def name(run_id: str) -> str:
        listed_run = by_id[run_id]
        status = wording.verdict_short(listed_run) or wording.run_state(listed_run).word
        return f"{run_id}  ({listed_run.kind}, {wording.moment(listed_run.created_at)}, {status})"

    def chosen() -> None:
        st.query_params.from_dict({"run": st.session_state["verdict_run"]})

    st.selectbox(
        "Run or check",
        list(by_id),
        key="verdict_run",
        placeholder="Choose a run or a check",
        format_func=name,
        on_change=if_drawn(chosen),
        label_visibility="collapsed",
    )


def choose_stage(run: Run) -> str | None:
    """Asks which stage's verdict to show for a run of several stages (`&stage=NAME`); None: the
    verdict end to end."""
    verdicts = run.facts.results.verdicts
    if not verdicts:
        return None
    requested = st.query_params.get("stage")
    if requested is not None and requested not in verdicts:
        st.warning(
            wording.plain(f"{run.id} has no stage {requested}. This is its verdict end to end.")
        )
    stage = requested if requested in verdicts else None
    st.session_state["verdict_stage"] = stage or END_TO_END

    def name(option: str) -> str:
        if option == END_TO_END:
            return END_TO_END
        word = wording.OUTCOME_WORDS[verdicts[option].verdict]
        return f"{word.symbol} stage {wording.plain(option)}: {word.word}"

    def chosen() -> None:
        option = st.session_state["verdict_stage"]
        st.query_params.from_dict(
            {"run": run.id} | ({"stage": option} if option in verdicts else {})
        )

    st.segmented_control(
        "Which of the run's verdicts",
        [END_TO_END, *verdicts],
        key="verdict_stage",
        format_func=name,
        on_change=if_drawn(chosen),
        help=(
            "Every stage is judged by itself, and the last sink against the first source. The run's"
            " verdict is the worst of them."
        ),
    )
    return stage


def without(run: Run) -> None:
    """Shows a run that has no report."""
    if error := shown_error(settings, run):
        st.error(
            wording.plain(error),
            title=f"{wording.plain(run.id)} failed before it could be judged",
            icon=":material/error:",
        )
    elif run.alive:
        st.info(
            f"It is {wording.run_state(run).word}. Its verdict comes when it has ended.",
            title="No verdict yet",
            icon=":material/hourglass_top:",
        )
    else:
        st.warning(
            "It was not judged, or its folder is gone: there is no report.json.",
            title=f"{wording.plain(run.id)} has no report",
            icon=":material/folder_off:",
        )
    if run.kind == "run":
        st.page_link(
            "views/run.py",
            label="Open the run",
            icon=":material/play_circle:",
            query_params={"run": run.id},
        )
    again(run)


def again(run: Run) -> None:
    """Offers to check the same topics again, by the same contract."""
    if run.kind == "check":
        st.page_link(
            "views/check.py",
            label="Check again",
            icon=":material/replay:",
            query_params={"run": run.id},
        )


def subject(run: Run, report: Report) -> None:
    """Shows what was judged: source, sink, identity, contract and cluster, in one line."""
    parts = [f"**{wording.plain(report.source.topic)}** → **{wording.plain(report.sink.topic)}**"]
    # Reports of earlier versions do not say.
    if identity := report.identity or matched_by(settings, run):
        noun = "records" if report.of_topic else "rows"
        parts.append(f"{noun} matched by {wording.plain(identity)}")
    if run.kind == "check":
        contract = run.plan.get("contract")
        parts.append(
            f"contract {wording.plain(str(contract))}" if contract else "no contract, by options"
        )
    elif run.plan.get("lineage") == "off" and not identity:
        parts.append("records matched by key")
    clusters = [
        wording.plain(name)
        for origin in (report.source_origin, report.origin)
        if origin is not None and (name := origin.name or origin.cluster)
    ]
    if clusters:
        parts.append(f"cluster {' → '.join(clusters)}")
    parts.append(f"judged in {report.took_s:.1f} s")
    st.markdown(" · ".join(parts))


def outcome(run: Run, report: Report, stage: str | None) -> None:
    """Shows the verdict in one sentence: colour, icon and word; and what changed since the last."""
    show = {Outcome.HOLDS: st.success, Outcome.VIOLATED: st.error, Outcome.UNKNOWN: st.warning}[
        report.verdict
    ]
    word = wording.report_word(report)
    if report.covered_share is not None and word is wording.IN_PART:
        show = st.warning
    covered = (
        "" if report.covered_share is None else f" for {report.covered_share:.0%} of the input"
    )
    show(
        wording.plain(report.why),
        title=f"{report.verdict}{covered} · {wording.plain(report.scope)}",
        icon=word.symbol,
    )
    if who := who_sentence(report):
        st.markdown(f"**Who:** {wording.plain(who)}")
    with show_errors():
        since_last_line(settings, run, report, stage)
    for doubt in report.doubts:
        st.warning(wording.plain(doubt), title="Doubt", icon=":material/help:")
    for warning in report.warnings:
        st.warning(
            wording.plain(warning),
            title="Beyond the contract's threshold",
            icon=":material/warning:",
        )
    for note in report.notes:
        st.info(wording.plain(note), icon=":material/info:")
    if error := shown_error(settings, run):
        st.error(wording.plain(error), title="The run itself failed", icon=":material/error:")
    transactions = report.transactions
    # Not in columns: in a narrow window they wrap, where columns would cut their words.
    row = st.container(horizontal=True)
    for label, count, of in (
        ("Inputs judged", report.source_records, report.source),
        ("Sink offsets", report.sink.offsets, report.sink),
    ):
        row.metric(
            label,
            wording.number(count),
            f"in {wording.count(len(of.partitions), 'partition')}",
            delta_color="off",
            delta_arrow="off",
            border=True,
        )
    by_partition = transactions.told_by == Witness.RAW_LOG
    row.metric(
        "Committed, partition by partition" if by_partition else "Committed transactions",
        "none" if transactions.committed is None else wording.number(transactions.committed),
        (
            "no witness counts them"
            if transactions.committed is None
            else (
                f"{wording.number(transactions.aborted)} aborted,"
                f" {wording.number(transactions.open)} open"
                + (
                    f", in {wording.count(len(report.sink.partitions), 'partition')}"
                    if by_partition
                    else ""
                )
            )
        ),
        delta_color="off",
        delta_arrow="off",
        border=True,
        help=(
            "Transactions, counted by their headers."
            if transactions.told_by == "headers"
            else "A transaction counts once in each partition that it wrote to."
        ),
    )
    st.markdown(
        f"Balance of **{wording.plain(report.sink.topic)}**: {wording.report_balance(report)}"
    )
    if report.not_processed:
        st.warning(
            f"{wording.count(report.not_processed, 'input')} beyond the judged range were not"
            " processed: "
            + (
                "their outputs were not due yet, because the topics moved."
                if report.covered_share is None
                else "the run ended before it reached them."
            ),
            icon=":material/pause_circle:",
        )


def witnesses(run: Run, report: Report) -> None:
    present = wording.report_witnesses(report)
    badges = [
        (
            f":green-badge[:material/hearing: {name}]"
            if witness in present
            else f":gray-badge[missing: {name}]"
        )
        for witness, name in wording.WITNESS_WORDS.items()
        # Only our own runs have a journal and a reader beside the pipeline.
        if witness in present or run.kind == "run" or witness not in OF_RUNS
    ]
    st.markdown(f"Evidence used: {' '.join(badges)}")
    if run.kind == "run":
        st.markdown(f"Faults: {wording.plain(wording.faults_sentence(run))}.")


def section(report: Report, finding: Finding, address: Mapping[str, str]) -> None:
    """Shows one kind of finding."""
    head(report, finding)
    if not finding.examples:
        return
    st.markdown(
        f"{wording.count(len(finding.examples), 'example')} of {finding.count:,}, worst first:"
    )
    for example in finding.examples[:EXAMPLES_OPEN]:
        place(report, example, address)
    further = finding.examples[EXAMPLES_OPEN:]
    if further:
        with st.expander(f"{wording.count(len(further), 'further example')}"):
            for example in further:
                place(report, example, address)


def head(report: Report, finding: Finding) -> None:
    check = next((check for check in report.checked if check.kind == finding.kind), None)
    left, right = st.columns([1.1, 2], vertical_alignment="center")
    left.markdown(wording.finding_title(finding, check))
    right.markdown(wording.plain(finding.why))
    if finding.story:
        right.markdown(wording.plain(f"What happened: {finding.story}"))
    if step := next_step(finding):
        right.markdown(wording.plain(f"Next: {step}"))
    right.caption(f"{wording.plain(QUESTIONS.get(finding.kind, ''))} {basis(check)}")


def uncounted(report: Report, address: Mapping[str, str]) -> None:
    """Shows what did not count for the verdict, and why, folded away."""
    aside = report.aside
    if not aside and not report.not_checked:
        st.caption(
            f"All {wording.count(len(report.findings), 'kind')} of this catalogue count for the"
            " verdict."
        )
        return
    table = tables.uncounted_table(report)
    with st.expander(f"Not counted for the verdict: {len(table)}", icon=":material/rule:"):
        st.dataframe(
            table,
            hide_index=True,
            row_height=ROW_PX,
            alt="Kinds of finding that do not count for the verdict, and why",
        )
        for finding in aside:
            for example in finding.examples[:EXAMPLES_OPEN]:
                place(report, example, address)


def basis(check: Check | None) -> str:
    if check is None:
        return ""
    names = ", ".join(wording.WITNESS_WORDS[witness] for witness in check.witnesses)
    return f"Based on: {names}."


def place(report: Report, example: Example, address: Mapping[str, str]) -> None:
    """Shows an example, with a link to its place, where this verdict marks it."""
    target = example_position(report, example)
    # Not in columns: in a narrow window they would cut the place.
    with st.container(horizontal=True, vertical_alignment="center"):
        if target is None:
            row = example.offset
            nowhere = place_of(report, example) or "no place in either topic"
            text = nowhere if row is None else f"row {row + 1:,} of the table"
            st.markdown(wording.plain(text), width="content")
        else:
            topic, partition, offset, label = target
            st.page_link(
                "views/compare.py",
                label=wording.plain(label),
                icon=":material/compare:",
                query_params={
                    "topic": topic,
                    "partition": str(partition),
                    "offset": str(offset),
                    **address,
                },
                width="content",
            )
        with st.container(gap="xxsmall"):
            sentence = identified_sentence(example)
            st.markdown(wording.plain(sentence))
            if example.identity and sentence == example.why:
                st.caption(f"identity {wording.plain(example.identity)}")
            if example.transaction:
                st.caption(wording.plain(transaction_text(example.transaction)))


def rest(run: Run, report: Report, text: str, address: Mapping[str, str]) -> None:
    """Shows the exact ranges, the versions, and the report to download."""
    with st.expander("Exact ranges that were judged", icon=":material/straighten:"):
        for name, bounds, ends in (("source", report.source, "LSO"), ("sink", report.sink, "HW")):
            st.markdown(
                f"**{name}** {wording.plain(bounds.topic)}, from start to {ends} of each partition"
            )
            frame = pd.DataFrame(
                {
                    "partition": [p.partition for p in bounds.partitions],
                    "start": [p.start for p in bounds.partitions],
                    "LSO": [p.lso for p in bounds.partitions],
                    "HW": [p.hw for p in bounds.partitions],
                }
            )
            st.dataframe(
                tables.formatted(frame, "{:,}"), hide_index=True, alt=f"Judged range of the {name}"
            )
        st.caption(
            wording.plain(
                ", ".join(f"{name} {version}" for name, version in report.versions.items())
            )
        )
    with st.container(horizontal=True, vertical_alignment="center"):
        download("report.json", f"{run.id}-report.json", text, "application/json")
        if report.of_topic:
            st.page_link(
                "views/compare.py",
                label="Compare both levels of the sink",
                icon=":material/compare:",
                query_params={"topic": report.sink.place(0)[0], **address},
            )
        if run.kind == "run":
            st.page_link(
                "views/run.py",
                label="Open the run",
                icon=":material/play_circle:",
                query_params={"run": run.id},
            )
        again(run)


page()
