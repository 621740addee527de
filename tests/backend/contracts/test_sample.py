"""A sample of a topic takes little memory, whatever the records hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from topicproof.backend.contracts import sample
from topicproof.backend.contracts.sample import VALUES_MAX
from topicproof.backend.formats.formats import Formats
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.finding import Fate

DENSE = b'{"id":1,"a":[' + b"[]," * 6_000 + b"1]}"
"""18 kB, of 6,000 values."""


def rows(values: Sequence[bytes]) -> list[Row]:
    return [
        Row(0, offset, 0, None, value, (), len(value), Fate.COMMITTED, 1)
        for offset, value in enumerate(values)
    ]


def test_a_sample_of_ordinary_records_is_whole() -> None:
    ordinary = rows([b'{"id":%d,"cents":7}' % number for number in range(10_000)])
    drawn = sample._sample("orders", ordinary, Formats(), whole=True)
    assert drawn.whole and len(drawn.rows) == len(drawn.documents) == 10_000
    assert str(drawn.documents[7]["id"]) == "7"


@pytest.mark.parametrize("part", ["value", "key"])
def test_dense_documents_end_a_sample(part: str) -> None:
    """Story: each record of some kilobytes holds thousands of values, which take fifty times its
    bytes in Python. The sample is shorter, and is not taken for the whole topic."""
    dense = [
        row if part == "value" else Row(0, row.offset, 0, row.value, b"1", (), 1, row.fate, 1)
        for row in rows([DENSE] * 1_000)
    ]
    drawn = sample._sample("orders", dense, Formats(), whole=True)
    assert not drawn.whole and len(drawn.rows) == VALUES_MAX // (DENSE.count(b",") * 2 + 3)
    assert len(drawn.documents) == len(drawn.keys) == len(drawn.rows)


def test_keys_of_another_format_end_a_sample() -> None:
    """Story: each key is a map of MessagePack with thousands of values. They count as those of
    values do."""
    key = b"\x81\xa1a\xdc" + (19_000).to_bytes(2, "big") + b"\x80" * 19_000
    packed = [Row(0, at, 0, key, b"1", (), 1, Fate.COMMITTED, 1) for at in range(100)]
    drawn = sample._sample("orders", packed, Formats(), whole=True)
    assert not drawn.whole and len(drawn.rows) == VALUES_MAX // (19_000 + 3) + 1
