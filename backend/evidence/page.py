"""`report.html`: a report as one file that opens without a network, in light and dark, on a screen
and on paper.

The charts are Plotly's; their library lies within the file. What a chart shows stands in a table
below it as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from topicproof.validators.finding import Bounds, Check, Example, Finding, Outcome
from topicproof.validators.report import Report

PAGE = "report.html"
EXAMPLES_OPEN = 5
FATES: Mapping[str, tuple[str, str]] = {
    "committed": ("#0072B2", ""),
    "aborted": ("#D55E00", "x"),
    "pending": ("#E69F00", "/"),
    "markers": ("#999999", "."),
    "gone": ("#D0D5DA", ""),
    "no_record": ("#999999", "-"),
    "unexplained": ("#CC79A7", "+"),
}
"""Colour and pattern of each fate: colour never stands alone."""
SYMBOLS: Mapping[Outcome, str] = {Outcome.HOLDS: "✓", Outcome.VIOLATED: "✕", Outcome.UNKNOWN: "?"}
_TIME = re.compile(r" · judged (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC in ")
PAGE_HEAD_MAX = 20_000
"""Within so many characters a page names its time."""
ROW_PX, AXIS_PX = 34, 90
FEW_ROWS = 10


def write_page(path: Path, report: Report, made_at: str) -> None:
    """Raises OSError."""
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        # Nothing is fetched from anywhere, whatever a name in the report may say.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src'
        " 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data: blob:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{report.verdict}:"
        f" {_text(report.sink.topic)}</title><style>{_STYLE}</style></head><body><main>"
        f"{_body(report, made_at)}</main><script>{_library()}</script>"
        f"<script>{_charts(report)}</script>"
        "</body></html>\n",
        encoding="utf-8",
    )


def page_time(page: Path) -> str | None:
    """The time that a page names, in UTC as ISO 8601 has it; None where it names none."""
    try:
        with page.open(encoding="utf-8") as text:
            found = _TIME.search(text.read(PAGE_HEAD_MAX))
    except (OSError, ValueError):
        return None
    return f"{found[1]}T{found[2]}" if found else None


def _body(report: Report, made_at: str) -> str:
    uncounted = {one.kind: one.why for one in report.not_checked}
    checks = {one.kind: one for one in report.checked}
    aside = report.aside
    first = [one for one in report.findings if one not in aside]
    title = f"{_text(report.source.topic)} → {_text(report.sink.topic)}"
    parts = [
        (
            f'<header><p class="small">Topicproof · {_text(report.run or "check")} · judged'
            f" {_text(made_at)} in {report.took_s:.1f} s</p><h1>{title}</h1></header>"
        ),
        (
            f'<section class="verdict {report.verdict.lower()}"><p'
            f' class="word">{SYMBOLS[report.verdict]} {report.verdict}<span class="small"> ·'
            f" {_text(report.guarantee)}</span></p><p>{_text(report.why)}</p></section>"
        ),
        *(f'<p class="doubt"><b>Doubt</b> {_text(doubt)}</p>' for doubt in report.doubts),
        *(f'<p class="doubt"><b>Warning</b> {_text(warning)}</p>' for warning in report.warnings),
        *(f'<p class="doubt"><b>Note</b> {_text(note)}</p>' for note in report.notes),
        _figures(report),
        f"<h2>Where every offset of {_text(report.sink.topic)} went</h2><div id=fates></div>",
        _table(
            ("partition", "offsets", *FATES),
            [
                (one.partition, one.offsets, *(getattr(one, fate) for fate in FATES))
                for one in sorted(report.balance, key=lambda one: one.partition)
            ],
        ),
        "<h2>What was found</h2>",
        "<div id=findings></div><div id=places></div>" if any(one.count for one in first) else "",
        *(_finding(report, one, checks.get(one.kind), uncounted.get(one.kind)) for one in first),
    ]
    if aside:
        rows = "".join(_finding(report, one, checks.get(one.kind), None) for one in aside)
        said = f"{len(aside)} further kinds, not counted"
        parts.append(f"<details><summary>{said}</summary>{rows}</details>")
    parts += [
        "<h2>Not counted for the verdict</h2>",
        _table(("kind", "why"), [(one.kind, one.why) for one in report.not_checked]),
        "<h2>Exact ranges</h2>",
        *(
            _ranges(name, bounds)
            for name, bounds in (("source", report.source), ("sink", report.sink))
        ),
        *_origin(report),
        "<h2>Versions</h2>",
        _table(("program", "version"), list(report.versions.items())),
    ]
    return "\n".join(parts)


def _figures(report: Report) -> str:
    moved = report.transactions
    pairs = [
        ("inputs judged", f"{report.source_records:,}"),
        ("sink offsets judged", f"{report.sink.offsets:,}"),
        ("transactions", "–" if moved.committed is None else f"{moved.committed:,} committed"),
        (
            "",
            (
                ""
                if moved.committed is None
                else f"{moved.aborted or 0:,} aborted, {moved.open or 0:,} open"
            ),
        ),
        ("not processed", f"{report.not_processed:,}"),
    ]
    cells = "".join(
        f"<div><b>{value}</b><span>{name}</span></div>" for name, value in pairs if value
    )
    return f'<section class="figures">{cells}</section>'


def _finding(report: Report, finding: Finding, check: Check | None, uncounted: str | None) -> str:
    of = f" of {check.records:,} {_text(check.unit)}" if check else ""
    found = f"{finding.count:,}{of}" if check else "not judged"
    note = f' <span class="small">({_text(uncounted)})</span>' if uncounted else ""
    heard = (
        f'<p class="small">On the word of {_text(", ".join(check.witnesses))}.</p>' if check else ""
    )
    examples = ""
    if finding.examples:
        rows = [_example(report, one) for one in finding.examples]
        open_ = _table(("place", "transaction", "why"), rows[:EXAMPLES_OPEN])
        rest = rows[EXAMPLES_OPEN:]
        more = f"<details><summary>{len(rest)} further examples</summary>" if rest else ""
        examples = open_ + (
            f"{more}{_table(('place', 'transaction', 'why'), rest)}</details>" if rest else ""
        )
    return (
        f'<article><h3><span class="badge {finding.outcome.lower()}">{SYMBOLS[finding.outcome]}'
        f" {finding.outcome}"
        f"</span> {_text(finding.kind.replace('_', ' '))} ·"
        f" {found}{note}</h3><p>{_text(finding.why)}</p>"
        f"{heard}{examples}</article>"
    )


def _example(report: Report, example: Example) -> tuple[str, str, str]:
    place = example.lineage or "–"
    if example.partition is not None:
        place = f"{report.sink.topic}-{example.partition}@{example.offset}"
    return place, example.transaction or "", example.why


def _ranges(name: str, bounds: Bounds) -> str:
    rows = [(one.partition, one.start, one.lso, one.hw) for one in bounds.partitions]
    return (
        f"<h3>{name}: {_text(bounds.topic)}</h3>{_table(('partition', 'start', 'LSO', 'HW'), rows)}"
    )


def _origin(report: Report) -> list[str]:
    if report.origin is None:
        return []
    rows = [(name, topic_id or "none") for name, topic_id in report.origin.topics.items()]
    cluster = _text(report.origin.cluster or "without an id")
    return [f"<h3>Cluster {cluster}</h3>{_table(('topic', 'topic id'), rows)}"]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    if not body:
        return '<p class="small">None.</p>'
    names = "".join(f"<th>{_text(name.replace('_', ' '))}</th>" for name in head)
    return (
        "<div"
        f' class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{'–' if value is None else _text(str(value))}</td>"


def _charts(report: Report) -> str:
    figures = {"fates": _fates(report), "findings": _counts(report), "places": _places(report)}
    given = {name: figure for name, figure in figures.items() if figure["data"]}
    # Names come from topics: nothing in them may end the script.
    said = (
        json.dumps(given)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
    return f"const FIGURES = {said};{_SCRIPT}"


def _fates(report: Report) -> dict[str, Any]:
    """One bar a partition, its offsets by fate."""
    rows = sorted(report.balance, key=lambda one: one.partition)
    names = [f"p{one.partition}" for one in rows]
    data = []
    for fate, (colour, pattern) in FATES.items():
        values = [getattr(one, fate) or 0 for one in rows]
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


def _counts(report: Report) -> dict[str, Any]:
    """One bar a kind that was found: what breaks the verdict, what does not count, what another
    kind explains."""
    found = [one for one in report.findings if one.count]
    names = [one.kind.replace("_", " ") for one in found]
    uncounted = {one.kind for one in report.not_checked}
    breaks = [one.outcome is Outcome.VIOLATED and one.kind not in uncounted for one in found]
    bars = (
        (
            "breaks the verdict",
            [one.primary * bad for one, bad in zip(found, breaks, strict=True)],
            "#D55E00",
            "",
        ),
        (
            "does not break it",
            [one.primary * (not bad) for one, bad in zip(found, breaks, strict=True)],
            "#56B4E9",
            ".",
        ),
        ("explained by another kind", [one.count - one.primary for one in found], "#999999", "/"),
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
    # A few rows are whole numbers, too.
    step = {"dtick": 1} if max((one.count for one in found), default=0) <= FEW_ROWS else {}
    axis = {"title": {"text": "rows found"}, "tickformat": ",d", **step}
    return _figure(data, len(found), barmode="stack", xaxis=axis, showlegend=True)


def _places(report: Report) -> dict[str, Any]:
    """Where the examples lie in the sink."""
    symbols = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")
    data = []
    for number, finding in enumerate(report.findings):
        there = [one for one in finding.examples if one.partition is not None]
        if there:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": finding.kind.replace("_", " "),
                    "x": [one.offset for one in there],
                    "y": [f"p{one.partition}" for one in there],
                    "text": [_text(one.why) for one in there],
                    "marker": {
                        "size": 11,
                        # Open, so that two at one place are both seen.
                        "symbol": f"{symbols[number % len(symbols)]}-open",
                        "line": {"width": 2.5},
                    },
                    "hovertemplate": "%{y}, offset %{x:,}<br>%{text}<extra></extra>",
                }
            )
    axis = {"title": {"text": f"offset of the examples in {report.sink.topic}"}, "tickformat": ",d"}
    return _figure(data, len(report.sink.partitions), xaxis=axis, showlegend=True)


def _figure(data: Sequence[Mapping[str, Any]], rows: int, **layout: Any) -> dict[str, Any]:
    """`y` has a name a row, the first on top."""
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


@cache
def _library() -> str:
    """Plotly's own script, found without importing Plotly, which takes as long as all of the
    rest."""
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(text)


_STYLE = """
:root{--ground:#fff;--ink:#1c2530;--soft:#5b6673;--line:#d8dee5;--holds:#0b7a4b;--violated:#b3261e;--unknown:#8a5a00;
--tint:8%}
@media (prefers-color-scheme:dark){:root{--ground:#11161c;--ink:#e6ebf0;--soft:#9aa6b2;
--line:#2e3842;--holds:#4cc38a;--violated:#ff8a80;--unknown:#f2b84b;--tint:16%}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:1.6rem;margin:.1rem 0 1rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .6rem}
h3{font-size:1rem;margin:0 0 .3rem}
p{margin:.2rem 0}.small{color:var(--soft);font-size:.86rem;font-weight:400}
.verdict{border-left:6px solid var(--c);
background:color-mix(in srgb,var(--c) var(--tint),transparent);padding:12px 16px;border-radius:4px}
.word{font-size:1.25rem;font-weight:700;color:var(--c)}
.holds{--c:var(--holds)}.violated{--c:var(--violated)}.unknown{--c:var(--unknown)}
.badge{color:var(--c);border:1px solid var(--c);border-radius:4px;padding:1px 7px;font-size:.8rem;
font-weight:700}
.doubt{border-left:6px solid var(--unknown);padding:8px 16px;margin:8px 0}
.figures{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0}
.figures div{border:1px solid var(--line);border-radius:6px;padding:8px 14px;display:flex;
flex-direction:column}
.figures span{color:var(--soft);font-size:.86rem}
article{border:1px solid var(--line);border-radius:6px;padding:12px 16px;margin:10px 0}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem;margin:.5rem 0}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}.number{font-variant-numeric:tabular-nums}td{overflow-wrap:anywhere}
summary{cursor:pointer;color:var(--soft);margin:.4rem 0}
@media print{article,.verdict{break-inside:avoid}details>*{display:block}}
"""

_SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  for (const [name, figure] of Object.entries(FIGURES)) {
    const axis = {gridcolor: line, zerolinecolor: line, linecolor: line};
    const clear = "transparent";
    const layout = {...figure.layout, paper_bgcolor: clear, plot_bgcolor: clear, font: {color: ink},
      xaxis: {...figure.layout.xaxis, ...axis}, yaxis: {...figure.layout.yaxis, ...axis}};
    Plotly.react(name, figure.data, layout, {displayModeBar: false, responsive: true});
  }
}
draw();
dark.addEventListener("change", draw);
"""
