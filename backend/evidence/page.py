"""`report.html`: a report as one file that opens offline, in light and dark, on screen and on
paper.

The charts use Plotly, whose library is embedded in the file. A table below each chart repeats its
data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from topicproof.backend.characters import visible_lines
from topicproof.backend.evidence.figures import FATES, figures
from topicproof.backend.evidence.signed import Entries, signoff_rows
from topicproof.validators.finding import Example, Origin, Outcome, PartitionBounds
from topicproof.validators.report import Report, identified_place, identified_sentence
from topicproof.validators.sentences import transaction_text
from topicproof.validators.who import who_sentence

EXAMPLES_OPEN = 5
SYMBOLS: Mapping[Outcome, str] = {Outcome.HOLDS: "✓", Outcome.VIOLATED: "✕", Outcome.UNKNOWN: "?"}
HERE = Path(__file__).parent
_TIME = re.compile(r" · judged (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC in ")
PAGE_HEAD_MAX = 20_000
"""The time is within this many characters of a page."""


def write_page(
    path: Path, report: Report, made_at: str, signoffs: Entries = (), signatures: bool = True
) -> None:
    """Write the page, in a copy with the sign-offs; without `signatures`, as earlier versions did.
    Raises OSError."""
    balance = sorted(report.balance, key=lambda row: row.partition)
    text = (
        _environment()
        .get_template("report.html.jinja")
        .render(
            report=report,
            who=who_sentence(report),
            made_at=made_at,
            signoffs=signoff_rows(signoffs, signatures),
            signatures=signatures,
            symbols=SYMBOLS,
            examples_open=EXAMPLES_OPEN,
            fates=tuple(FATES),
            balance=[
                (row.partition, row.offsets, *(getattr(row, fate) for fate in FATES))
                for row in balance
            ],
            found=[row for row in report.findings if row not in report.aside],
            aside=report.aside,
            checks={row.kind: row for row in report.checked},
            uncounted={row.kind: row.why for row in report.not_checked},
            origins=list(_origins(report)),
            figures=figures(report),
            style=_file("report.css"),
            script=_file("report.js"),
            library=_library(),
        )
    )
    path.write_text(text, encoding="utf-8")


def _origins(report: Report) -> Iterator[tuple[Origin, str, list[tuple[str, str]]]]:
    """Yield each cluster with the end of its title, and its topics with their ids."""
    across = report.source_origin is not None
    for origin, side in ((report.origin, "sink"), (report.source_origin, "source")):
        if origin is not None:
            words = [f"of the {side}"] if across else []
            words += [origin.name] if origin.name else []
            topics = [(name, topic_id or "none") for name, topic_id in origin.topics.items()]
            yield origin, f": {', '.join(words)}" if words else "", topics


def page_time(page: Path) -> str | None:
    """Return the time in a page, in UTC as ISO 8601; None without one."""
    try:
        with page.open(encoding="utf-8") as text:
            match = _TIME.search(text.read(PAGE_HEAD_MAX))
    except (OSError, ValueError):
        return None
    return f"{match[1]}T{match[2]}" if match else None


def _row(example: Example, report: Report) -> tuple[str, str, str]:
    place = identified_place(report, example) or "–"
    return place, transaction_text(example.transaction or ""), identified_sentence(example)


def _range(bounds: PartitionBounds) -> tuple[int, int, int, int]:
    return bounds.partition, bounds.start, bounds.lso, bounds.hw


def _legible(value: object) -> object:
    """Spell out what reorders or hides text, so that no name turns the words after it. Our own
    markup is left as it is."""
    return visible_lines(value) if type(value) is str else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=_legible,
    )
    environment.filters |= {
        "words": lambda name: name.replace("_", " "),
        "grouped": lambda number: f"{number:,}",
        "row": _row,
        "range": _range,
    }
    return environment


@cache
def _file(name: str) -> Markup:
    return Markup((HERE / name).read_text(encoding="utf-8"))


@cache
def _library() -> Markup:
    """Return Plotly's own script. Importing Plotly would take as long as everything else."""
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    script = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return Markup(script.read_text(encoding="utf-8"))
