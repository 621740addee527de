"""Matches a sink record with its input: by the header that our sink writes, or by key.

A chain of topics is judged end to end, its last sink against its first source (`through`). Every
record's lineage names its immediate input. If that input lies in a topic between, its own lineage
names the next one up. Followed to the first source, the sink looks as if one stage had written it.
At most one stage of a chain makes several outputs per input, so output indices add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Window, functions as F

from topicproof.validators.columns import column_text
from topicproof.validators.decoded import text_of
from topicproof.validators.expected import outputs_of
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.json_path import exact_text, parse_path
from topicproof.validators.lineage.compact import COMPACT_HEADER
from topicproof.validators.lineage.header_columns import (
    LINEAGE_TEXT,
    TRANSACTION_TEXT,
    UNREADABLE,
    has_header,
    last_header,
    with_last,
    with_lineage_text,
    with_transaction_text,
)
from topicproof.validators.lineage.headers import LINEAGE_HEADER, PACKED_HEADER
from topicproof.validators.offsets import between
from topicproof.validators.readings import NOTHING_LOGGED, SourceLog, union

KEY = "key"
WORDS_MAX = 250
"""Characters of a path or a name in a sentence."""
_HEADER_NAMES = "headers.list.element.key"
"""Spark's name for that column in Parquet."""


class Identity(StrEnum):
    """How a sink record is matched with its input."""

    LINEAGE = "lineage"
    """The header that our sink writes."""
    KEY = "key"
    """The key: its k-th occurrence in the sink, by (partition, offset), is the k-th expected output
    of the inputs with that key, due inputs first. Extra occurrences repeat the last output. A null
    key identifies nothing: such a record matches no input. If inputs share a key, only counts can
    be judged, and their records are ambiguous. If only aborted or pending source records have a
    key, it belongs to the first of them. If committed inputs have it too, it belongs to those,
    because nothing distinguishes such records."""


@dataclass(frozen=True)
class Match:
    """What serves as the key on each side: `key`, `value`, `header:NAME` (the last header of that
    name), `json:PATH` (a path into the value, such as `json:$.id`, with exact text:
    validators/json_path.py), `field:PATH` or `key_field:PATH` (a field of the decoded value or key:
    validators/decoded.py), `column:NAME` (of a row of a table: validators/columns.py)."""

    source: str = KEY
    sink: str = KEY

    @property
    def words(self) -> str:
        """`json $.id = header order-id`; once, if both sides have the same. Long ones are cut."""
        sides = (side.replace(":", " ", 1) for side in dict.fromkeys((self.source, self.sink)))
        return " = ".join(
            side if len(side) <= WORDS_MAX else f"{side[: WORDS_MAX - 1]}…" for side in sides
        )

    def of_source(self) -> Column:
        return _held(self.source)

    def of_sink(self) -> Column:
        return _held(self.sink)


KEYS = Match()


def _held(by: str) -> Column:
    """Returns a record's identity as binary; null if it has none."""
    carrier, _, name = by.partition(":")
    match carrier:
        case "header":
            return last_header(name)
        case "json":
            return exact_text(F.col("value").cast("string"), parse_path(name)).cast("binary")
        case "column":
            return column_text(name).cast("binary")
        case "field" | "key_field":
            return text_of(by).cast("binary")
        case _:
            return F.col(carrier)


def with_input(
    records: DataFrame,
    source: DataFrame,
    bounds: Bounds,
    identity: Identity,
    counts: DataFrame | None = None,
    match: Match = KEYS,
    source_log: SourceLog = NOTHING_LOGGED,
    lettered: DataFrame | None = None,
) -> DataFrame:
    """Adds source_topic, source_partition, source_offset and output_index; all null if no input is
    known. By key, also adds `identified` (the record holds an identity), `ambiguous` (several
    inputs share it) and `waiting` (a pending source record has it too).

    `bounds` is the judged range of the source. `counts`: the number of outputs of each input
    (validators/expected.py), if not one. For identity by key, `records` need the columns `held`
    (the key according to `match`) and `countable` (whether they are committed or may be); both are
    dropped. `lettered`: the inputs with a dead letter (source_partition, source_offset). Of inputs
    that share a key, these come last.
    """
    match identity:
        case Identity.LINEAGE:
            return with_lineage(records)
        case Identity.KEY:
            pending = _held_by(source_log.pending, match)
            uncommitted = union(_held_by(source_log.aborted, match), pending)
            inputs = identified(source, match)
            is_last = F.lit(False)
            if lettered is not None:
                marked = lettered.withColumn("has_letter", F.lit(True))
                inputs = inputs.join(marked, lettered.columns, "left")
                is_last = F.col("has_letter").isNotNull()
            inputs = inputs.withColumn("is_last", is_last).drop("has_letter")
            return _with_key(records, inputs, bounds, counts, uncommitted, pending)


def with_lineage(records: DataFrame) -> DataFrame:
    """Adds source_topic, source_partition, source_offset and output_index from the header that our
    sink writes. Also source_id (the id of that topic, if the header has it) and unreadable (whether
    the header is damaged, or of a later version)."""
    types = {
        "source_topic": "string",
        "source_partition": "int",
        "source_offset": "long",
        "output_index": "int",
    }
    return _with_parts(with_lineage_text(records), LINEAGE_TEXT, types)


def names_packed_lineage(folder: Path) -> bool:
    """Whether a header of a reading kept as Parquet has the name of packed lineage. Without Spark:
    only the dictionaries of the names are looked through. Raises OSError."""
    for part in sorted(folder.glob("*.parquet")):
        names = pq.ParquetFile(part, read_dictionary=[_HEADER_NAMES])
        for rows in names.iter_batches(columns=[_HEADER_NAMES]):
            if PACKED_HEADER in rows.column(0).flatten().field("key").dictionary.to_pylist():
                return True
    return False


def has_packed_lineage(reading: DataFrame) -> bool:
    """Whether a record of a reading has packed lineage, and none of its own. A program may copy the
    header of its input."""
    named = has_header(LINEAGE_HEADER) | has_header(COMPACT_HEADER)
    packed = reading.where(has_header(PACKED_HEADER) & ~named)
    return bool(packed.select("offset").limit(1).collect())


def identified(source: DataFrame, match: Match) -> DataFrame:
    """Returns the source's records with their identities: source_partition, source_offset,
    source_key (null: none)."""
    return source.select(
        match.of_source().alias("source_key"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
    )


def _held_by(reading: DataFrame | None, match: Match) -> DataFrame | None:
    return None if reading is None else identified(reading, match)


def with_transaction(records: DataFrame) -> DataFrame:
    """Adds transactional_id, sequence, attempt, task and total; all null if the header is missing
    or malformed. Also unreadable, as `with_lineage`."""
    types = {
        "transactional_id": "string",
        "sequence": "long",
        "attempt": "int",
        "task": "string",
        "total": "long",
    }
    return _with_parts(with_transaction_text(records), TRANSACTION_TEXT, types)


def _with_parts(records: DataFrame, text: str, types: Mapping[str, str]) -> DataFrame:
    """Replaces a text by its parts, or nulls if they do not format back to the same text: the rule
    of validators/lineage/headers.py."""
    records = records.withColumn("parts", F.split(text, "/"))
    parts = {
        name: F.get("parts", F.lit(place)).try_cast(kind)
        for place, (name, kind) in enumerate(types.items())
    }
    filled = [
        F.col(name) != "" if kind == "string" else F.col(name) >= 0 for name, kind in types.items()
    ]
    valid = reduce(Column.__and__, filled, F.concat_ws("/", *types) == F.col(text))
    records = records.withColumns(parts).withColumn("valid", valid)
    named = {name: F.when(F.col("valid"), F.col(name)) for name in types}
    return records.withColumns(named).drop(text, "parts", "valid")


def _with_key(
    records: DataFrame,
    source: DataFrame,
    bounds: Bounds,
    counts: DataFrame | None,
    uncommitted: DataFrame | None,
    pending: DataFrame | None,
) -> DataFrame:
    """Matches by key. Committed records of a key come before pending ones. Aborted records match
    nothing, even at or above the last stable offset. `source` has the columns of `identified`, and
    is_last (whether it comes after the others with its key)."""
    in_turn = Window.partitionBy("held", "countable").orderBy(
        F.col("fate") == Fate.PENDING.value, "partition", "offset"
    )
    records = records.withColumn("identified", F.col("held").isNotNull())
    records = records.withColumn("nth", F.when(F.col("countable"), F.row_number().over(in_turn)))
    inputs = source.where(F.col("source_key").isNotNull())
    of_key = inputs.groupBy(F.col("source_key").alias("total_key")).agg(
        F.count("*").alias("inputs_of_key"),
        F.min(F.struct("source_partition", "source_offset")).alias("first_of_key"),
    )
    if counts is None:
        outputs = inputs.withColumn("output_index", F.lit(0))
        of_key = of_key.withColumn("outputs_of_key", F.col("inputs_of_key"))
    else:
        outputs = inputs.join(outputs_of(counts), ["source_partition", "source_offset"])
        output_counts = outputs.groupBy(F.col("source_key").alias("total_key")).agg(
            F.count("*").alias("outputs_of_key")
        )
        of_key = of_key.join(output_counts, "total_key", "left")
    # Among inputs that share a key, due inputs come first: then a missing output is missing for
    # certain.
    not_due = ~between("source_partition", "source_offset", bounds, "lso")
    in_order = Window.partitionBy("source_key").orderBy(
        not_due, "is_last", "source_partition", "source_offset", "output_index"
    )
    outputs = outputs.withColumn("source_nth", F.row_number().over(in_order))
    records = records.join(of_key, F.col("held") == F.col("total_key"), "left")
    # `least` would skip a null and give an aborted record the last output.
    matched = F.col("countable") & (F.col("outputs_of_key") > 0)
    records = records.withColumn("nth", F.when(matched, F.least("nth", "outputs_of_key")))
    same = (F.col("held") == F.col("source_key")) & (F.col("nth") == F.col("source_nth"))
    records = records.join(outputs, same, "left")
    if uncommitted is not None:
        records = _with_uncommitted(records, uncommitted)
    waiting = F.lit(False)
    if pending is not None:
        twins = pending.groupBy(F.col("source_key").alias("pending_key")).agg(
            F.count("*").alias("pending_of_key")
        )
        records = records.join(twins, F.col("held") == F.col("pending_key"), "left").drop(
            "pending_key"
        )
        waiting = F.col("pending_of_key").isNotNull()
    shared = F.coalesce(
        (F.col("inputs_of_key") > 1) | (F.col("inputs_of_key").isNotNull() & waiting), F.lit(False)
    )
    has_input = F.col("source_offset").isNotNull() | F.col("inputs_of_key").isNotNull()
    # An input that must have no output is the input of a record with its identity, all the same.
    filtered = F.col("countable") & F.col("source_offset").isNull()
    first = F.when(filtered, F.col("first_of_key"))
    named = {
        "waiting": waiting,
        "ambiguous": shared,
        "source_topic": F.when(has_input, F.lit(bounds.topic)),
        "source_partition": F.coalesce("source_partition", first.getField("source_partition")),
        "source_offset": F.coalesce("source_offset", first.getField("source_offset")),
        "output_index": F.coalesce("output_index", F.when(first.isNotNull(), F.lit(0))),
    }
    return records.withColumns(named).drop(
        "pending_of_key",
        "held",
        "countable",
        "nth",
        "total_key",
        "outputs_of_key",
        "inputs_of_key",
        "first_of_key",
        "source_key",
        "source_nth",
        "is_last",
    )


def _with_uncommitted(records: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Fills in the place of the first aborted or pending record with the same key, if no input has
    that key."""
    firsts = uncommitted.where(F.col("source_key").isNotNull()).groupBy(
        F.col("source_key").alias("lost_key")
    )
    lost = firsts.agg(F.min(F.struct("source_partition", "source_offset")).alias("lost"))
    unmatched = F.col("countable") & F.col("outputs_of_key").isNull()
    records = records.join(lost, unmatched & (F.col("held") == F.col("lost_key")), "left")
    places = {
        "source_partition": F.coalesce("source_partition", "lost.source_partition"),
        "source_offset": F.coalesce("source_offset", "lost.source_offset"),
        "output_index": (
            F.when(F.col("lost").isNotNull(), F.lit(0)).otherwise(F.col("output_index"))
        ),
    }
    return records.withColumns(places).drop("lost_key", "lost")


INPUT = ("source_topic", "source_partition", "source_offset")


def through(records: DataFrame, between: DataFrame, topic: str) -> DataFrame:
    """Replaces lineage that points into `topic` by the lineage of the record it points to.

    `between` is the read_committed reading of `topic`. A record loses its lineage if its input is
    missing or names no input of its own: nothing in the first source explains it.
    """
    columns = records.columns
    up = with_lineage(between).select(
        F.lit(topic).alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.when(F.col("source_offset").isNotNull(), F.concat_ws("/", *INPUT)).alias("up"),
        F.col("output_index").alias("up_index"),
    )
    named = with_lineage(records).join(up, [*INPUT], "left")
    lineage = F.concat_ws("/", "up", F.col("up_index") + F.col("output_index"))
    # Without a value it names nothing, whatever an earlier header says.
    headers = with_last(LINEAGE_HEADER, F.when(F.col("up").isNotNull(), lineage))
    # One that nobody can read stays, and is doubted.
    headers = F.when(F.col(UNREADABLE), F.col("headers")).otherwise(headers)
    return named.withColumn("headers", headers).select(*columns)
