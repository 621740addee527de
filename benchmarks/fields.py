"""A check by a nested Avro field beside the same check by key: 1 million inputs and 1 million
outputs. Run as `make bench-fields`; `ARGS="--records N --rounds N"` changes the amounts.

The two checks alternate, so that the load of the machine meets both, and the figure is a ratio. The
source is Avro of a schema registry, with the id two levels deep, beside a list, a timestamp and a
text. The key is the same id. Two outputs are missing and one is committed twice: each check must
find exactly these.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer
from rich.console import Console

from tests.backend.formats.records import register
from tests.registry import registry
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.formats.formats import Formats, SideFormats
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.properties.registry_properties import RegistryFacts
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import read_settings

CONSOLE = Console(highlight=False, soft_wrap=True)
PARTITIONS = 2
PER_TRANSACTION = 10_000
MISSING, TWICE = (3, 50), (7,)
"""Inputs, by number."""
EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {
            "name": "order",
            "type": {
                "type": "record",
                "name": "Order",
                "fields": [
                    {"name": "id", "type": "string"},
                    {"name": "customer", "type": "long"},
                    {"name": "items", "type": {"type": "array", "items": "int"}},
                ],
            },
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "total", "type": "double"},
    ],
}
BY = {"field": {"field": "order.id"}, "key": "key"}


def fill(bootstrap: str, topic: str, numbers: Iterator[int], schema_id: int) -> None:
    """Write an event for each number, by transactions."""
    producer = Producer(transactional_producer_config(Address(bootstrap), f"{topic}-writer"))
    schema, head = parse_schema(EVENT), b"\0" + schema_id.to_bytes(4, "big")
    producer.init_transactions(60)
    producer.begin_transaction()
    for written, number in enumerate(numbers, 1):
        value, key = io.BytesIO(), f"o-{number}"
        order = {"id": key, "customer": number % 1_000, "items": [1, 2, number % 7]}
        event = {"order": order, "at": number, "note": "as ordered", "total": number / 4}
        schemaless_writer(value, schema, event)
        while True:
            try:
                producer.produce(topic, head + value.getvalue(), key, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(1)
        if written % PER_TRANSACTION == 0:
            producer.commit_transaction(60)
            producer.begin_transaction()
    producer.commit_transaction(60)


def outputs(records: int) -> Iterator[int]:
    for number in range(records):
        yield from () if number in MISSING else (number,) * (1 + (number in TWICE))


def measure(records: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of each check, by what identifies a record. Raises AssertionError if a
    check does not find exactly what is wrong."""
    settings = read_settings(home=folder)
    took: dict[str, list[float]] = {name: [] for name in BY}
    with registry(settings) as url, services(settings) as found:
        cluster = Cluster(Address(found.bootstrap))
        for topic, numbers in (("events", range(records)), ("copies", outputs(records))):
            cluster.create_topic(topic, PARTITIONS)
            schema_id = register(url, f"{topic}-value", "AVRO", json.dumps(EVENT))
            fill(found.bootstrap, topic, iter(numbers), schema_id)
        for turn in range(rounds + 1):
            for name, identity in BY.items():
                fields = {
                    "source": {"topic": "events"},
                    "sink": {"topic": "copies"},
                    "identity": identity,
                    "order": "none",
                }
                question = question_of(make_contract(fields), cluster)
                began = time.monotonic()
                with (
                    spark_session(found.spark_remote) as spark,
                    closing(Formats(RegistryFacts(url))) as formats,
                ):
                    report = judge_topics(
                        spark,
                        Sides(Address(found.bootstrap)),
                        question,
                        folder / "check",
                        JudgeOptions(formats=SideFormats(formats)),
                    )
                seconds = time.monotonic() - began
                wrong = {one.kind: one.primary for one in report.findings if one.primary}
                assert wrong == {"duplicate": len(TWICE), "gap": len(MISSING)}, wrong
                warm = "" if turn else " (warming, not counted)"
                CONSOLE.print(f"by {name}: {seconds:.1f} s, {report.verdict}{warm}")
                if turn:
                    took[name].append(seconds)
    return took


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder:
        took = measure(chosen.records, chosen.rounds, Path(folder))
    ratios = [one / other for one, other in zip(took["field"], took["key"], strict=True)]
    shown = ", ".join(f"{one:.2f}" for one in ratios)
    CONSOLE.print(
        f"{chosen.records:,} inputs and as many outputs, {os.cpu_count()} cores: by a field"
        f" {statistics.median(ratios):.2f} times as long as by key ({shown})"
    )


if __name__ == "__main__":
    main()
