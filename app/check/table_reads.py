"""What the Check page knows of a table that is a contract's sink: the places that may be named, and
the columns, once somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from topicproof.app.check.check_state import mistakes_text
from topicproof.app.check.table_form import TableOffers
from topicproof.app.session.access import may, open_history, show_error
from topicproof.backend.contracts.contract import mistake, parse_fields
from topicproof.backend.contracts.contract_text import spell
from topicproof.backend.contracts.sink_table import Table, listed_places, place_of, require_below
from topicproof.backend.errors import ContractError, Mistake, TopicproofError, UsageError
from topicproof.backend.history.audit import note, require_noted
from topicproof.backend.judging.postgres_table import look_up
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.yaml_fields import Place

_COLUMNS = "table_columns_read"
"""Session state: the table whose columns were read last, and their names."""


def table_offers(settings: Settings, fields: Mapping[str, Any]) -> TableOffers:
    """Returns what the form can offer for the table of a contract. Raises NotPermitted."""
    table = place_of(fields)
    read_table, columns = st.session_state.get(_COLUMNS, (None, ()))
    is_readable = may(Action.CHECK) and table is not None and table.address is not None

    def read() -> None:
        _read(settings, fields)

    return TableOffers(
        shown_places(settings),
        columns if table is not None and table == read_table else (),
        read if is_readable and not place_mistakes(settings, fields) else None,
    )


def _read(settings: Settings, fields: Mapping[str, Any]) -> None:
    """Reads the columns, and draws the page again with them; or shows why that failed."""
    try:
        with st.spinner("Asking the database for its columns…"):
            columns = read_columns(settings, fields)
    except ContractError as error:
        st.error(mistakes_text(error.mistakes), title="The columns were not read")
    except TopicproofError as error:
        show_error(error)
    else:
        st.session_state[_COLUMNS] = place_of(fields), columns
        st.rerun()


def shown_places(settings: Settings) -> tuple[str, ...] | None:
    """Returns the places of tables that a contract of this person may name. None: any, or they may
    not check, and are told of none."""
    if not may(Action.CHECK) or (settings.tables is None and not _is_restricted(settings)):
        return None
    return listed_places(settings.tables)


def _is_restricted(settings: Settings) -> bool:
    return settings.login is not None or open_history(settings).by.authenticated


def place_mistakes(settings: Settings, fields: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """Returns what forbids to read the table that a contract names. Raises NotPermitted."""
    table = place_of(fields)
    if table is None:
        return ()
    try:
        require_below(table, settings.tables, is_restricted=_is_restricted(settings))
    except UsageError as error:
        return (_mistake(fields, _place(table), str(error)),)
    return ()


def _place(table: Table) -> Place:
    part = "url" if table.url is not None else "path" if table.path is not None else "name"
    return "sink", "table", part


def read_columns(settings: Settings, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the columns of the table of PostgreSQL that a contract names, from the database's
    catalogue. Raises NotPermitted, UsageError for a place that is not allowed, ContractError for a
    table that is not there, SinkError."""
    table = place_of(fields)
    address = None if table is None else table.address
    if table is None or address is None:
        raise UsageError("Name the address of the database and the table first.")
    history = open_history(settings)
    # A role that may not is noted, and so is who asks the database.
    require_noted(history, Action.CHECK, f"the columns of {table.title}")
    require_below(table, settings.tables, is_restricted=_is_restricted(settings))
    note(history, Action.CHECK, f"the columns of {table.title}")

    def refused(place: Place, why: str) -> ContractError:
        return ContractError(_mistake(fields, place, why))

    return tuple(look_up(address, table.title, refused)[2])


def _mistake(fields: Mapping[str, Any], place: Place, why: str) -> Mistake:
    return mistake(parse_fields(spell(fields)), place, why)
