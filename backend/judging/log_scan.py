"""The raw log of captured topics: read by this process, or by Spark's tasks where that would take
one process too long."""

from __future__ import annotations

import json
import re
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from topicproof.backend.address import Address
from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.kafka.client_configs import (
    SPARK_FETCH_BYTES,
    spark_options_of_address,
    spark_range_options,
)
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.log.batches import SCHEMA
from topicproof.backend.kafka.log.inflation import fetch_bytes, largest_ratio, polled_records
from topicproof.backend.kafka.log.rawlog_source import FORMAT, KafkaRawLog
from topicproof.backend.services.spark_session import failed
from topicproof.validators.finding import Bounds
from topicproof.validators.merged_topics import split

SCANNED_HERE_MAX = 200_000_000
"""Offsets of one topic that this process scans by itself. Beyond that, Spark's tasks do: a broker
sends whole batches, so a scan moves as many bytes as a reading of the records."""
_REFUSED = re.compile(r"backend\.errors\.RecordTooLarge: (.+)")
"""A worker's error reaches us only as text."""
ORDER = [("partition", "ascending"), ("base_offset", "ascending")]


def scan_log(spark: SparkSession, address: Address, bounds: Bounds) -> pa.Table:
    """Read the batches within the bounds of one topic or of joined topics, as `batches.SCHEMA`, by
    partition and offset.

    Raises RecordTooLarge for records that would exhaust Spark's memory (inflation.py), TopicError,
    ClusterError, SparkError.
    """
    tables = []
    for topic_bounds, first in split(bounds):
        is_small = topic_bounds.offsets <= SCANNED_HERE_MAX
        table = (
            rawlog.scan(address, topic_bounds.topic, topic_bounds, readable=True)
            if is_small
            else _by_spark(spark, address, topic_bounds)
        )
        place = table.schema.get_field_index("partition")
        numbered = pc.add(table.column("partition"), first).cast(table.schema.field(place).type)
        tables.append(
            table.set_column(place, table.schema.field(place), numbered) if first else table
        )
    return pa.concat_tables(tables)


def source_options(address: Address, batches: pa.Table) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a topic with these batches."""
    fetched = fetch_bytes(largest_ratio(batches), SPARK_FETCH_BYTES)
    options = spark_range_options(address, fetched)
    return {**options, "kafka.max.poll.records": str(polled_records(batches))}


_REGISTERING = Lock()


def _by_spark(spark: SparkSession, address: Address, bounds: Bounds) -> pa.Table:
    # Both logs of a check are scanned at once, and Spark refuses two threads that register.
    with _REGISTERING:
        spark.dataSource.register(KafkaRawLog)
    spans = {p.partition: [p.start, p.hw] for p in bounds.partitions}
    options = {
        **spark_options_of_address(address),
        "topic": bounds.topic,
        "bounds": json.dumps(spans),
        "readable": "true",
    }
    try:
        frame = spark.read.format(FORMAT).options(**options).load()
        rows = frame.limit(rawlog.BATCHES_MAX + 1).toArrow()
    except PySparkException as error:
        if (refused := _REFUSED.search(str(error))) is not None:
            raise RecordTooLarge(refused[1]) from error
        raise failed(f"Spark could not read the log of {bounds.topic}", error) from error
    if rows.num_rows > rawlog.BATCHES_MAX:
        raise address.too_large(bounds.topic, rawlog.BATCHES_MAX)
    return rows.cast(SCHEMA).sort_by(ORDER)
