"""Turns orders into invoices: consume, transform, produce, in a loop.

Arguments: bootstrap, source, sink, group, and `bug` or `fixed`.
"""

import signal
import sys

from confluent_kafka import Consumer, Producer

BATCH = 50
bootstrap, source, sink, group, variant = sys.argv[1:]
fixed = variant == "fixed"

consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        # A restarted member takes over at once, instead of after the session timeout.
        "group.instance.id": "1",
        "auto.offset.reset": "earliest",
        # The bug: a timer commits offsets, whenever the outputs were written.
        "enable.auto.commit": not fixed,
        "auto.commit.interval.ms": 5_000,
    }
)
settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
if fixed:
    settings["transactional.id"] = group
producer = Producer(settings)
if fixed:
    producer.init_transactions()

going = True


def end(_signal, _frame):
    global going
    going = False


signal.signal(signal.SIGTERM, end)
consumer.subscribe([source])
while going:
    orders = consumer.consume(BATCH, 0.2)
    if not orders:
        continue
    if fixed:
        producer.begin_transaction()
    for order in orders:
        producer.produce(sink, b"invoice of " + order.value(), order.key())
    producer.flush()
    if fixed:
        positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
consumer.close()
