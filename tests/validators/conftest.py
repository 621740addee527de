"""Stories are short: Spark interprets their expressions, as it does for every verdict on few
records."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from topicproof.backend.judging.spark_tuning import tune


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    tune(spark, offsets=0)
    return spark
