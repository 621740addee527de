"""What a verdict found in a topic, place by place, and as marks for the strip.

Rows of `findings.parquet` in, frames and marks out. Duplicates and the like lie in the sink; a gap
lies in the source, at the input whose output is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topicproof.app.charts.marks import MARKS_MAX, Mark
from topicproof.app.wording import count, kind_title
from topicproof.backend.evidence.findings import PARQUET
from topicproof.validators.kinds import duplicate
from topicproof.validators.report import Report

ROWS_MAX = 100_000
"""Rows read for the marks."""
BATCH_ROWS = 50_000
APART = 2
"""Findings at most this many offsets apart make one mark: a marker may lie between them."""
READ = ("kind", "partition", "offset", "source_topic", "source_partition", "source_offset", "why")
COLUMNS = ("kind", "partition", "offset", "first_partition", "first_offset", "why")


@dataclass(frozen=True)
class TopicFindings:
    """The findings of one verdict in one topic."""

    run: str
    stage: str | None
    """The stage of the run whose verdict it is; None: end to end."""
    rows: pd.DataFrame
    """`COLUMNS`: one row per finding, by kind and place. `first_partition` and `first_offset` are
    the first copy of a duplicate, otherwise null."""
    marks: tuple[Mark, ...]
    """The same, neighbours as one, the largest first."""

    def at(self, partition: int, offset: int) -> pd.DataFrame:
        return self.rows[(self.rows["partition"] == partition) & (self.rows["offset"] == offset)]


def read_topic_findings(
    evidence: Path, report: Report, run: str, topic: str, stage: str | None = None
) -> TopicFindings:
    """Reads the findings of a verdict in the topic. Raises OSError, pyarrow.ArrowInvalid."""
    rows = located(read_rows(evidence, report), report, topic)
    return TopicFindings(run, stage, rows, marks(rows))


def read_rows(evidence: Path, report: Report) -> pd.DataFrame:
    """Reads the findings (`READ`) of each kind that has a section in the report, without those that
    another kind explains. Empty if there is no such file."""
    kinds = [
        finding.kind for finding in report.findings if finding.count and finding not in report.aside
    ]
    path = evidence / PARQUET
    if not kinds or not path.is_file():
        return pd.DataFrame(columns=list(READ))
    condition = pc.field("kind").isin(kinds) & pc.field("explained_by").is_null()
    # Piece by piece: a file may have many million rows.
    tables, read = [], 0
    with pq.ParquetFile(path) as file:
        tables.append(file.schema_arrow.empty_table().select(list(READ)))
        for batch in file.iter_batches(BATCH_ROWS, columns=[*READ, "explained_by"]):
            piece = pa.Table.from_batches([batch]).filter(condition).slice(0, ROWS_MAX - read)
            tables.append(piece.select(list(READ)))
            read += len(piece)
            if read == ROWS_MAX:
                break
    rows: pd.DataFrame = pa.concat_tables(tables).to_pandas()
    return rows


def located(rows: pd.DataFrame, report: Report, topic: str) -> pd.DataFrame:
    """Returns the findings (`COLUMNS`) that lie in the topic, by kind and place."""
    lacking = rows[rows["partition"].isna() & (rows["source_topic"] == topic)]
    gaps = lacking.assign(partition=lacking["source_partition"], offset=lacking["source_offset"])
    present = rows[rows["partition"].notna()]
    numbers = _numbers(report, topic, present["partition"].unique().tolist())
    present = present[present["partition"].isin(numbers)]
    first = present["why"].str.extract(duplicate.FIRST_COPY)
    in_topic = first[0] == topic
    placed = present.assign(
        partition=present["partition"].map(numbers),
        first_partition=first[1].where(in_topic).astype("Int64"),
        first_offset=first[2].where(in_topic).astype("Int64"),
    )
    both = pd.concat([gaps, placed], ignore_index=True).reindex(columns=list(COLUMNS))
    types = dict.fromkeys(("first_partition", "first_offset"), "Int64")
    both = both.dropna(subset=["offset"]).astype({"partition": int, "offset": int, **types})
    return both.sort_values(["kind", "partition", "offset"], ignore_index=True)


def _numbers(report: Report, topic: str, numbers: Sequence[int]) -> dict[int, int]:
    """Returns the topic's own number of each of the report's partitions that belong to it."""
    places = {number: report.sink.place(int(number)) for number in numbers}
    return {number: place[1] for number, place in places.items() if place[0] == topic}


def marks(rows: pd.DataFrame) -> tuple[Mark, ...]:
    """Joins findings (`COLUMNS`) at neighbouring offsets, the largest first."""
    if rows.empty:
        return ()
    before = rows.shift()
    begins = (rows["kind"] != before["kind"]) | (rows["partition"] != before["partition"])
    begins |= ~(rows["offset"] - before["offset"]).between(0, APART)
    for name, apart in (("first_partition", 0), ("first_offset", APART)):
        step = (rows[name] - before[name].astype("Int64")).abs()
        begins |= (step > apart).fillna(False).astype(bool)
        begins |= rows[name].isna() != before[name].isna()
    joined = rows.groupby(begins.cumsum(), sort=False).agg(
        kind=("kind", "first"),
        partition=("partition", "first"),
        first=("offset", "first"),
        last=("offset", "last"),
        count=("offset", "size"),
        first_partition=("first_partition", "first"),
        first_offset=("first_offset", "first"),
        why=("why", "first"),
    )
    largest = joined.sort_values("count", ascending=False, kind="stable")
    return tuple(
        Mark(
            row["kind"],
            kind_title(row["kind"]),
            row["partition"],
            row["first"],
            row["last"],
            row["count"],
            first_copy(row),
            row["why"],
        )
        for row in largest.to_dict("records")
    )


def first_copy(row: Mapping[Any, Any]) -> tuple[int, int] | None:
    """Returns partition and offset of the first copy in a row (`COLUMNS`); None without one."""
    if pd.isna(row["first_offset"]):
        return None
    return int(row["first_partition"]), int(row["first_offset"])


def marks_sentence(marks: Sequence[Mark]) -> str:
    """Formats what the strip marks: `1,500 duplicates in 3 places.`"""
    counts: dict[str, list[int]] = {}
    for mark in marks:
        counts.setdefault(mark.title, []).append(mark.count)
    phrases = (
        f"{title}: {sum(sizes):,} in {count(len(sizes), 'place')}"
        for title, sizes in sorted(counts.items())
    )
    cut = f" The {MARKS_MAX:,} largest are drawn." if len(marks) > MARKS_MAX else ""
    return f"{'; '.join(phrases)}.{cut}"


def marks_legend(marks: Sequence[Mark]) -> str:
    """Explains the badges that are on the strip."""
    meanings = {
        "2×": "the same output again, with a line to its first copy (1)",
        "▽": "an input without its output",
        "⇄": "out of order",
        "!": "another finding",
    }
    badges = {mark.badge for mark in marks}
    return (
        " · ".join(f"{badge} {meaning}" for badge, meaning in meanings.items() if badge in badges)
        + "."
    )
