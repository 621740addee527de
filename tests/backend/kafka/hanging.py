"""A really hanging transaction: a late write to a broker that does not ask the coordinator, as
before KIP-890."""

from __future__ import annotations

import random
import time

from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder

from tests.backend.kafka.topics import broker_setting
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.overview import overview
from topicproof.backend.kafka.coordination.abort import abort, plan_abort
from topicproof.backend.kafka.log.rawlog import connect

NOT_VERIFIED = 49
"""The broker's error code for a late write that its coordinator does not know
(INVALID_PRODUCER_ID_MAPPING)."""


def ghost() -> int:
    """A producer id that no coordinator ever gave to anybody. Another one each time: what two tests
    leave in one broker is not the transaction of one producer."""
    return random.randrange(10**12, 10**15)


def hang(
    bootstrap: str, topic: str, producer_id: int | None = None, epoch: int = 0, sequence: int = 0
) -> int:
    """Open a transaction in partition 0 that nothing will end, with one record, and return the
    producer id that wrote it: without one, that of a `ghost`."""
    writer_id = ghost() if producer_id is None else producer_id
    with broker_setting(bootstrap, "transaction.partition.verification.enable", "false"):
        # The broker hears of its new setting a moment later.
        wait_until(
            lambda: append_late(bootstrap, topic, writer_id, epoch, sequence) == 0,
            10,
            "a broker without verification",
        )
    return writer_id


def end_what_hangs(bootstrap: str) -> None:
    """Abort what earlier tests have left hanging in this broker."""
    address = Address(bootstrap)
    for transaction in overview(address).opened:
        for topic, part in transaction.parts:
            if part.hanging:
                abort(address, plan_abort(address, topic, part.partition, part.start_offset))


def append_late(
    bootstrap: str, topic: str, producer_id: int, epoch: int = 0, sequence: int = 0
) -> int:
    """Produce one transactional record to partition 0 behind the coordinator's back; the broker's
    error code."""
    # From version 12 on the broker itself tells the coordinator.
    return append(bootstrap, topic, producer_id, epoch, sequence, version=11)


def append(
    bootstrap: str,
    topic: str,
    producer_id: int,
    epoch: int = 0,
    sequence: int = 0,
    transactional_id: str = "ghost",
    version: int = 12,
) -> int:
    """Produce one transactional record to partition 0, at most with this version of the request;
    the broker's error code."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=10_000)
    builder.set_producer_state(producer_id, epoch, sequence, True)
    builder.append(timestamp=int(time.time() * 1000), key=b"k", value=b"v", headers=[])
    builder.close()
    data = ProduceRequest.TopicProduceData
    records = data.PartitionProduceData(index=0, records=bytes(builder.buffer()))
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=5_000,
        topic_data=[data(name=topic, partition_data=[records])],
        max_version=version,
    )
    with connect(Address(bootstrap)) as kafka:
        leader = kafka.leaders(topic)[0]
        answer = kafka.send({leader: request})[leader]
    code: int = answer.responses[0].partition_responses[0].error_code
    return code
