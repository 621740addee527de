"""The form of a contract about a table alone: without Kafka, a database and the rest of the
page."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from topicproof.app.check.table_form import TableOffers, first_terms, table_name
from topicproof.backend.contracts.contract import PLACEHOLDER, make_contract, parse_fields
from topicproof.backend.contracts.contract_text import spell
from topicproof.backend.contracts.sink_table import names_password, place_of
from topicproof.backend.settings import ROOT

MARKS = {ord("\\"): None, ord("\u2060"): None}
"""What keeps Markdown from reading a text."""
URL = "jdbc:postgresql://db:5432/ledger?user=auditor"


def page() -> None:
    """A page with the form. It keeps the contract in the session. AppTest runs its text alone."""
    import streamlit as st

    from topicproof.app.check import check_reads
    from topicproof.app.check.contract_form import Offers, form
    from topicproof.app.check.table_form import TableOffers

    fields = st.session_state["fields"]
    places, columns = st.session_state["places"], st.session_state["columns"]
    labels = {"source": ("key", "json $.id", "lineage")}
    offers = Offers(labels, table=TableOffers(places, columns))

    def changed(after: object) -> None:
        st.session_state["fields"] = after

    form(fields, offers, changed, check_reads.mistakes(fields))


def opened(
    fields: dict[str, Any],
    places: tuple[str, ...] | None = None,
    columns: tuple[str, ...] = (),
) -> AppTest:
    app = AppTest.from_function(page, default_timeout=60)
    for name, value in (("fields", fields), ("places", places), ("columns", columns)):
        app.session_state[name] = value
    return app.run()


def mistakes(app: AppTest) -> list[str]:
    """What stands in red below the fields."""
    assert not app.exception
    captions = (str(caption.value).translate(MARKS) for caption in app.caption)
    return [
        text.removeprefix(":red[").removesuffix("]") for text in captions if text.startswith(":red")
    ]


def test_a_contract_about_a_table_is_written_from_nothing() -> None:
    """Story: somebody says where the table is, what identifies its rows, and what its columns must
    hold. What is wrong is said below its field while it is typed, and the YAML is the form's."""
    first = {"source": {"topic": "orders"}, **first_terms(None, None)}
    app = opened(first, columns=("order_id", "invoice"))
    assert mistakes(app) == [
        "Say where it is: url, or format with path or name.",
        "Choose what identifies an input: key, value, a header or a JSON field.",
    ]
    app.text_input(key="term_table_url").set_value("jdbc:mysql://db/ledger").run()
    assert "Expected `jdbc:postgresql://host:5432/database`" in mistakes(app)[0]
    app.text_input(key="term_table_url").set_value(URL).run()
    assert mistakes(app)[0] == "A table of a database has a url and a name, and no path."
    app.text_input(key="term_table_name").set_value("sales.invoices").run()
    app.selectbox(key="term_identity_source").set_value("json $.id").run()
    assert mistakes(app) == [
        "Name the columns that identify a row (key), or those that name its input (origin)."
    ]
    app.multiselect(key="term_table_key").set_value(["order_id"]).run()
    assert mistakes(app) == []
    app.selectbox(key="term_identity_sink").set_value("column invoice").run()
    app.text_area(key="term_table_value").set_value("upper(key)").run()
    assert "A row has columns. Give an expression for each" in mistakes(app)[0]
    app.text_area(key="term_table_value").set_value("amount: upper(key\na.b: key").run()
    assert "'upper(key' does not parse" in mistakes(app)[0]
    app.text_area(key="term_table_value").set_value("amount: upper(key)\na.b: key").run()
    assert (
        mistakes(app) == ["A.b: expected the name of a column."]
        or "name of a column" in (mistakes(app)[0])
    )
    lines = "amount: cast(field('price') as decimal(12,2)) * 2\n['Total (EUR)']: key"
    app.text_area(key="term_table_value").set_value(lines).run()
    app.number_input(key="term_tolerance").set_value(1.0).run()
    assert mistakes(app) == ["Input should be less than 1."]
    app.number_input(key="term_tolerance").set_value(1e-6).run()
    assert mistakes(app) == []
    assert app.session_state["fields"] == {
        "guarantee": "exactly_once",
        "source": {"topic": "orders"},
        "sink": {"table": {"url": URL, "name": "sales.invoices", "key": ["order_id"]}},
        "identity": {"source": {"json": "$.id"}, "sink": {"column": "invoice"}},
        "value": {
            "amount": "cast(field('price') as decimal(12,2)) * 2",
            "['Total (EUR)']": "key",
        },
        "tolerance": 1e-6,
    }
    app.selectbox(key="term_expect").set_value("several, by a count").run()
    assert "Fill in how many outputs an input has" in mistakes(app)[0]
    assert not {"value", "tolerance"} & app.session_state["fields"].keys()
    assert not app.text_area


def test_a_row_may_name_the_place_of_its_input() -> None:
    """Story: a connector writes partition and offset beside each row, so no identity is needed."""
    app = opened(
        {
            "source": {"topics": ["orders", "more"]},
            "sink": {"table": {"format": "parquet", "path": "/data/lines"}},
            "identity": "key",
        },
        columns=("p", "o", "t"),
    )
    app.segmented_control(key="term_named_by").set_value("place").run()
    assert mistakes(app) == ["Field required.", "Field required."]
    app.selectbox(key="term_origin_partition").set_value("p").run()
    app.selectbox(key="term_origin_offset").set_value("o").run()
    assert mistakes(app) == [
        "Of several topics, one is an input's. Name the column of the topic too."
    ]
    app.selectbox(key="term_origin_topic").set_value("t").run()
    assert mistakes(app) == []
    assert app.session_state["fields"] == {
        "source": {"topics": ["orders", "more"]},
        "sink": {
            "table": {
                "format": "parquet",
                "path": "/data/lines",
                "origin": {"partition": "p", "offset": "o", "topic": "t"},
            }
        },
    }
    app.selectbox(key="term_origin_topic").set_value(None).run()
    assert "topic" not in app.session_state["fields"]["sink"]["table"]["origin"]
    app.segmented_control(key="term_named_by").set_value("identity").run()
    assert app.session_state["fields"]["identity"] == {"source": PLACEHOLDER, "sink": "key"}
    assert "origin" not in app.session_state["fields"]["sink"]["table"]


def test_only_listed_places_are_offered() -> None:
    """Story: a setting lists the places of tables. The only one of a kind is chosen at once. Where
    none is listed, the form says who can allow one."""
    places = (URL, "/data/a", "/data/b", "iceberg:prod.sales")
    app = opened({"source": {"topic": "orders"}, **first_terms(places, "key")}, places)
    assert app.selectbox(key="term_table_url").value == URL
    assert app.selectbox(key="term_table_url").options == [URL]
    assert app.session_state["fields"]["identity"] == {"source": "key", "sink": "key"}
    app.segmented_control(key="term_table_kind").set_value("parquet").run()
    assert app.selectbox(key="term_table_path").options == ["/data/a", "/data/b"]
    assert app.session_state["fields"]["sink"]["table"] == {"format": "parquet"}
    app.selectbox(key="term_table_path").set_value("/data/b").run()
    assert app.session_state["fields"]["sink"]["table"]["path"] == "/data/b"
    app.segmented_control(key="term_table_kind").set_value("iceberg").run()
    app.text_input(key="term_table_name").set_value("prod.sales.lines").run()
    table = place_of(app.session_state["fields"])
    assert table is not None and table.location == "iceberg:prod.sales.lines"
    assert first_terms(("/data/a",), None)["sink"]["table"] == {
        "format": "parquet",
        "path": "/data/a",
    }

    app = opened({"source": {"topic": "orders"}, **first_terms((), None)}, ())
    (notice,) = app.info
    assert "lists no place" in notice.value and URL in notice.value
    app = opened({"source": {"topic": "orders"}, **first_terms(("/data",), None)}, ("/data",))
    app.segmented_control(key="term_table_kind").set_value("url").run()
    assert not app.info
    assert any("lists no such place" in str(caption.value) for caption in app.caption)


def test_a_password_is_stored_nowhere() -> None:
    """Story: somebody pastes an address with a password. The form says where it belongs, and the
    contract, which is in the address of the page, does not get it."""
    app = opened({"source": {"topic": "orders"}, **first_terms(None, "key")})
    app.text_input(key="term_table_url").set_value(URL).run()
    for address in (f"{URL}&password=hush", "jdbc:postgresql://me:hush@db/ledger"):
        app.text_input(key="term_table_url").set_value(address).run()
        assert "password" in mistakes(app)[0] and "hush" not in str(app.session_state["fields"])
        assert app.text_input(key="term_table_url").value == URL
        assert "hush" not in mistakes(app)[0]
    assert "password" not in " ".join(mistakes(app.run()))
    assert not names_password(URL) and not names_password(URL.replace("auditor", "secretary"))


@pytest.mark.parametrize(
    "text",
    [
        (ROOT / "contracts" / "ledger-table.yaml").read_text(),
        "source: {topic: a}\nsink: {table: {format: iceberg, name: p.s.t, origin: {topic: t,"
        " partition: p, offset: o}}}\nexpect: zero_or_one\nfiltered: unchecked\n"
        "guarantee: at_least_once\nrequire: [gap]\nwarn: {pending: 0}\ngroup: ledger\n",
        "source: {topic: a}\nsink: {table: {format: parquet, path: /a, key: [k, l]}}\n"
        'identity: {source: key, sink: key}\nvalue: {amount: "upper(\\nkey)"}\ntolerance: 0.75\n',
    ],
)
def test_the_form_shows_an_imported_contract_and_changes_nothing(text: str) -> None:
    """Story: somebody imports a contract. The form is filled with it, has no mistake to show, and
    what is exported is the same contract. An expression of several lines is shown, and not cut."""
    fields = dict(parse_fields(text))
    app = opened(fields)
    assert mistakes(app) == [] and app.session_state["fields"] == fields
    assert make_contract(parse_fields(spell(fields))) == make_contract(parse_fields(text))
    table = yaml.safe_load(text)["sink"]["table"]
    assert app.multiselect(key="term_table_key").value == table.get("key", [])
    if "url" in table:
        assert app.text_input(key="term_table_url").value == table["url"]
        assert app.selectbox(key="term_identity_sink").value == "column order_id"
        assert app.text_area(key="term_table_value").value == (
            "amount: cast(field('price') as decimal(12,2)) * 2\ncurrency: 'CHF'"
        )
    if "origin" in table:
        assert app.selectbox(key="term_origin_topic").value == "t"
        assert app.multiselect(key="term_require").value == ["gap"]
        assert app.number_input(key="term_pending").value == 0
    if "\\n" in text:
        assert app.number_input(key="term_tolerance").value == 0.75
        assert len(app.dataframe) == 1 and not app.text_area
    app.selectbox(key="term_guarantee").set_value("at most once").run()
    assert app.session_state["fields"] == {**fields, "guarantee": "at_most_once"}


@pytest.mark.parametrize(
    "table",
    [
        5,
        [],
        {"key": "k", "origin": 3},
        {"format": "csv", "path": 7},
        {"url": 3, "name": {}},
        {"format": []},
    ],
)
def test_a_damaged_address_shows_mistakes(table: Any) -> None:
    """Story: somebody opens an address whose contract is no contract. The form stands."""
    fields = {"source": {"topic": "a"}, "sink": {"table": table}, "identity": 7, "value": [1]}
    fields |= {"require": 3, "warn": 5, "tolerance": "x", "expect": []}
    app = opened(fields, (URL,), ("a",))
    assert not app.exception and app.segmented_control(key="term_table_kind").value
    assert place_of(fields) is None


def test_a_contract_is_named_after_its_table() -> None:
    """Story: nobody names a contract. It gets the name of its table or folder, as far as a contract
    may have it."""
    names = {
        "ledger": {"name": "ledger"},
        "sales.Le-dger": {"name": "sales.Le dger"},
        "invoices": {"path": "/data/invoices/"},
        None: {"path": "/"},
    }
    for name, table in names.items():
        assert table_name({"sink": {"table": table}}) == name
    assert TableOffers(("iceberg:a.b", "/a")).catalogue == ["a.b"]
