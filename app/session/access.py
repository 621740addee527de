"""Who has this page open, what they may do, and what they are shown if it fails. Pages get the
history only from here, so it knows who acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from topicproof.app.session.connection import page_settings
from topicproof.app.shell.entrance import current_identity
from topicproof.app.wording import plain
from topicproof.backend.errors import ClusterError, NotPermitted, TopicproofError
from topicproof.backend.history.audit import allow
from topicproof.backend.history.store import History
from topicproof.backend.settings import Settings
from topicproof.backend.trust.acting import machine_user
from topicproof.backend.trust.identity import Action, Identity, require
from topicproof.backend.trust.login import configured_login


def page_identity(settings: Settings) -> Identity:
    """Returns who has this page open. Raises NotPermitted if their login has ended."""
    login = configured_login(settings)
    return machine_user(settings) if login is None else current_identity(login)


def may(action: Action) -> bool:
    """Whether this person's roles allow an action. The backend asks again: this only spares them
    what it would refuse."""
    try:
        require(page_identity(page_settings()), action)
    except NotPermitted:
        return False
    return True


def open_history(settings: Settings) -> History:
    """Returns the history, for the person who has this page open, and the cluster of these
    settings. Raises NotPermitted if their login has ended."""
    shared = _history(settings.database_url, settings)
    return shared.acted_on_by(page_identity(settings), settings)


@st.cache_resource(max_entries=4, show_spinner=False, on_release=lambda held: held.engine.dispose())
def _history(url: str, _settings: Settings) -> History:  # noqa: ARG001 - the key
    return History(_settings)


def note_look(settings: Settings, subject: str) -> None:
    """Notes once in the audit log that this person looks at payloads, if there is a login. Raises
    NotPermitted."""
    if settings.login is None:
        return
    by = page_identity(settings)
    look = (by.issuer, by.subject, subject)
    noted: set[tuple[str, str, str]] = st.session_state.setdefault("looked_at", set())
    if look not in noted:
        allow(open_history(settings), Action.LOOK, subject)
        noted.add(look)


@contextmanager
def show_errors() -> Iterator[None]:
    """Shows an error in the block on the page and stops the page: no traceback, and no silence."""
    try:
        yield
    except TopicproofError as error:
        show_error(error)
        st.stop()


def show_error(error: TopicproofError) -> None:
    st.error(plain(str(error)), title=_title(error), icon=":material/error:")


def _title(error: TopicproofError) -> str:
    if isinstance(error, NotPermitted):
        return "You may not do that"
    return "The request to Kafka failed" if isinstance(error, ClusterError) else "That did not work"
