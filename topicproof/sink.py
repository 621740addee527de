"""The sinks for PySpark programs: exactly-once into Kafka topics, behind stateful stages, and into
database tables.

Importing this loads no dashboard, no fault, no kafka-python and, until `DatabaseSink` is used,
no SQLAlchemy.
"""

from typing import TYPE_CHECKING

from topicproof.backend.sink.exactly_once import KafkaTransactionalSink
from topicproof.backend.sink.stateful import KafkaStatefulSink

if TYPE_CHECKING:
    from topicproof.backend.sink.database import DatabaseSink

__all__ = ["DatabaseSink", "KafkaStatefulSink", "KafkaTransactionalSink"]


def __getattr__(name: str) -> object:
    if name != "DatabaseSink":
        raise AttributeError(f"topicproof.sink has no {name}. Public names: {', '.join(__all__)}.")
    from topicproof.backend.sink.database import DatabaseSink

    return DatabaseSink
