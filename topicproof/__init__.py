"""Topicproof: see, and prove, what Kafka transactions did to your topics.

The names below are public; a change of theirs is in the changelog. They are loaded when they are
first asked for, because every module of this package imports it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topicproof.backend.errors import TopicproofError
    from topicproof.backend.sink.database import DatabaseSink
    from topicproof.backend.sink.exactly_once import KafkaTransactionalSink
    from topicproof.backend.sink.real_time import start_real_time
    from topicproof.backend.sink.stateful import KafkaStatefulSink

__all__ = [
    "DatabaseSink",
    "KafkaStatefulSink",
    "KafkaTransactionalSink",
    "TopicproofError",
    "start_real_time",
]

_HOMES = {
    "DatabaseSink": "topicproof.backend.sink.database",
    "KafkaStatefulSink": "topicproof.backend.sink.stateful",
    "KafkaTransactionalSink": "topicproof.backend.sink.exactly_once",
    "TopicproofError": "topicproof.backend.errors",
    "start_real_time": "topicproof.backend.sink.real_time",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"topicproof has no {name}. Public names: {', '.join(__all__)}.")
    return getattr(importlib.import_module(_HOMES[name]), name)
