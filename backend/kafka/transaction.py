"""A transaction as a `with` block. Translates confluent-kafka's errors once, into what the caller
must do.

Leaving the block normally commits. An exception aborts and propagates. Being fenced does neither,
because the transaction then belongs to another producer.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
)
from tenacity.stop import stop_base

from topicproof.backend.address import Address
from topicproof.backend.errors import (
    ClientStuck,
    Fenced,
    NotAllowed,
    OutcomeUnknown,
    RecordRefused,
    SinkError,
    TransactionAborted,
)
from topicproof.backend.kafka.bounded import TIMEOUT_S, bounded
from topicproof.backend.kafka.client_configs import (
    TRANSACTION_TIMEOUT_MS,
    dotted,
    transactional_producer_config,
)

ENOUGH = stop_after_attempt(5)
"""Attempts after retriable errors: about one minute in all, timeouts included."""

PURGE_S = 0.5
ABORT_S = 60
"""Time limits of one abort attempt, and of all attempts together."""

LOOK_S = 0.2
"""Time between checks for a failed delivery."""

HEARD_S = 1.0
"""How long to wait for the report on the record that made a transaction fail."""

NO_WAIT_S = 0.001

_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.FENCED_INSTANCE_ID,
}

_NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}

_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_RECORD,
}
"""The record itself is bad, so a retry does not help."""

Delivered = Callable[[KafkaError | None, Message], None]

Record = tuple[str, bytes | None, bytes | None, Sequence[tuple[str, Any]]]
"""topic, key, value, headers"""


class ConnectionLog:
    """Receives a client's log, and notes whether a connection to a broker has failed.

    librdkafka repeats requests that were in flight on such a connection, and the first copy may
    still arrive later (KAFKA-17754). Nothing else reports this: `error_cb` misses connections that
    the other side closed, and the log omits repeated failures. Only the debug messages are complete
    (facility FAIL). They are queued before the request is repeated. So `poll` has delivered them by
    the time the repeated request is answered.
    """

    DEBUG = "broker"
    """The debug context that the client needs."""

    def __init__(self) -> None:
        self.failed = False

    def log(self, level: int, _format: str, facility: str, _client: str, text: str) -> None:
        """Take a log line, from inside the client's `poll`, `flush` and the like. `level` is one of
        `logging`'s."""
        self.failed = self.failed or facility == "FAIL"
        if level >= logging.INFO:
            logging.getLogger(__name__).log(level, "%s %s", facility, text)


class TransactionalProducer:
    """A producer with one transactional id. Entering takes the id over: it fences earlier holders
    and aborts their open transaction.

    Raises Fenced when another producer takes over the id, NotAllowed when a right is missing,
    TransactionAborted when the transaction was aborted and may be replayed, RecordRefused when a
    bad record is the reason, OutcomeUnknown when the answer to a commit never came, ClientStuck
    when the client hangs, KafkaException for fatal errors.
    """

    def __init__(
        self,
        address: Address,
        transactional_id: str,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **special: int | str,
    ) -> None:
        """Create the client. `special`: more of its settings, with underscores for dots. Raises
        UsageError for an id with a NUL."""
        self.transactional_id = transactional_id
        config = transactional_producer_config(address, transactional_id, timeout_ms)
        debug = ",".join({*str(config.get("debug", "")).split(","), ConnectionLog.DEBUG} - {""})
        self.config = {**config, **dotted(special), "on_delivery": self.heard, "debug": debug}
        self.connections = ConnectionLog()
        self.producer = Producer({**self.config, "logger": self.connections})
        self.failed: KafkaError | None = None
        """The error of this transaction's first failed record."""
        self.stuck = False
        """Whether a call of the client hangs."""
        self.open = False
        """Whether a transaction is neither committed nor aborted."""

    def __enter__(self) -> TransactionalProducer:
        # Metadata first: init_transactions then takes at most 0.06 s instead of sometimes 0.5 s.
        self.producer.list_topics(timeout=TIMEOUT_S)
        self._retrying(lambda: self.producer.init_transactions(TIMEOUT_S))
        self.producer.poll(0)
        # Earlier failures cannot have delayed any request of the epoch that begins here.
        self.connections.failed = False
        return self

    def renew_if_unsure(self) -> bool:
        """Between transactions: start a new epoch if a connection has failed since this one began.

        A request of an earlier transaction may still be on its way. A late EndTxn would end the
        next transaction; a late TxnOffsetCommit would reset its offset (KAFKA-17754). The
        coordinator refuses both from an older epoch. Returns whether there is a new epoch. If so,
        another producer may have held the id in between, and the caller must read again what it
        committed.
        """
        self.producer.poll(0)
        if not self.connections.failed:
            return False
        self.producer.close()
        self.connections = ConnectionLog()
        self.producer = Producer({**self.config, "logger": self.connections})
        self.__enter__()
        return True

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self.stuck:
            # Closing would wait for the hung call. The client ends with its process.
            return
        # Closing reports again that the producer was fenced, and retries a failed abort.
        with suppress(KafkaException), warnings.catch_warnings() if self.open else nullcontext():
            if self.open:
                warnings.filterwarnings(
                    "ignore", "Producer abort_transaction failed", RuntimeWarning
                )
            with _fatal_errors():
                self.producer.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block; abort if the block raises. If the client hangs, the next
        producer with the same id resolves the transaction."""
        self.failed = None
        self.producer.begin_transaction()
        self.open = True
        try:
            yield
        except (Fenced, ClientStuck):
            raise
        except BaseException:
            self.abort()
            raise
        self._commit()

    def produce(self, records: Iterable[Record], delivered: Delivered | None = None) -> None:
        """Queue records; waits for room when the queue is full. `delivered` replaces `heard` as the
        receiver of delivery reports."""
        try:
            enqueue(self.producer, records, delivered)
        except KafkaException as error:
            raise self._refused(error) from error

    def heard(self, error: KafkaError | None, _message: Message) -> None:
        """Receives delivery reports."""
        if error is not None and self.failed is None and error.code() not in _PURGED:
            self.failed = error

    def flush(self) -> None:
        """Send all queued records, so that an abort leaves them in the log (librdkafka purges
        unsent ones).

        Ends at the first record that fails; librdkafka alone would wait for the timeouts of later
        ones.
        """
        deadline = time.monotonic() + TIMEOUT_S
        # Only while something is queued: each flush wakes all threads of the client, two of them
        # idle.
        while self.failed is None and len(self.producer) > 0 and self._flushing() > 0:
            if time.monotonic() > deadline:
                raise TransactionAborted(
                    f"{self.transactional_id}: the brokers did not take all records in time."
                )
        if self.failed is not None:
            raise self._told(self.failed) or self._aborted(self.failed)

    def _flushing(self) -> int:
        """Flush for at most LOOK_S; return how many records and events are left."""
        try:
            with _fatal_errors():
                return self.producer.flush(LOOK_S)
        except KafkaException as error:
            raise self._translated(error) from error

    def send_offset(self, source: TopicPartition, group: Any) -> None:
        """Add the source's next offset to the transaction while sending queued records."""
        send = partial(
            self._bounded,
            partial(self.producer.send_offsets_to_transaction, [source], group),
        )
        try:
            self._retrying(send)
        except TransactionAborted as error:
            if self.failed is None and _is_state(error.__cause__):
                # The transaction failed during the call, and librdkafka reports only a wrong state.
                # It refuses a second call with the cause.
                self._retrying(send)
            raise

    def send_commit(self) -> None:
        """Start the commit; the end of the block waits for it."""
        self.flush()
        with suppress(KafkaException):
            self.producer.commit_transaction(NO_WAIT_S)

    def abort(self) -> None:
        # Only the next call purges records that return out of sequence during a purge. Until then
        # the client waits for them (librdkafka 2.16).
        self._retrying(lambda: self.producer.abort_transaction(PURGE_S), stop_after_delay(ABORT_S))
        self.open = False

    def _commit(self) -> None:
        try:
            self.flush()
            self._retrying(lambda: self.producer.commit_transaction(TIMEOUT_S))
            self.open = False
        except TransactionAborted:
            self.abort()
            raise
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if not cause.retriable():
                raise
            raise OutcomeUnknown(
                f"{self.transactional_id}: a commit was never acknowledged ({cause.name()})."
            ) from error

    def _bounded(self, call: Callable[[float], None]) -> None:
        """Call with our timeout while queued records are sent. Abandons a client that ignores the
        timeout. Raises ClientStuck, and what `flush` raises."""
        try:
            bounded(partial(call, TIMEOUT_S), self.flush)
        except TimeoutError as error:
            self.stuck = True
            raise ClientStuck(
                f"{self.transactional_id}: the Kafka client hung while it sent the offset. A new"
                " client continues."
            ) from error

    def _retrying(self, call: Callable[[], Any], stop: stop_base = ENOUGH) -> None:
        try:
            call()
            return
        except KafkaException as error:
            if not _retriable(error):
                raise self._translated(error) from error
        # Only after a failure: counting attempts takes as much processor time as the client's call.
        retrying = Retrying(
            retry=retry_if_exception(_retriable),
            stop=stop,
            wait=wait_exponential(0.05, max=2),
            reraise=True,
        )
        try:
            retrying(call)
        except KafkaException as error:
            raise self._translated(error) from error

    def _refused(self, error: KafkaException) -> Exception:
        """Return why the client takes no more records."""
        cause: KafkaError = error.args[0]
        return self._ended(cause) if _is_state(error) else self._translated(error)

    def _ended(self, cause: KafkaError) -> SinkError:
        """Return why a transaction failed when its client only reports an erroneous state. The
        failed record's report arrives a moment later."""
        deadline = time.monotonic() + HEARD_S
        while self.failed is None and time.monotonic() < deadline:
            self.producer.poll(LOOK_S)
        why = self.failed or cause
        return self._told(why) or self._aborted(why)

    def _translated(self, error: KafkaException) -> Exception:
        cause: KafkaError = error.args[0]
        translation = self._told(cause)
        if translation is None and cause.txn_requires_abort():
            return self._ended(cause) if cause.code() == KafkaError._STATE else self._aborted(cause)
        return translation or error

    def _told(self, cause: KafkaError) -> SinkError | None:
        """Return the error that follows from the code alone."""
        if cause.code() in _FENCED:
            return Fenced(
                f"{self.transactional_id} was taken over by another producer ({cause.name()})."
            )
        if cause.code() in _NOT_ALLOWED:
            return NotAllowed(
                f"{self.transactional_id}: the brokers do not authorize this client"
                f" ({cause.name()}). Grant the missing ACL, then resume."
            )
        if is_refused(cause):
            return RecordRefused(f"{self.transactional_id}: {cause.str()} ({cause.name()}).")
        return None

    def _aborted(self, cause: KafkaError) -> TransactionAborted:
        return TransactionAborted(f"{self.transactional_id}: {cause.str()} ({cause.name()}).")


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """Raise the client's fatal error as the KafkaException that it is.

    The client sets the exception while it still delivers events. If a log line comes next, Python
    finds it set when `ConnectionLog.log` returns, and raises a SystemError with it as the cause
    (confluent-kafka 2.16).
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from error
        raise


def _is_state(error: BaseException | None) -> bool:
    """Return whether the client only reports that it is in the wrong state."""
    return isinstance(error, KafkaException) and bool(error.args[0].code() == KafkaError._STATE)


def is_refused(error: KafkaError) -> bool:
    """Return whether the record itself is bad."""
    return error.code() in _REFUSED


def enqueue(
    producer: Producer, records: Iterable[Record], delivered: Delivered | None = None
) -> None:
    """Queue records; waits for room when the queue is full. Raises KafkaException."""
    # Called for every record of a pipeline, so lookups are hoisted and arguments are few. Without
    # headers this takes less processor time than `produce_batch`, which unpacks dicts.
    produce = (
        producer.produce if delivered is None else partial(producer.produce, on_delivery=delivered)
    )
    for topic, key, value, headers in records:
        while True:
            try:
                if headers:
                    produce(topic, value, key, headers=headers)  # type: ignore[arg-type]
                else:
                    produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.05)


def _retriable(error: BaseException) -> bool:
    return (
        isinstance(error, KafkaException)
        and error.args[0].retriable()
        and not error.args[0].txn_requires_abort()
    )
