"""A sample of a topic takes little memory, whatever the records hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from topicproof.backend.formats.formats import Formats
from topicproof.backend.judging import sample
from topicproof.backend.judging.sample import VALUES_MAX, outputs_of_lineage
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.finding import Fate
from topicproof.validators.lineage.packs import (
    PACKED_HEADER,
    RECORDS_MAX,
    TOPIC_LENGTH_MAX,
    Pack,
    format_pack,
    parse_pack,
)

DENSE = b'{"id":1,"a":[' + b"[]," * 6_000 + b"1]}"
"""18 kB, of 6,000 values."""


def rows(values: Sequence[bytes], header: bytes | None = None) -> list[Row]:
    headers = () if header is None else ((PACKED_HEADER, header),)
    return [
        Row(0, offset, 0, None, value, headers, len(value), Fate.COMMITTED, 1)
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


def test_a_header_that_names_many_inputs_counts_as_many() -> None:
    """Story: a hundred records of 600 bytes each name 65,536 inputs."""
    numbers = np.arange(RECORDS_MAX, dtype=np.int64)
    header = format_pack(Pack("orders", 0, numbers, np.zeros_like(numbers)))
    drawn = sample._sample("copies", rows([b"1"] * 100, header), Formats(), whole=True)
    outputs, inputs = outputs_of_lineage(drawn, "orders")
    assert not drawn.whole and len(drawn.rows) == VALUES_MAX // RECORDS_MAX
    assert len(outputs) == len(inputs) <= VALUES_MAX
    (few,) = rows([b"1"], header)
    assert sample._sample("copies", [few], Formats(), whole=True).whole


def test_a_pack_names_no_topic_that_kafka_would_not_allow() -> None:
    """Story: the name of a topic is copied to each record of its pack; one has 65,000 letters."""
    numbers = np.arange(3, dtype=np.int64)
    longest = Pack("t" * TOPIC_LENGTH_MAX, 0, numbers, numbers)
    assert parse_pack(format_pack(longest)) is not None
    for length in (TOPIC_LENGTH_MAX + 1, 65_000):
        assert parse_pack(format_pack(Pack("t" * length, 0, numbers, numbers))) is None
