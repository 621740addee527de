"""The parts of a contract's form about dead letters, and about aggregates of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from topicproof.app.check.term_widgets import (
    Terms,
    choose_side,
    put,
    values_of,
    values_text,
    write_tolerance,
)
from topicproof.app.shell.places import if_drawn
from topicproof.app.wording import plain
from topicproof.backend.contracts.contract import PLACEHOLDER
from topicproof.backend.contracts.contract_text import side_label, side_of
from topicproof.validators.aggregate import TOLERANCE_MAX, Encoding
from topicproof.validators.lineage.dead_letters import ORIGINS
from topicproof.validators.lineage.identity import KEY

ONE_INPUT, GROUP = "input", "group"
OUTPUT_WORDS = {ONE_INPUT: "one input", GROUP: "a group: a count, sum, minimum or maximum"}
ORIGIN_WORDS = {
    "connect": "headers of Kafka Connect",
    "streams": "headers of Kafka Streams",
    "spring": "headers of Spring for Apache Kafka",
    "kip-1191": "headers of a share group (KIP-1191)",
}
ENCODING_WORDS = {
    Encoding.TEXT: "a number as text",
    Encoding.LONG: "eight bytes (LongSerializer)",
}


def choose_outputs(terms: Terms) -> None:
    """Asks whether an output is of one input, or of a group of them."""
    key = put("outputs", GROUP if "aggregate" in terms.fields else ONE_INPUT)

    def chosen() -> None:
        shared = {name: terms.fields.get(name) for name in ("source", "sink", "group", "warn")}
        if st.session_state[key] == GROUP:
            shared["warn"] = _without_letters(shared["warn"])
            terms.replace({**shared, "aggregate": {"group_by": KEY, "value": PLACEHOLDER}})
        else:
            terms.replace({**shared, "identity": PLACEHOLDER})

    st.segmented_control(
        "An output is of",
        list(OUTPUT_WORDS),
        format_func=lambda option: OUTPUT_WORDS[option],
        key=key,
        on_change=if_drawn(chosen),
        required=True,
        help="Many programs keep a count or a sum for each key, and write it whenever it changes."
        " No such output belongs to one input. If you change this, the other terms start anew.",
    )


def dead_letters(
    terms: Terms, topics: Sequence[str], origin_of: Callable[[str], str | None]
) -> None:
    """Asks for the topic of the dead letters, and what names their inputs. `origin_of` tells that
    of a topic by its records; None if they do not show it."""
    letters = terms.group_of("dead_letters")
    topic, origin = letters.get("topic"), letters.get("origin")
    topic_key = put("letters_topic", topic)
    label = side_label(origin)
    origin_key = put("letters_origin", label)

    def chosen() -> None:
        name = st.session_state[topic_key]
        if name is None:
            terms.set(dead_letters=None, warn=_without_letters(terms.fields.get("warn")))
        else:
            named_by = origin_of(name) or origin or PLACEHOLDER
            terms.set(dead_letters={"topic": name, "origin": named_by})

    def named() -> None:
        text = st.session_state[origin_key]
        terms.set_in("dead_letters", origin=_origin(text))

    left, right = st.columns(2)
    with left:
        st.selectbox(
            "Dead letters (optional)",
            list(dict.fromkeys([*topics, *([topic] if topic else [])])),
            index=None,  # So that it can be cleared.
            key=topic_key,
            placeholder="No topic of dead letters",
            on_change=if_drawn(chosen),
            help="The topic of the inputs that the pipeline could not process. Each input must then"
            " be in the sink or there, and in exactly one of them.",
        )
        terms.explain("dead_letters.topic")
    if not letters:
        return
    with right:
        st.selectbox(
            "What names their inputs",
            list(dict.fromkeys([*ORIGIN_WORDS, *([label] if label else [])])),
            format_func=lambda option: ORIGIN_WORDS.get(option, plain(option)),
            key=origin_key,
            placeholder="Choose, or type a header or $.path",
            accept_new_options=True,
            on_change=if_drawn(named),
            help="Most programs write the topic, partition and offset of the input into headers of"
            " their own. Or type what holds the identity of the input: header order-id, $.id,"
            " field order.id.",
        )
        terms.explain("dead_letters.origin")
    terms.explain("dead_letters", nested=False)


def _origin(label: str | None) -> Any:
    if label is None:
        return PLACEHOLDER
    return label if label in ORIGINS else side_of(label)


def _without_letters(warn: Any) -> Any:
    """Returns the thresholds without that of the dead letters."""
    if not isinstance(warn, Mapping):
        return warn
    return {name: limit for name, limit in warn.items() if name != "dead_letter_share"} or None


def aggregate(terms: Terms, labels: Sequence[str]) -> None:
    """Shows the terms of an aggregate. `labels`: what can name a group in an output."""
    fields = terms.group_of("aggregate")
    _write(
        terms,
        "group_by",
        "Group by",
        "key or field('customer')",
        "What inputs of one group have in common: Spark SQL over the source record.",
    )
    _values(terms, fields.get("value"))
    left, right = st.columns(2)
    with left:
        choose_side(
            "Where an output names its group",
            "aggregate_key",
            fields.get("key", KEY),
            labels,
            lambda side: terms.set_in("aggregate", key=None if side == KEY else side),
            "The key, a header or a field, compared as text with what groups the inputs.",
        )
        terms.explain("aggregate.key")
    with right:
        write_tolerance(
            "aggregate_tolerance",
            fields.get("tolerance"),
            TOLERANCE_MAX,
            lambda limit: terms.set_in("aggregate", tolerance=limit),
        )
        terms.explain("aggregate.tolerance")
    if not isinstance(fields.get("value"), Mapping):
        _encoding(terms, fields.get("encoding"))
    _running(terms, fields.get("running"))
    terms.explain("aggregate", nested=False)


def _write(terms: Terms, name: str, label: str, placeholder: str, help_: str) -> None:
    now = terms.group_of("aggregate").get(name)
    key = put(f"aggregate_{name}", "" if now in (None, PLACEHOLDER) else str(now))

    def typed() -> None:
        terms.set_in("aggregate", **{name: st.session_state[key].strip() or PLACEHOLDER})

    st.text_input(
        label, key=key, on_change=if_drawn(typed), placeholder=placeholder, help=help_, live="400ms"
    )
    terms.explain(f"aggregate.{name}")


def _values(terms: Terms, now: Any) -> None:
    key = put("aggregate_value", values_text(now))

    def typed() -> None:
        terms.set_in("aggregate", value=values_of(st.session_state[key]))

    st.text_area(
        "What an output holds",
        key=key,
        on_change=if_drawn(typed),
        placeholder="count(*)\n\nor a line for each field:\ntotal: sum(field('amount'))",
        help="count(*), or count, sum, min or max of an expression over the source record. One line"
        " for the whole value, or a line for each field: total: sum(field('amount')).",
    )
    terms.explain("aggregate.value")


def _encoding(terms: Terms, now: Any) -> None:
    key = put("aggregate_encoding", now if now in list(Encoding) else Encoding.TEXT)

    def chosen() -> None:
        encoding = st.session_state[key]
        terms.set_in("aggregate", encoding=None if encoding == Encoding.TEXT else str(encoding))

    st.selectbox(
        "The value is",
        list(ENCODING_WORDS),
        format_func=lambda option: ENCODING_WORDS[option],
        key=key,
        on_change=if_drawn(chosen),
        help="How the whole value of an output holds its number.",
    )
    terms.explain("aggregate.encoding")


def _running(terms: Terms, now: Any) -> None:
    key = put("aggregate_running", now is True)

    def changed() -> None:
        terms.set_in("aggregate", running=True if st.session_state[key] else None)

    st.checkbox(
        "Judge each output, not only the last one of its group",
        key=key,
        on_change=if_drawn(changed),
        help="Each committed output must then be the aggregate of the first inputs of its group,"
        " and none may stand for fewer inputs than one before it. Repeats are allowed.",
    )
