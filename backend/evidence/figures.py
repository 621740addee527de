"""The charts of `report.html`, as Plotly JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topicproof.backend.characters import label
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

FATES: Mapping[str, tuple[str, str]] = {
    "committed": ("#0072B2", ""),
    "aborted": ("#D55E00", "x"),
    "pending": ("#E69F00", "/"),
    "markers": ("#999999", "."),
    "gone": ("#D0D5DA", ""),
    "no_record": ("#999999", "-"),
    "unexplained": ("#CC79A7", "+"),
}
"""Colour and pattern of each fate, so colour is never the only cue."""
ROW_PX, AXIS_PX = 34, 90
FEW_ROWS = 10


def figures(report: Report) -> dict[str, dict[str, Any]]:
    """Return the figures by the id of their element on the page, without empty ones."""
    every = {
        "fates": fates_figure(report),
        "findings": findings_figure(report),
        "places": places_figure(report),
    }
    return {name: figure for name, figure in every.items() if figure["data"]}


def fates_figure(report: Report) -> dict[str, Any]:
    """Draw one bar per partition: its offsets by fate."""
    rows = sorted(report.balance, key=lambda row: row.partition)
    names = [f"p{row.partition}" for row in rows]
    data = []
    for fate, (colour, pattern) in FATES.items():
        values = [getattr(row, fate) or 0 for row in rows]
        if any(values):
            marker = {"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay"}}
            hover = f"%{{y}}: %{{x:,}} {fate.replace('_', ' ')}<extra></extra>"
            bar = {
                "type": "bar",
                "orientation": "h",
                "x": values,
                "y": names,
                "name": fate.replace("_", " "),
            }
            data.append({**bar, "marker": marker, "hovertemplate": hover})
    axis = {"title": {"text": "offsets"}, "tickformat": ",d"}
    return _figure(data, len(rows), barmode="stack", xaxis=axis, showlegend=True)


def findings_figure(report: Report) -> dict[str, Any]:
    """Draw one bar per kind found: rows that break the verdict, that do not count, and that another
    kind explains."""
    findings = [finding for finding in report.findings if finding.count]
    names = [finding.kind.replace("_", " ") for finding in findings]
    uncounted = {finding.kind for finding in report.not_checked}
    breaks = [
        finding.outcome is Outcome.VIOLATED and finding.kind not in uncounted
        for finding in findings
    ]
    bars = (
        (
            "breaks the verdict",
            [finding.primary * bad for finding, bad in zip(findings, breaks, strict=True)],
            "#D55E00",
            "",
        ),
        (
            "does not break it",
            [finding.primary * (not bad) for finding, bad in zip(findings, breaks, strict=True)],
            "#56B4E9",
            ".",
        ),
        (
            "explained by another kind",
            [finding.count - finding.primary for finding in findings],
            "#999999",
            "/",
        ),
    )
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "x": values,
            "y": names,
            "name": name,
            "marker": {"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay"}},
            "hovertemplate": "%{y}: %{x:,}<extra></extra>",
        }
        for name, values, colour, pattern in bars
        if any(values)
    ]
    # Small counts need whole numbers on the axis, too.
    step = (
        {"dtick": 1} if max((finding.count for finding in findings), default=0) <= FEW_ROWS else {}
    )
    axis = {"title": {"text": "rows found"}, "tickformat": ",d", **step}
    return _figure(data, len(findings), barmode="stack", xaxis=axis, showlegend=True)


def places_figure(report: Report) -> dict[str, Any]:
    """Draw where the examples are in the sink."""
    symbols = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")
    data = []
    for number, finding in enumerate(report.findings):
        placed = [example for example in finding.examples if example.partition is not None]
        if placed:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": finding.kind.replace("_", " "),
                    "x": [example.offset for example in placed],
                    "y": [f"p{example.partition}" for example in placed],
                    "text": [label(example.why) for example in placed],
                    "marker": {
                        "size": 11,
                        # Hollow, so that two at the same place are both visible.
                        "symbol": f"{symbols[number % len(symbols)]}-open",
                        "line": {"width": 2.5},
                    },
                    "hovertemplate": "%{y}, offset %{x:,}<br>%{text}<extra></extra>",
                }
            )
    axis = {
        "title": {"text": f"offset of the examples in {label(report.sink.topic)}"},
        "tickformat": ",d",
    }
    return _figure(data, len(report.sink.partitions), xaxis=axis, showlegend=True)


def _figure(data: Sequence[Mapping[str, Any]], rows: int, **layout: Any) -> dict[str, Any]:
    """Make a figure. `y` has one name per row, the first on top."""
    common = {
        "height": AXIS_PX + ROW_PX * max(2, rows),
        "margin": {"l": 10, "r": 10, "t": 30, "b": 10},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "yaxis": {
            "autorange": "reversed",
            "type": "category",
            "automargin": True,
            "fixedrange": True,
        },
    }
    common["xaxis"] = {**layout.pop("xaxis"), "automargin": True, "fixedrange": True}
    return {"data": list(data), "layout": {**common, **layout}}
