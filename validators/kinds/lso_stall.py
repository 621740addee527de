"""The last stable offset of the sink moves: no transaction holds it back for longer than its
timeout allows.

Catalogue 30. Every read_committed consumer stops there, no matter which producer wrote the later
records. A partition is reported if its last stable offset stands still for longer than the timeout
of the transaction that holds it, while the log grows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.coordinator import CLEANUP_MS, OpenTransaction
from topicproof.validators.evidence import of_transactions, row
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words, in_words

NAME = "lso_stall"
TITLE = "Last stable offset that stalls"
QUESTION = (
    "Does the last stable offset advance within the timeout of the transaction that holds it?"
)
UNIT = "partitions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.COORDINATOR,),)
WORDS = Words(
    noun=Forms("partition", "partitions"),
    bad=Forms("has a stalled last stable offset", "have stalled last stable offsets"),
)
TRAITS = Traits(
    next_step=(
        "End the transaction that holds the offset back: stop its producer, or use"
        " `kafka-transactions.sh abort`."
    )
)

TIMEOUT_MS = 60_000
"""Kafka's default, for a transaction whose own timeout is unknown."""


def find(ledger: Ledger) -> DataFrame | None:
    return of_transactions(
        ledger.spark,
        (
            row(transaction, _why(transaction), _cause(transaction))
            for transaction in _stalls(ledger)
        ),
    )


def covered(ledger: Ledger) -> int:
    """Counts partitions whose leaders were asked; none if transactions were left out."""
    coordinator = ledger.accounts.coordinator
    return 0 if coordinator is None or coordinator.left_out else coordinator.partitions


def _stalls(ledger: Ledger) -> list[OpenTransaction]:
    """Returns the transactions at their partition's last stable offset that are too old, with
    records of others after them."""
    first: dict[int, OpenTransaction] = {}
    for transaction in ledger.accounts.coordinator.open if ledger.accounts.coordinator else ():
        earliest = first.get(transaction.partition)
        if earliest is None or transaction.start_offset < earliest.start_offset:
            first[transaction.partition] = transaction
    return [
        transaction
        for transaction in first.values()
        if _old(transaction) and transaction.withheld > transaction.records
    ]


def _old(transaction: OpenTransaction) -> bool:
    limit_ms = TIMEOUT_MS if transaction.timeout_ms is None else transaction.timeout_ms
    return transaction.age_ms > limit_ms + CLEANUP_MS


def _cause(transaction: OpenTransaction) -> str | None:
    """Returns the kind that explains why it does not end."""
    return "hanging" if transaction.hanging else "unstable_offsets" if transaction.stuck else None


def _why(transaction: OpenTransaction) -> str:
    return (
        f"The last stable offset has been at {transaction.start_offset:,} for"
        f" {in_words(transaction.age_ms)}: {transaction.name} (producer {transaction.producer_id})"
        f" holds it, and {transaction.withheld - transaction.records:,} records of other"
        " producers wait behind it."
    )
