"""The parts of a contract's form about a table as the sink: where it is, which columns identify a
row, and which ones name its input."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from topicproof.app.check.term_widgets import (
    Terms,
    choose_side,
    explain_red,
    put,
    values_of,
    values_text,
    write_tolerance,
)
from topicproof.app.shell.places import if_drawn
from topicproof.app.wording import plain
from topicproof.backend.contracts.contract import LINEAGE, PLACEHOLDER
from topicproof.backend.contracts.contract_text import labels_of, side_of
from topicproof.backend.contracts.sink_table import names_password, parse_address
from topicproof.validators.columns import COLUMN
from topicproof.validators.lineage.identity import KEY

A_TABLE = "a table of a database, or of files"
"""What stands for it among the topics. No topic has a space in its name."""
DATABASE, PARQUET, ICEBERG = "url", "parquet", "iceberg"
KIND_WORDS = {
    DATABASE: "of PostgreSQL",
    PARQUET: "in files of Parquet",
    ICEBERG: "of Iceberg",
}
BY_IDENTITY, BY_PLACE = "identity", "place"
NAMED_BY_WORDS = {
    BY_IDENTITY: "a column, or its key",
    BY_PLACE: "partition and offset of the input",
}
ORIGIN_TITLES = {
    "partition": "Column of the input's partition",
    "offset": "Column of the input's offset",
    "topic": "Column of the input's topic (optional)",
}
OF_CATALOGUE = "iceberg:"
"""How the setting TOPICPROOF_TABLES begins a name of Spark's catalogue."""
EXAMPLES = {
    DATABASE: "jdbc:postgresql://db:5432/ledger?user=auditor",
    PARQUET: "/data/invoices",
    ICEBERG: "/data/invoices or s3a://bucket/invoices",
}
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
"""What the name of a kept contract cannot have."""
_PASSWORD = "table_password"
"""Session state: the sentence about an address with a password, which is stored nowhere."""


@dataclass(frozen=True)
class TableOffers:
    """What the form can offer for a table."""

    places: Sequence[str] | None = None
    """The places that may be named (TOPICPROOF_TABLES); None: any, or those that this person does
    not see."""
    columns: Sequence[str] = ()
    """Of the table, if they have been read."""
    read_columns: Callable[[], None] | None = None
    """Reads them; None if that cannot be done for this table, or by this person."""

    def of_kind(self, kind: str) -> list[str]:
        """Return the places at which a table of this kind may be: addresses, or paths."""
        beginnings = {DATABASE: ("jdbc:",), PARQUET: ("/",), ICEBERG: ("/", "s3a://")}[kind]
        return [place for place in self.places or () if place.startswith(beginnings)]

    @property
    def catalogue(self) -> list[str]:
        """The names of Spark's catalogue that may be named, or below which a table may be."""
        listed = (place for place in self.places or () if place.startswith(OF_CATALOGUE))
        return [place.removeprefix(OF_CATALOGUE) for place in listed]


def first_terms(places: Sequence[str] | None, identity: str | None) -> dict[str, Any]:
    """Returns the first terms of a contract about a table, without a source. The only place that
    may be named is named. `identity`: the label of what identifies an input; None: not chosen."""
    kind = DATABASE
    if places and len(places) == 1 and places[0].startswith("/"):
        kind = PARQUET
    source = PLACEHOLDER if identity in (None, LINEAGE) else side_of(str(identity))
    return {
        "guarantee": "exactly_once",
        "sink": {"table": _at_first_place(kind, TableOffers(places))},
        "identity": {"source": source, "sink": KEY},
    }


def table_name(fields: Mapping[str, Any]) -> str | None:
    """Returns a name for a contract about a table: that of the table, or of the folder."""
    sink = fields.get("sink")
    table = sink.get("table") if isinstance(sink, Mapping) else None
    where = table if isinstance(table, Mapping) else {}
    last = _text(where.get("name") or where.get("path")).rstrip("/").rpartition("/")[2]
    return _NO_NAME.sub("-", last).strip("-.") or None


def _at_first_place(kind: str, offers: TableOffers) -> dict[str, Any]:
    """Returns a table of this kind, at the only place that there is for it."""
    places = offers.of_kind(kind)
    name = "url" if kind == DATABASE else "path"
    where = {name: places[0]} if len(places) == 1 else {}
    return where if kind == DATABASE else {"format": kind, **where}


def table_place(terms: Terms, offers: TableOffers) -> None:
    """Asks where the table is, and which columns identify a row."""
    table = _table_of(terms)
    kind = next((each for each in (PARQUET, ICEBERG) if table.get("format") == each), DATABASE)
    if offers.places is not None and not offers.places:
        st.info(
            "The setting `TOPICPROOF_TABLES` lists no place, so no table is read here. Whoever runs"
            " Topicproof can list some, separated by commas, such as"
            f" `{EXAMPLES[DATABASE]}` or `/data/tables`.",
            title="No table may be read yet",
            icon=":material/lock:",
        )
    _choose_kind(terms, kind, offers)
    left, right = st.columns(2)
    with left:
        _place(terms, kind, offers)
    with right:
        if kind != PARQUET:
            _name(terms, kind, offers)
    terms.explain("sink.table", nested=False)
    terms.explain("sink", nested=False)
    terms.explain("sink.table.format")
    left, right = st.columns([2, 1], vertical_alignment="bottom")
    with left:
        _key(terms, offers.columns)
    is_pressed = kind == DATABASE and right.button(
        "Read its columns",
        key="table_columns",
        icon=":material/view_column:",
        width="stretch",
        disabled=offers.read_columns is None,
        help="Asks the database for the names of the columns, and reads no row. Nothing else is"
        " read of the table before the check.",
    )
    terms.explain("sink.table.key")
    if is_pressed and offers.read_columns is not None:
        offers.read_columns()


def _choose_kind(terms: Terms, kind: str, offers: TableOffers) -> None:
    key = put("table_kind", kind)

    def chosen() -> None:
        columns = {name: _table_of(terms).get(name) for name in ("key", "origin")}
        _set_table(terms, {**_at_first_place(st.session_state[key], offers), **columns})

    st.segmented_control(
        "The table is",
        list(KIND_WORDS),
        format_func=lambda option: KIND_WORDS[option],
        key=key,
        on_change=if_drawn(chosen),
        required=True,
        help="A view is a table, too. Iceberg needs its package in the given Spark.",
    )


def _place(terms: Terms, kind: str, offers: TableOffers) -> None:
    """Asks for the address of the database, or the path of the files."""
    name = "url" if kind == DATABASE else "path"
    now = _text(_table_of(terms).get(name))
    key = put(f"table_{name}", now if now or offers.places is None else None)

    def changed() -> None:
        text = (st.session_state[key] or "").strip()
        if kind == DATABASE and names_password(text):
            st.session_state[_PASSWORD] = _refusal(text)
            return
        _set_table(terms, {**_table_of(terms), name: text or None})

    title = "Address of the database" if kind == DATABASE else "Folder of its files"
    if offers.places is None:
        st.text_input(
            title, key=key, on_change=if_drawn(changed), placeholder=EXAMPLES[kind], live="400ms"
        )
    else:
        places = offers.of_kind(kind)
        st.selectbox(
            title,
            list(dict.fromkeys([*places, *([now] if now else [])])),
            key=key,
            placeholder="Choose a place, or type one below it",
            accept_new_options=True,
            on_change=if_drawn(changed),
            help="The places that the setting TOPICPROOF_TABLES lists. Type what lies below one.",
        )
        if offers.places and not places and not (kind == ICEBERG and offers.catalogue):
            st.caption(
                "The setting `TOPICPROOF_TABLES` lists no such place, so none is read. Whoever runs"
                f" Topicproof can add one, such as `{EXAMPLES[kind].partition(' ')[0]}`."
            )
    if (sentence := st.session_state.pop(_PASSWORD, None)) is not None:
        explain_red(sentence)
    terms.explain(f"sink.table.{name}")


def _refusal(url: str) -> str:
    """Returns why an address with a password is refused; the sentence does not quote it."""
    try:
        parse_address(url)
    except ValueError as error:
        return str(error)
    raise AssertionError("an address with a password is refused")


def _name(terms: Terms, kind: str, offers: TableOffers) -> None:
    key = put("table_name", _text(_table_of(terms).get("name")))

    def typed() -> None:
        _set_table(terms, {**_table_of(terms), "name": st.session_state[key].strip() or None})

    is_database = kind == DATABASE
    st.text_input(
        "Table or view" if is_database else "Or its name in Spark's catalogue",
        key=key,
        on_change=if_drawn(typed),
        placeholder="invoices or sales.invoices" if is_database else "prod.sales.invoices",
        help="Its name, with or without its schema. A view does for a query."
        if is_database
        else "Either a folder or a name. " + _allowed_names(offers),
        live="400ms",
    )
    terms.explain("sink.table.name")


def _allowed_names(offers: TableOffers) -> str:
    if offers.places is None:
        return ""
    names = ", ".join(map(plain, offers.catalogue))
    return f"The setting TOPICPROOF_TABLES lists {names or 'no name'}."


def _key(terms: Terms, columns: Sequence[str]) -> None:
    now = _table_of(terms).get("key")
    names = [_text(name) for name in now] if isinstance(now, list | tuple) else []
    key = put("table_key", list(dict.fromkeys(names)))

    def chosen() -> None:
        _set_table(terms, {**_table_of(terms), "key": list(st.session_state[key]) or None})

    st.multiselect(
        "Columns that identify a row",
        list(dict.fromkeys([*columns, *names])),
        key=key,
        placeholder="Choose, or type the name of a column",
        accept_new_options=True,
        on_change=if_drawn(chosen),
        help="Its key. Findings show it.",
    )


def row_input(terms: Terms, labels: Sequence[str], columns: Sequence[str]) -> None:
    """Asks how a row names its input. `labels`: what can identify a record of the source."""
    identity = terms.fields.get("identity")
    named_by = BY_PLACE if identity in (None, LINEAGE) else BY_IDENTITY
    key = put("named_by", named_by)

    def chosen() -> None:
        table = _table_of(terms)
        if st.session_state[key] == BY_PLACE:
            sink = {"table": {**table, "origin": table.get("origin", {})}}
            terms.set(identity=None, sink=sink)
        else:
            table.pop("origin", None)
            sides = {"source": PLACEHOLDER, "sink": KEY}
            terms.set(identity=sides, sink={"table": table})

    st.segmented_control(
        "A row names its input by",
        list(NAMED_BY_WORDS),
        format_func=lambda option: NAMED_BY_WORDS[option],
        key=key,
        on_change=if_drawn(chosen),
        required=True,
        help="Either part of the input stands in a column, or columns hold where the input is.",
    )
    if named_by == BY_IDENTITY:
        _identity(terms, labels, columns)
    if named_by == BY_PLACE or "origin" in _table_of(terms):
        _origin(terms, columns)
    terms.explain("identity", nested=named_by == BY_PLACE)


def _identity(terms: Terms, labels: Sequence[str], columns: Sequence[str]) -> None:
    """Asks what identifies an input, in the source and in a row."""
    source, sink = labels_of(terms.fields.get("identity"))
    sides = {"source": _side(source), "sink": _side(sink)}
    left, right = st.columns(2)
    with left:
        choose_side(
            "Identity in the source",
            "identity_source",
            sides["source"],
            [label for label in labels if label != LINEAGE],
            lambda side: terms.set(identity={**sides, "source": side}),
            "What tells which input a row belongs to: the key, the value, a header or a field of"
            " JSON such as $.id.",
        )
        terms.explain("identity.source")
    with right:
        _identity_column(terms, sides, sink, columns)
        terms.explain("identity.sink")


def _side(label: str | None) -> Any:
    return PLACEHOLDER if label is None else side_of(label)


def _identity_column(
    terms: Terms, sides: Mapping[str, Any], now: str | None, columns: Sequence[str]
) -> None:
    key = put("identity_sink", now)

    def chosen() -> None:
        text = st.session_state[key]
        if text is None:
            side: Any = PLACEHOLDER
        elif text in (KEY, now) or text.startswith(f"{COLUMN} "):
            side = side_of(text)
        else:
            side = {COLUMN: text.strip()}
        terms.set(identity={**sides, "sink": side})

    options = [KEY, *(f"{COLUMN} {name}" for name in columns), *([now] if now else [])]
    st.selectbox(
        "Identity in a row",
        list(dict.fromkeys(options)),
        format_func=lambda option: "its key" if option == KEY else option,
        key=key,
        placeholder="Choose, or type the name of a column",
        accept_new_options=True,
        on_change=if_drawn(chosen),
        help="The column that holds the same, as text; or the columns that identify the row.",
    )


def _origin(terms: Terms, columns: Sequence[str]) -> None:
    """Asks for the columns that hold the place of a row's input."""
    slots = st.columns(len(ORIGIN_TITLES), vertical_alignment="bottom")
    for slot, (part, title) in zip(slots, ORIGIN_TITLES.items(), strict=True):
        with slot:
            _origin_column(terms, part, title, columns)
            terms.explain(f"sink.table.origin.{part}")
    terms.explain("sink.table.origin", nested=False)


def _origin_column(terms: Terms, part: str, title: str, columns: Sequence[str]) -> None:
    origin = _table_of(terms).get("origin")
    names = dict(origin) if isinstance(origin, Mapping) else {}
    now = _text(names.get(part)) or None
    key = put(f"origin_{part}", now)

    def chosen() -> None:
        after = {**names, part: (st.session_state[key] or "").strip() or None}
        columns_left = {each: name for each, name in after.items() if name is not None}
        _set_table(terms, {**_table_of(terms), "origin": columns_left})

    st.selectbox(
        title,
        list(dict.fromkeys([*columns, *([now] if now else [])])),
        index=None,  # So that it can be cleared.
        key=key,
        placeholder="the source" if part == "topic" else "Choose, or type a name",
        accept_new_options=True,
        on_change=if_drawn(chosen),
    )


def column_values(terms: Terms) -> None:
    """Asks for the value of each column that is compared, and by how much numbers may differ."""
    now = terms.fields.get("value")
    text = values_text(now)
    if isinstance(now, Mapping) and values_of(text) != {str(n): str(e) for n, e in now.items()}:
        # An expression of several lines, say. Lines would not stand for it.
        st.markdown("Values of columns")
        st.dataframe(
            [{"column": str(path), "expected": str(of)} for path, of in now.items()],
            hide_index=True,
        )
        st.caption("Change them in the YAML: export the contract, edit it and import it.")
    else:
        _value_lines(terms, text)
    terms.explain("value")
    write_tolerance(
        "tolerance",
        terms.fields.get("tolerance"),
        1.0,
        lambda limit: terms.set(tolerance=limit),
    )
    terms.explain("tolerance")


def _value_lines(terms: Terms, text: str) -> None:
    key = put("table_value", text)

    def typed() -> None:
        values = values_of(st.session_state[key])
        terms.set(value=None if values == PLACEHOLDER else values)

    st.text_area(
        "Value of each column (optional)",
        key=key,
        on_change=if_drawn(typed),
        placeholder="amount: cast(field('price') as decimal(12,2)) * 2\ncurrency: 'CHF'",
        help="A line for each column that is compared: its name, a colon, and Spark SQL over the"
        " source record. Empty: rows are counted, and columns are not compared.",
    )


def _table_of(terms: Terms) -> dict[str, Any]:
    table = terms.group_of("sink").get("table")
    return dict(table) if isinstance(table, Mapping) else {}


def _set_table(terms: Terms, fields: Mapping[str, Any]) -> None:
    """Change all fields of the table; None leaves one out."""
    table = {name: value for name, value in fields.items() if value is not None}
    terms.set(sink={**terms.group_of("sink"), "table": table})


def _text(value: Any) -> str:
    return "" if value is None else str(value)
