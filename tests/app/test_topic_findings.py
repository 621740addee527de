"""What a verdict found, as marks on the strip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.app.test_history_page import TWICE
from tests.app.test_url_state import BOUNDS, RANGES
from topicproof.app.charts.strip import strip_columns, strip_figure
from topicproof.app.topic import topic_findings
from topicproof.app.topic.topic_findings import READ, located, marks, marks_sentence, read_rows
from topicproof.backend.evidence.findings import PARQUET
from topicproof.backend.kafka.log.fates import bins

SINK, SOURCE = TWICE.sink.topic, TWICE.source.topic
COPY = "The output of this input is committed 2 times; the first is at " + SINK + "-{}@{}."


def rows(*given: tuple[str, int | None, int | None, int, str]) -> pd.DataFrame:
    """Rows of findings.parquet: kind, partition, offset, source offset of partition 0, why."""
    return pd.DataFrame(
        [(kind, p, o, SOURCE, 0, source, why) for kind, p, o, source, why in given],
        columns=list(READ),
    )


def test_neighbours_make_one_mark_with_a_line_to_the_first_copies() -> None:
    """Story: a replayed batch and one lone duplicate. The strip shows two places, each with its
    first copy."""
    replayed = [("duplicate", 0, 6 + n, 2 + n, COPY.format(0, 2 + n)) for n in range(3)]
    found = located(rows(*replayed, ("duplicate", 1, 3, 0, COPY.format(0, 0))), TWICE, SINK)
    large, lone = marks(found)
    assert (large.first, large.last, large.count, large.original) == (6, 8, 3, (0, 2))
    assert (lone.partition, lone.original, lone.badge) == (1, (0, 0), "2×")
    assert marks_sentence([large, lone]) == "Duplicates: 4 in 2 places."
    without = strip_figure(bins(RANGES, BOUNDS, strip_columns(3)), BOUNDS)
    figure = strip_figure(bins(RANGES, BOUNDS, strip_columns(3)), BOUNDS, [large, lone])
    lines, firsts, badges = figure.data[-3:]
    assert len(figure.data) > len(without.data)
    assert list(badges.text) == ["2×", "2×"] and list(badges.x) == [7, 3]
    assert list(firsts.x) == [3, 0] and list(lines.x[:2]) == [3, 7]


def test_a_gap_lies_in_the_source() -> None:
    """Story: an output is missing. The sink has no place for it, so its input is marked; what lies
    in the sink is not."""
    given = rows(("gap", None, None, 4, "A hole."), ("order", 0, 3, 9, "Input 9 comes after 10."))
    (gap,) = marks(located(given, TWICE, SOURCE))
    (order,) = marks(located(given, TWICE, SINK))
    assert (gap.kind, gap.first, gap.badge, order.kind, order.badge) == (
        "gap",
        4,
        "▽",
        "order",
        "⇄",
    )
    assert marks(located(given, TWICE, "another")) == ()


def test_only_as_many_findings_are_read_as_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a check by a wrong contract found millions. A page reads them piece by piece, and
    stops when it has enough."""
    monkeypatch.setattr(topic_findings, "ROWS_MAX", 3)
    monkeypatch.setattr(topic_findings, "BATCH_ROWS", 2)
    kinds = ["order", "duplicate"] * 5
    columns: dict[str, list[object]] = {name: [None] * 10 for name in READ}
    columns |= {
        "kind": list(kinds),
        "offset": list(range(10)),
        "explained_by": [None] * 9 + ["gap"],
    }
    pq.write_table(pa.table(columns), tmp_path / PARQUET)
    assert read_rows(tmp_path, TWICE)["offset"].tolist() == [1, 3, 5]
    monkeypatch.setattr(topic_findings, "ROWS_MAX", 100)
    assert read_rows(tmp_path, TWICE)["offset"].tolist() == [1, 3, 5, 7]


def test_evidence_without_findings_marks_nothing(tmp_path: Path) -> None:
    """Story: evidence of an older version, and a report in which nothing was found."""
    assert read_rows(tmp_path, TWICE).empty
    assert read_rows(tmp_path, replace(TWICE, findings=())).empty
