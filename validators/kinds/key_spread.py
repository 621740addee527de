"""All outputs that one source partition gives for a key lie in one partition of the sink.

A premise of order per key. Kafka orders the records of a partition and promises nothing across
partitions. If a key lies in several, the order of its records is unknown. Records without a key
have no order.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Witness
from topicproof.validators.ledger.counts import keys_of
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "key_spread"
TITLE = "Keys in several partitions"
QUESTION = "Does each key keep to one partition of the sink?"
UNIT = "keys"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("key", "keys"),
    bad=Forms("lies in several partitions", "lie in several partitions"),
    good=Forms("keeps to one partition", "keep to one partition"),
)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row for each key of a source partition, at its first record."""
    if not ledger.counts.keys.spread:
        return None
    rows = keys_of(ledger.sink, ledger.sink_bounds).where(F.col("partitions") > 1)
    first = ledger.sink.join(
        rows.select("partition", "offset", "partitions"), ["partition", "offset"]
    )
    why = F.format_string("Records with the key of this one lie in %d partitions.", "partitions")
    return evidence(first, F.col("partitions"), why)


def covered(ledger: Ledger) -> int:
    return ledger.counts.keys.all
