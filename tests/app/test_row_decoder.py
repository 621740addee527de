"""What the rows of one table or one file may take to decode: memory, time and text."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import count, product

import msgpack
import pytest

from tests.backend.formats.hostile import array, record, zigzag
from topicproof.app.shell import downloads
from topicproof.app.topic import payload, tables
from topicproof.app.topic.field_columns import field_columns, offered
from topicproof.app.topic.payload import RowDecoder
from topicproof.backend.formats.fields import KnownSchemas
from topicproof.backend.formats.formats import Decoder
from topicproof.backend.formats.registered import AVRO, PROTOBUF, RegisteredSchema
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.finding import Fate

LINES = json.dumps(record("Order", array(record("Line", "null"))))
"""A line of an order takes no byte."""
FIELDS = " ".join(f"int32 f{number} = {number};" for number in range(1, 101))
WIDE = (
    'syntax = "proto3"; message Order { repeated Line lines = 1; } message Line { ' + FIELDS + "}"
)
SCHEMAS = KnownSchemas(
    {
        1: RegisteredSchema(1, AVRO, LINES, {}, {}),
        2: RegisteredSchema(2, PROTOBUF, WIDE, {}, {}),
    }
)


def rows_of(values: Iterable[bytes]) -> list[Row]:
    return [
        Row(0, offset, 0, None, value, (), len(value), Fate.COMMITTED, None)
        for offset, value in enumerate(values)
    ]


def order(lines: int) -> bytes:
    return b"\0\0\0\0\1" + zigzag(lines) + b"\0"


def cells(rows: Sequence[Row], decoder: RowDecoder) -> list[str]:
    return tables.row_table(rows, False, decoder)["value"].tolist()


def test_a_table_decodes_only_values_of_a_few_megabytes() -> None:
    """Story: nine bytes of Avro and 9 kB of Protobuf stand for tens of megabytes. A table says what
    it leaves out, and shows the values beside them. JSON and other text stays what it is."""
    packed = msgpack.packb({"a": [{}] * 19_000})
    values = [order(260_000), b"\0\0\0\0\2\0" + b"\x0a\x00" * 4_500, order(3), b"{}", packed]
    rows = rows_of([*values, b"x" * 30_000, b"\xff" * 30_000])
    decoder = RowDecoder(Decoder(SCHEMAS, {}), "orders")
    texts = cells(rows, decoder)
    limited = "would take more than 4,000,000 bytes of memory"
    contents = [decoder.decode(row) for row in rows]
    assert [content is not None and content.is_limited for content in contents] == [
        *(True, True, False, False, True, True, True)
    ]
    for at in (0, 1, 4):
        content = contents[at]
        assert content is not None and limited in (content.reason or "")
        assert texts[at].startswith("not decoded: ")
    assert texts[2] == '{"f0": [{"f0": null}, {"f0": null}, {"f0": null}]}' and texts[3] == "{}"
    assert texts[5] == "x" * tables.VALUE_CHARACTERS + "…"
    assert texts[6] == "not decoded: It has more than 20,000 bytes."
    fields = field_columns(map(decoder.decode, rows), ["$.f0[2].f0", "$.b"])
    assert fields["$.b"][6] == texts[6] and limited in fields["$.b"][1]
    assert fields["$.f0[2].f0"][2] is None and fields["$.b"][2] == ""


def test_a_table_holds_one_decoded_value_at_a_time() -> None:
    """Story: each of twenty records takes a megabyte once it is decoded."""
    rows = rows_of([order(4_000)] * 20)
    decoder = RowDecoder(Decoder(SCHEMAS, {}), "orders", clock=lambda: 0.0)
    assert cells(rows[:1], decoder)[0].startswith('{"f0": [{"f0": null}')
    tracemalloc.start()
    try:
        content = decoder.decode(rows[0])
        size = tracemalloc.get_traced_memory()[0]
        del content
        tracemalloc.reset_peak()
        fields = field_columns(map(decoder.decode, rows), ["$.f0[0]"])
        paths = offered(map(decoder.decode, rows))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fields["$.f0[0]"].tolist() == ['{"f0": null}'] * 20 and paths == ["$.f0"]
    assert peak < 5 * size


def test_a_table_decodes_only_so_long() -> None:
    """Story: the rows above took the time that a table has. The others say so."""
    ticks = count()
    decoder = RowDecoder(Decoder(SCHEMAS, {}), "orders", clock=lambda: float(next(ticks)))
    text, second, late = cells(rows_of([order(1)] * 3), decoder)
    assert text == second == '{"f0": [{"f0": null}]}'
    assert late == "not decoded: The rows before it took 2 s, the limit."


def test_names_that_are_spelled_alike_grow_by_a_number_alone() -> None:
    """Story: a record of 20 kB has 512 names, and a page spells all of them alike. With one more
    sign for each, a record of 230 kB took a page half a minute, and became 35 MB."""
    spelled = "\\xad" * 9
    names = ["".join(parts) for parts in product(("\xad", "\\xad"), repeat=9)]
    labels = list(payload._exact({**dict.fromkeys(names), f"{spelled}′3": None}))
    assert labels[:4] == [spelled, f"{spelled}′", f"{spelled}′2", f"{spelled}′3"]
    assert len(set(labels)) == len(names) + 1
    assert max(map(len, labels)) <= len(f"{spelled}′512′")


def test_an_export_holds_only_so_much_decoded_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: values whose names come from the schema have far more text than bytes. The bytes are
    in the file in any case."""
    few = payload.DecodingLimits(100, memory_max=100_000, seconds=20.0, characters=90)
    monkeypatch.setattr(downloads, "EXPORT", few)
    rows = rows_of([order(2), order(5), order(3), order(5_000), b"\xff"])
    frame = downloads.record_frame("orders", rows, Decoder(SCHEMAS, {}))
    lengths = [None if text is None else len(json.loads(text)["f0"]) for text in frame["decoded"]]
    assert lengths == [2, None, 3, None, None]
    assert frame["schema"][1] == "not decoded: All texts would have more than 90 characters."
    assert "would take more than 100,000 bytes of memory" in frame["schema"][3]
    assert frame["schema"][4] is None and frame["value"].notna().all()
