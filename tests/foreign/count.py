"""Counts what a sink holds of its source, by key, with a plain consumer and a dictionary: no code
of Topicproof.

Arguments: bootstrap, source, sink. Every key is in the source once, and a value is the square of
its input's. Prints JSON: keys of the source; sink records at either isolation level; copies beyond
the first of a key; keys that are missing; records that no key explains; values that are wrong.
"""

import json
import sys
from collections import Counter

from confluent_kafka import Consumer, KafkaError, TopicPartition


def read(topic: str, isolation: str) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of every record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "count",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[tuple[bytes | None, bytes | None]] = []
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(30)
        if message is None:
            sys.exit(f"{topic} went silent")
        error = message.error()
        if error is None:
            found.append((message.key(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended += 1
        else:
            sys.exit(str(error))
    consumer.close()
    return found


bootstrap, source, sink = sys.argv[1:]
inputs = dict(read(source, "read_committed"))
outputs = read(sink, "read_committed")
copies = Counter(key for key, _ in outputs if key in inputs)
said = {
    "inputs": len(inputs),
    "committed": len(outputs),
    "uncommitted": len(read(sink, "read_uncommitted")),
    "duplicates": sum(count - 1 for count in copies.values()),
    "missing": len(inputs.keys() - copies.keys()),
    "unexplained": sum(key not in inputs for key, _ in outputs),
    "wrong": sum(
        int(value or b"") != int(inputs[key] or b"") ** 2 for key, value in outputs if key in inputs
    ),
}
json.dump(said, sys.stdout)
