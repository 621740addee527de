"""A producer without transactions, for at-least-once and at-most-once."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from topicproof.backend.address import Address
from topicproof.backend.errors import NotDelivered
from topicproof.backend.kafka.bounded import TIMEOUT_S
from topicproof.backend.kafka.client_configs import dotted, plain_producer_config
from topicproof.backend.kafka.transaction import Record, enqueue


class PlainProducer:
    """With `idempotence`, a retry after a lost acknowledgement appends no second copy. With `acks`
    "0" nothing is acknowledged or retried."""

    def __init__(
        self, address: Address, idempotence: bool, acks: str, **special: int | str
    ) -> None:
        """Create the client. `special`: more of its settings, with underscores for dots."""
        self.config = {**plain_producer_config(address, idempotence, acks), **dotted(special)}
        self.producer = Producer({**self.config, "on_delivery": self._delivered})
        self.failed: KafkaError | None = None

    def __enter__(self) -> PlainProducer:
        # Metadata first, as in TransactionalProducer: each answer makes the client request its
        # producer id, without which it sends nothing. The first request may use the connection to a
        # bootstrap address, which then closes: the client would only retry after 0.5 s (librdkafka
        # 2.16, rd_kafka_idemp_pid_fsm).
        for _ in range(2):
            self.producer.list_topics(timeout=TIMEOUT_S)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.producer.close()

    def produce(self, records: Iterable[Record]) -> None:
        """Queue records; waits for room when the queue is full. Raises NotDelivered."""
        try:
            enqueue(self.producer, records)
        except KafkaException as error:
            raise NotDelivered(f"A record was refused: {error.args[0].str()}.") from error

    def flush(self) -> None:
        """Send all queued records. Raises NotDelivered if any is not acknowledged."""
        left = self.producer.flush(TIMEOUT_S)
        failed, self.failed = self.failed, None
        if left > 0 or failed is not None:
            why = failed.str() if failed is not None else "no answer in time"
            raise NotDelivered(f"Records were not acknowledged: {why}.")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self.failed = self.failed or error
