"""The part of the Check page that takes a contract as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import streamlit as st

from topicproof.app import wording
from topicproof.app.check.check_state import mistakes_text
from topicproof.app.session.access import open_history
from topicproof.backend.errors import ContractError, TopicproofError
from topicproof.backend.history.kept_contracts import keep
from topicproof.backend.settings import Settings

UPLOAD_MB = 1
"""Size of a contract, in MB. Larger ones are refused by the server."""


def import_contract(settings: Settings, opened: Callable[[str], None]) -> None:
    """Takes a contract as a file, keeps it under the file's name, and calls `opened` with its
    label."""
    with st.popover("Import", width="stretch"):
        file = st.file_uploader(
            "A contract as YAML",
            type=["yaml", "yml"],
            key="check_import",
            max_upload_size=UPLOAD_MB,
        )
        if file is None or st.session_state.get("imported") == file.file_id:
            return
        st.session_state["imported"] = file.file_id
        try:
            text = file.getvalue().decode()
            contract = keep(open_history(settings), PurePath(file.name).stem, text)
        except UnicodeDecodeError:
            st.error("The file is not UTF-8 text. Save it as UTF-8, and choose it again.")
        except ContractError as error:
            st.error(mistakes_text(error.mistakes), title="That is not a contract yet")
        except TopicproofError as error:
            st.error(wording.plain(str(error)), title="The contract was not kept")
        else:
            opened(contract.label)
            st.rerun()
