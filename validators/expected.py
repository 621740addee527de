"""How many outputs an input must have, and thus which outputs the sink must hold.

- `one_to_one`: each input has exactly one, of index 0.
- `one_to_many`: each input has as many as its count states, with indices 0 to count - 1. A count of
  0 is a filtered input.
- `zero_or_one` with a count: like `one_to_many` with 0 or 1.
- `zero_or_one` without a count: an input without a record in the sink was filtered out or lost.
  Nothing in the topics tells which, so such inputs are not judged, and the report warns of them
  (exit code 2) unless the contract says `filtered: unchecked`. By lineage, an output that was
  produced but never committed still counts as missing: the pipeline did make it. A second output is
  too many.

A count that is null, negative, a fraction or above `COUNT_MAX` is a doubt: then nothing is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.finding import Bounds
from topicproof.validators.offsets import between, own_place

COUNT_MAX = 1_000_000
"""Maximum outputs of an input; a higher count is a mistake in the expression."""
NUMBER_TEXT = r"^[\x00-\x20\x7f]*+[!-~]{0,300}+[\x00-\x20\x7f]*+(?![\s\S])"
"""Texts of doubles and floats that take little time. What Java cannot read, Spark makes lower case
as Java does, in quadratic time on many capital sigmas. No number has a letter beyond ASCII."""
NUMBERED = "numbered_partition"


class Expect(StrEnum):
    """How many outputs an input has."""

    ONE_TO_ONE = "one_to_one"
    ZERO_OR_ONE = "zero_or_one"
    ONE_TO_MANY = "one_to_many"


@dataclass(frozen=True)
class Expected:
    """The outputs expected of each input. Raises ValueError for a count that does not fit the
    kind."""

    kind: Expect = Expect.ONE_TO_ONE
    count: str | DataFrame | None = None
    """Spark SQL over the source record (`record`), or a frame with one row per input: partition,
    offset, count."""

    def __post_init__(self) -> None:
        if self.kind is Expect.ONE_TO_MANY and self.count is None:
            raise ValueError("one_to_many needs a count of outputs per input.")
        if self.kind is Expect.ONE_TO_ONE and self.count is not None:
            raise ValueError("one_to_one has no count: it is 1. Choose one_to_many.")

    @property
    def most(self) -> int | None:
        """Maximum outputs of any input; None for no limit."""
        return None if self.kind is Expect.ONE_TO_MANY else 1

    def counts(self, source: DataFrame, bounds: Bounds) -> DataFrame | None:
        """Returns the counts by input within the bounds: source_partition, source_offset, expected
        (null if no valid count is known). None if every input has the same count."""
        if self.count is None:
            return None
        inputs = source.where(between("partition", "offset", bounds, "lso"))
        if isinstance(self.count, str):
            counted = record(inputs, bounds).select(
                F.col(NUMBERED).alias("partition"), "offset", F.expr(self.count).alias("count")
            )
        else:
            counted = inputs.select("partition", "offset").join(
                self.count, ["partition", "offset"], "left"
            )
        # A fraction is no count; a cast alone would round it. Spark casts within `when` only if its
        # condition holds.
        is_short = F.col("count").cast("string").rlike(NUMBER_TEXT)
        number = F.when(is_short, F.col("count").try_cast("double"))
        whole = number == F.col("count").try_cast("long")
        count = F.when(whole, F.col("count").try_cast("long"))
        return counted.select(
            F.col("partition").alias("source_partition"),
            F.col("offset").alias("source_offset"),
            F.when(count.between(0, self.most or COUNT_MAX), count).cast("int").alias("expected"),
        )


ONE_TO_ONE = Expected()


def record(reading: DataFrame, bounds: Bounds) -> DataFrame:
    """Prepares a reading for expressions: topic, partition, offset, timestamp, headers, and key and
    value as text, byte by byte. So `cast(value as bigint)` and `get_json_object(value, '$.id')`
    work. Topic and partition are the record's own; `NUMBERED` is the partition among those of all
    topics in `bounds`."""
    texts = {name: F.col(name).cast("string") for name in ("key", "value")}
    topic, partition = own_place(bounds)
    place = {"topic": topic, "partition": partition, NUMBERED: F.col("partition")}
    return reading.withColumns({**texts, **place})


def outputs_of(counts: DataFrame) -> DataFrame:
    """Returns one row per output: source_partition, source_offset, output_index."""
    counted = counts.where(F.col("expected") > 0)
    index = F.explode(F.sequence(F.lit(0), F.col("expected") - 1)).alias("output_index")
    return counted.select("source_partition", "source_offset", index)
