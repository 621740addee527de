"""Jump: one box that leads to a topic, a group, an open transaction, a run or a contract, by
keyboard alone: Ctrl+K, or a slash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import streamlit as st

from topicproof.app.session.access import open_history, show_error
from topicproof.app.session.cluster_reads import cluster_group_names, cluster_overview
from topicproof.app.session.connection import page_settings, running_kafka
from topicproof.app.session.run_reads import newest_runs
from topicproof.app.shell.places import (
    CHECK,
    COMPARE,
    PLACES,
    RUN,
    TOPICS,
    TRANSACTIONS,
    VERDICT,
    Entry,
    go_on,
    if_drawn,
    open_next,
)
from topicproof.app.shell.url_state import (
    ALL_GROUPS,
    TransactionsState,
    verdict_params,
    write_transactions,
)
from topicproof.backend.characters import visible
from topicproof.backend.errors import TopicproofError
from topicproof.backend.history.kept_contracts import contracts
from topicproof.backend.settings import Settings
from topicproof.validators.facts.log_facts import OPEN

SHORTCUT = "Ctrl+K"
_focus = st.components.v2.component(
    "topicproof_focus",
    html="<span></span>",
    # The box may be drawn after this, and Streamlit gives the focus to the dialog as a whole,
    # before or after. Until somebody does something, the focus is the box's.
    js="""export default ({ parentElement }) => {
        const root = parentElement.getRootNode();
        const dialog = (root.host ?? parentElement).closest("[role=dialog]");
        if (!dialog) return;
        const aim = () => dialog.querySelector("input")?.focus();
        const watch = new MutationObserver(aim);
        const end = () => {
            watch.disconnect();
            dialog.removeEventListener("focusin", aim);
        };
        dialog.addEventListener("focusin", aim);
        for (const event of ["keydown", "pointerdown"]) {
            dialog.addEventListener(event, end, { capture: true, once: true });
        }
        watch.observe(dialog, { childList: true, subtree: true });
        aim();
        return end;
    }""",
)
_slash = st.components.v2.component(
    "topicproof_slash",
    html="<span></span>",
    # Streamlit's shortcuts are letters and digits. Where somebody types, a slash is a slash.
    js="""const typed = "input, textarea, select, [contenteditable], [role=dialog] *";
    const opens = (event) => {
        const aim = event.composedPath()[0];
        if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey) return;
        if (event.defaultPrevented || (aim instanceof Element && aim.matches(typed))) return;
        event.preventDefault();
        document.querySelector(".st-key-jump button")?.click();
    };
    export default () => {
        // The same function again is no second listener.
        document.addEventListener("keydown", opens);
        return () => document.removeEventListener("keydown", opens);
    };""",
)
STYLE = """<style>
    .st-key-corner {position: fixed; top: 0.5rem; right: 9rem; width: auto; z-index: 999991}
    @media (max-width: 640px) {.st-key-jump {display: none}}
</style>"""
"""The button stands in the head beside the navigation, where it takes no line of a page."""
TARGETS_MAX = 10_000
"""Lines of the box. The browser filters them, and draws those in sight."""
LABEL_HEAD, LABEL_TAIL = 150, 49
"""Characters of a name at its ends in a label of 200. A long name ends in a hash."""


@dataclass(frozen=True)
class Target:
    """A line of the box, and what it opens."""

    kind: str
    name: str
    page: Entry
    params: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        name = visible(self.name)
        if len(name) > LABEL_HEAD + 1 + LABEL_TAIL:
            name = f"{name[:LABEL_HEAD]}…{name[-LABEL_TAIL:]}"
        return f"{self.kind} · {name}"


def button() -> None:
    """Shows the button that opens the box. Its key works wherever the focus is."""
    st.html(STYLE)
    with st.container(key="corner"):
        pressed = st.button(
            "Jump to …",
            icon=":material/search:",
            type="tertiary",
            key="jump",
            shortcut=SHORTCUT,
            help="A topic, group, open transaction, run or contract. Its keys: / and Ctrl+K.",
        )
        _slash(key="jump_slash")
        go_on()
    if pressed:
        box()


@st.dialog("Jump to", width="medium")
def box() -> None:
    """Shows the box. What it offers is asked for when it opens, and on no page before. A choice
    runs the box again, which goes there."""
    go_on()
    targets = list(_targets(page_settings()))
    offered = shared_room(targets, TARGETS_MAX)

    def chosen() -> None:
        target: Target | None = st.session_state["jump_target"]
        if target is not None:
            open_next(target.page, dict(target.params))

    st.selectbox(
        "Topic, group, open transaction, run or contract",
        offered,
        index=None,
        key="jump_target",
        format_func=lambda target: target.label,
        on_change=if_drawn(chosen),
        placeholder="Type a part of its name",
        filter_mode="contains",
    )
    further = len(targets) - len(offered)
    if further > 0:
        st.caption(f"{further:,} more are left out.")
    st.caption("↑ ↓ choose, Enter opens, Esc closes.")
    _focus(key="jump_focus")


def shared_room(targets: Iterable[Target], room: int) -> list[Target]:
    """Returns at most so many targets, kind after kind. Each has an equal part of the room, and
    what one does not need is for the others: groups of any number hide no run."""
    kinds: dict[str, list[Target]] = {}
    for target in targets:
        kinds.setdefault(target.kind, []).append(target)
    shares: dict[str, int] = {}
    for rank, kind in enumerate(sorted(kinds, key=lambda kind: len(kinds[kind]))):
        shares[kind] = min(len(kinds[kind]), room // (len(kinds) - rank))
        room -= shares[kind]
    return [target for kind, each in kinds.items() for target in each[: shares[kind]]]


def _targets(settings: Settings) -> Iterator[Target]:
    """Yields what can be opened, what this installation has written before what a cluster names.
    What cannot be asked is missing, with the reason above the box."""
    for place in PLACES:
        for page in place.pages:
            yield Target("page", page.title, page)
    try:
        for run in newest_runs(settings):
            page = VERDICT if run.verdict else RUN if run.kind == "run" else CHECK
            yield Target(run.kind, run.id, page, tuple(verdict_params(run.id).items()))
        for contract in contracts(open_history(settings)):
            yield Target("contract", contract.label, CHECK, (("contract", contract.label),))
    except TopicproofError as error:
        show_error(error)
    try:
        kafka = running_kafka(settings)
        cluster = cluster_overview(kafka.bootstrap, settings.client)
        for topic in cluster.topics:
            yield Target("topic", topic.topic, COMPARE, (("topic", topic.topic),))
        for transaction in cluster.opened:
            name, part = transaction.worst
            selection = TransactionsState(name, producer=part.producer_id, outcomes=(OPEN,))
            params = tuple(write_transactions(selection).items())
            yield Target("open transaction", part.name, TRANSACTIONS, params)
        for group in cluster_group_names(kafka.bootstrap, settings.client):
            yield Target("group", group, TOPICS, (("view", ALL_GROUPS), ("group", group)))
    except TopicproofError as error:
        show_error(error)
