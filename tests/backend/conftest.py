"""These tests take their time: each asks for a session that the server has not ended meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def spark(spark_sessions: Callable[[], SparkSession]) -> SparkSession:
    return spark_sessions()
