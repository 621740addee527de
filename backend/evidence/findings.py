"""All finding rows, as a Parquet and a CSV file, and their counts by place."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from topicproof.backend.characters import defused
from topicproof.validators.evidence import COLUMNS

PARQUET, CSV = "findings.parquet", "findings.csv"
SUSPECT = "^[^A-Za-z0-9]"
"""A pattern of RE2: every cell that `spreadsheet.is_formula` accepts, and others."""
TYPES = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
ROWS = f"kind string, {COLUMNS}"
"""The columns of `findings.parquet`, as a Spark schema string."""
SCHEMA = pa.schema([(name, TYPES[type_]) for name, type_ in map(str.split, ROWS.split(", "))])


class Place(NamedTuple):
    """Rows of one kind and cause are counted by place."""

    kind: str
    cause: str | None
    """The kind that explains them; None for primary findings."""
    partition: int | None
    """The sink's partition; the source's if the sink holds nothing; None if neither is known."""


def gather(ledger: Path, evidence: Path) -> Counter[Place]:
    """Combine the validators' findings in the folder `evidence`, and count them. Raises OSError."""
    folders = sorted(ledger.glob("findings*"))
    places: Counter[Place] = Counter()
    with (
        pq.ParquetWriter(evidence / PARQUET, SCHEMA) as parquet,
        csv.CSVWriter(evidence / CSV, SCHEMA) as text,
    ):
        for part in (part for folder in folders for part in sorted(folder.glob("*.parquet"))):
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches():
                    rows = pa.Table.from_batches([batch]).select(SCHEMA.names).cast(SCHEMA)
                    parquet.write_table(rows)
                    text.write_table(_defused(rows))
                    places += _places(rows)
    for folder in folders:
        shutil.rmtree(folder)
    return places


def write_csv(parquet: Path, target: Path, *, raw: bool = False) -> None:
    """Write the rows of `findings.parquet`, as `gather` made it, as CSV. `raw`: as earlier versions
    did, with cells that a spreadsheet runs. Raises OSError, pyarrow.ArrowInvalid."""
    with pq.ParquetFile(parquet) as file, csv.CSVWriter(target, SCHEMA) as text:
        for batch in file.iter_batches():
            rows = pa.Table.from_batches([batch]).select(SCHEMA.names).cast(SCHEMA)
            text.write_table(rows if raw else _defused(rows))


def _defused(rows: pa.Table) -> pa.Table:
    """Return the rows without cells that a spreadsheet runs. Almost all begin with a letter, which
    needs no closer look."""
    for number, column in enumerate(SCHEMA):
        cells = rows[column.name]
        if (
            column.type != pa.string()
            or not pc.any(pc.match_substring_regex(cells, SUSPECT)).as_py()
        ):
            continue
        safe = [None if text is None else defused(text) for text in cells.to_pylist()]
        rows = rows.set_column(number, column, pa.array(safe, pa.string()))
    return rows


def count_places(parquet: Path) -> Counter[Place]:
    """Count the rows of `findings.parquet` as `gather` does. Raises OSError,
    pyarrow.ArrowInvalid."""
    columns = ["kind", "explained_by", "partition", "source_partition"]
    counts: Counter[Place] = Counter()
    with pq.ParquetFile(parquet) as file:
        for batch in file.iter_batches(columns=columns):
            counts += _places(pa.Table.from_batches([batch]))
    return counts


def _places(rows: pa.Table) -> Counter[Place]:
    place = pc.coalesce(rows["partition"], rows["source_partition"])
    placed = pa.table({"kind": rows["kind"], "cause": rows["explained_by"], "place": place})
    counts = placed.group_by(["kind", "cause", "place"]).aggregate([([], "count_all")]).to_pylist()
    return Counter(
        {Place(row["kind"], row["cause"], row["place"]): row["count_all"] for row in counts}
    )
