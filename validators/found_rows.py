"""The rows that validators find: the only place that collects.

Every validator runs under guard: a crash makes its own kind UNKNOWN, but never breaks the report.
All rows found stay in the evidence; the report holds their counts and at most `EXAMPLES_MAX`
examples per kind, worst first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Row, Window
from pyspark.sql import functions as F

from topicproof.validators.evidence import COLUMNS, together
from topicproof.validators.finding import EXAMPLES_MAX, Bounds, Example
from topicproof.validators.in_parallel import in_parallel
from topicproof.validators.kinds.catalogue import Validator
from topicproof.validators.ledger.ledger import Ledger, ReadingsNeeded
from topicproof.validators.readings import keep
from topicproof.validators.spark_errors import first_line


@dataclass(frozen=True)
class FoundRows:
    """A validator's rows, or `error` if it crashed."""

    causes: Mapping[str | None, int]
    examples: tuple[Example, ...] = ()
    error: str | None = None


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
        found: dict[str, FoundRows] = {}
        for one in validators:
            try:
                found |= _collect([one], ledger, f"{ledger.evidence}/findings-{one.NAME}")
            except Exception as error:
                found[one.NAME] = FoundRows({}, error=first_line(error))
        return found


def _collect(validators: Sequence[Validator], ledger: Ledger, url: str) -> dict[str, FoundRows]:
    every = [(one.NAME, rows) for one in validators if (rows := one.find(ledger)) is not None]
    found = together([rows.select(F.lit(name).alias("kind"), "*") for name, rows in every])
    if found is None:
        return {one.NAME: FoundRows({}) for one in validators}
    # If nothing is odd and nothing is missing, only transactions can have rows.
    few = ledger.sound and ledger.at_inputs >= ledger.outputs_count
    offsets = 0 if few else ledger.sink_bounds.offsets + ledger.source_bounds.offsets
    rows = keep(found, url, offsets, f"kind string, {COLUMNS}")
    worst = Window.partitionBy("kind").orderBy(
        F.col("explained_by").isNotNull(),
        F.col("badness").desc(),
        *("partition", "offset", "source_partition", "source_offset"),
    )
    ranked = rows.withColumn("rank", F.row_number().over(worst)).where(
        F.col("rank") <= EXAMPLES_MAX
    )
    counts, examples = in_parallel(
        lambda: rows.groupBy("kind", "explained_by").count().collect(),
        lambda: ranked.orderBy("kind", "rank").collect(),
    )
    return {
        one.NAME: FoundRows(
            {row["explained_by"]: row["count"] for row in counts if row["kind"] == one.NAME},
            tuple(
                _example(row, ledger.source_bounds) for row in examples if row["kind"] == one.NAME
            ),
        )
        for one in validators
    }


def _example(row: Row, source: Bounds) -> Example:
    lineage = None
    if row["source_offset"] is not None:
        topic, partition = row["source_topic"], row["source_partition"]
        if topic == source.topic and partition is not None:
            topic, partition = source.place(partition)
        places = (topic, partition, row["source_offset"], row["output_index"])
        lineage = "/".join(str(place) for place in places if place is not None)
    return Example(row["partition"], row["offset"], lineage, row["transaction"], row["why"])
