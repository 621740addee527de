"""The shape that every validator's rows have, and the words its counts are said in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

COLUMNS = (
    "partition int, offset long, source_topic string, source_partition int, source_offset long, output_index int, "
    "transaction string, explained_by string, badness long, why string"
)
"""One row of evidence.

`partition`, `offset`: where it shows in the sink; null where the sink holds nothing (a gap).
`transaction`: `<transactional id>/<sequence>/<attempt>`, if the record says so.
`explained_by`: the kind, or the circumstance, that caused this row; null for a primary row.
`badness`: the higher, the earlier it is shown; comparable within one kind only.
`why`: one sentence for a person."""


def evidence(rows: DataFrame, badness: Column, why: Column, explained_by: Column | None = None) -> DataFrame:
    """`rows` of the ledger's sink as rows of evidence."""
    given = rows.withColumns(
        {
            "transaction": _transaction(),
            "explained_by": F.lit(None) if explained_by is None else explained_by,
            "badness": badness,
            "why": why,
        }
    )
    return given.select(*(F.col(name).cast(kind).alias(name) for name, kind in map(str.split, COLUMNS.split(", "))))


def of_log(rows: DataFrame) -> DataFrame:
    """Rows of the raw log, which know neither lineage nor headers, with nulls in their place."""
    types = {
        "source_topic": "string",
        "source_partition": "int",
        "source_offset": "long",
        "output_index": "int",
        "transactional_id": "string",
        "sequence": "long",
        "attempt": "int",
    }
    return rows.withColumns({name: F.lit(None).cast(kind) for name, kind in types.items()})


def of_source(rows: DataFrame, topic: str) -> DataFrame:
    """Rows of the source, of which the sink holds no record, with nulls for what that would tell."""
    types = {"partition": "int", "offset": "long", "transactional_id": "string", "sequence": "long", "attempt": "int"}
    nothing = {name: F.lit(None).cast(kind) for name, kind in types.items()}
    return rows.withColumns({"source_topic": F.lit(topic), **nothing})


def together(frames: Sequence[DataFrame]) -> DataFrame | None:
    """Rows of evidence in one frame; None if there is no frame."""
    return reduce(lambda some, more: some.unionByName(more), frames) if frames else None


def amount(count: int, covered: int, noun: str, one: str, many: str) -> str:
    """`none of 9 inputs has ...`, `1 of 9 inputs has ...`, `1,234 of 9,000 inputs have ...`"""
    return f"{f'{count:,}' if count else 'none'} of {covered:,} {noun} {one if count < 2 else many}"


def records(count: str, kind: str = "") -> Column:
    """`1 record`, `20 aborted records`, of the count in a column."""
    noun = f"{kind} record".strip()
    return F.format_string(f"%d {noun}%s", count, F.when(F.col(count) == 1, "").otherwise("s"))


def _transaction() -> Column:
    return F.when(F.col("transactional_id").isNotNull(), F.concat_ws("/", "transactional_id", "sequence", "attempt"))
