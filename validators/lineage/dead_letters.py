"""The input that a dead letter names, by the headers of the program that wrote it.

| origin | headers | numbers |
| --- | --- | --- |
| `kip-1191` | `__dlq.errors.topic`, `.partition`, `.offset`: a share group (Kafka 4.4) | text |
| `connect` | `__connect.errors.topic`, `.partition`, `.offset`: a sink connector (KIP-298) | text |
| `streams` | `__streams.errors.topic`, `.partition`, `.offset`: Kafka Streams (KIP-1034) | text |
| `spring` | `kafka_dlt-original-topic`, `-partition`, `-offset`: Spring for Apache Kafka | binary |

Binary numbers are signed and begin with the highest byte: four bytes for the partition, eight for
the offset. Headers are data: each is bounded before it is read, and what is no place names nothing.
If a header occurs twice, the last one counts: it was written last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, functions as F

from topicproof.validators.lineage.compact import TOPIC_NAME
from topicproof.validators.lineage.header_columns import has_header, last_header
from topicproof.validators.lineage.headers import INT_MAX, LONG_MAX

TOPIC_BYTES_MAX = 249
"""As long as Kafka lets a topic's name be."""
INT_BYTES, LONG_BYTES = 4, 8
_DECIMAL = r"(0|[1-9][0-9]{0,18})"


@dataclass(frozen=True)
class OriginHeaders:
    """The headers in which a program names the input of a dead letter."""

    topic: str
    partition: str
    offset: str
    is_binary: bool = False
    """Whether the numbers are binary; else they are decimal text."""

    @property
    def names(self) -> tuple[str, str, str]:
        return self.topic, self.partition, self.offset


ORIGINS: Mapping[str, OriginHeaders] = {
    "kip-1191": OriginHeaders(
        "__dlq.errors.topic", "__dlq.errors.partition", "__dlq.errors.offset"
    ),
    "connect": OriginHeaders(
        "__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset"
    ),
    "streams": OriginHeaders(
        "__streams.errors.topic", "__streams.errors.partition", "__streams.errors.offset"
    ),
    "spring": OriginHeaders(
        "kafka_dlt-original-topic",
        "kafka_dlt-original-partition",
        "kafka_dlt-original-offset",
        is_binary=True,
    ),
}
"""By the name that a contract gives as `origin:`."""


@dataclass(frozen=True)
class DeadLetters:
    """Where a pipeline puts the inputs that it could not process."""

    topic: str
    origin: str
    """What names the input of a dead letter: a name in `ORIGINS`, or what holds its identity, as
    `Match` spells it (validators/lineage/identity.py)."""

    @property
    def headers(self) -> OriginHeaders | None:
        """The headers that name a place; None if a dead letter holds the identity of its input."""
        return ORIGINS.get(self.origin)

    @property
    def words(self) -> str:
        """`the headers of connect`, `header order-id`."""
        if self.headers is not None:
            return f"the headers of {self.origin}"
        return self.origin.replace("_", " ").replace(":", " ", 1)


def lineage_of(headers: OriginHeaders) -> Column:
    """Returns the input that a dead letter names, as the text of its lineage
    (validators/lineage/headers.py); null if it names no place."""
    topic = F.when(_is_topic(headers), last_header(headers.topic).cast("string"))
    partition = _number(headers.partition, INT_BYTES, headers.is_binary)
    offset = _number(headers.offset, LONG_BYTES, headers.is_binary)
    # `concat` gives null if a part is null.
    return F.concat(topic, F.lit("/"), partition, F.lit("/"), offset, F.lit("/0"))


def why_no_place(headers: OriginHeaders) -> Column:
    """Returns why a dead letter names no place, as a clause; null if it names one."""
    reasons = [
        F.when(~has_header(name) | last_header(name).isNull(), F.lit(f"it has no header {name}"))
        for name in headers.names
    ]
    reasons.append(F.when(~_is_topic(headers), F.lit(f"{headers.topic} holds no name of a topic")))
    for name, size in ((headers.partition, INT_BYTES), (headers.offset, LONG_BYTES)):
        # Not how long it is: a masked copy has a digest in its place.
        number = (
            f"number of {size} bytes, the highest first" if headers.is_binary else "whole number"
        )
        is_number = _number(name, size, headers.is_binary).isNotNull()
        reasons.append(F.when(~is_number, F.lit(f"{name} holds no {number}")))
    return F.coalesce(*reasons)


def _is_topic(headers: OriginHeaders) -> Column:
    value = last_header(headers.topic)
    is_short = F.octet_length(value) <= TOPIC_BYTES_MAX
    return F.coalesce(is_short & value.cast("string").rlike(rf"\A{TOPIC_NAME}\z"), F.lit(False))


def _number(name: str, size: int, is_binary: bool) -> Column:
    """Returns a number as decimal text; null if the header holds none that Kafka could give."""
    value = last_header(name)
    most = INT_MAX if size == INT_BYTES else LONG_MAX
    if is_binary:
        is_valid = (F.octet_length(value) == size) & (F.hex(F.substring(value, 1, 1)) < "80")
        return F.when(is_valid, F.conv(F.hex(value), 16, 10))
    text = F.when(F.octet_length(value) <= len(str(LONG_MAX)), value.cast("string"))
    is_decimal = text.rlike(rf"\A{_DECIMAL}\z") & (text.try_cast("long") <= most)
    return F.when(is_decimal, text)


def place_in(values: Mapping[str, bytes], headers: OriginHeaders) -> tuple[str, int, int] | None:
    """Returns topic, partition and offset that a dead letter names; None if it names no place.
    `values`: the last value of each header."""
    topic = _parse_topic(values.get(headers.topic, b""))
    partition = _parse_number(values.get(headers.partition, b""), INT_BYTES, headers.is_binary)
    offset = _parse_number(values.get(headers.offset, b""), LONG_BYTES, headers.is_binary)
    if topic is None or partition is None or offset is None:
        return None
    return topic, partition, offset


def _parse_topic(value: bytes) -> str | None:
    is_name = len(value) <= TOPIC_BYTES_MAX and re.fullmatch(TOPIC_NAME.encode(), value)
    return value.decode() if is_name else None


def _parse_number(value: bytes, size: int, is_binary: bool) -> int | None:
    if is_binary:
        number = int.from_bytes(value, signed=True) if len(value) == size else -1
    else:
        is_decimal = re.fullmatch(_DECIMAL.encode(), value)
        number = int(value) if is_decimal else -1
    return number if 0 <= number <= (INT_MAX if size == INT_BYTES else LONG_MAX) else None


def _parsers(headers: OriginHeaders) -> dict[str, Callable[[bytes], object | None]]:
    return {
        headers.topic: _parse_topic,
        headers.partition: partial(_parse_number, size=INT_BYTES, is_binary=headers.is_binary),
        headers.offset: partial(_parse_number, size=LONG_BYTES, is_binary=headers.is_binary),
    }


PLACE_HEADERS: Mapping[str, Callable[[bytes], object | None]] = {
    name: parser for headers in ORIGINS.values() for name, parser in _parsers(headers).items()
}
"""All these headers, each with its parser, which returns None for what names no place."""
