"""Every record holds an identity: the key, header or path that records are matched by.

A premise. A record without an identity matches nothing: null equals nothing, not even null. Any
output may belong to an input without an identity, and an output without one may belong to any
input. So these are not judged, and nothing that depends on them holds. A misspelt header or path
shows up here, because no record has it. An input for which the contract's count gives 0, such as a
tombstone, needs no identity: it has no output.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.evidence import evidence, of_source, together
from topicproof.validators.finding import Witness
from topicproof.validators.json_path import parse_path, why_absent
from topicproof.validators.kinds import undecodable
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import countable
from topicproof.validators.sentences import Forms, Words

NAME = "identity_missing"
TITLE = "Records without an identity"
QUESTION = "Does every record hold the identity by which it is matched?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("record", "records"),
    bad=Forms("holds no identity", "hold no identity"),
    good=Forms("that needs an identity holds one", "that need an identity hold one"),
)
TRAITS = Traits(row_record=RowRecord.ASIDE)


def find(ledger: Ledger) -> DataFrame | None:
    frames = []
    if ledger.counts.identities.missing and ledger.frames.identities is not None:
        inputs = ledger.frames.identities().where(F.col("source_key").isNull() & ~F.col("pending"))
        rows = of_source(inputs, ledger.question.source.topic).withColumn(
            "output_index", F.lit(None)
        )
        assert ledger.readings is not None, "folded readings have no identities"
        place = "source_partition", "source_offset"
        rows = _with_values(rows, ledger.readings.inputs, *place)
        why = _why("This input", ledger.question.agreed.match.source)
        if ledger.counts.decoded.undecoded:
            rows = rows.join(
                undecodable.inputs(ledger), ["source_partition", "source_offset"], "left"
            )
        else:
            rows = rows.withColumn("undecoded", F.lit(None).cast("string"))
        frames.append(evidence(rows, F.lit(1), why, _cause()))
    if ledger.unidentified_outputs:
        rows = ledger.sink.where(countable() & ~F.col("identified"))
        assert ledger.readings is not None, "folded readings have no identities"
        rows = _with_values(rows, ledger.readings.uncommitted, "partition", "offset")
        why = _why("This record", ledger.question.agreed.match.sink)
        frames.append(evidence(rows, F.lit(0), why, _cause()))
    return together(frames)


def _with_values(rows: DataFrame, reading: DataFrame, *place: str) -> DataFrame:
    """Adds the value of each row's record. `place`: the columns of its partition and offset."""
    partition, offset = place
    values = reading.select(
        F.col("partition").alias(partition), F.col("offset").alias(offset), "value"
    )
    return rows.join(values, [partition, offset], "left")


def _why(subject: str, by: str) -> Column:
    """Formulates that a record holds no identity, with the reason if it lies in its document."""
    carrier, _, path = by.partition(":")
    undecoded = F.lit(f"{subject} cannot be decoded, so its identity is unknown.")
    absent = F.lit(f"{subject} has no {_spelled(by)}")
    if carrier == "json":
        absent = F.concat(absent, F.lit(": "), why_absent(F.col("value"), parse_path(path)))
    return F.when(F.col("undecoded").isNotNull(), undecoded).otherwise(F.concat(absent, F.lit(".")))


def without_names(why: str) -> str:
    """Returns a row's sentence without names of a document."""
    return f"{why.partition(':')[0].rstrip('.')}."


def _cause() -> Column:
    return F.when(F.col("undecoded").isNotNull(), F.lit(undecodable.NAME))


def covered(ledger: Ledger) -> int:
    """Counts the committed records of the source's reading, and the committed and pending ones of
    the sink."""
    # Of one topic alone, the inputs are records of the sink.
    inputs = 0 if ledger.question.agreed.unique else ledger.counts.identities.records
    return inputs + ledger.committed + sum(cell.pending for cell in ledger.counts.cells)


def _spelled(by: str) -> str:
    """`header:id` -> `header id`, `key_field:id` -> `key field id`."""
    carrier, _, name = by.partition(":")
    return f"{carrier.replace('_', ' ')} {name}".strip()
