"""Every committed output has the value that its input must produce.

Catalogue 6. The contract's expression is computed again from each source record and compared with
the output's value, byte by byte: text as UTF-8, any other type as Spark formats it as text. If the
expression gives null, the value must be null. A contract may instead give fields of the decoded
output, each with its own expression; then their texts are compared. Every committed copy of an
output is compared. If the expression fails on a record, the kind is not judged.

Each row shows both values, which are payloads. Copies of evidence without payloads hold the row's
`without_values` instead.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.columns import COLUMNS_SHOWN, differing
from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import undecodable
from topicproof.validators.kinds.matching import of_another
from topicproof.validators.kinds.traits import MATCHING_EACH, RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.sentences import Forms, Words

NAME = "wrong_value"
TITLE = "Wrong values"
QUESTION = "Does every committed output have the value that its input must give?"
UNIT = "records"
WRONG = "Its value is not the one that the contract's expression gives for its input"
CHARACTERS_MAX = 60
"""Characters shown of a value."""
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("committed output", "committed outputs"),
    bad=Forms("has a wrong value", "have wrong values"),
    good=Forms(
        "has the value that its input must give", "have the values that their inputs must give"
    ),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    shows_identity=True,
    premises=MATCHING_EACH,
    next_step=(
        "Compute the contract's expression by hand for one of these inputs: either the contract is"
        " wrong, or the application."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.values is None:
        return None
    rows = ledger.present.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    )
    rows = rows.where(~F.col("ambiguous")).join(
        ledger.values.wanted, ["source_partition", "source_offset"]
    )
    rows = rows.where(~F.col("value_hash").eqNullSafe(F.col("wanted_hash")))
    rows = rows.join(
        ledger.values.records.select("partition", "offset", "value"), ["partition", "offset"]
    )
    table = ledger.question.agreed.table
    if table is not None:
        rows = rows.withColumn("differences", differing("wanted", "value", table))
        # Of floating numbers, some differ by less than the tolerance.
        rows = rows.where((F.size("differences") > 0) | _is_undecoded())
    why = F.concat(
        F.lit(f"{WRONG}: it is "),
        shown("value"),
        F.lit(", and "),
        shown("wanted"),
        F.lit(" is expected."),
    )
    if table is not None:
        why = F.concat(F.lit(f"{WRONG}: "), _of_columns(), F.lit("."))
    unclear = "It cannot be compared: its value or its input cannot be decoded."
    why = F.when(_is_undecoded(), F.lit(unclear)).otherwise(why)
    return evidence(rows, F.lit(0), why, _cause(ledger))


def _of_columns() -> Column:
    """Formulates what differs in a row of a table: `amount is "5", and "10" is expected; ...`."""

    def clause(difference: Column) -> Column:
        actual, required = (
            _shown_text(difference.getField(side)) for side in ("actual", "required")
        )
        name, expected = difference.getField("name"), F.lit(" is expected")
        return F.concat(name, F.lit(" is "), actual, F.lit(", and "), required, expected)

    clauses = F.array_join(F.transform(F.slice("differences", 1, COLUMNS_SHOWN), clause), "; ")
    more = F.format_string("; and %d more columns", F.size("differences") - COLUMNS_SHOWN)
    return F.concat(clauses, F.when(F.size("differences") > COLUMNS_SHOWN, more).otherwise(""))


def _shown_text(text: Column) -> Column:
    """Formats the text of a column for a person; long ones are cut."""
    plain = F.regexp_replace(F.substring(text, 1, CHARACTERS_MAX), r"\p{Cntrl}", "\ufffd")
    rest = F.format_string("… (%,d characters)", F.length(text))
    cut = F.when(F.length(text) > CHARACTERS_MAX, rest).otherwise("")
    return F.when(text.isNull(), "NULL").otherwise(F.concat(F.lit('"'), plain, F.lit('"'), cut))


def _cause(ledger: Ledger) -> Column:
    """Returns why a value may be right after all: one of the two records cannot be decoded, or
    another one is the true input."""
    another = of_another(ledger)
    cause = F.when(_is_undecoded(), F.lit(undecodable.NAME))
    return cause if another is None else cause.otherwise(another)


def _is_undecoded() -> Column:
    return F.col("undecoded").isNotNull() | F.col("unknown")


def shown(value: str, *, in_quotes: bool = True) -> Column:
    """Formats a value for a person: text in quotes, other bytes in hexadecimal; with its size if it
    is cut. `in_quotes`: a cell of a table needs none."""
    column, text = F.col(value), F.col(value).cast("string")
    size = F.format_string("… (%,d bytes)", F.octet_length(column))
    plain = F.regexp_replace(F.substring(text, 1, CHARACTERS_MAX), r"\p{Cntrl}", "\ufffd")
    quote = F.lit('"' if in_quotes else "")
    quoted = F.concat(
        quote, plain, quote, F.when(F.length(text) > CHARACTERS_MAX, size).otherwise("")
    )
    bytes_max = CHARACTERS_MAX // 2
    hexadecimal = F.concat(F.lit("0x"), F.lower(F.hex(F.substring(column, 1, bytes_max))))
    hexadecimal = F.concat(
        hexadecimal, F.when(F.octet_length(column) > bytes_max, size).otherwise("")
    )
    return (
        F.when(column.isNull(), "null").when(F.is_valid_utf8(text), quoted).otherwise(hexadecimal)
    )


def without_values(why: str) -> str:
    """Returns a row's sentence without record content; another kind's sentence stays as it is."""
    return f"{WRONG}." if why.startswith(WRONG) else why


def covered(ledger: Ledger) -> int:
    """Counts committed records with an input, if a contract constrains their value."""
    return 0 if ledger.values is None else sum(cell.committed for cell in ledger.matched)
