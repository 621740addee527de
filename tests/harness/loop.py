"""A program under test: copies a topic in batches, and commits its offsets after each. It knows
nothing of Topicproof.

Arguments: bootstrap, source, sink, group.
"""

import sys

from confluent_kafka import Consumer, Producer

BATCH = 20
bootstrap, source, sink, group = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
    }
)
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
consumer.subscribe([source])
while True:
    batch = consumer.consume(BATCH, 0.2)
    for message in batch:
        producer.produce(sink, message.value(), message.key())
        producer.flush()
    if batch:
        consumer.commit(asynchronous=False)
