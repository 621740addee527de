"""The table of kinds keeps up with the catalogue and its tests."""

from __future__ import annotations

import pytest

from tests.validators.kinds_table import PATH, SCHEMA, schema, shown_by, table
from topicproof.validators.kinds.anomalies import ANOMALIES
from topicproof.validators.kinds.catalogue import VALIDATORS

KINDS = [one.NAME for one in VALIDATORS]


def test_the_table_of_kinds_is_up_to_date() -> None:
    """Story: somebody adds a kind or a story. docs/KINDS.md and the schema of reports must show it:
    `make docs`."""
    assert PATH.read_text(encoding="utf-8") == table()
    assert SCHEMA.read_text(encoding="utf-8") == schema()


def test_every_anomaly_is_told_by_a_kind_or_answered_otherwise() -> None:
    """Story: 37 anomalies and 6 faults. None is without an answer, and each names kinds of the
    catalogue."""
    numbers = [one.number for one in ANOMALIES]
    assert numbers == [*map(str, range(1, 38)), *(f"F{number}" for number in range(1, 7))]
    assert [one.number for one in ANOMALIES if not one.kinds and not one.otherwise] == []
    assert {name for one in ANOMALIES for name in one.kinds} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_shown_by_a_test(kind: str) -> None:
    """Story: a kind that no log ever showed may be one that never fires."""
    assert shown_by(kind)
