"""All errors that users can see. Each message says what happened, where, and what to do. The
command line prints it unchanged.

TopicproofError            exit code 3: an operation or a judgement failed
├── ContractError          an invalid contract, with all its mistakes
├── CheckStopped           somebody stopped a check before its verdict
├── SelfTestError          an injected fault was not found exactly once
├── UsageError             64: an invalid request (a bad plan, an unknown run)
├── NotPermitted           nobody signed in, or none of the person's roles may do this
├── EvidenceError          4: evidence or history could not be read or written
│   └── PackedLineage      3: evidence that only an earlier version can judge
├── SetupError             the machine lacks Java, Python, a port, disk space, a writable home
├── ClusterError           Kafka is unreachable, too old, or refused the request
│   └── TopicError         a topic that is missing, empty or unusable
│       ├── NothingToSample a topic without a committed record, where a contract is drafted
│       ├── RecordTooLarge a record that would exhaust the memory of a shared server
│       └── LogTooLong     a log of more batches than one process examines
├── SparkError             Spark is unreachable, or a query failed for its own reasons
│   └── ShellFailed        a shell command of Hadoop was killed; the verdict is computed again
└── SinkError              the exactly-once sink refused to continue; nothing was lost silently
    ├── SourceGap          the first row is above the next offset to process
    ├── OffsetMissing      the group has lost its initial committed offset
    ├── OffsetsMoved       the group's committed offset differs from the journal
    ├── CheckpointMismatch a stateful stage's checkpoint does not match the sink's
    ├── ShuffledInput      rows of several source partitions, or falling offsets, in one task
    ├── AttemptsExhausted  a transaction was aborted as often as the plan allows
    ├── TransactionAborted the transaction may be replayed (never leaves the sink)
    │   └── RecordRefused  the brokers always reject a record; leaves a sink without dead letters
    ├── NotAllowed         the brokers refuse this client: an ACL is missing or was revoked
    ├── NotDelivered       the brokers did not accept records or an offset outside a transaction
    ├── InjectedError      raised on purpose by a fault of the plan; Spark retries the task
    ├── OutcomeUnknown     a commit got no answer; the next attempt resolves it from the log
    ├── ClientStuck        a Kafka client call hangs; the next attempt uses a new client
    └── Fenced             another producer took over this transactional id
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class TopicproofError(Exception):
    """The root of the tree. `exit_code` is the exit code of the process if nothing handles the
    error."""

    exit_code = 3


class UsageError(TopicproofError):
    exit_code = 64

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        """The line of a file that is wrong, if it is one."""


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
    """All mistakes of a contract: one sentence each, in line order."""

    def __init__(self, *mistakes: Mistake | str) -> None:
        super().__init__(*mistakes)
        self.mistakes = tuple(
            mistake if isinstance(mistake, Mistake) else Mistake("", None, "", mistake.rstrip("."))
            for mistake in mistakes
        )
        self.sentences = tuple(map(str, self.mistakes))

    def __str__(self) -> str:
        return "\n".join(self.sentences)


class CheckStopped(TopicproofError):
    pass


class SelfTestError(TopicproofError):
    pass


class NotPermitted(TopicproofError):
    pass


class EvidenceError(TopicproofError):
    exit_code = 4


class PackedLineage(EvidenceError):
    """Evidence of topics with packed lineage, which was removed. It may be genuine, so it is not
    judged instead of refused."""

    exit_code = 3

    def __init__(self, evidence: Path) -> None:
        super().__init__(
            f"The evidence in {evidence} cannot be judged: its records have packed lineage, which"
            " this version no longer reads. Verify it with Topicproof 0.3.0, the last release that"
            " does."
        )


class SetupError(TopicproofError):
    pass


class ClusterError(TopicproofError):
    pass


class TopicError(ClusterError):
    pass


class NothingToSample(TopicError):
    """A topic holds no committed record from which a contract could be drafted."""

    def __init__(self, topic: str, removed: int = 0) -> None:
        """`removed`: how many offsets lie below its log starts."""
        self.reason = f"Topic {topic} holds no committed record to look at."
        step = "Fill it first."
        if removed:
            offsets = "1 offset" if removed == 1 else f"{removed:,} offsets"
            self.reason += f" Retention or DeleteRecords removed {offsets}."
            step = "Draft the contract when it holds records again, or write it by hand."
        super().__init__(f"{self.reason} {step}")


class RecordTooLarge(TopicError):
    pass


class LogTooLong(TopicError):
    pass


class SparkError(TopicproofError):
    pass


class ShellFailed(SparkError):
    """A shell command that Hadoop started was killed. Without its native library, Hadoop starts
    `chmod` for each file that it writes."""


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
