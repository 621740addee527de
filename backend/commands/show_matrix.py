"""A matrix as a table in Markdown, and as a heat map in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from topicproof.backend.evidence.annotations import as_markdown
from topicproof.backend.matrix.cells import Result
from topicproof.backend.matrix.matrix_table import TABLE, Trouble
from topicproof.backend.matrix.promises import PROMISES
from topicproof.validators.shell_words import shell_word

_COLOURS = {"exact": "#0072B2", "damaged": "#E69F00", "surprise": "#D55E00"}
"""The palette of Okabe and Ito. The words in each cell repeat the colour."""


def markdown(results: Sequence[Result], planned: int | None = None) -> str:
    """Render a row per fault and a column per guarantee, then surprises and the proof of each
    fault. `planned`: number of planned cells."""
    guarantees, rows = _grid(results)
    left = (
        f" {planned - len(results)} more were not tried."
        if planned and planned > len(results)
        else ""
    )
    lines = [
        "# Guarantees against faults",
        "",
        "Made by `topicproof matrix --markdown FILE`: each cell is a run, judged from its sink.",
        "",
        f"{summary(results)}{left}",
        "",
    ]
    lines += [
        f"| | {' | '.join(f'`{name}`' for name in guarantees)} |",
        f"| --- |{' --- |' * len(guarantees)}",
    ]
    for trouble, row in rows:
        cells = [_said(row[name]) if name in row else "" for name in guarantees]
        lines.append(f"| `{trouble.name}`: {trouble.title} | {' | '.join(cells)} |")
    lines += [
        "",
        (
            "`exact`: what was committed is correct and in order. `refused`: the sink stopped,"
            " as it must, because the group's offset was moved. *hidden* does no harm: records of"
            " aborted transactions."
        ),
    ]
    surprising = [result for result in results if result.surprises]
    if surprising:
        lines += ["", "## Surprises", ""]
        for result in surprising:
            lines.append(
                f"- `{result.guarantee}` under `{result.fault}` (run {result.run}):"
                f" {as_markdown('; '.join(result.surprises))}"
            )
    lines += ["", "## What proves that each fault fired", ""]
    lines += [
        f"- `{result.guarantee}` under `{result.fault}`: {result.fired or 'nothing'}"
        for result in results
    ]
    return "\n".join(lines) + "\n"


def heat_map(results: Sequence[Result]) -> str:
    """Render the same table as a coloured page: exact, damaged as expected, surprise."""
    guarantees, rows = _grid(results)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in guarantees)
    body = "".join(
        f'<tr><th scope="row">{escape(trouble.name)}<small>{escape(trouble.title)}</small></th>'
        + "".join(_cell(row[name]) if name in row else "<td></td>" for name in guarantees)
        + "</tr>"
        for trouble, row in rows
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Guarantees against faults</title><style>{_STYLE}</style></head>"
        f"<body><h1>Guarantees against faults</h1><p>{escape(summary(results))}</p>"
        f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"
        "<p>Each cell is a run, judged from its sink. Hover over a cell for the expected result and"
        " the proof that its fault fired. Hidden records are harmless: they belong to aborted"
        " transactions.</p></body></html>\n"
    )


def summary(results: Sequence[Result]) -> str:
    """Summarize: `33 of 35 cells agree with what theory expects; 2 are surprises (210 s).`"""
    surprising = sum(1 for result in results if result.surprises)
    took = sum(result.took_s for result in results)
    rest = (
        f"{surprising} {'is a surprise' if surprising == 1 else 'are surprises'}"
        if surprising
        else "no surprise"
    )
    return (
        f"{len(results) - surprising} of {len(results)} cells agree with what theory expects;"
        f" {rest} ({took:,.0f} s)."
    )


def line(result: Result) -> str:
    """Render one cell for a terminal."""
    text = f"{result.guarantee} · {result.fault}: {result.says} ({result.took_s:.0f} s)"
    if not result.surprises:
        return text
    look = f"topicproof show {shell_word(result.run)}"
    return f"{text} - SURPRISE: {'; '.join(result.surprises)}. Look: {look}"


def _grid(
    results: Sequence[Result],
) -> tuple[list[str], list[tuple[Trouble, Mapping[str, Result]]]]:
    """Return the guarantees, and each fault's results by guarantee, in table order."""
    present = {result.guarantee for result in results}
    rows = [
        (trouble, {result.guarantee: result for result in results if result.fault == trouble.name})
        for trouble in TABLE
    ]
    names = [promise.name for promise in PROMISES if promise.name in present]
    return names, [(trouble, row) for trouble, row in rows if row]


def _said(result: Result) -> str:
    return f"**{result.says} (surprise)**" if result.surprises else result.says


def _cell(result: Result) -> str:
    harmed = set(result.found) - {"hidden"}
    kind = "surprise" if result.surprises else "damaged" if harmed else "exact"
    text = "; ".join(result.surprises) or f"expected: {result.expected}"
    title = escape(f"{text}. Fired: {result.fired or 'not shown'}.")
    return (
        f'<td class="{kind}"'
        f' title="{title}">{escape(result.says)}{" (surprise)" if result.surprises else ""}</td>'
    )


_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:max-content}"
    "table{border-collapse:separate;border-spacing:3px}"
    "th{font-weight:600;text-align:left;padding:.4rem .6rem}"
    "small{display:block;font-weight:400;opacity:.75}"
    "td{padding:.4rem .6rem;border-radius:4px;white-space:nowrap}"
    + "".join(
        f".{name}{{background:{colour}33;border-left:4px solid {colour}}}"
        for name, colour in _COLOURS.items()
    )
)
