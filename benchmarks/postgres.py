"""A check of a table of PostgreSQL beside a plain Spark join of the same topic and table: 1 million
records and rows. Run as `make bench-table`; `ARGS="--records N --rounds N"` changes the amounts.

The two alternate, so that the load of the machine meets both, and the figure is a ratio. The join
reads the topic and the table once and counts what is missing, too many and wrong; it keeps nothing.
Two rows are lost, one is there twice, one is nobody's, and three have a wrong amount: both must
find exactly these. The memory is the most that Spark's process has had.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from pyspark.sql import SparkSession, functions as F
from rich.console import Console

from tests import postgresql
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.judging.table_rows import TableSink
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import read_settings

CONSOLE = Console(highlight=False, soft_wrap=True)
PARTITIONS = 4
LOST, TWICE, WRONG = (3, 50), (7,), (11, 13, 17)
"""Inputs, by number."""
FOUND = {"gap": len(LOST), "duplicate": len(TWICE), "phantom": 1, "wrong_value": len(WRONG)}
NAMES = ("check", "join")


@dataclass(frozen=True)
class Side:
    """Where topic and table are."""

    services: Services
    url: str
    """Of the database, for JDBC."""
    records: int
    took_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})


def fill_topic(bootstrap: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(records):
        value = json.dumps({"id": number, "amount": f"{number % 1000}.50"})
        while True:
            try:
                producer.produce("orders", value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(120) == 0


def rows(records: int) -> Iterator[tuple[int, str, str]]:
    for number in range(records):
        amount = "0.01" if number in WRONG else f"{2 * (number % 1000) + 1}"
        row = (number, amount, f"customer {number % 97}")
        yield from () if number in LOST else (row,) * (1 + (number in TWICE))
    yield records + 1, "1", "nobody"


def fill_table(url: str, records: int) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "create table invoices (order_id bigint, amount numeric(12,2), customer text)"
        )
        with connection.cursor() as cursor, cursor.copy("copy invoices from stdin") as copy:
            for row in rows(records):
                copy.write_row(row)


def check(spark: SparkSession, side: Side, folder: Path) -> dict[str, int]:
    """Judge the table as `topicproof check` does. Returns what was found, by kind."""
    contract = make_contract(
        {
            "source": {"topic": "orders"},
            "sink": {"table": {"url": side.url, "name": "invoices", "key": ["order_id"]}},
            "identity": {"source": {"json": "$.id"}, "sink": {"column": "order_id"}},
            "value": {
                "amount": "cast(get_json_object(value, '$.amount') as decimal(12,2)) * 2",
            },
        }
    )
    assert contract.table is not None
    address = Address(side.services.bootstrap)
    question = question_of(contract, Cluster(address))
    options = JudgeOptions(table=TableSink(contract.table, contract.yaml_fields))
    report = judge_topics(spark, Sides(address), question, folder, options)
    return {finding.kind: finding.count for finding in report.findings if finding.count}


def join(spark: SparkSession, side: Side) -> dict[str, int]:
    """Compare both by one full join. Returns what was found, by kind."""
    topic = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", side.services.bootstrap)
        .options(subscribe="orders", startingOffsets="earliest", endingOffsets="latest")
        .option("kafka.max.poll.records", "50000")
        .load()
        .select(F.col("value").cast("string").alias("value"))
    )
    inputs = topic.select(
        F.get_json_object("value", "$.id").cast("bigint").alias("id"),
        (F.get_json_object("value", "$.amount").cast("decimal(12,2)") * 2).alias("due"),
    )
    table = (
        spark.read.format("jdbc")
        .options(url=side.url, dbtable="invoices", fetchsize="5000", driver="org.postgresql.Driver")
        .load()
    )
    outputs = table.groupBy("order_id").agg(
        F.count("*").alias("rows"), F.first("amount").alias("amount")
    )
    both = inputs.join(outputs, F.col("id") == F.col("order_id"), "full")
    counts = both.agg(
        F.count_if(F.col("order_id").isNull()).alias("gap"),
        F.sum(F.greatest(F.col("rows") - 1, F.lit(0))).alias("duplicate"),
        F.count_if(F.col("id").isNull()).alias("phantom"),
        F.count_if(F.col("due") != F.col("amount")).alias("wrong_value"),
    ).collect()[0]
    return {str(kind): int(count) for kind, count in counts.asDict().items()}


def memory_max(folder: Path) -> int:
    """Return the most memory that the Spark server of this home has had, in bytes."""
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            status = (process / "status").read_text()
        except OSError:
            continue
        most = re.search(r"VmHWM:\s+(\d+) kB", status)
        if "SparkConnectServer" in command and str(folder) in command and most is not None:
            return int(most[1]) * 1024
    return 0


def measure(side: Side, rounds: int, folder: Path) -> None:
    """Time both in turns. Raises AssertionError if one does not find exactly what is wrong."""
    for turn in range(rounds + 1):
        for name in NAMES:
            began = time.monotonic()
            with spark_session(side.services.spark_remote) as spark:
                is_check = name == "check"
                counts = check(spark, side, folder / "check") if is_check else join(spark, side)
            seconds = time.monotonic() - began
            assert counts == FOUND, (name, counts)
            note = "" if turn else " (warming, not counted)"
            CONSOLE.print(f"{name}: {seconds:.1f} s{note}")
            if turn:
                side.took_s[name].append(seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="topicproof-bench-") as name,
        postgresql.server() as url,
        services(read_settings(home=Path(name))) as running,
    ):
        Cluster(Address(running.bootstrap)).create_topic("orders", PARTITIONS)
        fill_topic(running.bootstrap, chosen.records)
        fill_table(url, chosen.records)
        address = url.rpartition("@")[2]
        side = Side(running, f"jdbc:postgresql://{address}?user=tests", chosen.records)
        measure(side, chosen.rounds, Path(name))
        memory = memory_max(Path(name))
    ratios = [
        of_check / of_join
        for of_check, of_join in zip(side.took_s["check"], side.took_s["join"], strict=True)
    ]
    CONSOLE.print(
        f"{chosen.records:,} records: the check takes {statistics.median(ratios):.2f} times as long"
        f" as the join ({', '.join(f'{ratio:.2f}' for ratio in ratios)}); Spark had"
        f" {memory / 2**30:.1f} GiB at most"
    )


if __name__ == "__main__":
    main()
