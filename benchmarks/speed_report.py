"""The figures of benchmarks.speed as a table and as a page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

COLUMNS = (
    "what",
    "ours",
    "unit",
    "against",
    "theirs",
    "ratio",
    "lowest to highest",
    "goal",
    "more",
)


def as_markdown(lines: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> str:
    """Medians; a ratio is the median of the turns' ratios."""
    said = f"Commit {head['commit']}, {head['cores']} cores, {head['records']:,} records."
    rows = [f"{said}\n", f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    rows += [f"| {' | '.join(_cells(line))} |" for line in lines]
    return "\n".join(rows) + "\n"


def _cells(line: Mapping[str, Any]) -> list[str]:
    ratios = line["ratios"]
    return [
        line["what"],
        _number(statistics.median(line["ours"])),
        line["unit"],
        line["against"],
        _number(statistics.median(line["theirs"])) if line["theirs"] else "",
        f"{statistics.median(ratios):.2f}" if ratios else "",
        f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "",
        line["goal"],
        ", ".join(f"{name} {_number(value)}" for name, value in line["more"].items()),
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def as_page(lines: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> str:
    """Each ratio with its spread, and the speed by size of a transaction."""
    compared = [line for line in lines if line["ratios"]]
    medians = [statistics.median(line["ratios"]) for line in compared]
    spread = {
        "array": [
            max(line["ratios"]) - middle for line, middle in zip(compared, medians, strict=True)
        ],
        "arrayminus": [
            middle - min(line["ratios"]) for line, middle in zip(compared, medians, strict=True)
        ],
    }
    labels = [f"{line['what']} / {line['against']}" for line in compared]
    ratios = go.Figure(go.Bar(x=medians, y=labels, orientation="h", error_x=spread))
    ratios.add_vline(x=1)
    ratios.update_layout(
        title=f"Ours over theirs, commit {head['commit']}", template="plotly_white"
    )
    ratios.update_yaxes(automargin=True)
    sizes = [line for line in lines if line["row"] == "sizes"]
    curve = go.Figure(
        go.Scatter(
            x=[line["what"] for line in sizes],
            y=[statistics.median(line["ours"]) for line in sizes],
            mode="lines+markers",
        )
    )
    curve.update_layout(
        title="Records per second by size of a transaction", template="plotly_white"
    )
    by_rate = [line for line in lines if line["row"] == "curve"]
    latency = _by_rate(by_rate)
    weighed = [line for line in lines if line["memory"]]
    memory = _memory(weighed)
    figures = ((ratios, compared), (curve, sizes), (latency, by_rate), (memory, weighed))
    drawn = [figure for figure, of in figures if of]
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, figure in enumerate(drawn)
    ]
    return f"<!doctype html><meta charset=utf-8><title>Speed</title>{''.join(parts)}"


def _by_rate(lines: Sequence[Mapping[str, Any]]) -> go.Figure:
    """The latency of real time by rate, beside the other side's."""
    figure = go.Figure()
    for percentile in (50, 99):
        own = [line for line in lines if line["more"]["percentile"] == percentile]
        for side, name in (("ours", "Topicproof in real time"), ("theirs", "Kafka Streams")):
            figure.add_scatter(
                x=[line["more"]["records/s"] for line in own if line[side]],
                y=[1_000 * statistics.median(line[side]) for line in own if line[side]],
                name=f"{name}, p{percentile}",
                mode="lines+markers",
                line={
                    "color": "#005a8e" if side == "ours" else "#b35c00",
                    "dash": "solid" if percentile == 50 else "dot",
                },
            )
    figure.update_layout(
        title="Milliseconds until a read_committed consumer has the output, by rate",
        template="plotly_white",
    )
    figure.update_xaxes(type="log", title="records per second", dtick=1)
    figure.update_yaxes(type="log", title="ms", tickvals=[10, 30, 100, 300, 1_000, 3_000])
    return figure


def _memory(lines: Sequence[Mapping[str, Any]]) -> go.Figure:
    """The memory of each verdict over its time."""
    figure = go.Figure()
    for line, dash in zip(lines, ("dot", "dash", "solid"), strict=False):
        records = line["what"].removeprefix("full verdict on ").partition(" + ")[0]
        for column, name, colour in (
            (1, "Spark and its workers", "#005a8e"),
            (2, "the judging process", "#b35c00"),
        ):
            figure.add_scatter(
                x=[point[0] for point in line["memory"]],
                y=[point[column] / 1e9 for point in line["memory"]],
                name=f"{records}: {name}",
                mode="lines",
                line={"color": colour, "dash": dash},
            )
    figure.update_layout(
        title="Memory of a verdict, by the number of inputs and of outputs", template="plotly_white"
    )
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(title="GB", rangemode="tozero")
    return figure
