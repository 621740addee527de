"""What the transaction coordinator and the leaders of the sink's partitions answered, as a witness of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

PRODUCER_COLUMNS = (
    "partition int, producer_id long, producer_epoch int, last_sequence int, last_timestamp long, "
    "current_transaction_start_offset long"
)
"""DescribeProducers: one row per producer of a partition; the start offset is null while no transaction is open."""

TRANSACTION_COLUMNS = (
    "transactional_id string, producer_id long, producer_epoch int, state string, timeout_ms long, start_ms long, "
    "topic string, partition int"
)
"""DescribeTransactions: one row per transaction and partition; topic and partition are null where it has none."""


@dataclass(frozen=True)
class Coordinator:
    """Asked once, beside the readings."""

    producers: DataFrame
    transactions: DataFrame
