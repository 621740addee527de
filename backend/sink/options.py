"""The sinks' checked options. backend/sink/exactly_once.py lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TRANSACTION_TIMEOUT_MS,
)
from topicproof.backend.properties.names import others as require_names
from topicproof.validators.finding import Guarantee

FORMAT = "kafka-transactional"
COMMIT_INTERVAL_MS = 20
LINGER_MS, REAL_TIME_LINGER_MS = 50, 1
"""In real time, requests with records leave while the offset is being sent, not after it. At 1,000
records/s latency is a sixth shorter, and at 20,000 records/s it is the same."""
BATCH_S, BATCH_LEAST_S = 60, 5
"""Seconds of a real-time batch by default, and the least that Spark allows."""
RECORD, OFF = "record", "off"
PACKED = "packed"
PACKED_REMOVED = (
    "packed was removed. Write record, which names the input in headers of each record, or off"
)
"""What plans and sinks answer to an option of earlier versions."""


@dataclass(frozen=True)
class SinkOptions:
    """The sink's checked options. Raises UsageError naming the wrong one."""

    bootstrap: str
    client: Mapping[str, str]
    topic: str | None
    group: str
    prefix: str
    source_isolation: str
    guarantee: Guarantee
    idempotence: bool
    acks: str
    lineage: str
    """RECORD: each record's headers name its input. OFF: none of our headers."""
    records_per_transaction: int
    bytes_per_transaction: int
    commit_interval_ms: int
    """Only in real time: milliseconds from a transaction's first input to its commit."""
    transaction_timeout_ms: int
    attempts_max: int
    journal: str | None
    generation: int
    """0 if generations are not counted."""
    offsets_forced: bool
    dead_letters: str | None
    linger_ms: int = LINGER_MS
    """How long the client of a transaction waits for more records before it sends a request."""

    @property
    def address(self) -> Address:
        return Address(self.bootstrap, self.client)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        by_name = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in _OPTIONS}
        unknown = [n for n in by_name if n not in names and not n.startswith("kafka.")]
        if unknown:
            raise UsageError(
                f"{FORMAT}: unknown option {unknown[0]}. Known: {', '.join(_OPTIONS)}, kafka.*"
            )
        if "generation" in by_name and "journal" not in by_name:
            raise UsageError(
                f"{FORMAT}: generation needs the option journal: the group keeps it as an offset of"
                " the journal topic."
            )
        client = {
            n[6:]: v
            for n, v in by_name.items()
            if n.startswith("kafka.") and n != "kafka.bootstrap.servers"
        }
        require_names(client)
        guarantee = Guarantee(
            _one_of(by_name, "guarantee", list(Guarantee), Guarantee.EXACTLY_ONCE)
        )
        if by_name.get("lineage") == PACKED:
            raise UsageError(f"{FORMAT}: lineage: {PACKED_REMOVED}.")
        if "/" in by_name.get("transactionalidprefix", ""):
            raise UsageError(
                f"{FORMAT}: transactionalIdPrefix holds a slash, which separates the parts of a"
                " header."
            )
        return cls(
            bootstrap=_required(by_name, "kafka.bootstrap.servers"),
            client=client,
            topic=by_name.get("topic"),
            group=_required(by_name, "group"),
            prefix=_required(by_name, "transactionalIdPrefix"),
            source_isolation=_one_of(
                by_name, "sourceIsolation", [READ_COMMITTED, READ_UNCOMMITTED], READ_COMMITTED
            ),
            guarantee=guarantee,
            idempotence=_one_of(by_name, "idempotence", ["true", "false"], "true") == "true",
            acks=_one_of(by_name, "acks", ["all", "0"], "all"),
            lineage=_one_of(by_name, "lineage", [RECORD, OFF], RECORD),
            records_per_transaction=_whole(by_name, "recordsPerTransaction", 1000),
            bytes_per_transaction=_whole(by_name, "bytesPerTransaction", 64_000_000),
            commit_interval_ms=_whole(by_name, "commitIntervalMs", COMMIT_INTERVAL_MS),
            transaction_timeout_ms=_whole(by_name, "transactionTimeoutMs", TRANSACTION_TIMEOUT_MS),
            attempts_max=_whole(by_name, "attemptsMax", 10),
            journal=by_name.get("journal"),
            generation=_whole(by_name, "generation", 0, 0),
            offsets_forced=_one_of(by_name, "offsetsForced", ["true", "false"], "false") == "true",
            dead_letters=by_name.get("deadletters"),
        )


_OPTIONS = (
    "topic",
    "group",
    "transactionalIdPrefix",
    "sourceIsolation",
    "guarantee",
    "idempotence",
    "acks",
    "lineage",
    "recordsPerTransaction",
    "bytesPerTransaction",
    "commitIntervalMs",
    "transactionTimeoutMs",
    "attemptsMax",
    "journal",
    "generation",
    "offsetsForced",
    "deadLetters",
    # What Spark gives by itself; the name of the query comes from a Declarative Pipeline.
    "checkpointLocation",
    "path",
    "queryName",
)


def _required(by_name: Mapping[str, str], name: str) -> str:
    value = by_name.get(name.lower())
    if not value:
        raise UsageError(f"{FORMAT}: the option {name} is required.")
    return value


def _one_of(by_name: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    text = by_name.get(name.lower(), default)
    if text not in choices:
        raise UsageError(f"{FORMAT}: {name} is {text!r}; it must be one of {', '.join(choices)}.")
    return text


def _whole(by_name: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    text = by_name.get(name.lower(), str(default))
    if not text.isdigit() or int(text) < least:
        raise UsageError(f"{FORMAT}: {name} is {text!r}; it must be a whole number from {least}.")
    return int(text)
