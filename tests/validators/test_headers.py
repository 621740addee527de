"""The two headers, read back by Python; Spark's reading of them is compared in test_ledger.py."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from topicproof.validators.lineage.headers import (
    INT_MAX,
    LONG_MAX,
    Lineage,
    Transaction,
    format_lineage,
    format_transaction,
    parse_lineage,
    parse_transaction,
)

names = st.text(min_size=1).filter(lambda text: "/" not in text and text.isprintable())
ints, longs = st.integers(0, INT_MAX), st.integers(0, LONG_MAX)

NONSENSE = [
    None,
    b"",
    b"a/0/0",
    b"a/0/0/0/0/0",
    b"a/-1/0/0",
    b"a/01/0/0",
    b"a/+1/0/0",
    b"/0/0/0",
    b"\xff/0/0/0",
]


@given(st.builds(Lineage, names, ints, longs, ints))
def test_a_lineage_is_read_back(lineage: Lineage) -> None:
    """Story: our sink writes a lineage, anybody reads it. Nothing is lost on the way."""
    assert parse_lineage(format_lineage(lineage)) == lineage


@given(st.builds(Transaction, names, longs, ints, names, longs))
def test_a_transaction_is_read_back(transaction: Transaction) -> None:
    """Story: the same for the transaction a record was produced in."""
    assert parse_transaction(format_transaction(transaction)) == transaction


@pytest.mark.parametrize(
    "value",
    [
        *NONSENSE,
        b"a/0/%s/0" % (b"9" * 5_000),
        b"a/2147483648/0/0",
        b"a/0/9223372036854775808/0",
        "a/²/0/0".encode(),
    ],
)
def test_what_is_no_lineage_is_none(value: bytes | None) -> None:
    """Story: a foreign producer uses our header's name. What is not canonical is nothing, never an
    error."""
    assert parse_lineage(value) is None


@pytest.mark.parametrize("value", [*NONSENSE, b"/1/1/t/1", b"id/1/1//1", b"id/x/1/t/1"])
def test_what_is_no_transaction_is_none(value: bytes | None) -> None:
    """Story: the same for the other header."""
    assert parse_transaction(value) is None


def test_a_slash_in_a_name_is_refused() -> None:
    """Story: a transactional id with a slash could not be read back. It is refused where it is
    written."""
    with pytest.raises(ValueError, match="slash"):
        format_transaction(Transaction("a/b", 1, 1, "t", 1))
