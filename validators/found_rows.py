"""The rows that validators find: the only place that collects.

Every validator runs under guard: a crash makes its own kind UNKNOWN, but never breaks the report.
All rows found stay in the evidence; the report holds their counts and at most `EXAMPLES_MAX`
examples per kind, worst first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from topicproof.validators.evidence import COLUMNS, together
from topicproof.validators.facts.writers import with_writers, written
from topicproof.validators.finding import EXAMPLES_MAX, Bounds, Example
from topicproof.validators.in_parallel import in_parallel
from topicproof.validators.kinds import (
    aborted_input,
    aborted_read,
    duplicate,
    gap,
    identity_repeated,
    offset_ahead,
    offset_behind,
    order,
    phantom,
    wrong_value,
    zombie_write,
)
from topicproof.validators.kinds.catalogue import Validator
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.ledger import Ledger, ReadingsNeeded
from topicproof.validators.readings import keep
from topicproof.validators.spark_errors import first_line

OF_RECORDS = (
    duplicate.NAME,
    phantom.NAME,
    order.NAME,
    wrong_value.NAME,
    aborted_input.NAME,
    aborted_read.NAME,
    zombie_write.NAME,
)
"""Kinds whose rows are records of the sink that should not be there, or not so: each has a
writer."""
OF_LOST_OUTPUTS = (gap.NAME,)
"""Kinds without a record in the sink, whose transaction is that of an aborted output."""
OF_IDENTITIES = (
    *OF_RECORDS,
    *OF_LOST_OUTPUTS,
    offset_ahead.NAME,
    offset_behind.NAME,
    identity_repeated.NAME,
)
"""Kinds whose examples show the identity of the record or the input."""
WRITER_COLUMNS = "writer string, written_ms long"
"""Who wrote the record of a row, and when that was settled (facts/writers.py)."""
WRITERS_MAX = 3
"""A finding names at most this many writers, those with the most rows."""


SINK, SOURCE = "sink", "source"
Place = tuple[str, int, int]
"""`SINK` or `SOURCE`, partition and offset."""


@dataclass(frozen=True)
class WriterRows:
    """The rows of one kind with one writer (facts/writers.py)."""

    writer: str
    count: int
    first_ms: int | None
    """When the first and the last of them were settled; None if `writer` tells."""
    last_ms: int | None
    writers: int
    """How many writers the kind's rows have, this one included."""


@dataclass(frozen=True)
class FoundRows:
    """A validator's rows, or `error` if it crashed."""

    causes: Mapping[str | None, int]
    examples: tuple[Example, ...] = ()
    error: str | None = None
    writers: tuple[WriterRows, ...] = ()
    """Of the primary rows, or of all if there are none; `WRITERS_MAX` at most."""


def find_rows(validators: Sequence[Validator], ledger: Ledger) -> dict[str, FoundRows]:
    """Finds all kinds in one go. If that fails, runs each by itself, so that one broken validator
    does not affect the others."""
    if not validators:
        return {}
    try:
        return _collect(validators, ledger, f"{ledger.evidence}/findings")
    except ReadingsNeeded:
        raise
    except Exception:
        rows_by_kind: dict[str, FoundRows] = {}
        for validator in validators:
            try:
                rows_by_kind |= _collect(
                    [validator], ledger, f"{ledger.evidence}/findings-{validator.NAME}"
                )
            except Exception as error:
                rows_by_kind[validator.NAME] = FoundRows({}, error=first_line(error))
        return rows_by_kind


def _collect(validators: Sequence[Validator], ledger: Ledger, url: str) -> dict[str, FoundRows]:
    every = [
        (validator.NAME, rows)
        for validator in validators
        if (rows := validator.find(ledger)) is not None
    ]
    evidence_rows = _with_writers(
        [(name, rows.select(F.lit(name).alias("kind"), "*")) for name, rows in every], ledger
    )
    if evidence_rows is None:
        return {validator.NAME: FoundRows({}) for validator in validators}
    # If nothing is odd and nothing is missing, only transactions can have rows.
    is_small = ledger.counts.proved and ledger.at_inputs >= ledger.counts.outputs
    offsets = 0 if is_small else ledger.sink_bounds.offsets + ledger.question.source.offsets
    rows = keep(evidence_rows, url, offsets, f"kind string, {COLUMNS}, {WRITER_COLUMNS}")
    worst = Window.partitionBy("kind").orderBy(
        F.col("explained_by").isNotNull(),
        F.col("badness").desc(),
        "partition",
        "offset",
        "source_partition",
        "source_offset",
    )
    ranked = rows.withColumn("rank", F.row_number().over(worst)).where(
        F.col("rank") <= EXAMPLES_MAX
    )
    has_writers = any(name in (*OF_RECORDS, *OF_LOST_OUTPUTS) for name, _ in every)
    has_identities = any(name in OF_IDENTITIES for name, _ in every)
    counts, examples, writers, identities = in_parallel(
        lambda: rows.groupBy("kind", "explained_by").count().collect(),
        lambda: ranked.orderBy("kind", "rank").collect(),
        lambda: _most_rows(rows).collect() if has_writers else [],
        lambda: _identities(ranked, ledger) if has_identities else {},
    )
    return {
        validator.NAME: FoundRows(
            {row["explained_by"]: row["count"] for row in counts if row["kind"] == validator.NAME},
            tuple(
                _example(
                    row, ledger.question.source, identities if row["kind"] in OF_IDENTITIES else {}
                )
                for row in examples
                if row["kind"] == validator.NAME
            ),
            writers=tuple(
                WriterRows(
                    *(row[name] for name in ("writer", "rows", "first_ms", "last_ms", "writers"))
                )
                for row in writers
                if row["kind"] == validator.NAME
            ),
        )
        for validator in validators
    }


def _with_writers(every: Sequence[tuple[str, DataFrame]], ledger: Ledger) -> DataFrame | None:
    """Joins the rows of all kinds, and adds `WRITER_COLUMNS`. A record whose header names no
    transaction gets its writer as the transaction."""
    records = together([rows for name, rows in every if name in OF_RECORDS])
    outputs = together([rows for name, rows in every if name in OF_LOST_OUTPUTS])
    others = together([rows for name, rows in every if name not in (*OF_RECORDS, *OF_LOST_OUTPUTS)])
    nobody = {"writer": F.lit(None).cast("string"), "written_ms": F.lit(None).cast("long")}
    if records is not None:
        records = with_writers(records, ledger.accounts.raw_log)
        records = records.drop("writer_name", "writer_id", "writer_began", "writer_ended")
        is_foreign = F.col("transaction").isNull() & F.col("writer").isNotNull()
        records = records.withColumns(
            {
                "writer": F.when(is_foreign, F.col("writer")),
                "transaction": F.when(is_foreign, written()).otherwise(F.col("transaction")),
            }
        )
    if outputs is not None:
        outputs = outputs.withColumns({**nobody, "writer": F.col("transaction")})
    if others is not None:
        others = others.withColumns(nobody)
    return together([rows for rows in (records, outputs, others) if rows is not None])


def _most_rows(rows: DataFrame) -> DataFrame:
    """Returns the writers with the most rows of each kind: kind, writer, rows, first_ms, last_ms,
    writers (how many there are)."""
    kinds = Window.partitionBy("kind")
    is_primary = F.col("explained_by").isNull()
    rows = rows.withColumn("some_primary", F.max(is_primary).over(kinds))
    rows = rows.where(F.col("writer").isNotNull() & (is_primary == F.col("some_primary")))
    groups = rows.groupBy("kind", "writer").agg(
        F.count("*").alias("rows"),
        F.min("written_ms").alias("first_ms"),
        F.max("written_ms").alias("last_ms"),
    )
    most = kinds.orderBy(F.col("rows").desc(), "first_ms", "writer")
    groups = groups.withColumns(
        {"writers": F.count("*").over(kinds), "rank": F.row_number().over(most)}
    )
    return groups.where(F.col("rank") <= WRITERS_MAX).orderBy("kind", "rank")


def _identities(examples: DataFrame, ledger: Ledger) -> Mapping[Place, str]:
    """Returns the identities of the records at the examples' places, and of their inputs; none by
    lineage."""
    if ledger.frames.sink_keys is None or ledger.frames.identities is None:
        return {}
    examples = examples.where(F.col("kind").isin(*OF_IDENTITIES))
    sink = ("partition", "offset")
    source = ("source_partition", "source_offset")
    sides = {SINK: (ledger.frames.sink_keys(), sink), SOURCE: (ledger.frames.identities(), source)}
    frames = []
    for side, (keys, place) in sides.items():
        # There are few examples, so the records need not be shuffled.
        places = F.broadcast(examples.select(*place).dropna().distinct())
        names = [F.col(name).alias(number) for name, number in zip(place, sink, strict=True)]
        records = keys.where(F.col("source_key").isNotNull()).join(places, list(place))
        frames.append(
            records.select(F.lit(side).alias("side"), *names, shown("source_key").alias("identity"))
        )
    rows = frames[0].unionByName(frames[1]).collect()
    return {(row["side"], row["partition"], row["offset"]): row["identity"] for row in rows}


def _example(row: Row, source: Bounds, identities: Mapping[Place, str]) -> Example:
    lineage = None
    identity = identities.get((SINK, row["partition"], row["offset"]))
    if row["source_offset"] is not None:
        topic, partition = row["source_topic"], row["source_partition"]
        identity = identity or identities.get((SOURCE, partition, row["source_offset"]))
        if topic == source.topic and partition is not None:
            topic, partition = source.place(partition)
        places = (topic, partition, row["source_offset"], row["output_index"])
        lineage = "/".join(str(place) for place in places if place is not None)
    elif row["source_partition"] is not None and row["partition"] is None:
        # A row about a whole partition of the source.
        topic, partition = source.place(row["source_partition"])
        lineage = f"{topic}/{partition}"
    return Example(
        row["partition"], row["offset"], lineage, row["transaction"], row["why"], identity
    )
