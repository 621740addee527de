"""Findings on the strip: a badge at each stretch, a line from copies to their originals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topicproof.backend.characters import label

MARKS_MAX = 200
"""Marks drawn on one strip, the largest ones."""
DARK, LIGHT = "#111111", "#FFFFFF"
"""Dark on light, so marks are visible on every fate and in both themes."""
BADGES: Mapping[str, str] = {"duplicate": "2×", "order": "⇄", "gap": "▽"}
OTHER = "!"
FIRST = "1"
BADGE_PX_MAX = 17
SPAN_DEPTH = 0.1
"""How far below a cell's upper edge the extent of a mark is drawn, as a share of its height."""
_LABEL_ROW_PX = 16
"""Rows lower than this have badges without text."""


@dataclass(frozen=True)
class Mark:
    """Findings of one kind at neighbouring offsets."""

    kind: str
    title: str
    partition: int
    first: int
    last: int
    count: int
    original: tuple[int, int] | None
    """Partition and offset of the first copy of `first`, for duplicates."""
    why: str
    """The sentence of the first one."""

    @property
    def middle(self) -> float:
        return (self.first + self.last) / 2

    @property
    def badge(self) -> str:
        return BADGES.get(self.kind, OTHER)


def mark_traces(
    marks: Sequence[Mark], rows: Mapping[int, int], half: float, row_px: int
) -> list[dict[str, Any]]:
    """Returns the scatter traces of the marks in these rows (row number by partition). `half`: half
    the height of a cell, in rows."""
    visible = [mark for mark in marks if mark.partition in rows][:MARKS_MAX]
    if not visible:
        return []
    copies = [mark for mark in visible if mark.original is not None and mark.original[0] in rows]
    lines = [
        [(_original_middle(mark), rows[_original(mark)[0]]), (mark.middle, rows[mark.partition])]
        for mark in copies
    ]
    below = half * (1 - 2 * SPAN_DEPTH)
    spans = [_span(mark.first, mark.last, rows[mark.partition] - below) for mark in visible]
    originals = [
        _span(_original(mark)[1], _original_end(mark), rows[_original(mark)[0]] - below)
        for mark in copies
    ]
    firsts = [
        (_original_middle(mark), rows[_original(mark)[0]], _original(mark), _original_end(mark))
        for mark in copies
    ]
    return [
        *_stroked(originals, 2, "dot"),
        *_stroked(spans, 2, "solid"),
        *_stroked(lines, 1.5, "solid"),
        *([_first_copies(firsts, row_px)] if firsts else []),
        _badges(visible, rows, row_px),
    ]


def _original(mark: Mark) -> tuple[int, int]:
    assert mark.original is not None
    return mark.original


def _original_end(mark: Mark) -> int:
    return _original(mark)[1] + mark.last - mark.first


def _original_middle(mark: Mark) -> float:
    return (_original(mark)[1] + _original_end(mark)) / 2


def _span(first: int, last: int, row: float) -> list[tuple[float, float]]:
    return [(first - 0.5, row), (last + 0.5, row)]


def _stroked(
    paths: Sequence[Sequence[tuple[float, float]]], width: float, dash: str
) -> list[dict[str, Any]]:
    """Draws paths dark on a light casing, each as one trace: a trace or shape per path is slow."""
    if not paths:
        return []
    x, y = _joined(paths)
    return [
        {
            "x": x,
            "y": y,
            "mode": "lines",
            "line": {"width": w, "color": colour, "dash": pattern},
            "hoverinfo": "skip",
        }
        for w, colour, pattern in ((width + 2.5, LIGHT, "solid"), (width, DARK, dash))
    ]


def _joined(
    paths: Iterable[Sequence[tuple[float, float]]],
) -> tuple[list[float | None], list[float | None]]:
    """Joins paths into one with gaps."""
    x: list[float | None] = []
    y: list[float | None] = []
    for path in paths:
        x += [*(point[0] for point in path), None]
        y += [*(point[1] for point in path), None]
    return x, y


def _badges(marks: Sequence[Mark], rows: Mapping[int, int], row_px: int) -> dict[str, Any]:
    return {
        **_badge([mark.badge for mark in marks], row_px),
        "x": [mark.middle for mark in marks],
        "y": [rows[mark.partition] for mark in marks],
        "customdata": [
            [mark.partition, mark.first, mark.last + 1, label(mark.why)] for mark in marks
        ],
        "hovertext": [f"{label(mark.title)}: {mark.count:,}" for mark in marks],
        "hovertemplate": (
            "%{hovertext}, p%{customdata[0]} from %{customdata[1]:,}"
            "<br>%{customdata[3]}<extra></extra>"
        ),
    }


def _first_copies(
    firsts: Sequence[tuple[float, int, tuple[int, int], int]], row_px: int
) -> dict[str, Any]:
    """Draws a badge at each stretch that was written first: middle, row, first place, last
    offset."""
    return {
        **_badge([FIRST] * len(firsts), row_px),
        "x": [middle for middle, *_ in firsts],
        "y": [row for _, row, *_ in firsts],
        "customdata": [[*place, last + 1] for _, _, place, last in firsts],
        "hovertemplate": "first copies, p%{customdata[0]} from %{customdata[1]:,}<extra></extra>",
    }


def _badge(texts: Sequence[str], row_px: int) -> dict[str, Any]:
    return {
        "text": texts if row_px >= _LABEL_ROW_PX else [""] * len(texts),
        "mode": "markers+text",
        "textfont": {"color": DARK, "size": 10},
        "marker": {
            "symbol": "circle",
            "size": min(BADGE_PX_MAX, row_px - 2),
            "color": LIGHT,
            "line": {"width": 1.5, "color": DARK},
            "opacity": 1,
        },
        "unselected": {"marker": {"opacity": 1}, "textfont": {"color": DARK}},
        "cliponaxis": False,
    }
