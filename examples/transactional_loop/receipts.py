"""Writes a receipt for each payment: transactional, but are its offsets part of the transaction?

Environment: BOOTSTRAP, SOURCE, SINK, GROUP, and VARIANT, `bug` or `fixed`.
"""

import json
import os

from confluent_kafka import Consumer, Producer

group = os.environ["GROUP"]
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["BOOTSTRAP"],
        "group.id": group,
        "group.instance.id": "1",  # a restarted member takes over at once
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
producer = Producer({"bootstrap.servers": os.environ["BOOTSTRAP"], "transactional.id": group})
producer.init_transactions()  # aborts what its predecessor left open
consumer.subscribe([os.environ["SOURCE"]])
while True:
    payments = consumer.consume(25, 0.2)
    if not payments:
        continue
    producer.begin_transaction()
    for message in payments:
        payment = json.loads(message.value())
        receipt = json.dumps({"payment": payment["id"], "cents": payment["cents"]})
        producer.produce(os.environ["SINK"], receipt, payment["customer"])
    if os.environ["VARIANT"] == "bug":
        producer.commit_transaction()
        consumer.commit(asynchronous=False)  # the bug: it may die before this line
    else:
        positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
