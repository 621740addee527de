"""The fixed vocabulary of judging. DataFrames measure; these dataclasses report.

Everything here round-trips to JSON through `report.py` and knows neither Spark nor Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

EXAMPLES_MAX = 20
"""A finding shows at most this many examples, worst first; all rows stay in the evidence."""


class Outcome(StrEnum):
    """The three results of a check, and their precedence when merged: VIOLATED, UNKNOWN, HOLDS."""

    HOLDS = "HOLDS"
    VIOLATED = "VIOLATED"
    UNKNOWN = "UNKNOWN"


class Fate(StrEnum):
    """What became of an offset within the bounds. A closed set; every offset has exactly one."""

    COMMITTED = "COMMITTED"
    """Visible at both levels: its transaction committed, or it never was in one."""
    ABORTED = "ABORTED"
    """Visible to read_uncommitted only, below the last stable offset: its transaction was
    aborted."""
    PENDING = "PENDING"
    """At or above the last stable offset: of an open transaction, or held back by one."""
    MARKER = "MARKER"
    """A commit or abort marker, seen in the raw log; no consumer receives it."""
    GONE = "GONE"
    """The batch headers prove that nothing is left there: compacted or deleted."""
    NO_RECORD = "NO_RECORD"
    """In neither reading, and the raw log was not heard: a marker or gone, undecided."""
    UNEXPLAINED = "UNEXPLAINED"
    """None of the above. Must be 0: otherwise the readings or the broker cannot be trusted."""


class Witness(StrEnum):
    """An independent account of what happened."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"
    RAW_LOG = "raw_log"
    COORDINATOR = "coordinator"
    JOURNAL = "journal"
    SOURCE_LOG = "source_log"
    """The source's own raw log: shows which of its records were aborted."""
    READER = "reader"
    """A read_committed reader that polled the sink while it was written (validators/polled.py)."""


class Guarantee(StrEnum):
    """The promise of a run."""

    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class Order(StrEnum):
    """The scope in which a source partition's outputs follow the order of their inputs, in each
    sink partition."""

    PER_SOURCE_PARTITION = "per_source_partition"
    """All outputs: one writer at a time processes the source partition's inputs in turn."""
    NONE = "none"
    """Nothing is promised."""
    PER_KEY = "per_key"
    """Outputs of one key: a shuffle distributes a source partition's inputs over several writers,
    each key to one of them."""


@dataclass(frozen=True)
class PartitionBounds:
    """One partition's range, taken once before any reading. `lso` and `hw` are exclusive, in
    offsets."""

    partition: int
    start: int
    """Log start offset, or where the judged range begins."""
    lso: int
    """Last stable offset: the read_committed reading ends here."""
    hw: int
    """High watermark: the read_uncommitted reading ends here."""


@dataclass(frozen=True)
class Part:
    """One of several topics that are judged as one (validators/merged_topics.py)."""

    topic: str
    first: int
    """The number that its partition 0 has among all of them."""


JOINED_BY = " + "
"""Between the topics of joined bounds. No name of a topic in Kafka has a space or a plus."""


@dataclass(frozen=True)
class Bounds:
    """The partition ranges of a topic at one moment; or those of several topics as one, with
    partitions numbered consecutively."""

    topic: str
    partitions: tuple[PartitionBounds, ...]
    parts: tuple[Part, ...] = ()
    """The topics, if there are several."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, one by one."""
        return tuple(part.topic for part in self.parts) or (self.topic,)

    @property
    def offsets(self) -> int:
        """Number of offsets in the bounds: the left side of the balance."""
        return sum(p.hw - p.start for p in self.partitions)

    def place(self, partition: int) -> tuple[str, int]:
        """Returns the topic of `partition`, and its number there."""
        for part in reversed(self.parts):
            if partition >= part.first:
                return part.topic, partition - part.first
        return self.topic, partition


@dataclass(frozen=True)
class Origin:
    """The cluster and topics that a verdict is about, with the ids that Kafka assigned."""

    cluster: str | None
    topics: Mapping[str, str | None]
    """Topic ids by name. None: the brokers are older than topic ids (Kafka 2.8)."""
    name: str | None = None
    """How people call the cluster; None if there was only one, without a name."""


@dataclass(frozen=True)
class Origins:
    """The ids of the topics of one question at the first look at them."""

    sink: Origin
    """Also of the source, if there is one cluster."""
    source: Origin | None = None
    """The ids of the source's cluster, if it is another one."""


@dataclass(frozen=True)
class Balance:
    """Where one partition's offsets went. `offsets` is HW - start and the sum of the fates below
    it.

    Without the raw log, `markers`, `gone` and `never_transactional` are None, and `no_record`
    counts offsets without a record. With it, `no_record` is None.
    """

    partition: int
    offsets: int
    committed: int
    aborted: int
    pending: int
    markers: int | None
    gone: int | None
    no_record: int | None
    unexplained: int
    """Must be 0. Negative when more was seen than there are offsets."""
    never_transactional: int | None
    """Committed records that were in no transaction."""


@dataclass(frozen=True)
class InputOutcomes:
    """How many inputs of the judged range have which outcome, if a contract names dead letters."""

    with_output: int
    with_dead_letter: int
    with_both: int
    with_neither: int


@dataclass(frozen=True)
class JudgedInputs:
    """The inputs of the judged range."""

    records: int
    outcomes: InputOutcomes | None = None
    """None without dead letters, and in reports of earlier versions."""

    def share(self, count: int) -> float:
        """Returns their share of the inputs, from 0 to 1; 0 if there are none."""
        return count / self.records if self.records else 0.0


@dataclass(frozen=True)
class Transactions:
    """Transactions by outcome; None if no witness tells."""

    committed: int | None
    aborted: int | None
    open: int | None
    told_by: str | None
    """`headers`: each transaction counts once. `raw_log`: it counts once per partition it wrote
    to."""


@dataclass(frozen=True)
class Example:
    """A place where a finding shows. `lineage` is `topic/partition/offset/index` of the input; of a
    whole partition of the source, `topic/partition`."""

    partition: int | None
    """Sink partition; None where the sink holds no record (a gap)."""
    offset: int | None
    """None also where the finding is about the whole partition."""
    lineage: str | None
    transaction: str | None
    why: str
    """One sentence for a person."""
    identity: str | None = None
    """What identifies the record or its input, as text that may be cut; None by lineage. A
    payload: copies without values leave it out."""


@dataclass(frozen=True)
class Finding:
    """The result of one validator. Found is not wrong: the expectation determines `outcome`."""

    kind: str
    outcome: Outcome
    count: int
    """All rows found, explained ones included."""
    primary: int
    """Rows that no other kind explains."""
    explained_by: str | None
    """The kind that explains the rest (`count - primary`), when there is a rest."""
    examples: tuple[Example, ...]
    why: str
    """One sentence: what was found, out of how many, or why it could not be judged."""
    story: str = ""
    """What happened, where the logs prove it: a few sentences."""
    next_step: str = ""
    """What to do, where what happened decides it. Empty: what the kind suggests
    (validators/next_steps.py)."""


@dataclass(frozen=True)
class Check:
    """A question that was asked, with its denominator."""

    kind: str
    records: int
    """Number of records, pairs or transactions examined. 0 can never hold."""
    unit: str
    """What `records` counts: records, inputs, pairs, aborted records."""
    witnesses: tuple[Witness, ...]


@dataclass(frozen=True)
class NotChecked:
    kind: str
    why: str
