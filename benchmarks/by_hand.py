"""The check that somebody writes who has no Topicproof: read both topics, and ask DuckDB for inputs
without an output, and for inputs with two. `benchmarks.wait` runs it beside ours, in an environment
of its own.

Arguments: the brokers, the topic that was read, the topic that was written. Both have one output of
an input, with the same key.
"""

from __future__ import annotations

import sys

import duckdb
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

PATIENCE_S = 30.0
AT_ONCE, AT_ONCE_S = 50_000, 0.1


def keys_of(bootstrap: str, topic: str) -> pa.Table:
    """Return the keys of all committed records of a topic. Raises TimeoutError."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "by-hand",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    keys: list[bytes | None] = []
    ends = 0
    while ends < len(partitions):
        messages = consumer.consume(AT_ONCE, AT_ONCE_S)
        ends += sum(message.error() is not None for message in messages)
        keys += [message.key() for message in messages if message.error() is None]
    consumer.close()
    return pa.table({"key": pa.array(keys, pa.binary())})


def main() -> None:
    bootstrap, source_topic, sink_topic = sys.argv[1:]
    tables = duckdb.connect()
    tables.register("source", keys_of(bootstrap, source_topic))
    tables.register("sink", keys_of(bootstrap, sink_topic))
    answers = tables.execute(
        """
        select
            (select count(*) from source anti join sink using (key)),
            (select count(*) from (select key from sink group by key having count(*) > 1)),
            (select count(*) from sink anti join source using (key))
        """
    ).fetchone()
    sys.stdout.write(f"missing, twice, from nowhere: {answers}\n")
    sys.exit(0 if answers == (0, 0, 0) else 1)


if __name__ == "__main__":
    main()
