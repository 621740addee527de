"""The rows that validators find: the only place that collects.

Every validator runs under guard: a crash makes its own kind UNKNOWN, but never breaks the report.
All rows found stay in the evidence; the report holds their counts and at most `EXAMPLES_MAX`
examples per kind, worst first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame, Row, Window, functions as F

from topicproof.validators.evidence import COLUMNS, IDENTIFIED, together
from topicproof.validators.facts.writers import with_writers, written
from topicproof.validators.finding import EXAMPLES_MAX, Bounds, Example, Fate
from topicproof.validators.incidents.copies import incident_of_copies
from topicproof.validators.incidents.group_offsets import incident_of_ahead, incident_of_behind
from topicproof.validators.incidents.incident import Incident
from topicproof.validators.incidents.losses import incident_of_losses
from topicproof.validators.incidents.strangers import incident_of_strangers
from topicproof.validators.incidents.table_incidents import incident_of_table
from topicproof.validators.kinds import (
    duplicate,
    gap,
    offset_ahead,
    offset_behind,
    phantom,
    zombie_write,
)
from topicproof.validators.kinds.catalogue import VALIDATORS, Validator
from topicproof.validators.kinds.traits import RowRecord
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.ledger import Ledger, ReadingsNeeded
from topicproof.validators.ledger.rows import Place as InputPlace
from topicproof.validators.offsets import place_text
from topicproof.validators.readings import in_parallel, keep
from topicproof.validators.sentences import transaction_text
from topicproof.validators.spark_errors import where_raised


def _kinds_with(row_record: RowRecord) -> tuple[str, ...]:
    return tuple(
        validator.NAME for validator in VALIDATORS if validator.TRAITS.row_record is row_record
    )


OF_RECORDS = _kinds_with(RowRecord.WRONG)
OF_RECORDS_ASIDE = _kinds_with(RowRecord.ASIDE)
OF_LOST_OUTPUTS = _kinds_with(RowRecord.LOST)
OF_WRITERS = frozenset((*OF_RECORDS, *OF_LOST_OUTPUTS))
OF_IDENTITIES = frozenset(
    validator.NAME for validator in VALIDATORS if validator.TRAITS.shows_identity
)
WRITER_COLUMNS = "writer string, written_ms long, producer string"
"""Who wrote the record of a row, and when that was settled (facts/writers.py). `producer`: of a
record whose header names its transaction, the producer of its batch, with outcome and time."""
WRITERS_MAX = 3
"""A finding names at most this many writers, those with the most rows."""


SINK, SOURCE = "sink", "source"
Place = tuple[str, int, int]
"""`SINK` or `SOURCE`, partition and offset."""
OF_SINK, OF_SOURCE = ("partition", "offset"), ("source_partition", "source_offset")
"""The columns of a row's places."""
IDENTIFIED_FEW = 100_000
"""The places of so many rows go to every worker."""


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
    incident: Incident | None = None
    """What happened, where the logs prove it."""


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
                rows_by_kind[validator.NAME] = FoundRows({}, error=where_raised(error))
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
    counts = rows.groupBy("kind", "explained_by").count().collect()
    if not counts:
        return {validator.NAME: FoundRows({}) for validator in validators}
    kinds = {row["kind"] for row in counts}
    examples, writers, identities, nearest, _ = in_parallel(
        lambda: ranked.orderBy("kind", "rank").collect(),
        lambda: _most_rows(rows).collect() if kinds & OF_WRITERS else [],
        lambda: _identities(ranked, ledger) if kinds & OF_IDENTITIES else {},
        lambda: _nearest_outputs(ranked, ledger) if gap.NAME in kinds else {},
        lambda: _keep_identities(rows, counts, ledger, url) if kinds & OF_IDENTITIES else None,
    )
    primary = {row["kind"] for row in counts if row["explained_by"] is None}
    incidents = _incidents([kind for kind, _ in every if kind in primary], rows, ledger)
    return {
        validator.NAME: FoundRows(
            {row["explained_by"]: row["count"] for row in counts if row["kind"] == validator.NAME},
            tuple(
                _example(
                    row,
                    ledger.question.source,
                    identities if row["kind"] in OF_IDENTITIES else {},
                    nearest if row["kind"] == gap.NAME else {},
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
            incident=incidents.get(validator.NAME),
        )
        for validator in validators
    }


def _incidents(
    kinds: Sequence[str], rows: DataFrame, ledger: Ledger
) -> Mapping[str, Incident | None]:
    """Tells what happened, for each of these kinds that has a story. `rows`: evidence of all
    kinds; only what nothing else explains is told of."""
    primary = rows.where(F.col("explained_by").isNull())
    of_kind = {kind: primary.where(F.col("kind") == kind) for kind in kinds}
    if ledger.question.agreed.table is not None:
        return {kind: incident_of_table(kind, ledger, of_kind[kind]) for kind in of_kind}
    incidents: dict[str, Incident | None] = {}
    if duplicate.NAME in of_kind:
        incidents[duplicate.NAME] = copies = incident_of_copies(ledger, of_kind[duplicate.NAME])
        if copies is not None and zombie_write.NAME in of_kind and not ledger.marks("stale"):
            incidents[zombie_write.NAME] = Incident("", copies.next_step)
    if gap.NAME in of_kind:
        incidents[gap.NAME] = incident_of_losses(ledger, of_kind[gap.NAME])
    if phantom.NAME in of_kind:
        incidents[phantom.NAME] = incident_of_strangers(ledger, of_kind[phantom.NAME])
    if offset_ahead.NAME in of_kind:
        first_lost = _first_inputs(of_kind[offset_ahead.NAME])
        incidents[offset_ahead.NAME] = incident_of_ahead(ledger, first_lost)
    if offset_behind.NAME in of_kind:
        copies = incidents.get(duplicate.NAME)
        incidents[offset_behind.NAME] = incident_of_behind(
            ledger,
            _first_inputs(of_kind[offset_behind.NAME]),
            began_one_low=copies is not None and copies.began_one_low,
        )
    skipped = incidents.get(offset_ahead.NAME)
    if skipped is not None:
        is_lost = (F.col("kind") == gap.NAME) & (F.col("explained_by") == offset_ahead.NAME)
        losses = incident_of_losses(ledger, rows.where(is_lost))
        if losses is not None:
            incidents[offset_ahead.NAME] = replace(skipped, story=losses.story)
    return incidents


def _first_inputs(rows: DataFrame) -> Mapping[int, int]:
    """Returns the input of each row, one of each source partition."""
    inputs = rows.where(F.col("source_offset").isNotNull())
    places = inputs.select("source_partition", "source_offset").collect()
    return {row["source_partition"]: row["source_offset"] for row in places}


def _with_writers(every: Sequence[tuple[str, DataFrame]], ledger: Ledger) -> DataFrame | None:
    """Joins the rows of all kinds, and adds `WRITER_COLUMNS`. A record whose header names no
    transaction gets its writer as the transaction."""
    with_record = (*OF_RECORDS, *OF_RECORDS_ASIDE)
    records = together([rows for name, rows in every if name in with_record])
    outputs = together([rows for name, rows in every if name in OF_LOST_OUTPUTS])
    others = together(
        [rows for name, rows in every if name not in (*with_record, *OF_LOST_OUTPUTS)]
    )
    nobody = {
        name: F.lit(None).cast(kind) for name, kind in map(str.split, WRITER_COLUMNS.split(", "))
    }
    if records is not None:
        records = with_writers(records, ledger.accounts.raw_log)
        is_foreign = F.col("transaction").isNull() & F.col("writer").isNotNull()
        by_header = F.col("transaction").isNotNull() & F.col("writer").isNotNull()
        is_told = F.col("kind").isin(*OF_RECORDS)
        records = records.withColumns(
            {
                "producer": F.when(by_header, written("writer_producer")),
                "transaction": F.when(is_foreign, written()).otherwise(F.col("transaction")),
                "writer": F.when(is_foreign & is_told, F.col("writer")),
            }
        )
        records = records.select("kind", *_names(COLUMNS), *_names(WRITER_COLUMNS))
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
    frames = [
        keys.select(
            F.lit(side).alias("side"),
            *(F.col(name).alias(number) for name, number in zip(place, OF_SINK, strict=True)),
            shown("source_key").alias("identity"),
        )
        for side, place, keys in _keys_of(examples, ledger, is_few=True)
    ]
    rows = reduce(DataFrame.unionByName, frames).collect() if frames else []
    return {(row["side"], row["partition"], row["offset"]): row["identity"] for row in rows}


def _keep_identities(rows: DataFrame, counts: Sequence[Row], ledger: Ledger, url: str) -> None:
    """Keeps the rows once more, with the identity of each record or input. By lineage there is
    none, so nothing is kept."""
    count = sum(row["count"] for row in counts if row["kind"] in OF_IDENTITIES)
    sides = _keys_of(rows, ledger, is_few=count <= IDENTIFIED_FEW)
    if not sides:
        return
    for side, place, keys in sides:
        identity = shown("source_key", in_quotes=False).alias(side)
        rows = rows.join(keys.select(*place, identity), list(place), "left")
    of_sides = F.coalesce(*(side for side, _, _ in sides))
    identity = F.when(F.col("kind").isin(*OF_IDENTITIES), of_sides)
    offsets = ledger.sink_bounds.offsets + ledger.question.source.offsets
    columns = f"kind string, {COLUMNS}, {WRITER_COLUMNS}, identity string"
    rows = rows.withColumn("identity", identity).drop(SINK, SOURCE)
    keep(rows, f"{url}{IDENTIFIED}", offsets, columns)


def _keys_of(
    rows: DataFrame, ledger: Ledger, *, is_few: bool
) -> list[tuple[str, tuple[str, str], DataFrame]]:
    """Returns, for each side, the columns of its places and what its records hold there
    (source_key, not null), at the places of these rows; nothing by lineage. `is_few`: there are few
    rows, so the records need not be shuffled."""
    if ledger.frames.sink_keys is None:
        return []
    rows = rows.where(F.col("kind").isin(*OF_IDENTITIES))
    sides = []
    sources = ledger.frames.identities
    for side, place, keys in (
        (SINK, OF_SINK, ledger.frames.sink_keys()),
        *(() if sources is None else [(SOURCE, OF_SOURCE, sources())]),
    ):
        places = rows.select(*place).dropna().distinct()
        records = keys.where(F.col("source_key").isNotNull())
        sides.append(
            (side, place, records.join(F.broadcast(places) if is_few else places, [*place]))
        )
    return sides


def _nearest_outputs(examples: DataFrame, ledger: Ledger) -> Mapping[Place, str]:
    """Returns a sentence for each gap that left no trace, by the place of its input: who wrote the
    committed output that is nearest in its source partition."""
    if ledger.accounts.raw_log is None:
        return {}
    is_lost = (F.col("kind") == gap.NAME) & F.col("why").contains(gap.WITHOUT_TRACE)
    lost = examples.where(is_lost).select(
        "source_partition", F.col("source_offset").alias("lost_offset")
    )
    outputs = ledger.in_sink.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == InputPlace.INPUT.value)
    ).select("source_partition", "source_offset", "partition", "offset")
    # There are few examples, so the records need not be shuffled.
    pairs = outputs.join(F.broadcast(lost.distinct()), "source_partition")
    distance = F.abs(F.col("source_offset") - F.col("lost_offset"))
    nearest = pairs.groupBy("source_partition", "lost_offset").agg(
        F.min(F.struct(distance, "source_offset", "partition", "offset")).alias("nearest")
    )
    nearest = nearest.select(
        "source_partition",
        "lost_offset",
        "nearest.source_offset",
        "nearest.partition",
        "nearest.offset",
    )
    why = F.concat(
        F.lit(f" {gap.NEAREST}, "),
        place_text(ledger.sink_bounds, "partition", "offset"),
        F.lit(" of input "),
        place_text(ledger.question.source, "source_partition", "source_offset"),
        F.lit(", was written by "),
        written(),
        F.lit("."),
    )
    rows = with_writers(nearest, ledger.accounts.raw_log)
    rows = rows.where(F.col("writer").isNotNull())
    sentences = rows.select("source_partition", "lost_offset", why.alias("why")).collect()
    return {(SOURCE, row["source_partition"], row["lost_offset"]): row["why"] for row in sentences}


def _example(
    row: Row, source: Bounds, identities: Mapping[Place, str], nearest: Mapping[Place, str]
) -> Example:
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
    transaction = row["transaction"]
    if row["producer"] is not None:
        transaction = f"{transaction_text(transaction)}, {row['producer']}"
    why = row["why"] + nearest.get((SOURCE, row["source_partition"], row["source_offset"]), "")
    return Example(row["partition"], row["offset"], lineage, transaction, why, identity)


def _names(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(", ")]
