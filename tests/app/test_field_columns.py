"""Fields of values as columns: which are offered, what a cell shows, and how an address names
them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.app.test_url_state import BOUNDS
from topicproof.app.shell.url_state import TopicsState, read_topics, write_topics
from topicproof.app.topic.field_columns import (
    COLUMNS_MAX,
    as_path,
    field_columns,
    field_text,
    offered,
    with_fields,
)
from topicproof.backend.formats.decoded import DecodedValue, Format
from topicproof.validators.json_path import parse_path

DOCUMENTS: list[Any] = [
    {"id": 7, "who": {"name": "Ada", "mail": None}, "items": [{"sku": "a"}], "a b": True, "": 1},
    {"id": 1.5, "who": {"name": "x" * 300}, "items": [], "new": "line\n"},
    None,
    ["not", "an", "object"],
]
VALUES = [DecodedValue(document, Format.JSON) for document in DOCUMENTS]


def test_fields_of_the_first_values_are_offered() -> None:
    """Story: somebody opens a topic of JSON and sees which fields there are. An array is one
    field, however long it is."""
    assert offered(VALUES) == [
        "$.id",
        "$.who.name",
        "$.who.mail",
        "$.items",
        "$['a b']",
        "$.new",
    ]
    scalars = (DecodedValue(document, Format.JSON) for document in (None, "text", 5))
    assert offered([None, *scalars]) == []


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("$.id", ["7", "1.5", "", ""]),
        ("$.who.mail", [None, "", "", ""]),
        ("$.items[0].sku", ["a", "", "", ""]),
        ("$['a b']", ["true", "", "", ""]),
        ("$.new", ["", '"line\\n"', "", ""]),
        ("$[1]", ["", "", "", "an"]),
        ("$.who", ['{"name": "Ada", "mail": null}', None, "", ""]),
    ],
)
def test_a_cell_tells_null_from_a_field_that_is_not_there(
    path: str, texts: list[str | None]
) -> None:
    """Story: a column mixes records that have a field, records in which it is null, and records
    without it. A long text is cut."""
    found = [field_text(value, parse_path(path)) for value in VALUES]
    if path == "$.who":
        assert found[0] == texts[0] and str(found[1]).endswith("…") and found[2:] == texts[2:]
    else:
        assert found == texts


def test_columns_stand_behind_the_value() -> None:
    """Story: the chosen fields are beside the value that they come from."""
    table = pd.DataFrame({"offset": [1, 2, 3, 4], "value": list("abcd"), "size": [1, 1, 1, 1]})
    shown = with_fields(table, field_columns(VALUES, ["$.id", "$.items[0].sku"]))
    assert list(shown.columns) == ["offset", "value", "$.id", "$.items[0].sku", "size"]
    assert shown["$.id"].tolist() == ["7", "1.5", "", ""]


def test_the_address_names_the_columns() -> None:
    """Story: a view with columns is sent to a colleague. A wrong path is left out with a notice,
    and a name with a comma is one name."""
    look = TopicsState("squares", fields=("$.id", "$.a,b.c"))
    params = write_topics(look)
    assert read_topics(params, BOUNDS) == (look, [])
    found, notices = read_topics({"fields": "$.id,$..x"}, BOUNDS)
    assert found.fields == ("$.id",) and "cannot search all levels" in notices[0]
    many = ",".join(f"$.f{number}" for number in range(COLUMNS_MAX + 1))
    found, notices = read_topics({"fields": many}, BOUNDS)
    assert len(found.fields) == COLUMNS_MAX and len(notices) == 1
    assert as_path(" items[0].id ") == "$.items[0].id"
