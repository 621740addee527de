"""Who has signed in, on every page, with the way out. Without a login there is nothing to show."""

from __future__ import annotations

import streamlit as st

from topicproof.app.session.access import page_identity
from topicproof.app.session.connection import page_settings
from topicproof.app.wording import plain
from topicproof.backend.trust.identity import How


def show_person() -> None:
    """Shows the person's name and roles. Raises NotPermitted if the login has ended."""
    by = page_identity(page_settings())
    if not by.authenticated:
        return
    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    ):
        st.caption(f"{plain(by.name)}: {by.roles_shown}", width="content")
        if by.how is How.OPENID:
            st.button("Sign out", type="tertiary", icon=":material/logout:", on_click=st.logout)
