"""Stories are short: Spark interprets their expressions, as it does for every verdict on few
records."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    interpreted(spark)
    return spark


def interpreted(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
