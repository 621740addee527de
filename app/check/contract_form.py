"""A contract as a form. Each change is written to the URL at once, so that lint and preview follow
and a reload keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from topicproof.app.check.outcome_form import aggregate, choose_outputs, dead_letters
from topicproof.app.check.table_form import TableOffers, column_values, row_input, table_place
from topicproof.app.check.term_widgets import Changed, Terms, choose_side, put
from topicproof.app.shell.places import if_drawn
from topicproof.app.wording import KIND_TITLES
from topicproof.backend.contracts.contract_text import identity_of, labels_of
from topicproof.backend.contracts.sink_table import is_table
from topicproof.backend.errors import Mistake
from topicproof.validators.expectation import MEANINGLESS_OF_TABLE
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Guarantee, Order

EXPECT_WORDS = {
    Expect.ONE_TO_ONE: "exactly one",
    Expect.ZERO_OR_ONE: "one or none",
    Expect.ONE_TO_MANY: "several, by a count",
}
ORDER_WORDS = {
    Order.PER_SOURCE_PARTITION: "as in the source",
    Order.PER_KEY: "as written, by key",
    Order.NONE: "any order",
}
GUARANTEE_WORDS = {
    Guarantee.EXACTLY_ONCE: "exactly once",
    Guarantee.AT_LEAST_ONCE: "at least once",
    Guarantee.AT_MOST_ONCE: "at most once",
}
RANGE_WORDS = {"whole": "everything ever written", "retained": "what Kafka still holds"}


@dataclass(frozen=True)
class ThresholdWidget:
    """How the form asks for a threshold (validators/thresholds.py)."""

    label: str
    help: str
    step: float = 1
    limit_max: float | None = None


THRESHOLDS = {
    "pending": ThresholdWidget(
        "Warn above this many pending offsets",
        "Pending offsets are withheld from read_committed consumers by an open transaction.",
    ),
    "aborted_share": ThresholdWidget(
        "Warn above this aborted share",
        "Aborted records as a share of all records of the sink, from 0 to 1.",
        step=0.05,
        limit_max=1.0,
    ),
    "dead_letter_share": ThresholdWidget(
        "Warn above this dead letter share",
        "Inputs with a dead letter as a share of all inputs, from 0 to 1. The contract must name"
        " the dead letters.",
        step=0.01,
        limit_max=1.0,
    ),
}


@dataclass(frozen=True)
class Offers:
    """What the form can offer."""

    labels: Mapping[str, Sequence[str]]
    """What can identify a record, by side."""
    topics: Sequence[str] = ()
    """Of the sink's cluster."""
    origin_of: Callable[[str], str | None] = lambda _topic: None
    """Tells what names the inputs of a topic's dead letters; None if its records do not show it."""
    table: TableOffers = field(default_factory=TableOffers)
    """For a table as the sink."""


def form(
    fields: Mapping[str, Any],
    offers: Offers,
    changed: Changed,
    mistakes: Sequence[Mistake] = (),
) -> None:
    """Shows the terms of a contract, and what is wrong with each."""
    terms = Terms(fields, changed, mistakes)
    if "unique" in fields:
        _of_sink_alone(terms, offers.labels)
        return
    if is_table(fields):
        _of_table(terms, offers)
        return
    if "sinks" not in fields:
        choose_outputs(terms)
    if "aggregate" in fields:
        aggregate(terms, offers.labels.get("sink", ()))
        with st.expander("Group and warnings", icon=":material/tune:"):
            _group(terms)
            _warnings(terms, [name for name in THRESHOLDS if name != "dead_letter_share"])
        return
    _identity(terms, offers.labels)
    left, right = st.columns(2)
    with left:
        terms.choose(
            "expect",
            "Outputs per input",
            EXPECT_WORDS,
            Expect.ONE_TO_ONE,
            "How many records of the sink belong to each record of the source.",
        )
    with right:
        terms.choose(
            "order",
            "Order of the outputs",
            ORDER_WORDS,
            Order.PER_SOURCE_PARTITION,
            "The order in which outputs must stand in a sink partition. “As in the source”:"
            " in the order of their source partition.",
        )
    _count(terms)
    if fields.get("expect") != Expect.ONE_TO_MANY:
        _value(terms)
    if "sinks" not in fields:
        dead_letters(terms, offers.topics, offers.origin_of)
    with st.expander("Guarantee, transactions, group and what counts", icon=":material/tune:"):
        _further(terms)


def _of_table(terms: Terms, offers: Offers) -> None:
    """Shows the terms of a contract about a table."""
    table_place(terms, offers.table)
    row_input(terms, offers.labels.get("source", ()), offers.table.columns)
    terms.choose(
        "expect",
        "Rows per input",
        EXPECT_WORDS,
        Expect.ONE_TO_ONE,
        "How many rows of the table belong to each record of the source.",
    )
    _count(terms)
    is_compared = bool({"value", "tolerance"} & terms.fields.keys())
    if is_compared or terms.fields.get("expect") != Expect.ONE_TO_MANY:
        column_values(terms)
    with st.expander("Guarantee, group and what counts", icon=":material/tune:"):
        _guarantee(terms)
        _group(terms)
        if terms.fields.get("warn"):
            _warnings(terms, list(THRESHOLDS))
        _required(terms, [kind for kind in KIND_TITLES if kind not in MEANINGLESS_OF_TABLE])


def _count(terms: Terms) -> None:
    """Asks how many outputs an input has, if that is not always one."""
    if terms.fields.get("expect") == Expect.ZERO_OR_ONE:
        terms.write(
            "count",
            "Count (optional)",
            "case when get_json_object(value, '$.paid') = 'true' then 1 else 0 end",
            "Which inputs have an output: 1 or 0, in Spark SQL over the source record. Empty: an"
            " input without an output may be filtered or lost, and the check cannot tell.",
        )
        if terms.fields.get("count") is None:
            _filtered(terms)
    if terms.fields.get("expect") == Expect.ONE_TO_MANY:
        terms.write(
            "count",
            "Count",
            "2 or json_array_length(get_json_object(value, '$.items'))",
            "How many outputs an input has: Spark SQL over the source record.",
        )


def _value(terms: Terms) -> None:
    """Asks what the value of an output must be."""
    value = terms.fields.get("value")
    if isinstance(value, Mapping):
        st.markdown("Values of an output's fields")
        st.dataframe(
            [{"field": path, "expected": text} for path, text in value.items()], hide_index=True
        )
        st.caption("Change them in the YAML: export the contract, edit it and import it.")
        return
    terms.write(
        "value",
        "Value of an output (optional)",
        "upper(value)",
        "What an output's value must be: Spark SQL over the source record. Empty: values are not"
        " compared.",
    )


def _identity(terms: Terms, labels: Mapping[str, Sequence[str]]) -> None:
    now = dict(zip(("source", "sink"), labels_of(terms.fields.get("identity")), strict=True))
    keys = {side: put(f"identity_{side}", label) for side, label in now.items()}

    def chosen(side: str) -> None:
        picked = {name: st.session_state[key] for name, key in keys.items()}
        # Lineage is of both sides. Leaving it on one side leaves it on the other.
        if now[side] == "lineage" and picked[side] != "lineage":
            other = "sink" if side == "source" else "source"
            picked[other] = None
        terms.set(identity=identity_of(picked["source"], picked["sink"]))

    columns = st.columns(2)
    for column, side, title in zip(
        columns, now, ("Identity in the source", "Identity in the sink"), strict=True
    ):
        options = list(dict.fromkeys([*labels.get(side, ()), *([now[side]] if now[side] else [])]))
        column.selectbox(
            title,
            options,
            key=keys[side],
            placeholder="Choose, or type $.path or a header",
            accept_new_options=True,
            on_change=if_drawn(chosen),
            args=(side,),
            help=(
                "What tells which input an output belongs to: the key, the value, a header, a field"
                " of JSON such as $.id, or lineage, the headers that Topicproof's own sink writes."
                " Type what the list lacks."
            ),
        )
    terms.explain("identity")


def _of_sink_alone(terms: Terms, labels: Mapping[str, Sequence[str]]) -> None:
    """Shows the terms of a contract without a source."""
    choose_side(
        "What must occur only once",
        "unique",
        terms.fields["unique"],
        labels.get("sink", ()),
        lambda side: terms.set(unique=side),
        "The key, the value, a header or a field of JSON such as $.id. The topic is judged"
        " alone, without a source: it must hold each of these once.",
    )
    terms.explain("unique")
    terms.choose(
        "range",
        "Judged range",
        RANGE_WORDS,
        "whole",
        "With “everything ever written” the verdict is UNKNOWN if Kafka has removed records.",
    )


def _filtered(terms: Terms) -> None:
    """Shows whether inputs without outputs are accepted unchecked."""
    key = put("filtered", terms.fields.get("filtered") == "unchecked")

    def accepted() -> None:
        terms.set(filtered="unchecked" if st.session_state[key] else None)

    st.checkbox(
        "Accept inputs without an output unchecked",
        key=key,
        on_change=if_drawn(accepted),
        help="Without a count, an input without an output may be filtered or lost. The verdict"
        " warns of that unless you accept it.",
    )


def _further(terms: Terms) -> None:
    left, right = st.columns(2)
    with left:
        _guarantee(terms)
    with right:
        terms.choose(
            "range",
            "Judged range",
            RANGE_WORDS,
            "whole",
            "With “everything ever written” the verdict is UNKNOWN if Kafka has removed records.",
        )
    _group(terms)
    _warnings(terms, list(THRESHOLDS))
    _required(terms, list(KIND_TITLES))


def _guarantee(terms: Terms) -> None:
    terms.choose(
        "guarantee",
        "Guarantee",
        GUARANTEE_WORDS,
        Guarantee.EXACTLY_ONCE,
        "What the pipeline promises. It decides which findings violate the contract.",
    )


def _required(terms: Terms, kinds: Sequence[str]) -> None:
    """Asks which of these kinds of finding decide the verdict."""
    now = terms.fields.get("require")
    named = [kind for kind in kinds if isinstance(now, list | tuple) and kind in now]
    key = put("require", named)

    def required() -> None:
        terms.set(require=list(st.session_state[key]) or None)

    st.multiselect(
        "What decides the verdict",
        kinds,
        format_func=lambda kind: KIND_TITLES[kind],
        key=key,
        on_change=if_drawn(required),
        placeholder="All that the guarantee requires",
        help="Only these kinds of finding decide the verdict, and most others are not looked for."
        " Empty: all that the guarantee requires.",
    )


def _group(terms: Terms) -> None:
    terms.write(
        "group",
        "Consumer group (optional)",
        "my-app",
        "The group whose committed offsets must agree with the output.",
    )


def _warnings(terms: Terms, names: Sequence[str]) -> None:
    """Shows these thresholds, which warn about transactions and dead letters."""
    warn = terms.fields.get("warn")
    limits: dict[str, Any] = dict(warn) if isinstance(warn, Mapping) else {}
    keys = {name: put(name, limits.get(name)) for name in names}

    def warned() -> None:
        values = limits | {name: st.session_state[key] for name, key in keys.items()}
        terms.set(warn={name: value for name, value in values.items() if value is not None} or None)

    for column, name in zip(st.columns(len(names)), names, strict=True):
        widget = THRESHOLDS[name]
        column.number_input(
            widget.label,
            min_value=type(widget.step)(0),
            max_value=widget.limit_max,
            value=None,
            step=widget.step,
            key=keys[name],
            on_change=if_drawn(warned),
            placeholder="never",
            help=widget.help,
        )
    terms.explain("warn")
