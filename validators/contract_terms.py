"""Contract terms for two topics, beyond the guarantee and the number of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, functions as F

from topicproof.validators.aggregate import AggregateTerms
from topicproof.validators.columns import TableTerms, compared_columns
from topicproof.validators.decoded import path_of, text_of
from topicproof.validators.expectation import BY_CONTRACT, required_by_terms
from topicproof.validators.lineage.dead_letters import DeadLetters
from topicproof.validators.lineage.identity import KEYS, Match
from topicproof.validators.thresholds import NO_THRESHOLDS, Thresholds


@dataclass(frozen=True)
class ContractTerms:
    """The terms of a contract; the defaults add nothing."""

    match: Match = KEYS
    """What serves as the key on each side, for identity by key."""
    value: str | None = None
    """Spark SQL over the source record (validators/expected.py, `record`): the required value of
    its output, as text. For inputs with one output."""
    offsets: Mapping[int, int] | None = None
    """The consumer group's committed offsets of the source, by partition; they must agree with the
    output."""
    require: tuple[str, ...] | None = None
    """The kinds that make the verdict; None: those of the guarantee."""
    warn: Thresholds = NO_THRESHOLDS
    retained: bool = False
    """Whether only what the topics still hold is judged, regardless of what Kafka has removed."""

    filter_unchecked: bool = False
    """Whether an input without an output needs no warning, although it may be lost: `zero_or_one`
    without a count cannot tell."""
    unique: bool = False
    """Whether only the sink is judged: each identity in it must occur once. The source is then the
    sink itself, and its inputs are the first records of each identity."""
    repeats: bool = False
    """Whether the guarantee allows repeated outputs."""
    losses: bool = False
    """Whether the guarantee allows lost outputs."""
    compared: tuple[str, ...] = ()
    """The fields of the output that `value` gives, as a JSON object of texts; empty: its value as
    bytes."""
    source_fields: tuple[str, ...] = ()
    """The fields of source records that the terms name, as validators/decoded.py spells them."""
    sink_fields: tuple[str, ...] = ()
    group: str | None = None
    """The name of the group of `offsets`, if it is known."""
    letters: DeadLetters | None = None
    """Where inputs are that could not be processed: the last topic of the question's `also`. Each
    input is due in the sink or there."""
    aggregate: AggregateTerms | None = None
    """What outputs are of, if they are aggregates of many inputs. No output then has an input of
    its own."""
    table: TableTerms | None = None
    """What is said of the sink if it is a database table, and no topic."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that these terms require."""
        terms = [term for term in BY_CONTRACT.values() if getattr(self, term.field) is not None]
        return required_by_terms(terms, of_table=self.table is not None)

    @property
    def needs_decoded_sink(self) -> bool:
        """Whether the terms name fields of the outputs, and not only of dead letters. A table's
        columns need no decoding."""
        if self.table is not None:
            return False
        is_aggregate = self.aggregate is not None and bool(self.sink_fields)
        return self.match.sink in self.sink_fields or bool(self.compared) or is_aggregate

    @property
    def needs_records(self) -> bool:
        """Whether the terms compare keys, values or headers of records, which folded readings do
        not hold."""
        return self.value is not None or self.aggregate is not None


AS_JSON = ("to_json(", ", map('ignoreNullFields', 'false'))")
"""What `value` has around the struct of its texts, if it gives several fields."""


def broken_text(agreed: ContractTerms) -> Column:
    """Returns whether a text that `value` gives for a field is not UTF-8. JSON would make another
    text of it, so nothing can be compared."""
    if agreed.value is None or not agreed.compared:
        return F.lit(False)
    value = F.expr(agreed.value.removeprefix(AS_JSON[0]).removesuffix(AS_JSON[1]))
    whole = (F.is_valid_utf8(value.getField(path_of(field))) for field in agreed.compared)
    return ~reduce(and_, (F.coalesce(is_valid, F.lit(True)) for is_valid in whole))


def compared_value(agreed: ContractTerms) -> Column:
    """Returns what is compared with the required value of an output."""
    if not agreed.compared:
        return F.col("value")
    if agreed.table is not None:
        return compared_columns(F.col("value"), agreed.table.types)
    texts = F.struct(*(text_of(field).alias(path_of(field)) for field in agreed.compared))
    return F.to_json(texts, {"ignoreNullFields": "false"}).cast("binary")


def digest(value: Column) -> Column:
    """Returns what stands for a value in comparisons: 16 bytes, null for null. Unlike a hash made
    for speed, the author of a record cannot choose another value with the same digest."""
    return F.substring(F.unhex(F.sha2(value, 256)), 1, 16)


NOTHING_MORE = ContractTerms()
