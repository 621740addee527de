"""Every record can be decoded, if the contract names fields of it.

A premise. Nothing is known of a field of a record that cannot be decoded: its schema is unknown,
the registry does not answer, or the bytes are broken. Aborted records are not judged, so they need
not be decoded.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.decoded import undecoded
from topicproof.validators.evidence import evidence, of_source, together
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import countable
from topicproof.validators.sentences import Forms, Words

NAME = "undecodable"
TITLE = "Records that cannot be decoded"
QUESTION = "Can every record be decoded whose fields the contract names?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("record whose fields the contract names", "records whose fields the contract names"),
    bad=Forms("cannot be decoded", "cannot be decoded"),
    good=Forms("can be decoded", "can be decoded"),
)
TRAITS = Traits(row_record=RowRecord.ASIDE)


def find(ledger: Ledger) -> DataFrame | None:
    frames = []
    if ledger.counts.decoded.undecoded:
        rows = of_source(inputs(ledger), ledger.question.source.topic)
        rows = rows.withColumn("output_index", F.lit(None))
        frames.append(evidence(rows, F.lit(1), F.col("undecoded")))
    if ledger.undecoded_outputs:
        rows = ledger.sink.where(countable() & F.col("undecoded").isNotNull())
        frames.append(evidence(rows, F.lit(0), F.col("undecoded")))
    return together(frames)


def inputs(ledger: Ledger) -> DataFrame:
    """Returns the inputs that cannot be decoded: source_partition, source_offset, undecoded
    (why)."""
    assert ledger.readings is not None, "readings with fields are not folded"
    return ledger.readings.inputs.where(undecoded().isNotNull()).select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        undecoded().alias("undecoded"),
    )


def covered(ledger: Ledger) -> int:
    """Counts the records whose fields the contract names: the source's committed ones, and the
    sink's committed and pending ones."""
    outputs = ledger.committed + sum(cell.pending for cell in ledger.counts.cells)
    return ledger.counts.decoded.records + (
        outputs if ledger.question.agreed.needs_decoded_sink else 0
    )
