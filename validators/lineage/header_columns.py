"""What a record's headers say, as columns of a reading.

The header of now and those of earlier versions are read here, and nowhere else in Spark: everything
behind knows the texts of validators/lineage/headers.py. The rules are those of
validators/lineage/compact.py, and tests compare both on the same values.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.lineage.compact import (
    COMPACT_HEADER,
    OFFSET_AT,
    PLACE_BYTES,
    TASK_TOKEN,
    TOPIC_NAME,
    TRANSACTION_BYTES,
    VERSION,
)
from topicproof.validators.lineage.headers import LINEAGE_HEADER, TRANSACTION_HEADER

LINEAGE_TEXT, TRANSACTION_TEXT = "lineage_text", "transaction_text"
SOURCE_ID, UNREADABLE = "source_id", "unreadable"
_HEADERS = "array<struct<key: string, value: binary>>"
_ID_AT, _PARTITION_AT, _INDEX_AT, _LENGTH_AT = 1, 17, OFFSET_AT + 8, PLACE_BYTES - 1
_VALUE, _END, _VALID = "compact_value", "compact_end", "compact_valid"


def has_header(name: str) -> Column:
    """Whether a record has a header of this name."""
    return F.coalesce(F.array_contains("headers.key", name), F.lit(False))


def last_header(name: str) -> Column:
    """Returns the value of a header; if the name occurs twice, the last value, as in Kafka."""
    return F.try_element_at(
        F.col("headers.value"), -F.nullif(_from_end(name), F.lit(0)).cast("int")
    )


def with_last(name: str, value: Column) -> Column:
    """Returns a record's headers with one more, which counts before all others of its kind."""
    header = F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
    return F.concat(F.coalesce("headers", F.array().cast(_HEADERS)), F.array(header))


def with_lineage_text(records: DataFrame) -> DataFrame:
    """Adds the input that a record names: lineage_text (`topic/partition/offset/index`; null if no
    header names it, or one that is damaged), source_id (the id of that topic as Kafka's own tools
    print it; null if the header has none) and unreadable (whether the header is damaged, or of a
    later version). Headers of earlier versions are taken as they are."""
    is_compact = _is_compact(LINEAGE_HEADER)
    numbers = _number(_PARTITION_AT, 4), _number(OFFSET_AT, 8), _number(_INDEX_AT, 4)
    lineage = F.when(F.col(_VALID), F.concat_ws("/", _topic(), *numbers))
    printed = F.translate(F.base64(_bytes(_ID_AT, 16)), "+/=", "-_")
    has_id = F.col(_VALID) & (_bytes(_ID_AT, 16) != F.lit(bytes(16)))
    texts = {
        LINEAGE_TEXT: F.when(is_compact, lineage).otherwise(
            last_header(LINEAGE_HEADER).cast("string")
        ),
        SOURCE_ID: F.when(is_compact & has_id, printed),
        UNREADABLE: is_compact & ~F.col(_VALID),
    }
    return _parsed(records).withColumns(texts).drop(_VALUE, _END, _VALID)


def with_transaction_text(records: DataFrame) -> DataFrame:
    """Adds the transaction that a record names: transaction_text
    (`id/sequence/attempt/task/total`; null if it names none) and unreadable, as
    `with_lineage_text`."""
    is_compact = _is_compact(TRANSACTION_HEADER)
    end = F.col(_END)
    id_length = _number(end + 28, 2).cast("int")
    transactional_id = _bytes(end + TRANSACTION_BYTES, id_length).cast("string")
    parts = (
        *(transactional_id, _number(end, 8), _number(end + 8, 4)),
        *(_bytes(end + 20, 8).cast("string"), _number(end + 12, 8)),
    )
    is_named = F.col(_VALID) & (F.octet_length(_VALUE) > end)
    text = F.when(is_compact, F.when(is_named, F.concat_ws("/", *parts))).otherwise(
        last_header(TRANSACTION_HEADER).cast("string")
    )
    texts = {TRANSACTION_TEXT: text, UNREADABLE: is_compact & ~F.col(_VALID)}
    return _parsed(records).withColumns(texts).drop(_VALUE, _END, _VALID)


def _parsed(records: DataFrame) -> DataFrame:
    """Adds the header of now, where its source's name ends, and whether it is valid. As columns:
    Spark would look it up again for each field of one expression."""
    records = records.withColumn(_VALUE, last_header(COMPACT_HEADER))
    records = records.withColumn(_END, F.lit(PLACE_BYTES) + _topic_length())
    return records.withColumn(_VALID, _is_valid())


def _from_end(name: str) -> Column:
    """Returns the place of the last header of this name, counted from the end, from 1; 0 without
    any."""
    return F.array_position(F.reverse(F.col("headers.key")), name)


def _is_compact(before: str) -> Column:
    """Whether the header of now comes after the one of earlier versions, or alone."""
    now, earlier = _from_end(COMPACT_HEADER), _from_end(before)
    return F.coalesce((now > 0) & ((earlier == 0) | (now < earlier)), F.lit(False))


def _bytes(at: int | Column, length: int | Column) -> Column:
    """Returns bytes of the header from `at` on, counted from 0."""
    begin = at + 1 if isinstance(at, Column) else F.lit(at + 1)
    return F.substring(_VALUE, begin, length if isinstance(length, Column) else F.lit(length))


def _number(at: int | Column, length: int) -> Column:
    """Returns a number without sign, as a text."""
    return F.conv(F.hex(_bytes(at, length)), 16, 10)


def _is_positive(at: int | Column) -> Column:
    """Whether the number that begins here has no sign."""
    return F.hex(_bytes(at, 1)) < "80"


def _topic_length() -> Column:
    return _number(_LENGTH_AT, 1).cast("int")


def _topic() -> Column:
    return _bytes(PLACE_BYTES, _topic_length()).cast("string")


def _is_valid() -> Column:
    length, end = F.octet_length(_VALUE), F.col(_END)
    is_place = (
        (length >= PLACE_BYTES)
        & (_bytes(0, 1) == F.lit(bytes([VERSION])))
        & _is_positive(_PARTITION_AT)
        & _is_positive(OFFSET_AT)
        & _is_positive(_INDEX_AT)
        & (length >= end)
        & _topic().rlike(rf"\A{TOPIC_NAME}\z")
    )
    id_length = _number(end + 28, 2).cast("int")
    transactional_id = _bytes(end + TRANSACTION_BYTES, id_length)
    is_transaction = (
        (length >= end + TRANSACTION_BYTES)
        & _is_positive(end)
        & _is_positive(end + 8)
        & _is_positive(end + 12)
        & _bytes(end + 20, 8).cast("string").rlike(rf"\A{TASK_TOKEN}\z")
        & (length == end + TRANSACTION_BYTES + id_length)
        & (id_length > 0)
        & F.is_valid_utf8(transactional_id.cast("string"))
        & ~F.contains(transactional_id, F.lit(b"/"))
    )
    return F.coalesce(is_place & ((length == end) | is_transaction), F.lit(False))
