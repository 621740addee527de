"""No transaction hangs on the sink: the coordinator knows every transaction that a partition holds
open.

Catalogue 29, Java's algorithm. It starts from the partition's producers and then asks the
coordinator, because the coordinator cannot report what it does not know. Only an operator can end a
hanging transaction. Two things leave one: a record that arrived after its transaction's end
(KIP-890), and an unclean leader election that lost the marker (KAFKA-20716).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.evidence import of_transactions, row
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "hanging"
TITLE = "Hanging transactions"
QUESTION = "Does a coordinator know of every transaction that is open on the sink?"
UNIT = "partitions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.COORDINATOR,),)
WORDS = Words(
    noun=Forms("partition", "partitions"),
    bad=Forms("holds a hanging transaction", "hold hanging transactions"),
)
TRAITS = Traits(next_step="End it with `kafka-transactions.sh abort`: no producer will.")


def find(ledger: Ledger) -> DataFrame | None:
    opened = ledger.accounts.coordinator.open if ledger.accounts.coordinator else ()
    return of_transactions(
        ledger.spark,
        (row(transaction, transaction.why) for transaction in opened if transaction.hanging),
    )


def covered(ledger: Ledger) -> int:
    """Counts partitions whose leaders were asked; none while a transaction may hang unseen."""
    coordinator = ledger.accounts.coordinator
    return 0 if coordinator is None or coordinator.hides else coordinator.partitions
