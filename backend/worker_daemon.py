"""Spark's Python daemon with the imports done before it forks (`spark.python.daemon.module`).

Spark forks a Python worker for planning, for each task and for each commit of the sink, and each would import PySpark,
Arrow and the sink anew. Nothing here starts a thread or opens a client, so forking is safe.
"""

from __future__ import annotations

import pyspark.sql.connect.session
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.python_streaming_sink_runner
import pyspark.sql.worker.write_into_data_source
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import backend.pipeline.sink  # noqa: F401

if __name__ == "__main__":
    manager()
