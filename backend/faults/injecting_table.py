"""The sink into tables with faults (backend/faults/injecting.py). A module of its own, because it
needs SQLAlchemy, which Spark's workers may lack."""

from __future__ import annotations

from topicproof.backend.faults.injecting import Injecting
from topicproof.backend.sink.database import DatabaseSink


class InjectingDatabaseSink(Injecting, DatabaseSink):
    pass
