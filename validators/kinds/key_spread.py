"""All outputs that one source partition gives for a key lie in one partition of the sink.

A premise of order per key. Kafka orders the records of a partition and promises nothing across
partitions. If a key lies in several, the order of its records is unknown. Records without a key
have no order.

Each row shows its key, which is a payload. Copies of evidence without payloads hold the row's
`without_key` instead.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.counts import keys_of
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "key_spread"
TITLE = "Keys in several partitions"
QUESTION = "Does each key keep to one partition of the sink?"
UNIT = "keys"
SPREAD = "Its key lies in"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("key", "keys"),
    bad=Forms("lies in several partitions", "lie in several partitions"),
    good=Forms("keeps to one partition", "keep to one partition"),
)
TRAITS = Traits(row_record=RowRecord.ASIDE)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row for each key of a source partition, at its first record."""
    if not ledger.counts.keys.spread:
        return None
    rows = keys_of(ledger.in_sink, ledger.sink_bounds).where(F.col("partitions") > 1)
    first = ledger.in_sink.join(
        rows.select("partition", "offset", "partitions"), ["partition", "offset"]
    )
    spread = F.format_string(f"{SPREAD} %d partitions of the sink", "partitions")
    key = F.lit("")
    if ledger.readings is not None:
        keys = ledger.readings.uncommitted.select("partition", "offset", "key")
        first = first.join(keys, ["partition", "offset"], "left")
        key = F.concat(F.lit(": "), shown("key"))
    return evidence(first, F.col("partitions"), F.concat(spread, key, F.lit(".")))


def without_key(why: str) -> str:
    """Returns a row's sentence without its key; another kind's sentence stays as it is."""
    return f"{why.partition(':')[0].rstrip('.')}." if why.startswith(SPREAD) else why


def covered(ledger: Ledger) -> int:
    return ledger.counts.keys.all
