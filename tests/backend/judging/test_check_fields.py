"""Contracts on fields of decoded records: every format in one topic, with a real registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.backend.formats import records
from tests.registry import Door, door
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.contracts.draft import draft
from topicproof.backend.evidence.copy import copy_evidence
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.formats.formats import Formats, SideFormats
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.properties.registry_properties import RegistryFacts
from topicproof.backend.verifying.verify import verify
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

BERN = {"to": {"city": "Bern"}}
Written = tuple[bytes | None, bytes | None]
"""A key and a value."""


@pytest.fixture
def registry(schema_registry: str) -> Iterator[Door]:
    """The real registry behind a door that notes each request."""
    with door(schema_registry) as counted:
        yield counted


def produce(bootstrap: str, topic: str, written: Iterable[Written]) -> None:
    """In one transaction, without headers."""
    produce_with_headers(bootstrap, topic, ((key, value, []) for key, value in written))


def produce_with_headers(
    bootstrap: str,
    topic: str,
    written: Iterable[tuple[bytes | None, bytes | None, records.Headers]],
) -> None:
    """In one transaction."""
    producer = Producer(transactional_producer_config(Address(bootstrap), f"{topic}-writer"))
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value, headers in written:
        producer.produce(topic, value, key, partition=0, headers=headers)
    producer.commit_transaction(30)


def every_format(registry: str, topic: str) -> list[Written]:
    """Orders 1 to 6, each in another format."""
    values = [
        records.avro(registry, topic, records.ORDER, {"id": 1, **BERN}),
        records.avro(registry, topic, records.NEWER, {"id": 2, "total": Decimal("1.25"), **BERN}),
        records.protobuf(registry, f"{topic}-protobuf", id=3, note="x"),
        records.json_schema(registry, f"{topic}-json", {"id": 4}),
        records.packed(),
        b'{"id": 6, "to": {"city": "Bern"}}',
    ]
    return [(b"k", value) for value in values]


def guid_orders(registry: str, topic: str, city: str) -> list[tuple[None, bytes, records.Headers]]:
    """Orders 0 to 5 whose schemas are named by headers: Avro, Protobuf and JSON Schema in turn."""
    orders: list[tuple[None, bytes, records.Headers]] = []
    for number in range(0, 6, 3):
        of_avro: records.Headers = []
        of_protobuf: records.Headers = []
        of_json: records.Headers = []
        order = {"id": number, "to": {"city": city}}
        avro = records.avro(registry, topic, records.ORDER, order, headers=of_avro)
        protobuf = records.protobuf(registry, f"{topic}-p", of_protobuf, id=number + 1, note=city)
        document = records.json_schema(registry, f"{topic}-j", order | {"id": number + 2}, of_json)
        orders += [
            (None, avro, of_avro),
            (None, protobuf, of_protobuf),
            (None, document, of_json),
        ]
    return orders


def judged(
    spark: SparkSession,
    bootstrap: str,
    registry: Door,
    folder: Path,
    fields: Mapping[str, Any],
    apart: bool = False,
) -> Report:
    """`apart`: the registry is the source's alone, as with two clusters."""
    address = Address(bootstrap)
    question = question_of(make_contract(dict(fields)), Cluster(address))
    formats = Formats(RegistryFacts(registry.url))
    of_sides = SideFormats(Formats(), formats) if apart else SideFormats(formats)
    report = judge_topics(spark, Sides(address), question, folder, JudgeOptions(formats=of_sides))
    formats.close()
    return report


def counts(report: Report) -> dict[str, int]:
    return {one.kind: one.count for one in report.findings if one.count}


def test_formats_in_one_topic_are_judged_and_broken_bytes_are_named(
    bootstrap: str,
    new_topic: Callable[..., str],
    spark: SparkSession,
    registry: Door,
    schema_registry: str,
    tmp_path: Path,
) -> None:
    """Story: orders in every format become JSON under another name. All are matched, with one
    request for each schema to the source's own registry, and the evidence proves it without one.
    `contract init` finds the fields. Then broken bytes join on both sides: each is named, and the
    verdict stays open."""
    source, sink = new_topic(), new_topic()
    produce(bootstrap, source, every_format(schema_registry, source))
    outputs = [(None, b'{"order": {"number": %d}}' % number) for number in range(1, 7)]
    produce(bootstrap, sink, outputs)
    formats = Formats(RegistryFacts(schema_registry))
    proposed = draft(Sides(Address(bootstrap)), source, sink, formats)
    formats.close()
    assert "{source: {field: id}, sink: {json: $.order.number}}" in proposed.text, proposed.text
    contract = {
        "source": {"topic": source},
        "sink": {"topic": sink},
        "identity": {"source": {"field": "id"}, "sink": {"field": "order.number"}},
        "value": {"order.number": "field('id')"},
    }
    report = judged(spark, bootstrap, registry, tmp_path / "whole", contract, apart=True)
    assert report.verdict is Outcome.HOLDS, (report.why, counts(report))
    checked = {one.kind: one.records for one in report.checked}
    assert (checked["undecodable"], checked["wrong_value"]) == (12, 6)
    asked = [one for one in registry.asked if one.startswith("/schemas/ids/")]
    assert len(asked) == len({*asked}) and asked, registry.asked
    evidence = tmp_path / "whole" / EVIDENCE
    assert not (evidence / "decoded").exists()
    before = len(registry.asked)
    again = verify(spark, evidence)
    assert (again.exit_code, again.contradictions, again.forged) == (0, (), ()), again
    assert len(registry.asked) == before
    assert {one.kind for one in self_test(spark, tmp_path / "whole").caught} >= {"duplicate", "gap"}

    produce(bootstrap, source, [(b"k", data) for data in records.BROKEN])
    produce(bootstrap, sink, [(None, b"\0\0\0\0\0"), (None, b'{"order": {"number": 1}}')])
    report = judged(spark, bootstrap, registry, tmp_path / "broken", contract)
    broken = len(records.BROKEN) + 1
    found = counts(report)
    assert found["undecodable"] == broken and found["duplicate"] == 1, found
    (finding,) = [one for one in report.findings if one.kind == "undecodable"]
    places = {(one.partition, one.offset, one.lineage) for one in finding.examples}
    assert len(places) == broken, finding.examples
    assert all("cannot be decoded" in one.why for one in finding.examples), finding.examples
    # Any record may stem from an input without an identity, so even the duplicate is not certain.
    assert (report.verdict, finding.outcome) == (Outcome.UNKNOWN, Outcome.UNKNOWN)
    masked = tmp_path / "masked"
    copy_evidence(tmp_path / "broken" / EVIDENCE, masked, Payloads.MASKED)
    assert verify(spark, masked).exit_code == 3


@pytest.mark.parametrize("is_broken", [False, True], ids=["healthy", "broken"])
def test_records_whose_headers_name_their_schemas_are_judged(
    is_broken: bool,
    bootstrap: str,
    new_topic: Callable[..., str],
    spark: SparkSession,
    registry: Door,
    tmp_path: Path,
) -> None:
    """Story: values of both topics name their schemas by GUID alone, in every format. Each order is
    in the sink; or one is lost, one is doubled, and one has another city, which the evidence proves
    without a registry. Where all is well, headers then name no schema that there is: the verdict
    is open."""
    source, sink = new_topic(), new_topic()
    orders = guid_orders(registry.url, source, "Bern")
    outputs = guid_orders(registry.url, sink, "Bern")
    if is_broken:
        wrong = guid_orders(registry.url, sink, "Basel")[0]
        outputs = [wrong, outputs[1], outputs[3], *outputs[3:]]
    produce_with_headers(bootstrap, source, orders)
    produce_with_headers(bootstrap, sink, outputs)
    registry.asked.clear()
    contract = {
        "source": {"topic": source},
        "sink": {"topic": sink},
        "identity": {"field": "id"},
        "value": {"to.city": "field('to.city')"},
    }
    report = judged(spark, bootstrap, registry, tmp_path, contract)
    # A copy beside its first is also out of order, as a consequence.
    wanted = dict.fromkeys(("gap", "duplicate", "order", "wrong_value"), 1) if is_broken else {}
    expected = Outcome.VIOLATED if is_broken else Outcome.HOLDS
    assert (report.verdict, counts(report)) == (expected, wanted), report.why
    checked = {one.kind: one.records for one in report.checked}
    assert checked["undecodable"] == len(orders) + len(outputs)
    asked = [one for one in registry.asked if one.startswith("/schemas/guids/")]
    assert len(asked) == len({*asked}) and asked, registry.asked
    if is_broken:
        before = len(registry.asked)
        again = verify(spark, tmp_path / EVIDENCE)
        assert (again.contradictions, again.forged) == ((), ()), again
        assert again.exit_code == 1 and len(registry.asked) == before
        return

    # A GUID of another registry, and bytes that are none.
    strange = (b"\1" + b"\7" * 16, b"\1x")
    value = orders[0][1]
    unknown = [(None, value, [("__value_schema_id", header)]) for header in strange]
    produce_with_headers(bootstrap, sink, unknown)
    report = judged(spark, bootstrap, registry, tmp_path / "unknown", contract)
    (finding,) = [one for one in report.findings if one.kind == "undecodable"]
    assert (report.verdict, finding.count) == (Outcome.UNKNOWN, 2), counts(report)
    reasons = " ".join(one.why for one in finding.examples)
    assert "has no schema 07070707-0707-0707-0707-070707070707" in reasons
    assert "names no schema: of 2 bytes" in reasons, reasons
