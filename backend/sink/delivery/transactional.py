"""Outputs and offset in one Kafka transaction: steps 3 and 4 of backend/sink/exactly_once.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice

from confluent_kafka import KafkaError, Message

from topicproof.backend.errors import RecordRefused, SinkError
from topicproof.backend.kafka.transaction import Delivered, TransactionalProducer, is_refused
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.delivery.protocol import Inputs, padding, records_of
from topicproof.backend.sink.group import GroupPosition
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.outputs import Output
from topicproof.backend.sink.task import SinkTask
from topicproof.validators.lineage.compact import format_in_transaction
from topicproof.validators.lineage.headers import REASON_HEADER, Transaction

REFUSALS_MAX = 3
"""How often a transaction is tried if the brokers refuse one of its records. After the first
refusal each record has its own batch. That shows which input the record belongs to, and small
records of a large batch pass."""


class ExactlyOnce:
    def __init__(self, task: SinkTask, group: GroupPosition, inputs: Inputs) -> None:
        self.task, self.group, self.inputs = task, group, inputs
        self.one_by_one = False
        """Whether each record has its own batch and delivery report."""
        self.producer = self._new_producer()
        self.refusals = 0
        """Refusals of the current transaction."""
        self.refused: set[int] = set()
        """Inputs with a refused output."""
        self.sending = -1
        """The input of the output in production."""

    def open(self) -> None:
        self.producer.__enter__()

    def close(self) -> None:
        self.producer.__exit__(None, None, None)

    def prepare(self, contents: Contents) -> None:
        """Take a new epoch after a failed connection, so that no late request can reach this
        transaction (step 3 of the argument). Raises Fenced."""
        if self.task.hooks.defended() and self.producer.renew_if_unsure():
            self.group.require(contents.first)

    def attempt(self, contents: Contents, attempt: int) -> None:
        task, sequence = self.task, contents.sequence
        # The number of outputs shows any reader whether it has all of the transaction.
        transaction = format_in_transaction(
            Transaction(task.name, sequence, attempt, task.token, len(contents.outputs))
        )
        with self.producer.transaction():
            task.step(Step.BEGUN, contents, self.flush)
            self._produce(contents, transaction)
            task.step(Step.PRODUCED, contents, self.flush)
            task.hooks.maybe_abort(sequence, attempt, self.flush)
            # Within the transaction, so Kafka commits outputs and offset together or not at all.
            self.producer.send_offset(self.group.following(contents), self.group.metadata)
            task.step(Step.OFFSET_SENT, contents, self.flush)
            if task.hooks.is_due(Step.COMMITTING, sequence):
                # A fault strikes between the commit and its answer, so the commit is sent early.
                self.producer.send_commit()
                task.step(Step.COMMITTING, contents, self.flush)
        self.refusals = 0
        # Earlier refusals are resolved now: those inputs are in the sink.
        self.refused.clear()

    def after_failure(self, contents: Contents, error: SinkError) -> Contents:
        if not isinstance(error, RecordRefused):
            return contents
        self.refusals += 1
        if self.refusals >= REFUSALS_MAX:
            contents = self._with_dead_letters(contents, error)
        self._start_one_by_one(contents)
        return contents

    def flush(self) -> None:
        # Looked up at each call: a refusal replaces the producer.
        self.producer.flush()

    def _new_producer(self) -> TransactionalProducer:
        sink = self.task.sink
        special = sink.client_settings | dict(self.task.hooks.client_settings())
        if self.one_by_one:
            # One in flight: records behind a refused one would be out of sequence, which hides the
            # reason.
            special |= {"batch_num_messages": 1, "max_in_flight_requests_per_connection": 1}
        return TransactionalProducer(
            sink.address, self.task.name, sink.delivery.transaction_timeout_ms, **special
        )

    def _start_one_by_one(self, contents: Contents) -> None:
        """Continue with a new producer whose batches hold one record each.

        After a rejection librdkafka keeps incrementing sequences, so later batches of the old
        producer would fail too. Raises Fenced.
        """
        self.producer.__exit__(None, None, None)
        self.one_by_one = True
        self.producer = self._new_producer()
        self.producer.__enter__()
        # Between the two producers, another task may have taken the id and committed these inputs.
        self.group.require(contents.first)

    def _with_dead_letters(self, contents: Contents, error: RecordRefused) -> Contents:
        """Replace every input that has a refused output by a dead letter. Raises RecordRefused if
        that is impossible."""
        topic, refused = self.task.sink.dead_letters, sorted(self.refused)
        if topic is None or any(
            output[2] == topic for output in contents.outputs if output[0] in self.refused
        ):
            inputs = (
                ", ".join(self.inputs.place(number).decode() for number in refused) or "unknown"
            )
            remedy = (
                "Set deadLetters to a topic for such inputs"
                if topic is None
                else "It is a dead letter already"
            )
            raise RecordRefused(
                f"{error} The input is {inputs}. {remedy}; nothing was skipped."
            ) from error
        if not refused:
            raise error
        reason = (REASON_HEADER, str(error).encode())
        letters: list[Output] = [
            (number, 0, topic, None, self.inputs.place(number), [reason]) for number in refused
        ]
        others = [output for output in contents.outputs if output[0] not in self.refused]
        self.refused.clear()
        self.task.hooks.drop_extra_value()
        return replace(contents, outputs=[*others, *letters])

    def _produce(self, contents: Contents, transaction: bytes) -> None:
        half = len(contents.outputs) // 2
        try:
            self._send(contents, contents.outputs[:half], transaction)
            self.task.step(Step.PRODUCING, contents, self.flush)
            self._send(contents, contents.outputs[half:], transaction)
        except RecordRefused:
            # The client itself refused the record, unless the brokers refused an earlier one.
            if self.one_by_one and self.producer.failed is None:
                self.refused.add(self.sending)
            # Send the earlier ones first. If a transaction is aborted while its partitions are
            # being added, the brokers do not know it, which is fatal to the client.
            self.producer.flush()
            raise
        if self.one_by_one:
            self.producer.flush()

    def _send(self, contents: Contents, outputs: Sequence[Output], transaction: bytes) -> None:
        extra = padding(self.task, contents, outputs)
        records = records_of(self.task, self.inputs, outputs, transaction)
        if extra:
            records = chain(islice(records, 1), extra, records)
            outputs = [outputs[0], *outputs]
        if not self.one_by_one:
            self.producer.produce(records)
            return
        # Delivery reports for each record cost time, so only after a refusal.
        for output, record in zip(outputs, records, strict=True):
            self.sending = output[0]
            self.producer.produce([record], self._report(output[0]))

    def _report(self, sending: int) -> Delivered:
        """Return a callback for the delivery report of one record of this input."""
        on_delivery = self.producer.heard

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None and is_refused(error):
                self.refused.add(sending)
            on_delivery(error, message)

        return delivered
