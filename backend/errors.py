"""Every error a user can meet. Each says what happened, where, and what to do; the command line
prints it as it is.

TopicproofError            exit code 3: could not do, or could not judge
├── ContractError          a contract that does not say what must hold; all its mistakes
├── SelfTestError          a planted defect was not found, or could not be planted
├── UsageError             64: the request itself is wrong (a bad plan, an unknown run)
├── EvidenceError          4: evidence or history could not be written
├── SetupError             the machine lacks Java, Python, a port, disk space, a writable home
├── ClusterError           Kafka is not reachable, too old, or refused the request
│   └── TopicError         a topic that is missing, empty, or in the way
├── SparkError             Spark is not reachable, or a query failed for a reason of its own
└── SinkError              the exactly-once sink refused to go on; nothing was lost silently
    ├── SourceGap          the first row lies above the next offset to be processed
    ├── OffsetMissing      the group has no committed offset where an initial one was committed
    ├── OffsetsMoved       the group's committed offset is not where the journal left it
    ├── CheckpointMismatch a stateful stage's checkpoint is not the one that the sink holds
    ├── ShuffledInput      rows of several source partitions, or falling offsets, in one task
    ├── AttemptsExhausted  a transaction was aborted as often as the plan allows
    ├── TransactionAborted the transaction may be replayed (never leaves the sink)
    │   └── RecordRefused  the brokers never take a record; leaves the sink without dead letters
    ├── NotAllowed         the brokers refuse this client: a right is missing or was revoked
    ├── NotDelivered       outside a transaction, the brokers did not take records or an offset
    ├── InjectedError      raised on purpose by a fault of the plan; Spark runs the task again
    ├── OutcomeUnknown     a commit was not answered; the next attempt settles it from the log
    ├── ClientStuck        a call of the Kafka client hangs; the next attempt has a new client
    └── Fenced             another producer took this transactional id over
"""

from __future__ import annotations

from dataclasses import dataclass


class TopicproofError(Exception):
    """The root of the tree. `exit_code` is the process's exit code when nothing handles it."""

    exit_code = 3


class UsageError(TopicproofError):
    exit_code = 64


@dataclass(frozen=True)
class Mistake:
    """One error of a contract, and where to change it."""

    where: str
    """The file and the line, in words."""
    line: int | None
    field: str
    why: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.field, self.why) if part) + "."


class ContractError(TopicproofError):
    """All that is wrong with a contract: one sentence each, in the order of the lines."""

    def __init__(self, *mistakes: Mistake | str) -> None:
        super().__init__(*mistakes)
        self.mistakes = tuple(
            one if isinstance(one, Mistake) else Mistake("", None, "", one.rstrip("."))
            for one in mistakes
        )
        self.sentences = tuple(map(str, self.mistakes))

    def __str__(self) -> str:
        return "\n".join(self.sentences)


class SelfTestError(TopicproofError):
    pass


class EvidenceError(TopicproofError):
    exit_code = 4


class SetupError(TopicproofError):
    pass


class ClusterError(TopicproofError):
    pass


class TopicError(ClusterError):
    pass


class SparkError(TopicproofError):
    pass


class SinkError(TopicproofError):
    pass


class SourceGap(SinkError):
    pass


class OffsetMissing(SinkError):
    pass


class CheckpointMismatch(SinkError):
    pass


class OffsetsMoved(SinkError):
    pass


class ShuffledInput(SinkError):
    pass


class AttemptsExhausted(SinkError):
    pass


class TransactionAborted(SinkError):
    pass


class RecordRefused(TransactionAborted):
    pass


class NotAllowed(SinkError):
    pass


class NotDelivered(SinkError):
    pass


class InjectedError(SinkError):
    pass


class OutcomeUnknown(SinkError):
    pass


class ClientStuck(SinkError):
    pass


class Fenced(SinkError):
    pass
