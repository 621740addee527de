"""The form of a contract alone: without Kafka, Spark and the rest of the page."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from topicproof.app.check.term_widgets import values_of, values_text
from topicproof.backend.contracts.contract import PLACEHOLDER


def page() -> None:
    """A page with the form. It keeps the contract in the session. AppTest runs its text alone."""
    from typing import Any

    import streamlit as st

    from topicproof.app.check import check_reads
    from topicproof.app.check.contract_form import Offers, form

    fields = st.session_state["fields"]
    labels = {"source": ("key",), "sink": ("key", "json $.customer")}
    topics = ("orders", "lines", "orders.dlq", "errors")
    offers = Offers(labels, topics, {"orders.dlq": "connect"}.get)

    def changed(after: dict[str, Any]) -> None:
        st.session_state["fields"] = after

    form(fields, offers, changed, check_reads.mistakes(fields))


FIELDS = {
    "source": {"topic": "orders"},
    "sink": {"topic": "lines"},
    "identity": "key",
    "warn": {"pending": 0},
}


@pytest.fixture
def app() -> AppTest:
    opened = AppTest.from_function(page, default_timeout=60)
    opened.session_state["fields"] = FIELDS
    return opened.run()


def mistakes(app: AppTest) -> list[str]:
    """What stands in red below the fields."""
    assert not app.exception
    captions = (str(caption.value).replace("\\", "") for caption in app.caption)
    return [text.removeprefix(":red[").removesuffix("]") for text in captions]


def test_dead_letters_are_a_topic_and_what_names_their_inputs(app: AppTest) -> None:
    """Story: somebody chooses the topic of the dead letters, and what names their inputs; the
    headers of another topic tell that. What is wrong is said below its field."""
    app.selectbox(key="term_letters_topic").set_value("errors").run()
    assert "Expected kip-1191, connect, streams, spring, {header: NAME}" in mistakes(app)[0]
    app.selectbox(key="term_letters_origin").set_value("headers of Kafka Streams").run()
    assert app.session_state["fields"]["dead_letters"]["origin"] == "streams"
    assert mistakes(app) == []
    app.selectbox(key="term_letters_topic").set_value("orders.dlq").run()
    letters = {"topic": "orders.dlq", "origin": "connect"}
    assert app.session_state["fields"] == {**FIELDS, "dead_letters": letters}
    app.number_input(key="term_dead_letter_share").set_value(0.5).run()
    assert mistakes(app) == []
    app.selectbox(key="term_letters_topic").set_value("lines").run()
    assert mistakes(app) == ["The dead letters are in the source or the sink itself."]
    app.session_state["fields"] = {**FIELDS, "dead_letters": letters | {"origin": {"json": "$["}}}
    assert mistakes(app.run()) == [
        "A path cannot hold '[' in '$['. Use $.name, $['name'] and $[0]."
    ]
    app.selectbox(key="term_letters_topic").set_value(None).run()
    assert app.session_state["fields"] == FIELDS


def test_an_aggregate_is_a_group_and_what_an_output_holds(app: AppTest) -> None:
    """Story: somebody says that the outputs are totals, makes mistakes, and corrects them."""
    app.session_state["fields"] = {
        **FIELDS,
        "dead_letters": {"topic": "orders.dlq", "origin": "connect"},
        "warn": {"pending": 0, "dead_letter_share": 0.5},
        "group": "totals-app",
    }
    app.run().segmented_control(key="term_outputs").set_value("group").run()
    assert app.session_state["fields"] == {
        "source": {"topic": "orders"},
        "sink": {"topic": "lines"},
        "group": "totals-app",
        "warn": {"pending": 0},
        "aggregate": {"group_by": "key", "value": PLACEHOLDER},
    }
    forms = "count(*), count(EXPRESSION), sum(EXPRESSION), min(EXPRESSION) or max(EXPRESSION)."
    assert mistakes(app) == [f"Expected {forms}"]
    app.text_area(key="term_aggregate_value").set_value("total: avg(value)\nn: count(*)").run()
    assert mistakes(app) == [f"total: expected {forms}"]
    app.text_area(key="term_aggregate_value").set_value("total: sum(value)").run()
    app.checkbox(key="term_aggregate_running").set_value(True).run()
    app.number_input(key="term_aggregate_tolerance").set_value(1e-9).run()
    assert "nothing tells which inputs an output is of" in mistakes(app)[0]
    app.text_area(key="term_aggregate_value").set_value("total: sum(value)\nn: count(*)").run()
    app.text_input(key="term_aggregate_group_by").set_value("upper(key").run()
    assert "'upper(key' does not parse" in mistakes(app)[0]
    app.text_input(key="term_aggregate_group_by").set_value("").run()
    assert mistakes(app) == ["Say what inputs of one group have in common, such as key."]
    app.text_input(key="term_aggregate_group_by").set_value("upper(key)").run()
    app.selectbox(key="term_aggregate_key").set_value("json $.customer").run()
    assert mistakes(app) == []
    assert app.session_state["fields"]["aggregate"] == {
        "group_by": "upper(key)",
        "value": {"total": "sum(value)", "n": "count(*)"},
        "running": True,
        "tolerance": 1e-9,
        "key": {"json": "$.customer"},
    }
    app.text_area(key="term_aggregate_value").set_value("count(*)").run()
    app.selectbox(key="term_aggregate_encoding").set_value("eight bytes (LongSerializer)").run()
    assert app.session_state["fields"]["aggregate"]["encoding"] == "long" and not mistakes(app)
    app.segmented_control(key="term_outputs").set_value("input").run()
    assert mistakes(app) == [
        "Choose what identifies an input: key, value, a header or a JSON field."
    ]


def test_lines_are_the_aggregates_of_fields() -> None:
    """Story: somebody types what an output holds. A colon within an expression names no field, and
    two lines for one field are a mistake that shows."""
    whole = "sum(cast(split(value, ':')[1] as int))"
    assert values_of(f" {whole} ") == whole and values_text(whole) == whole
    fields = {"order.total": "sum(value)", "n": "count(*)"}
    assert values_of(values_text(fields)) == fields
    assert values_of("n: count(*)\nn: count(*)") == {"n": "count(*), count(*)"}
    assert values_of("n: count(*)\ncount(*)") == {"n": "count(*)", "": "count(*)"}
    assert values_of(" \n") == PLACEHOLDER and values_text(PLACEHOLDER) == ""
