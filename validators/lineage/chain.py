"""End to end: judges a chain's last sink against its first source, through the topics between.

Every record's lineage names its immediate input. If that input lies in a topic between, its own
lineage names the next one up. Followed to the first source, the sink looks as if one stage had
written it. At most one stage of a chain makes several outputs per input, so output indices add up.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topicproof.validators.lineage.headers import LINEAGE_HEADER
from topicproof.validators.lineage.identity import with_lineage

INPUT = ("source_topic", "source_partition", "source_offset")


def through(records: DataFrame, between: DataFrame, topic: str) -> DataFrame:
    """Replaces lineage that points into `topic` by the lineage of the record it points to.

    `between` is the read_committed reading of `topic`. A record loses its lineage if its input is
    missing or names no input of its own: nothing in the first source explains it.
    """
    columns = records.columns
    up = with_lineage(between).select(
        F.lit(topic).alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.when(F.col("source_offset").isNotNull(), F.concat_ws("/", *INPUT)).alias("up"),
        F.col("output_index").alias("up_index"),
    )
    named = with_lineage(records).join(up, [*INPUT], "left")
    lineage = F.concat_ws("/", "up", F.col("up_index") + F.col("output_index")).cast("binary")
    header = F.array(F.struct(F.lit(LINEAGE_HEADER).alias("key"), lineage.alias("value")))
    others = F.filter("headers", lambda one: one["key"] != LINEAGE_HEADER)
    headers = F.when(F.col("up").isNotNull(), F.concat(others, header)).otherwise(others)
    return named.withColumn("headers", headers).select(*columns)
