"""A program that knows nothing of Topicproof: consume, square, produce, commit, in a loop, until it
is told to end.

Arguments: bootstrap, source, sink, group, `after` or `before` (when offsets are committed: after
the records are delivered, at least once; or before they are produced, at most once), and the number
of the batch at which it says "standing" between the two and stands still, to be killed there; 0:
nowhere.
"""

import signal
import sys

from confluent_kafka import Consumer, Producer

BATCH, PATIENCE_S = 100, 0.2

bootstrap, source, sink, group, commits, stand_at = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        # A successor waits until the group has forgotten who was killed.
        "session.timeout.ms": 6_000,
    }
)
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})


def stand() -> None:
    if batches == int(stand_at):
        sys.stdout.write("standing\n")
        sys.stdout.flush()
        signal.pause()


batches, going = 0, True


def end(_signal: int, _frame: object) -> None:
    global going
    going = False


signal.signal(signal.SIGTERM, end)
consumer.subscribe([source])
while going:
    messages = consumer.consume(BATCH, PATIENCE_S)
    if not messages:
        continue
    batches += 1
    if commits == "before":
        consumer.commit(asynchronous=False)
        stand()
    for message in messages:
        number = int(message.value() or b"")
        producer.produce(sink, str(number * number).encode(), message.key())
    producer.flush()
    if commits == "after":
        stand()
        consumer.commit(asynchronous=False)
consumer.close()
