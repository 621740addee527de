"""The sinks for PySpark programs: exactly-once into Kafka topics, behind stateful stages, and into database tables.

Importing this loads no dashboard, no fault and no reader of raw logs. Errors: topicproof.backend.errors.
"""

from topicproof.backend.sink.exactly_once import KafkaTransactionalSink
from topicproof.backend.sink.stateful import KafkaStatefulSink
from topicproof.backend.sink.table import DatabaseSink

__all__ = ["DatabaseSink", "KafkaStatefulSink", "KafkaTransactionalSink"]
