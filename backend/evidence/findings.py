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
from topicproof.validators.evidence import COLUMNS, IDENTIFIED

PARQUET, CSV = "findings.parquet", "findings.csv"
SUSPECT = "^[^A-Za-z0-9]"
"""A pattern of RE2: every cell that `spreadsheet.is_formula` accepts, and others."""
TYPES = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
IDENTITY = "identity"
ROWS = f"kind string, {COLUMNS}, {IDENTITY} string"
"""The columns of `findings.parquet`, as a Spark schema string."""
SCHEMA = pa.schema([(name, TYPES[type_]) for name, type_ in map(str.split, ROWS.split(", "))])
WITHOUT_IDENTITY = pa.schema([field for field in SCHEMA if field.name != IDENTITY])
"""Of earlier versions, and of copies without payloads."""


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
    # The same rows once more, with their identities.
    whole = [
        folder
        for folder in folders
        if folder.with_name(f"{folder.name}{IDENTIFIED}") not in folders
    ]
    places: Counter[Place] = Counter()
    with (
        pq.ParquetWriter(evidence / PARQUET, SCHEMA) as parquet,
        csv.CSVWriter(evidence / CSV, SCHEMA) as text,
    ):
        for part in (part for folder in whole for part in sorted(folder.glob("*.parquet"))):
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches():
                    rows = pa.Table.from_batches([batch])
                    if IDENTITY not in rows.column_names:
                        rows = rows.append_column(IDENTITY, pa.nulls(len(rows), pa.string()))
                    rows = rows.select(SCHEMA.names).cast(SCHEMA)
                    parquet.write_table(rows)
                    text.write_table(_defused(rows))
                    places += _places(rows)
    for folder in folders:
        shutil.rmtree(folder)
    return places


def write_csv(parquet: Path, target: Path, *, raw: bool = False) -> None:
    """Write the rows of `findings.parquet`, as `gather` made it, as CSV. `raw`: as earlier versions
    did, with cells that a spreadsheet runs. Raises OSError, pyarrow.ArrowInvalid."""
    with pq.ParquetFile(parquet) as file:
        schema = SCHEMA if IDENTITY in file.schema_arrow.names else WITHOUT_IDENTITY
        with csv.CSVWriter(target, schema) as text:
            for batch in file.iter_batches():
                rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                text.write_table(rows if raw else _defused(rows))


def has_identities(parquet: Path) -> bool:
    """Whether the rows of `findings.parquet` name identities. Raises OSError,
    pyarrow.ArrowInvalid."""
    with pq.ParquetFile(parquet) as file:
        return IDENTITY in file.schema_arrow.names


def _defused(rows: pa.Table) -> pa.Table:
    """Return the rows without cells that a spreadsheet runs. Almost all begin with a letter, which
    needs no closer look."""
    for number, column in enumerate(rows.schema):
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
