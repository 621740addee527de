"""Batches and markers written by bare requests, as clients and brokers write them in situations
that no client can be brought into on purpose."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest
from kafka.record import MemoryRecordsBuilder

from topicproof.backend.address import Address
from topicproof.backend.kafka.log.rawlog import connect

UNVERIFIED = "transaction.partition.verification.enable"
"""The broker's setting that makes it ask a coordinator about transactional batches; false: it does
not."""


@dataclass(frozen=True)
class BareProducer:
    """A producer id that no coordinator knows, at one partition."""

    address: Address
    topic: str
    partition: int
    producer_id: int

    def append(
        self, keys: Sequence[str], epoch: int, sequence: int, transactional_id: str | None = None
    ) -> int:
        """Append one batch, whose values are its keys. Returns the broker's error code."""
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=10_000)
        builder.set_producer_state(self.producer_id, epoch, sequence, transactional_id is not None)
        for key in keys:
            now_ms = int(time.time() * 1000)
            builder.append(timestamp=now_ms, key=key.encode(), value=key.encode(), headers=[])
        builder.close()
        data = ProduceRequest.TopicProduceData
        records = data.PartitionProduceData(index=self.partition, records=bytes(builder.buffer()))
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[data(name=self.topic, partition_data=[records])],
            # From version 12 on the broker itself tells the coordinator.
            max_version=11,
        )
        answer = self._send(request)
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    def commit(self, epoch: int) -> int:
        """Write a COMMIT marker, as a coordinator does. Returns the broker's error code."""
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = marker.WritableTxnMarkerTopic(name=self.topic, partition_indexes=[self.partition])
        answer = self._send(
            WriteTxnMarkersRequest(
                markers=[
                    marker(
                        producer_id=self.producer_id,
                        producer_epoch=epoch,
                        transaction_result=True,
                        topics=[topic],
                        coordinator_epoch=0,
                    )
                ]
            )
        )
        code: int = answer.markers[0].topics[0].partitions[0].error_code
        return code

    def _send(self, request: object) -> Any:
        with connect(self.address) as kafka:
            leader = kafka.leaders(self.topic)[self.partition]
            return kafka.send({leader: request})[leader]
