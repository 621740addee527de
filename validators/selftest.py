"""Does the chain catch what it claims to? Injects a duplicate, a gap, a swap and a torn transaction
into copies.

Only the content of four records changes, and the number of records that one transaction claims. No
offset, batch or marker is touched, so the raw log fits the copies as well as the readings. Of four
neighbours in one transaction, the first is written over the second (a duplicate, and a gap), and
the last two change places (an inversion). For identity by key, only records with a unique key are
used.

What a question does not ask cannot be caught. If only keys keep the order, two neighbours may be
exchanged. If nothing distinguishes filtered inputs from lost ones, an output that was never
produced is no gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window, functions as F

from topicproof.validators.expected import ONE_TO_ONE, Expect, Expected
from topicproof.validators.facts.header_transactions import NAME
from topicproof.validators.finding import Fate, Order
from topicproof.validators.ledger.rows import Place
from topicproof.validators.lineage.header_columns import (
    TRANSACTION_TEXT,
    with_last,
    with_transaction_text,
)
from topicproof.validators.lineage.headers import TRANSACTION_HEADER
from topicproof.validators.offsets import by_partition
from topicproof.validators.report import Report

KINDS = ("duplicate", "gap", "order", "torn")
NEIGHBOURS = 4


@dataclass(frozen=True)
class Injection:
    """The place of an injection."""

    partition: int
    offsets: tuple[int, int, int, int]
    """The first is written over the second; the third and the fourth change places."""
    kinds: tuple[str, ...]
    """The kinds that must be caught."""
    torn: str | None
    """`<transactional id>/<sequence>/<attempt>/<task>/<total>` of a complete transaction; None
    without such headers."""

    @property
    def sources(self) -> dict[int, int]:
        """Maps an offset to the offset whose content it gets."""
        first, second, third, fourth = self.offsets
        return {second: first, third: fourth, fourth: third}


@dataclass(frozen=True)
class Caught:
    """The result of one injection. One finding is right: more or fewer is a fault of the chain."""

    kind: str
    found: int


def why_not(sink: DataFrame, by_key: bool, after: Mapping[int, int] | None = None) -> str:
    """Explains why `choose` finds no place in `sink`, as a clause. `by_key`: only records whose
    identity no other record has are in it. `after`: as in `choose`."""
    four = "four committed outputs of one source partition, in one partition of the sink"
    rows = _usable(sink, after)
    named = F.col("transactional_id").isNotNull()
    groups = rows.groupBy("partition", "source_partition", *NAME).agg(
        F.count("*").alias("outputs"), F.bool_or(named).alias("named")
    )
    row = groups.agg(F.max("outputs"), F.bool_or("named")).collect()[0]
    most, has_names = row[0] or 0, bool(row[1])
    together = f"{four}, in one transaction" if has_names else four
    unique = ", each with an identity that no other record has" if by_key else ""
    behind = "" if after is None else ", where no copy can stem from a removed input"
    return f"it needs {together}{unique}{behind}, and finds {'at most ' if most else ''}{most}"


def _usable(sink: DataFrame, after: Mapping[int, int] | None) -> DataFrame:
    """Returns the committed outputs of judged inputs, behind these offsets if they are given."""
    rows = sink.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    )
    if after is None:
        return rows
    return rows.where(F.col("offset") > by_partition("partition", after) if after else F.lit(False))


def choose(
    sink: DataFrame,
    expected: Expected = ONE_TO_ONE,
    order: Order = Order.PER_SOURCE_PARTITION,
    unique: bool = False,
    after: Mapping[int, int] | None = None,
) -> Injection | None:
    """Chooses where to inject into the readings of a ledger's `sink`; None if no transaction holds
    four neighbours. `after`: offsets by partition; only records behind them are used, and none of
    other partitions."""
    rows = _usable(sink, after)
    line = ("partition", "source_partition", *NAME)
    turn = F.row_number().over(Window.partitionBy(*line).orderBy("offset"))
    firsts = rows.withColumn("turn", turn).where(F.col("turn") <= NEIGHBOURS)
    four = firsts.groupBy(*line).agg(F.sort_array(F.collect_list("offset")).alias("offsets"))
    neighbours = (
        four.where(F.size("offsets") == NEIGHBOURS)
        .orderBy("partition", F.col("offsets")[0])
        .limit(1)
        .collect()
    )
    if not neighbours:
        return None
    whole = (
        rows.where(F.col("total").isNotNull())
        .groupBy(*NAME, "total")
        .agg(F.count("*").alias("committed"))
    )
    whole = (
        whole.where(F.col("committed") == F.col("total"))
        .orderBy(F.col("sequence").desc(), *NAME)
        .limit(1)
    )
    torn = whole.select(F.concat_ws("/", *NAME, "total").alias("name")).collect()
    first, second, third, fourth = neighbours[0]["offsets"]
    filtered = expected.kind is Expect.ZERO_OR_ONE and expected.count is None
    is_possible = {
        "duplicate": True,
        "gap": not filtered and not unique,
        "order": order is Order.PER_SOURCE_PARTITION and fourth == third + 1,
        "torn": bool(torn) and not unique,
    }
    kinds = tuple(kind for kind in KINDS if is_possible[kind])
    name = torn[0]["name"] if torn else None
    return Injection(neighbours[0]["partition"], (first, second, third, fourth), kinds, name)


def inject(reading: DataFrame, injection: Injection) -> DataFrame:
    """Adds the injections to a reading: same columns, same offsets."""
    columns = reading.columns
    in_partition = F.col("partition") == injection.partition
    originals = reading.where(
        in_partition & F.col("offset").isin(*injection.sources.values())
    ).select(
        F.col("offset").alias("given_offset"),
        *(F.col(name).alias(f"given_{name}") for name in CONTENT),
    )
    origin = reduce(
        lambda column, pair: column.when(in_partition & (F.col("offset") == pair[0]), pair[1]),
        injection.sources.items(),
        F.when(F.lit(False), F.lit(None).cast("long")),
    )
    rows = reading.withColumn("given_offset", origin).join(
        F.broadcast(originals), "given_offset", "left"
    )
    is_copy = F.col("given_offset").isNotNull()
    content = {
        name: F.when(is_copy, F.col(f"given_{name}")).otherwise(F.col(name)) for name in CONTENT
    }
    rows = rows.withColumns(content)
    if injection.torn is not None:
        rows = with_transaction_text(rows).withColumn("headers", _claiming_more(injection.torn))
    return rows.select(*columns)


CONTENT = ("key", "value", "headers")


def _claiming_more(name: str) -> Column:
    """Changes the headers of one transaction to claim one record too many."""
    identity, _, total = name.rpartition("/")
    claims = with_last(TRANSACTION_HEADER, F.lit(f"{identity}/{int(total) + 1}"))
    return F.when(F.col(TRANSACTION_TEXT) == name, claims).otherwise(F.col("headers"))


def compare(before: Report, after: Report, injection: Injection) -> tuple[Caught, ...]:
    """Compares the reports on the readings and on the copies, for kinds that both looked for."""
    caught = []
    for kind in injection.kinds:
        pair = [
            next((finding for finding in report.findings if finding.kind == kind), None)
            for report in (before, after)
        ]
        if pair[0] is None or pair[1] is None:
            continue
        # Explained gaps count: the torn transaction may explain a gap, and the start of the log may
        # explain the torn transaction.
        by = "primary" if kind in ("duplicate", "order") else "count"
        caught.append(Caught(kind, getattr(pair[1], by) - getattr(pair[0], by)))
    return tuple(caught)
