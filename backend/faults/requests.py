"""Parts of Kafka's requests and answers that the proxy reads: senders and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from kafka.errors import for_code
from kafka.protocol import consumer, producer
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

METADATA = int(MetadataResponse.API_KEY)
FIND_COORDINATOR = int(FindCoordinatorResponse.API_KEY)


class Api(IntEnum):
    """Requests of producers, and of consumers that commit their offsets."""

    PRODUCE = 0
    OFFSET_COMMIT = 8
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


_KINDS: Mapping[int, tuple[Any, Any]] = {
    Api.PRODUCE: (producer.ProduceRequest, producer.ProduceResponse),
    Api.OFFSET_COMMIT: (consumer.OffsetCommitRequest, consumer.OffsetCommitResponse),
    Api.INIT_PRODUCER_ID: (producer.InitProducerIdRequest, producer.InitProducerIdResponse),
    Api.ADD_PARTITIONS_TO_TXN: (
        producer.AddPartitionsToTxnRequest,
        producer.AddPartitionsToTxnResponse,
    ),
    Api.ADD_OFFSETS_TO_TXN: (producer.AddOffsetsToTxnRequest, producer.AddOffsetsToTxnResponse),
    Api.END_TXN: (producer.EndTxnRequest, producer.EndTxnResponse),
    Api.TXN_OFFSET_COMMIT: (producer.TxnOffsetCommitRequest, producer.TxnOffsetCommitResponse),
}


class UndecodableError(ValueError):
    """Bytes that are no request or answer of this kind and version. Anybody on this machine may
    send some, so they say nothing about the run."""


def decoded(kind: Any, version: int, frame: bytes) -> Any:
    """Raises UndecodableError. The decoder trusts its bytes, and raises whatever they lead to."""
    try:
        return kind.decode(frame, version=version, header=True)
    except Exception as error:
        raise UndecodableError(f"{kind.name} {version}: {error}") from error


def read_request(api: int, version: int, frame: bytes) -> Any:
    """Raises UndecodableError."""
    return decoded(_KINDS[api][0], version, frame)


def transactional_id(request: Any) -> str | None:
    """Return the sender's id; None if the request is not part of a transaction."""
    for name in ("transactional_id", "v3_and_below_transactional_id"):
        if getattr(request, name, None):
            return str(getattr(request, name))
    return None


def topics(request: Any) -> set[str]:
    """Return the topics that a Produce request names."""
    return {topic.name for topic in request.topic_data}


def errors(api: int, version: int, frame: bytes) -> str:
    """Return the names of the error codes in an answer, or NO_ERROR. Raises UndecodableError."""
    codes = set(_codes(decoded(_KINDS[api][1], version, frame).to_dict()))
    return ", ".join(sorted(for_code(code).message for code in codes - {0})) or "NO_ERROR"


def _codes(answer: Any) -> Iterator[int]:
    for name, value in answer.items():
        if name.endswith("error_code"):
            yield value
        for part in value if isinstance(value, list) else ():
            if isinstance(part, dict):
                yield from _codes(part)
