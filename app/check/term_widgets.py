"""The widgets of a contract's form: each shows one field, and changes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from topicproof.app import wording
from topicproof.app.shell.places import if_drawn
from topicproof.backend.contracts.contract import PLACEHOLDER
from topicproof.backend.contracts.contract_text import side_label, side_of
from topicproof.backend.errors import Mistake
from topicproof.validators.expected import Expect

Changed = Callable[[dict[str, Any]], None]
"""Takes the contract's fields after a change."""
_OF_FIELD = re.compile(r"((?:\[(?:'(?:[^'\\]|\\.)*'|[^'\]]*)\]|[^():\[])+):(.*)", re.DOTALL)
"""A line: the field of the output, and what it must be. A name in brackets may hold anything."""


class Terms:
    """The fields of a contract, as widgets that change one field each."""

    def __init__(
        self, fields: Mapping[str, Any], changed: Changed, mistakes: Sequence[Mistake] = ()
    ) -> None:
        self.fields, self._changed, self._mistakes = dict(fields), changed, mistakes

    def explain(self, name: str, *, nested: bool = True) -> None:
        """Shows what is wrong with a field, below its widget. `nested`: and with what is in it."""
        reasons = [
            mistake.why
            for mistake in self._mistakes
            if mistake.field == name or (nested and mistake.field.startswith(f"{name}."))
        ]
        for why in dict.fromkeys(reasons):
            explain_red(why)

    def set(self, **values: Any) -> None:
        """Change fields; None removes one."""
        self.replace({**self.fields, **values})

    def replace(self, fields: Mapping[str, Any]) -> None:
        """Change all fields; None leaves one out."""
        self._changed({name: value for name, value in fields.items() if value is not None})

    def choose(
        self, name: str, label: str, words: Mapping[Any, str], default: Any, help_: str
    ) -> None:
        options = list(words)
        now = self.fields.get(name, default)
        key = put(name, now if now in options else None)

        def chosen() -> None:
            value = st.session_state[key]
            more: dict[str, Any] = {}
            if name == "expect":
                more = {"count": None, "filtered": None}
            if name == "expect" and value == Expect.ONE_TO_MANY:
                more |= {"count": PLACEHOLDER, "value": None, "tolerance": None}
            self.set(**{name: str(value)}, **more)

        st.selectbox(
            label,
            options,
            format_func=lambda option: words[option],
            key=key,
            on_change=if_drawn(chosen),
            help=help_,
        )
        self.explain(name)

    def write(self, name: str, label: str, placeholder: str, help_: str) -> None:
        now = self.fields.get(name)
        key = put(name, "" if now in (None, PLACEHOLDER) else str(now))

        def typed() -> None:
            text = st.session_state[key].strip()
            required = name == "count" and self.fields.get("expect") == Expect.ONE_TO_MANY
            empty = PLACEHOLDER if required else None
            # A group may be named by a number.
            number = name != "group" and text.isdecimal()
            more = {"filtered": None} if name == "count" else {}
            self.set(**{name: int(text) if number else text or empty}, **more)

        st.text_input(
            label,
            key=key,
            on_change=if_drawn(typed),
            placeholder=placeholder,
            help=help_,
            live="400ms",
        )
        self.explain(name)

    def group_of(self, name: str) -> dict[str, Any]:
        """Returns the fields of a term that has several."""
        fields = self.fields.get(name)
        return dict(fields) if isinstance(fields, Mapping) else {}

    def set_in(self, name: str, **values: Any) -> None:
        """Change fields of such a term; None removes one."""
        after = {**self.group_of(name), **values}
        self.set(**{name: {part: value for part, value in after.items() if value is not None}})


def choose_side(
    label: str,
    key: str,
    now: Any,
    options: Sequence[str],
    chosen: Callable[[Any], None],
    help_: str,
) -> None:
    """Asks where a record holds something. `now`: the place, as a contract spells it; `options`:
    labels of places. Calls `chosen` with another place."""
    now_label = side_label(now)
    widget = put(key, now_label)

    def picked() -> None:
        text = st.session_state[widget]
        chosen(PLACEHOLDER if text is None else side_of(text))

    st.selectbox(
        label,
        list(dict.fromkeys([*options, *([now_label] if now_label else [])])),
        key=widget,
        placeholder="Choose, or type $.path or a header",
        accept_new_options=True,
        on_change=if_drawn(picked),
        help=help_,
    )


def write_tolerance(
    name: str, now: Any, limit_max: float, changed: Callable[[float | None], None]
) -> None:
    """Asks by how much of the larger number two may differ, up to `limit_max`."""
    is_number = isinstance(now, int | float) and 0 <= now <= limit_max
    key = put(name, float(now) if is_number and now else None)

    def typed() -> None:
        changed(st.session_state[key] or None)

    st.number_input(
        "Tolerance",
        min_value=0.0,
        max_value=limit_max,
        value=None,
        step=1e-9,
        format="%g",
        key=key,
        on_change=if_drawn(typed),
        placeholder="compared exactly",
        help="By how much of the larger number two may differ, such as 1e-9 for sums of doubles.",
    )


def explain_red(why: str) -> None:
    """Shows what is wrong, as a sentence."""
    # The name of a field keeps its case.
    is_named = why.partition(" ")[0].endswith(":")
    text = why if is_named else f"{why[:1].upper()}{why[1:]}"
    st.caption(f":red[{wording.plain(text)}.]")


def put(name: str, value: Any) -> str:
    """Puts the field's value into its widget. Returns the widget's key."""
    key = f"term_{name}"
    st.session_state[key] = value
    return key


def values_text(value: Any) -> str:
    """Formats the expressions of a contract, one a line."""
    if isinstance(value, Mapping):
        lines = (f"{path}: {text}" if path else str(text) for path, text in value.items())
        return "\n".join(lines)
    return "" if value in (None, PLACEHOLDER) else str(value)


def values_of(text: str) -> str | dict[str, str]:
    """Returns the expressions that lines stand for, as a contract has them. Of several lines for
    one field all stay, so that the mistake shows."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [_OF_FIELD.fullmatch(line) for line in lines]
    if not any(named):
        return " ".join(lines) or PLACEHOLDER
    values: dict[str, str] = {}
    for line, match in zip(lines, named, strict=True):
        path = match[1].strip() if match else ""
        part = match[2].strip() if match else line
        values[path] = f"{values[path]}, {part}" if path in values else part
    return values
