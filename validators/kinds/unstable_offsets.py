"""Decisions arrive: no transaction waits for its markers, and no group's offset stays unstable.

Catalogue 31. A decided transaction (PrepareCommit, PrepareAbort) should have its markers within
milliseconds. An offset that a transaction moves is unstable until the transaction ends: until then,
a consumer that takes over the partition cannot start.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.coordinator import Coordinator
from topicproof.validators.evidence import Row, of_transactions, row
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "unstable_offsets"
TITLE = "Unstable offsets"
QUESTION = "Does every decided transaction get its markers, and every group's offset become stable?"
UNIT = "partitions and group offsets"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.COORDINATOR,),)
WORDS = Words(
    noun=Forms("partition or group offset", "partitions and group offsets"),
    bad=Forms(
        "waits for a transaction that should have ended",
        "wait for transactions that should have ended",
    ),
)
TRAITS = Traits(
    next_step=(
        "Look at the coordinator's broker: markers arrive within milliseconds if it and the leader"
        " of the partition are up."
    )
)

NONE = Coordinator(0, (), 0, ())


def find(ledger: Ledger) -> DataFrame | None:
    """Returns the rows. A row of an offset has no place in the sink: it lies in
    `__consumer_offsets`."""
    coordinator = ledger.accounts.coordinator or NONE
    decided = (
        row(transaction, transaction.why) for transaction in coordinator.open if transaction.stuck
    )
    waiting = (
        Row(None, None, offset.holders[0].name, None, 0, offset.why)
        for offset in coordinator.unstable
        if offset.stuck
    )
    return of_transactions(ledger.spark, (*decided, *waiting))


def covered(ledger: Ledger) -> int:
    """Counts partitions whose leaders were asked, and group offsets that were requested; none if
    some were left out."""
    coordinator = ledger.accounts.coordinator or NONE
    if coordinator.left_out or coordinator.offsets_left_out:
        return 0
    return coordinator.partitions + coordinator.offsets
