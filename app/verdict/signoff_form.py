"""The part of the Verdict page that downloads the evidence and asks for a decision."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from topicproof.app import wording
from topicproof.app.session.access import may, open_history, page_identity
from topicproof.app.session.page_masks import hides_parts
from topicproof.app.session.run_reads import DOWNLOAD_BYTES_MAX, evidence_bytes, zipped_evidence
from topicproof.app.topic.payload import download, exports_allowed
from topicproof.backend.errors import TopicproofError
from topicproof.backend.evidence.folder import EVIDENCE, evidence_hash
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.run_reports import (
    is_same_verdict,
    run_evidence,
    run_evidence_reports,
)
from topicproof.backend.history.signoff import (
    COMMENT_CHARACTERS_MAX,
    Decision,
    Signoff,
    Standing,
    breaking,
    read_chain,
    require_acceptable,
    require_signer,
    sign,
    signable,
    standing,
    standing_text,
    waived_kinds,
)
from topicproof.backend.history.store import Run
from topicproof.backend.judging.selftest import before_signoff
from topicproof.backend.runs.stage_verdicts import stage_folder
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action, Identity
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report
from topicproof.validators.shell_words import command_line

PAYLOAD_WORDS = {
    Payloads.ALL: "as they were read",
    Payloads.MASKED: "as digests: can still be judged",
    Payloads.NONE: "none: can be judged by lineage only",
}
DECISION_WORDS = {
    Decision.ACCEPT: "Accept",
    Decision.REJECT: "Reject",
    Decision.WAIVE: "Waive findings",
}
SIGNED_WORDS = {
    Decision.ACCEPT: "The verdict is accepted.",
    Decision.REJECT: "The verdict is rejected.",
    Decision.WAIVE: "The findings are waived. The verdict is not accepted yet.",
}
NOT_ACCEPTED = "not accepted yet"
WAIVED_DAYS = 90


def in_sight() -> DeltaGenerator:
    """Returns a container that stays in sight while the page scrolls. What is higher than the
    window scrolls by itself."""
    st.html(
        "<style>div:has(> .st-key-in_sight) {position: sticky; top: 4rem}"
        " .st-key-in_sight {max-height: calc(100vh - 5rem); overflow-y: auto}</style>"
    )
    return st.container(key="in_sight")


def evidence(settings: Settings, run: Run) -> None:
    """Offers the evidence as a zip file."""
    with st.container(border=True):
        st.markdown("**Evidence**")
        st.caption(wording.plain(str(run.folder(settings))))
        digest = evidence_hash(run.folder(settings))
        if digest is None:
            st.caption("It was judged by an older version, which kept only report.json.")
            return
        st.markdown(
            "Report, page, JUnit, findings, readings, plan and sign-offs, each with its hash. "
            f"`topicproof verify` judges it again without Kafka. Manifest `{digest}`"
        )
        history = open_history(settings)
        if not exports_allowed():
            st.caption("Downloads are switched off on this dashboard.")
            return
        if not may(Action.EXPORT):
            st.caption("Your role does not allow you to download it.")
            return
        size = evidence_bytes(settings, run)
        if size > DOWNLOAD_BYTES_MAX:
            command = command_line("topicproof evidence", run.id, options=" --out FOLDER")
            st.caption(
                f"It has {size / 1_000_000:,.0f} MB, more than a page hands over."
                f" {wording.code(command)} copies it."
            )
            return
        masked = hides_parts(settings, run)
        payloads = st.selectbox(
            "Keys and values",
            [Payloads.NONE] if masked else list(Payloads),
            format_func=lambda choice: PAYLOAD_WORDS[choice],
        )
        download(
            "Download evidence",
            f"{run.id}-evidence.zip",
            partial(zipped_evidence, history, run, payloads or Payloads.NONE),
            "application/zip",
            icon=":material/folder_zip:",
        )


@dataclass(frozen=True)
class Displayed:
    """What a page shows of a run."""

    report: Report
    """As it is in the file."""
    stage: str | None
    """None: end to end."""
    evidence: str | None
    """The hash of the run's evidence before the report was read."""


def signing(settings: Settings, run: Run, displayed: Displayed) -> None:
    """Shows the report's standing, earlier decisions, and the form for a new one."""
    chain = read_chain(open_history(settings))
    signoffs = chain.of(run.id, run.verdict)
    digest = evidence_hash(run.folder(settings))
    with st.container(border=True):
        today = datetime.now(UTC).date()
        word = wording.STANDING_WORDS[standing(signoffs, digest, today)]
        waived = frozenset() if digest is None else waived_kinds(signoffs, digest)
        if waived and word is wording.STANDING_WORDS[Standing.NONE]:
            status, meaning = NOT_ACCEPTED, waived_sentence(run, displayed.report, waived)
        else:
            status, meaning = standing_text(signoffs, digest, today), word.meaning
        st.markdown(f"**Sign-off** {wording.badge(word, status)} {meaning}")
        if chain.broken is not None:
            st.error(
                f"Entry {chain.broken} of the sign-offs was changed, or an entry before it was"
                " removed. No decision proves anything as long as it is so.",
                title="The chain of sign-offs is broken",
                icon=":material/link_off:",
            )
        for entry in reversed(signoffs.entries):
            doubt = _doubt(signoffs.doubts.get(entry.number))
            st.markdown(f"- {_entry(entry, digest)}{doubt}")
        if run.alive or digest is None:
            st.caption("It can be signed once the run has ended and its evidence exists.")
            return
        if not may(Action.SIGN):
            st.caption("Your role does not allow you to sign.")
            return
        undecided = signoffs.decided is None or signoffs.decided.evidence != digest
        with st.expander("Decide", icon=":material/draw:", expanded=undecided):
            _form(settings, run, displayed, waived)


def waived_sentence(run: Run, report: Report, waived: Collection[str]) -> str:
    """Says how far a verdict is whose findings are waived, and what comes next."""
    kinds = {finding.kind for finding in breaking(report)}
    if run.facts.results.verdicts:
        # Its other stages have findings of their own.
        counted = f"{wording.count(len(waived), 'kind')} of finding waived"
    else:
        findings = wording.count(len(kinds | set(waived)), "finding")
        counted = f"{len(waived)} of {findings} waived"
    left = " Accept it below." if kinds <= set(waived) else " Waive the others, then accept it."
    return f"{counted}, but nobody has accepted the verdict.{left}"


def _entry(signoff: Signoff, digest: str | None) -> str:
    older = (
        ""
        if signoff.evidence == digest
        else f" :orange-badge[on other evidence: {signoff.evidence[:12]}…]"
    )
    return f"{wording.plain(signoff.said)}{older}"


def _doubt(says: str | None) -> str:
    return "" if says is None else f" :red-badge[not vouched for] {wording.plain(says)}"


def _name(by: Identity) -> str | None:
    """Asks for the name of somebody who has not signed in."""
    if by.authenticated:
        st.caption(f"You sign as {wording.plain(by.name)}.")
        return None
    return st.text_input(
        "Your name",
        help="There is no login: the name is taken as you enter it, and the sign-off says that you"
        " are unauthenticated.",
    )


def _form(settings: Settings, run: Run, now: Displayed, waived_before: Collection[str]) -> None:
    """Asks for a decision. `waived_before`: the kinds that are waived on this evidence."""
    key = f"shown_{run.id}"
    # What the page showed when the button was pressed, which draws the page anew.
    displayed = st.session_state.pop(key, None)
    folder = run.folder(settings)
    try:
        folders = run_evidence(settings, run)
        reports = run_evidence_reports(settings, run)
    except TopicproofError as error:
        st.error(wording.plain(str(error)), title="It cannot be signed", icon=":material/error:")
        return
    report_folder = folder if now.stage is None else stage_folder(folder, now.stage)
    evidence = report_folder / EVIDENCE
    at = folders.index(evidence) if evidence in folders else 0
    # The hash is read again after the reports, so they are of the evidence that it names.
    if evidence_hash(folder) != now.evidence or not is_same_verdict(now.report, reports[at]):
        st.warning(
            "The run was judged again while this page was drawn. Reload the page, and look at its"
            " verdict.",
            title="It cannot be signed yet",
            icon=":material/sync:",
        )
        return
    st.session_state[key] = now.evidence
    kinds = list(dict.fromkeys(finding.kind for finding in breaking(*reports)))
    left = [kind for kind in kinds if kind not in waived_before]
    if left:
        named = ", ".join(map(wording.kind_title, left))
        st.caption(f"To accept this verdict, first waive what breaks it: {wording.plain(named)}.")
    elif any(report.verdict is Outcome.UNKNOWN for report in reports):
        st.caption("To accept a verdict that is UNKNOWN, say why in the comment.")
    elif any(report.covered_share is not None for report in reports):
        st.caption(
            "The run did not reach all its inputs. To accept its verdict for the part that it"
            " covers, say why in the comment. The sign-off names the part."
        )
    choices = [choice for choice in Decision if choice is not Decision.WAIVE or kinds]
    if st.session_state.pop(f"waived_{run.id}", False):
        # What comes next, now that the findings are waived.
        st.session_state[f"decision_{run.id}"] = Decision.ACCEPT
    # Outside the form, because the form's fields depend on it.
    decision = st.radio(
        "Decision",
        choices,
        format_func=lambda choice: DECISION_WORDS[choice],
        horizontal=True,
        key=f"decision_{run.id}",
    )
    with st.form(f"sign_{run.id}", border=False):
        name = _name(page_identity(settings))
        comment = st.text_area("Comment", height=80, max_chars=COMMENT_CHARACTERS_MAX)
        waived: list[str | None] = [None]
        until = None
        if decision is Decision.WAIVE:
            waived = st.multiselect(
                "Findings",
                kinds,
                default=left or kinds,
                format_func=wording.kind_title,
            )
            today = datetime.now(UTC).date()
            until = st.date_input("Until", today + timedelta(days=WAIVED_DAYS), min_value=today)
        if st.form_submit_button("Sign", type="primary", icon=":material/draw:"):
            try:
                # Only now is every file checked against its hash: that takes a while.
                signed, digest = signable(settings, run, displayed)
                history = open_history(settings)
                require_signer(history, run.id, digest, decision, name)
                if decision is Decision.ACCEPT:
                    require_acceptable(history, run.id, signed, digest, comment)
                    with st.spinner(
                        "The judge tests itself: faults are injected into copies of the readings"
                        " and must be caught."
                    ):
                        before_signoff(settings, run.folder(settings), comment)
                for kind in waived or [None]:
                    sign(history, run.id, signed, digest, decision, name, comment, kind, until)
            except TopicproofError as error:
                st.error(wording.plain(str(error)), title="Not signed", icon=":material/error:")
            else:
                st.toast(SIGNED_WORDS[decision], icon=":material/draw:")
                st.session_state[f"waived_{run.id}"] = decision is Decision.WAIVE
                st.rerun()
