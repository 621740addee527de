"""Turns orders into invoices: consume, transform, produce, in a loop.

Arguments: bootstrap, source, sink, group, and `bug` or `fixed`.
"""

import sys

from confluent_kafka import Consumer, Producer

bootstrap, source, sink, group, variant = sys.argv[1:]
fixed = variant == "fixed"
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.instance.id": "1",  # a restarted member takes over at once
        "auto.offset.reset": "earliest",
        "enable.auto.commit": not fixed,  # the bug: a timer commits the offsets
    }
)
producer = Producer(
    {"bootstrap.servers": bootstrap, **({"transactional.id": group} if fixed else {})}
)
if fixed:
    producer.init_transactions()  # aborts what its predecessor left open
consumer.subscribe([source])
while True:
    orders = consumer.consume(50, 0.2)
    if fixed and orders:
        producer.begin_transaction()
    for order in orders:
        producer.produce(sink, b"invoice of " + order.value(), order.key())
    producer.flush()
    if fixed and orders:
        positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
