"""The ledger of a sink and its source: the facts that are counted, and the frames behind them.
Every validator is given one; validators/ledger/build.py makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from topicproof.validators.circumstances import Circumstances
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.coordinator import Coordinator
from topicproof.validators.expected import Expected
from topicproof.validators.facts.balance import Headers
from topicproof.validators.facts.cell import Cell
from topicproof.validators.facts.header_transactions import TransactionalId
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.finding import Balance, Bounds, Order, Transactions, Witness
from topicproof.validators.ledger.counts import (
    Identities,
    Keys,
    Values,
    later_copies,
    outputs_produced,
)
from topicproof.validators.ledger.rows import Declared
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.polled import Polled
from topicproof.validators.readings import keep
from topicproof.validators.source_log import SourceLog

HEADERS = "headers"
"""Who told of transactions, when it was the records themselves."""


class ReadingsNeeded(Exception):
    """Something is odd, or more is asked than folded readings tell: each record has to be looked
    at."""


class Accounts(NamedTuple):
    """What the witnesses tell that are heard beside the readings; None who is not heard."""

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
        told = {
            witness for witness, account in zip(witnesses, self, strict=True) if account is not None
        }
        return frozenset(told | {Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED})


NO_ACCOUNTS = Accounts()


@dataclass(frozen=True)
class Ledger:
    """Everything that is judged. The facts are counted; the frames are computed where they are
    used, which is where the facts show something odd."""

    spark: SparkSession
    records: Callable[[], DataFrame]
    """Gives `sink`. Raises ReadingsNeeded where only folded readings are there."""
    named: DataFrame
    """The transactions that the records' headers name, one row a partition: the columns of
    validators/facts/header_transactions.py."""
    wanted: DataFrame | None
    """`outputs`; None: as many as were produced."""
    sink_bounds: Bounds
    source_bounds: Bounds
    """The judged range: from `start` to `lso` of each partition; the source itself ends at `hw`."""
    raw_log: RawLog | None
    """The sink's; None when it was not heard. Rows by batch and by transaction, so far fewer than
    records."""
    coordinator: Coordinator | None
    """None when it was not heard."""
    heard: frozenset[Witness]
    cells: tuple[Cell, ...]
    headers: Mapping[int, Headers]
    """What the batch headers say, by partition; empty when the raw log was not heard."""
    ids: tuple[TransactionalId, ...]
    """Of `named`, by transactional id."""
    ends: Mapping[str, int]
    """The raw log's transactions by outcome, each once a partition that it wrote to."""
    sound: bool
    """Whether it was proved that nothing is odd (validators/fast_path/proof.py), so that the lines
    stand in order too."""
    hidden: int
    """Records that the raw log commits and read_committed did not deliver."""
    repeats_count: int
    missing: int
    """Expected outputs without a committed or pending record; 0 where the proof of
    validators/fast_path/proof.py counted."""
    inputs_count: int
    aborted_inputs: int
    """Records of the judged range that were aborted in the source; 0 where its log was not
    heard."""
    journaled: frozenset[str]
    """The transactional ids that the journal names."""
    written: DataFrame | None
    """The inputs whose headers name the transaction that wrote them: source_partition,
    source_offset, writer (a struct of validators/facts/header_transactions.py, NAME); None where it
    is known that there are none."""
    written_count: int
    writers: frozenset[str]
    """The transactional ids of `written`."""
    polled: Polled | None
    """What a concurrent reader received; None when there was none."""
    outputs_count: int
    """How many outputs must be there."""
    expected: Expected
    agreed: ContractTerms
    identity: Identity
    circumstances: Circumstances
    identified: Identities
    identities: Callable[[], DataFrame] | None
    """Gives the source's committed and pending records with what identifies them
    (validators/lineage/identity.py, `identified`) and whether they are `pending`; None by
    lineage."""
    alike: int
    """Committed outputs that are like an earlier one of the same input, where several are
    expected."""
    keys: Keys
    """Zero where keys do not keep the order."""
    values: Values | None
    """None when the contract says nothing of values."""
    order: Order
    lines: int
    """In how many lines the committed records with an input must each stand in order."""
    balance: tuple[Balance, ...]
    transactions: Transactions
    doubts: tuple[str, ...]
    """Why the readings cannot be trusted, in clauses; empty if they can."""
    evidence: str
    """URL of the folder where the frames are kept."""
    took_s: float

    @cached_property
    def sink(self) -> DataFrame:
        """One row per record of the read_uncommitted reading, with `SINK_COLUMNS`; Parquet."""
        return self.records()

    @cached_property
    def repeats(self) -> DataFrame:
        """The later copies among the committed records with an input: partition, offset, copies
        (how many there are in all), first_partition, first_offset (where the first one is);
        Parquet."""
        offsets = self.sink_bounds.offsets + self.source_bounds.offsets
        return keep(later_copies(self.sink), f"{self.evidence}/repeats", offsets)

    @property
    def outputs(self) -> DataFrame:
        """The outputs that must be there, of the inputs of the judged range: source_partition,
        source_offset, output_index. A row may occur twice."""
        return outputs_produced(self.sink) if self.wanted is None else self.wanted

    @property
    def by_key(self) -> bool:
        return self.identity is Identity.KEY

    @property
    def unidentified_outputs(self) -> int:
        """Committed and pending records of the sink without an identity, where records are matched
        by key."""
        return sum(cell.unidentified for cell in self.cells)

    @property
    def disjoint(self) -> bool:
        """Whether no record names an input of the source, though there are both."""
        records = self.committed + sum(cell.pending for cell in self.cells)
        there = self.inputs_count > 0 or self.source_incomplete
        return (
            records > 0
            and there
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
        """The source offset behind the last input of the partition with a committed output; 0 when
        there is none."""
        mine = [
            cell.last_source_offset for cell in self.matched if cell.source_partition == partition
        ]
        return max((one + 1 for one in mine if one is not None), default=0)

    @property
    def aborted(self) -> int:
        return sum(cell.aborted for cell in self.cells)

    @property
    def pending(self) -> int:
        """Offsets, not records: at and above the last stable offset nothing is settled."""
        return sum(one.hw - one.lso for one in self.sink_bounds.partitions)

    def marks(self, name: str) -> int:
        """A count of the batch headers (a field of Headers), over all partitions."""
        return sum(getattr(one, name) for one in self.headers.values())

    @property
    def at_inputs(self) -> int:
        return sum(cell.at_inputs for cell in self.cells)

    @property
    def matched(self) -> tuple[Cell, ...]:
        """The cells of records that have an input."""
        return tuple(cell for cell in self.cells if cell.source_partition is not None)
