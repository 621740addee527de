"""Turns orders into invoices, on Spark. Reads what is there, and ends.

Arguments: bootstrap, source, sink, group, checkpoint folder, and `bug` or `fixed`.
SPARK_REMOTE names the Spark Connect server.
"""

import sys

from pyspark.sql import SparkSession

from topicproof import KafkaTransactionalSink

bootstrap, source, sink, group, checkpoint, variant = sys.argv[1:]
kafka = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"}
spark = SparkSession.builder.getOrCreate()
orders = (
    spark.readStream.format("kafka")
    .options(**kafka, subscribe=source, startingOffsets="earliest")
    .load()
)
invoice = "cast(concat('invoice of ', cast(value as string)) as binary) as value"
if variant == "fixed":
    spark.dataSource.register(KafkaTransactionalSink)
    # The offsets are in the transactions, so a lost checkpoint loses nothing.
    rows = orders.selectExpr("topic", "partition", "offset", "key", invoice)
    options = {"topic": sink, "group": group, "transactionalIdPrefix": group}
    writer = rows.writeStream.format("kafka-transactional").options(**kafka, **options)
else:
    # The bug: Spark's own sink remembers what it has written in its checkpoint alone.
    rows = orders.selectExpr("key", invoice)
    writer = rows.writeStream.format("kafka").options(**kafka, topic=sink)
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
