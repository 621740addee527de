"""Which input a sink record is an output of: by the header that our sink writes, or by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from validators.expected import outputs_of
from validators.finding import Fate
from validators.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from validators.json_path import exact_text, parse_path

KEY = "key"


class Identity(StrEnum):
    """How a sink record is matched with its input."""

    LINEAGE = "lineage"
    """By the header that our sink writes."""
    KEY = "key"
    """By key: its k-th occurrence in the sink, by (partition, offset), is the k-th expected output of the inputs with
    that key. Extra ones repeat the last. Two null keys are equal. With equal keys the missing one cannot be told: it is
    the last. A key that only aborted records of the source have is that of the first of them; one that committed inputs
    have too is theirs, as nothing tells such records apart."""


@dataclass(frozen=True)
class Match:
    """What identity by key takes for the key: `key`, `value`, `header:NAME` (the last one of that name) or `json:PATH`
    (a path into the value, such as `json:$.id`, whose text is exact: validators/json_path.py); on either side its
    own."""

    source: str = KEY
    sink: str = KEY

    def of_source(self) -> Column:
        return _held(self.source)

    def of_sink(self) -> Column:
        return _held(self.sink)


KEYS = Match()


def _held(by: str) -> Column:
    """What a record holds to be matched by, as binary; null where it has none."""
    how, _, what = by.partition(":")
    match how:
        case "header":
            return last_header(what)
        case "json":
            return exact_text(F.col("value").cast("string"), parse_path(what)).cast("binary")
        case _:
            return F.col(how)


def with_input(
    records: DataFrame,
    source: DataFrame,
    topic: str,
    identity: Identity,
    counts: DataFrame | None = None,
    match: Match = KEYS,
    aborted: DataFrame | None = None,
) -> DataFrame:
    """Adds source_topic, source_partition, source_offset and output_index; all null where no input is known. `counts`:
    how many outputs each input has (validators/expected.py), where that is not one. For identity by key `records` hold
    what `match` takes for the key as `held`; it is dropped. `aborted`: the source's aborted records, where there are
    any.
    """
    match identity:
        case Identity.LINEAGE:
            types = {
                "source_topic": "string",
                "source_partition": "int",
                "source_offset": "long",
                "output_index": "int",
            }
            return _with_header(records, LINEAGE_HEADER, types)
        case Identity.KEY:
            inputs = source.withColumn("held", match.of_source())
            lost = aborted.withColumn("held", match.of_source()) if aborted is not None else None
            return _with_key(records, inputs, topic, counts, lost)


def with_transaction(records: DataFrame) -> DataFrame:
    """Adds transactional_id, sequence, attempt, task and total; all null where the header is missing or malformed."""
    types = {"transactional_id": "string", "sequence": "long", "attempt": "int", "task": "string", "total": "long"}
    return _with_header(records, TRANSACTION_HEADER, types)


def _with_header(records: DataFrame, header: str, types: Mapping[str, str]) -> DataFrame:
    """Adds the parts of a header, or nulls unless they spell its text again: the rule of validators/headers.py."""
    records = records.withColumn("text", last_header(header).cast("string")).withColumn("parts", F.split("text", "/"))
    parts = {name: F.get("parts", F.lit(place)).try_cast(kind) for place, (name, kind) in enumerate(types.items())}
    filled = [F.col(name) != "" if kind == "string" else F.col(name) >= 0 for name, kind in types.items()]
    valid = reduce(Column.__and__, filled, F.concat_ws("/", *types) == F.col("text"))
    records = records.withColumns(parts).withColumn("valid", valid)
    named = {name: F.when(F.col("valid"), F.col(name)) for name in types}
    return records.withColumns(named).drop("text", "parts", "valid")


def last_header(name: str) -> Column:
    """The value of the header; where the name occurs twice, of the last: Kafka's own rule."""
    from_end = F.array_position(F.reverse(F.col("headers.key")), name)
    return F.try_element_at(F.col("headers.value"), -F.nullif(from_end, F.lit(0)).cast("int"))


def _with_key(
    records: DataFrame, source: DataFrame, topic: str, counts: DataFrame | None, aborted: DataFrame | None
) -> DataFrame:
    """Of a key's records the committed come before the pending; aborted ones are matched with nothing."""
    countable = F.col("fate").isin(Fate.COMMITTED.value, Fate.PENDING.value)
    in_turn = Window.partitionBy("held", "countable").orderBy(
        F.col("fate") == Fate.PENDING.value, "partition", "offset"
    )
    records = records.withColumn("countable", countable)
    records = records.withColumn("nth", F.when(F.col("countable"), F.row_number().over(in_turn)))
    places = ("source_partition", "source_offset", "output_index")
    outputs = source.select(
        F.col("held").alias("source_key"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
    )
    if counts is None:
        outputs = outputs.withColumn("output_index", F.lit(0))
    else:
        outputs = outputs.join(outputs_of(counts), ["source_partition", "source_offset"])
    totals = outputs.groupBy(F.col("source_key").alias("total_key")).agg(F.count("*").alias("outputs_of_key"))
    outputs = outputs.withColumn("source_nth", F.row_number().over(Window.partitionBy("source_key").orderBy(*places)))
    records = records.join(totals, F.col("held").eqNullSafe(F.col("total_key")), "left")
    records = records.withColumn("nth", F.when(F.col("outputs_of_key") > 0, F.least("nth", "outputs_of_key")))
    same = F.col("held").eqNullSafe(F.col("source_key")) & (F.col("nth") == F.col("source_nth"))
    records = records.join(outputs, same, "left")
    if aborted is not None:
        records = _with_aborted(records, aborted)
    return records.withColumn("source_topic", F.when(F.col("source_offset").isNotNull(), F.lit(topic))).drop(
        "held", "countable", "nth", "total_key", "outputs_of_key", "source_key", "source_nth"
    )


def _with_aborted(records: DataFrame, aborted: DataFrame) -> DataFrame:
    """Fills in the place of the first aborted record with the same key, where no input has that key."""
    firsts = aborted.groupBy(F.col("held").alias("lost_key")).agg(F.min(F.struct("partition", "offset")).alias("lost"))
    unmatched = F.col("countable") & F.col("source_offset").isNull() & F.col("outputs_of_key").isNull()
    records = records.join(firsts, unmatched & F.col("held").eqNullSafe(F.col("lost_key")), "left")
    places = {
        "source_partition": F.coalesce("source_partition", "lost.partition"),
        "source_offset": F.coalesce("source_offset", "lost.offset"),
        "output_index": F.when(F.col("lost").isNotNull(), F.lit(0)).otherwise(F.col("output_index")),
    }
    return records.withColumns(places).drop("lost_key", "lost")
