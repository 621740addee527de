"""The ledger of a sink and its source: the counted facts, and the frames behind them. Every
validator receives one; validators/ledger/build.py builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from topicproof.validators.circumstances import Circumstances
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.coordinator import Coordinator
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.facts.balance import Headers
from topicproof.validators.facts.cell import Cell
from topicproof.validators.facts.header_transactions import TransactionalId
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.finding import Balance, Bounds, Order, Transactions, Witness
from topicproof.validators.incarnations import is_older
from topicproof.validators.ledger.counts import (
    NOTHING_DECODED,
    DecodedCounts,
    Identities,
    Keys,
    Values,
    later_copies,
    outputs_produced,
)
from topicproof.validators.ledger.retained import (
    OUTPUTS_MIN,
    RetainedRange,
    count_outputs,
    retained_range,
)
from topicproof.validators.ledger.rows import Declared
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.polled import Polled
from topicproof.validators.readings import keep
from topicproof.validators.source_log import SourceLog

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


NO_ACCOUNTS = Accounts()


@dataclass(frozen=True)
class Ledger:
    """Everything that is judged. The facts are already counted. The frames are computed only where
    the facts show something odd."""

    spark: SparkSession
    records: Callable[[], DataFrame]
    """Returns `sink`. Raises ReadingsNeeded if there are only folded readings."""
    named: DataFrame
    """The transactions that the records' headers name, one row per partition, with the columns of
    validators/facts/header_transactions.py."""
    wanted: DataFrame | None
    """The expected outputs (`outputs`); None: as many as were produced."""
    sink_bounds: Bounds
    source_bounds: Bounds
    """The judged range: each partition from `start` to `lso`. The source itself ends at `hw`."""
    raw_log: RawLog | None
    """The sink's raw log; None if it was not heard. Its rows are batches and transactions, so far
    fewer than records."""
    coordinator: Coordinator | None
    """None if it was not heard."""
    heard: frozenset[Witness]
    cells: tuple[Cell, ...]
    headers: Mapping[int, Headers]
    """Counts from the batch headers, by partition; empty if the raw log was not heard."""
    ids: tuple[TransactionalId, ...]
    """Summary of `named` by transactional id."""
    ends: Mapping[str, int]
    """The raw log's transactions by outcome, each counted once per partition that it wrote to."""
    sound: bool
    """Whether a proof shows that nothing is odd (validators/fast_path/proof.py), so the lines are
    in order too."""
    hidden: int
    """Records that the raw log commits and read_committed did not deliver."""
    repeats_count: int
    missing: int
    """Expected outputs without a committed or pending record; 0 if the counts come from the proof
    of validators/fast_path/proof.py."""
    inputs_count: int
    aborted_inputs: int
    """Aborted records in the judged range of the source; 0 if its log was not heard."""
    journaled: frozenset[str]
    """Transactional ids named in the journal."""
    written: DataFrame | None
    """The inputs whose headers name the transaction that wrote them: source_partition,
    source_offset, writer (a struct of NAME, validators/facts/header_transactions.py). None if there
    are none for certain."""
    written_count: int
    writers: frozenset[str]
    """Transactional ids in `written`."""
    polled: Polled | None
    """What a concurrent reader received; None if there was none."""
    outputs_count: int
    """Expected outputs."""
    expected: Expected
    agreed: ContractTerms
    identity: Identity
    circumstances: Circumstances
    identified: Identities
    identities: Callable[[], DataFrame] | None
    """Returns the source's committed and pending records with their identities
    (validators/lineage/identity.py, `identified`) and whether they are `pending`, without those
    that need no identity because they have no output. None when matching by lineage."""
    sink_keys: Callable[[], DataFrame] | None
    """Returns the identities that the sink's records hold: partition, offset, source_key (null:
    none). Aborted records are matched with their inputs by these alone. None when matching by
    lineage."""
    alike: int
    """Committed outputs that equal an earlier output of the same input, if inputs have several
    outputs."""
    keys: Keys
    """All zero unless order is promised per key."""
    values: Values | None
    """None if the contract does not constrain values."""
    order: Order
    lines: int
    """Lines of committed records with an input; each line must be in order."""
    balance: tuple[Balance, ...]
    transactions: Transactions
    doubts: tuple[str, ...]
    """Reasons not to trust the readings, as clauses; empty if they can be trusted."""
    evidence: str
    """URL of the folder where the frames are kept."""
    took_s: float
    source: DataFrame | None = None
    """The source's committed records. None if the readings are folded."""
    produced: DataFrame | None = None
    """The sink's read_uncommitted reading. None if the readings are folded."""
    inputs_decoded: DecodedCounts = NOTHING_DECODED
    """Counts of `source`, if a contract names its fields."""

    @cached_property
    def sink(self) -> DataFrame:
        """One row per record of the read_uncommitted reading, with `SINK_COLUMNS`; kept as
        Parquet."""
        return self.records()

    @cached_property
    def repeats(self) -> DataFrame:
        """The later copies among the committed records with an input: partition, offset, copies
        (how many there are in total), first_partition, first_offset (of the first copy); kept as
        Parquet."""
        offsets = self.sink_bounds.offsets + self.source_bounds.offsets
        return keep(later_copies(self.present), f"{self.evidence}/repeats", offsets)

    @property
    def present(self) -> DataFrame:
        """`sink` without the outputs of a deleted topic of the source's name."""
        older = None if self.by_key else is_older(self.circumstances)
        return self.sink if older is None else self.sink.where(~older)

    @property
    def outputs(self) -> DataFrame:
        """The expected outputs of the inputs in the judged range: source_partition, source_offset,
        output_index. A row may occur twice."""
        return outputs_produced(self.sink) if self.wanted is None else self.wanted

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
        if not self.agreed.retained or not (removed or circumstances.sink_removed):
            return RetainedRange()
        # Where repeats are allowed, an output may be committed again after those of later inputs.
        # Where an input may be without an output, or the output without an identity, one that is
        # there may be that of a removed input with the same identity.
        promised = ["order", "duplicate", *(["gap"] if self.by_key else [])]
        require, agreed = self.agreed.require, self.agreed
        in_order = not agreed.repeats and (require is None or set(promised) <= set(require))
        if self.by_key:
            is_filter = self.expected.kind is Expect.ZERO_OR_ONE and self.expected.count is None
            in_order &= not (is_filter or agreed.losses or self.unidentified_outputs)
        judged = retained_range(
            count_outputs(self.present),
            {bounds.partition: bounds.start for bounds in self.sink_bounds.partitions},
            source_removed=removed,
            sink_removed=circumstances.sink_removed,
            by_key=self.by_key,
            in_order=in_order and self.order is Order.PER_SOURCE_PARTITION,
            outputs_min=outputs_min,
        )
        # Of inputs that share an identity, nothing tells which one lacks its output.
        return replace(judged, complete=frozenset()) if self.identified.repeated else judged

    @property
    def by_key(self) -> bool:
        return self.identity is Identity.KEY

    @property
    def unidentified_outputs(self) -> int:
        """Number of committed and pending sink records without an identity, if records are matched
        by key."""
        return sum(cell.unidentified for cell in self.cells)

    @property
    def undecoded_outputs(self) -> int:
        """Number of committed and pending sink records that cannot be decoded, if a contract names
        their fields."""
        return sum(cell.undecoded for cell in self.cells)

    @property
    def disjoint(self) -> bool:
        """Whether both topics have records, but no sink record names an input of the source."""
        records = self.committed + sum(cell.pending for cell in self.cells)
        has_inputs = self.inputs_count > 0 or self.source_incomplete
        return (
            records > 0
            and has_inputs
            and not any(cell.of_source or cell.of_aborted for cell in self.cells)
        )

    @property
    def source_incomplete(self) -> bool:
        return bool(self.circumstances.source_removed)

    @property
    def sink_incomplete(self) -> bool:
        return bool(self.circumstances.sink_removed)

    @property
    def committed(self) -> int:
        return sum(cell.committed for cell in self.cells)

    def after(self, partition: int) -> int:
        """Returns the source offset after the partition's last input with a committed output; 0 if
        there is none."""
        source_offsets = [
            cell.last_source_offset for cell in self.matched if cell.source_partition == partition
        ]
        return max((offset + 1 for offset in source_offsets if offset is not None), default=0)

    @property
    def aborted(self) -> int:
        return sum(cell.aborted for cell in self.cells)

    @property
    def pending(self) -> int:
        """Number of pending offsets (not records): at and above the last stable offset nothing is
        settled."""
        return sum(partition.hw - partition.lso for partition in self.sink_bounds.partitions)

    def marks(self, name: str) -> int:
        """Sums one count of the batch headers (a field of Headers) over all partitions."""
        return sum(getattr(headers, name) for headers in self.headers.values())

    @property
    def at_inputs(self) -> int:
        return sum(cell.at_inputs for cell in self.cells)

    @property
    def matched(self) -> tuple[Cell, ...]:
        """The cells of records with an input."""
        return tuple(cell for cell in self.cells if cell.source_partition is not None)
