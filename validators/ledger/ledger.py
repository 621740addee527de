"""The ledger of a sink and its source: the counted facts, and the frames behind them. Every
validator receives one; validators/ledger/build.py builds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from topicproof.validators.circumstances import NO_CIRCUMSTANCES, Circumstances
from topicproof.validators.coordinator import Coordinator
from topicproof.validators.expected import Expect
from topicproof.validators.facts.balance import Headers, Records, balance_of, balance_unheard
from topicproof.validators.facts.cell import Cell
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.finding import (
    Balance,
    Bounds,
    Order,
    PartitionBounds,
    Transactions,
    Witness,
)
from topicproof.validators.folded.fold import Folded
from topicproof.validators.incarnations import is_older
from topicproof.validators.ledger.counts import (
    REPEAT_COLUMNS,
    Counts,
    Frames,
    GroupCounts,
    Values,
    later_copies,
    outputs_produced,
    values_wanted,
    without_letters,
)
from topicproof.validators.ledger.retained import (
    OUTPUTS_MIN,
    RetainedRange,
    count_outputs,
    retained_range,
)
from topicproof.validators.ledger.rows import Declared
from topicproof.validators.polled import Polled
from topicproof.validators.question import Question
from topicproof.validators.readings import NOTHING_LOGGED, Readings, SourceLog, keep

HEADERS = "headers"
"""The witness for transactions, if the records' own headers are it."""


class ReadingsNeeded(Exception):
    """Something is odd, or folded readings cannot answer the question: each record must be
    examined."""


class Accounts(NamedTuple):
    """The accounts of the witnesses besides the readings; None for a witness that was not heard."""

    raw_log: RawLog | None = None
    declared: Declared | None = None
    coordinator: Coordinator | None = None
    source_log: SourceLog | None = None
    polled: Polled | None = None

    @property
    def heard(self) -> frozenset[Witness]:
        witnesses = (
            Witness.RAW_LOG,
            Witness.JOURNAL,
            Witness.COORDINATOR,
            Witness.SOURCE_LOG,
            Witness.READER,
        )
        with_account = {
            witness for witness, account in zip(witnesses, self, strict=True) if account is not None
        }
        return frozenset(with_account | {Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED})

    @property
    def journaled(self) -> frozenset[str]:
        """Transactional ids named in the journal."""
        return self.declared.transactional_ids if self.declared is not None else frozenset()


NO_ACCOUNTS = Accounts()


class LedgerInput(NamedTuple):
    """What to count."""

    spark: SparkSession
    question: Question
    sink_bounds: Bounds
    readings: Readings | Folded
    """Read more than once, so keep them first."""
    evidence: str
    """URL of the folder for computed results; leftovers of an interrupted run are replaced."""
    accounts: Accounts = NO_ACCOUNTS
    circumstances: Circumstances = NO_CIRCUMSTANCES
    """What is known of the topics besides their records."""
    doubts: Sequence[str] = ()
    """Reasons, as clauses, not to trust the readings."""
    source_ids: Mapping[str, str] = {}
    """The ids of the source's topics, as far as they are known."""

    @property
    def offsets(self) -> int:
        return self.sink_bounds.offsets + self.question.source.offsets

    @property
    def source_log(self) -> SourceLog:
        return self.accounts.source_log or NOTHING_LOGGED

    @property
    def records(self) -> Readings:
        """The readings with their records. Raises ReadingsNeeded if they are folded."""
        if isinstance(self.readings, Folded):
            raise ReadingsNeeded
        return self.readings

    @property
    def range_read(self) -> Bounds:
        """The range that the source's reading has; the judged range may end earlier."""
        judged, ends = self.question.source, self.circumstances.source_lso
        return replace(
            judged,
            partitions=tuple(
                replace(bounds, lso=max(bounds.lso, ends.get(bounds.partition, bounds.lso)))
                for bounds in judged.partitions
            ),
        )


@dataclass(frozen=True)
class Ledger:
    """Everything that is judged. The figures are already counted. The frames are computed only
    where the figures show something odd."""

    spark: SparkSession
    question: Question
    sink_bounds: Bounds
    accounts: Accounts
    """What the witnesses besides the readings say."""
    circumstances: Circumstances
    readings: Readings | None
    """None if they are folded."""
    counts: Counts
    doubts: tuple[str, ...]
    """Reasons not to trust the readings, as clauses; empty if they can be trusted."""
    evidence: str
    """URL of the folder where the frames are kept."""
    took_s: float
    groups: GroupCounts | None = None
    """The figures of aggregates; None unless the contract is about them."""

    @property
    def frames(self) -> Frames:
        return self.counts.frames

    @cached_property
    def sink(self) -> DataFrame:
        """One row per record of the read_uncommitted reading, with `SINK_COLUMNS`; kept as
        Parquet."""
        return self.frames.records()

    @cached_property
    def repeats(self) -> DataFrame:
        """The later copies among the committed records with an input: partition, offset, copies
        (how many there are in total), first_partition, first_offset (of the first copy); kept as
        Parquet."""
        offsets = self.sink_bounds.offsets + self.question.source.offsets
        return keep(later_copies(self.present), f"{self.evidence}/repeats", offsets, REPEAT_COLUMNS)

    @cached_property
    def balance(self) -> tuple[Balance, ...]:
        """Where each partition's offsets went."""
        has_log = self.accounts.raw_log is not None
        return balances(self.sink_bounds, self.counts, has_log=has_log)

    @cached_property
    def transactions(self) -> Transactions:
        """Transactions by outcome: from the records' headers, otherwise from the raw log, which
        counts a transaction once per partition."""
        ids, ends = self.counts.ids, self.counts.ends
        if ids:
            committed, aborted, unfinished = (
                sum(getattr(transactional_id, end) for transactional_id in ids)
                for end in ("committed", "aborted", "open")
            )
            return Transactions(committed, aborted, unfinished, HEADERS)
        if ends:
            committed, aborted, unfinished = (
                ends.get(end, 0) for end in ("COMMITTED", "ABORTED", "OPEN")
            )
            return Transactions(committed, aborted, unfinished, Witness.RAW_LOG.value)
        return Transactions(None, None, None, None)

    @cached_property
    def values(self) -> Values | None:
        """The values that the contract requires; None if it does not constrain values."""
        question = self.question
        if self.readings is None:
            return None
        inputs, outputs = self.readings.inputs, self.readings.uncommitted
        return values_wanted(inputs, outputs, question.source, question.agreed)

    @property
    def present(self) -> DataFrame:
        """`in_sink` without the outputs of a deleted topic of the source's name."""
        foreign = self.of_namesakes
        return self.in_sink if foreign is None else self.in_sink.where(~foreign)

    @property
    def in_sink(self) -> DataFrame:
        """`sink` without the dead letters."""
        return self.sink if self.question.agreed.letters is None else without_letters(self.sink)

    @property
    def of_namesakes(self) -> Column | None:
        """Whether a row of `sink` is no output of the present source but of another topic of its
        name: by the id in its header, or because it is too old. None if no row is."""
        if self.by_key:
            return None
        older = is_older(self.circumstances)
        if not self.counts.of_namesake:
            return older
        return F.col("of_namesake") if older is None else F.col("of_namesake") | older

    @property
    def outputs(self) -> DataFrame:
        """The expected outputs of the inputs in the judged range: source_partition, source_offset,
        output_index. A row may occur twice."""
        expected = self.frames.expected
        return outputs_produced(self.in_sink) if expected is None else expected

    @cached_property
    def retained(self) -> RetainedRange:
        """Where judging begins if the contract judges only what Kafka has not removed; empty
        otherwise."""
        return self.retained_range(OUTPUTS_MIN)

    def retained_range(self, outputs_min: int) -> RetainedRange:
        """`retained`, where so many outputs show which sink partitions a source partition has
        outputs in."""
        circumstances = self.circumstances
        removed = circumstances.source_removed if self.by_key else {}
        if not self.question.agreed.retained or not (removed or circumstances.sink_removed):
            return RetainedRange()
        # Where repeats are allowed, an output may be committed again after those of later inputs.
        # Where an input may be without an output, or the output without an identity, one that is
        # there may be that of a removed input with the same identity.
        promised = ["order", "duplicate", *(["gap"] if self.by_key else [])]
        require, agreed = self.question.agreed.require, self.question.agreed
        in_order = not agreed.repeats and (require is None or set(promised) <= set(require))
        if self.by_key:
            expected = self.question.expected
            is_filter = expected.kind is Expect.ZERO_OR_ONE and expected.count is None
            in_order &= not (is_filter or agreed.losses or self.unidentified_outputs)
        judged = retained_range(
            count_outputs(self.present),
            {bounds.partition: bounds.start for bounds in self.sink_bounds.partitions},
            source_removed=removed,
            sink_removed=circumstances.sink_removed,
            by_key=self.by_key,
            in_order=in_order and self.question.order is Order.PER_SOURCE_PARTITION,
            outputs_min=outputs_min,
        )
        # Of inputs that share an identity, nothing tells which one lacks its output.
        return replace(judged, complete=frozenset()) if self.counts.identities.repeated else judged

    @property
    def by_key(self) -> bool:
        return self.question.by_key

    @property
    def unidentified_outputs(self) -> int:
        """Number of committed and pending sink records without an identity, if records are matched
        by key."""
        return sum(cell.unidentified for cell in self.counts.cells)

    @property
    def undecoded_outputs(self) -> int:
        """Number of committed and pending sink records that cannot be decoded, if a contract names
        their fields."""
        return sum(cell.undecoded for cell in self.counts.cells)

    @property
    def disjoint(self) -> bool:
        """Whether both topics have records, but no sink record names an input of the source. Dead
        letters may name theirs by something else."""
        cells = self._output_cells
        records = sum(cell.committed + cell.pending for cell in cells)
        has_inputs = self.counts.inputs.judged > 0 or self.source_incomplete
        return (
            records > 0
            and has_inputs
            and not any(cell.of_source or cell.of_aborted for cell in cells)
        )

    @property
    def source_incomplete(self) -> bool:
        return bool(self.circumstances.source_removed)

    @property
    def sink_incomplete(self) -> bool:
        return bool(self.circumstances.sink_removed)

    @property
    def committed(self) -> int:
        return sum(cell.committed for cell in self.counts.cells)

    def after(self, partition: int) -> int:
        """Returns the source offset after the partition's last input with a committed output; 0 if
        there is none."""
        source_offsets = [
            cell.last_source_offset for cell in self.matched if cell.source_partition == partition
        ]
        return max((offset + 1 for offset in source_offsets if offset is not None), default=0)

    @property
    def aborted(self) -> int:
        return sum(cell.aborted for cell in self.counts.cells)

    @property
    def dead_letter_share(self) -> float:
        """Share of the judged inputs with a committed dead letter, from 0 to 1."""
        letters, inputs = self.counts.letters, self.counts.inputs.judged
        return letters.inputs / inputs if letters is not None and inputs else 0.0

    @property
    def pending(self) -> int:
        """Number of pending offsets (not records): at and above the last stable offset nothing is
        settled."""
        return sum(partition.hw - partition.lso for partition in self.sink_bounds.partitions)

    def marks(self, name: str) -> int:
        """Sums one count of the batch headers (a field of Headers) over all partitions."""
        return sum(getattr(headers, name) for headers in self.counts.headers.values())

    @property
    def at_inputs(self) -> int:
        return sum(cell.at_inputs for cell in self.counts.cells)

    @property
    def matched(self) -> tuple[Cell, ...]:
        """The cells of records of the sink with an input. No cell of dead letters."""
        return tuple(cell for cell in self._output_cells if cell.source_partition is not None)

    @property
    def _output_cells(self) -> tuple[Cell, ...]:
        first = self.question.first_of_letters(self.sink_bounds)
        return tuple(cell for cell in self.counts.cells if first is None or cell.partition < first)


def balances(sink_bounds: Bounds, counts: Counts, *, has_log: bool) -> tuple[Balance, ...]:
    """Returns where each partition's offsets went. `has_log`: whether the raw log was heard."""
    return tuple(
        _balance(partition, counts.cells, counts.headers, has_log)
        for partition in sink_bounds.partitions
    )


def _balance(
    bounds: PartitionBounds, cells: Sequence[Cell], headers: Mapping[int, Headers], has_log: bool
) -> Balance:
    partition_cells = [cell for cell in cells if cell.partition == bounds.partition]
    records = Records(
        **{name: sum(getattr(cell, name) for cell in partition_cells) for name in Records._fields}
    )
    return (
        balance_of(bounds, records, headers.get(bounds.partition))
        if has_log
        else balance_unheard(bounds, records)
    )
