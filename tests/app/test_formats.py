"""Topics whose records need a schema registry, from the producers to the pages and the exports."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from confluent_kafka import Producer
from confluent_kafka.serialization import MessageField

from tests.app.conftest import OpenPage, boxes, texts
from tests.backend.formats import records
from tests.registry import door
from topicproof.app.shell import downloads
from topicproof.app.topic.snapshot import take
from topicproof.backend.address import Address
from topicproof.backend.formats.formats import Formats
from topicproof.backend.formats.frames import schema_header
from topicproof.backend.kafka.browse import search as browse
from topicproof.backend.kafka.browse.records import Headers, read_window
from topicproof.backend.kafka.browse.search import RecordQuery, Stop, search
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.properties.registry_properties import RegistryFacts

ORDER = {"id": 1700000000, "to": {"city": "Genève"}}
KINDS = ("avro", "newer", "protobuf", "text", "schema", "guid", "json", "messagepack")


@pytest.fixture
def registry(schema_registry: str) -> Iterator[str]:
    """The address of the real registry behind a door that gives GUIDs."""
    with door(schema_registry) as guids:
        yield guids.url


@pytest.fixture
def mixed(bootstrap: str, registry: str, new_topic: Callable[..., str]) -> str:
    """A topic of one partition: a record of each kind with its name as key, then broken bytes, a
    null, and a null with a key of Avro."""
    topic = new_topic()
    headers: records.Headers = []
    total = ORDER | {"total": Decimal("9.50")}
    values = (
        records.avro(registry, topic, records.ORDER, ORDER),
        records.avro(registry, topic, records.NEWER, total),
        records.protobuf(registry, f"{topic}-p", id=2**60, note="<b>bold</b>"),
        records.protobuf_text(registry, f"{topic}-t"),
        records.json_schema(registry, f"{topic}-j", {"id": 9}),
        records.protobuf(registry, f"{topic}-g", headers, id=17, note="by guid"),
        json.dumps({"plain": "é"}).encode(),
        records.packed(),
    )
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key, value in zip(KINDS, values, strict=True):
        producer.produce(topic, value, key, headers=headers if key == "guid" else None)
    for value in (values[0][:-1], *records.BROKEN):
        producer.produce(topic, value, "broken")
    producer.produce(topic, None, "nothing")
    of_avro = records.avro(registry, topic, records.ORDER, ORDER, MessageField.KEY)
    producer.produce(topic, None, of_avro)
    assert producer.flush() == 0
    return topic


def test_decoded_values_are_searched(bootstrap: str, registry: str, mixed: str) -> None:
    """Story: somebody looks for a field's value, which no byte of the record spells. The search
    finds it in either direction, and finds nothing else; without a registry it finds nothing."""
    address, formats = Address(bootstrap), Formats(RegistryFacts(registry))
    seen = take(address, mixed)
    end = seen.bounds.partitions[0].hw

    def keys(wanted: bytes, text: browse.Text | None, newest: bool = False) -> list[bytes | None]:
        given = address, seen.bounds, seen.ranges, 0, end if newest else 0
        answer = search(*given, RecordQuery(value=wanted), newest=newest, text=text)
        assert answer.stop is Stop.END
        return [row.key for row in answer.rows]

    def decode(value: bytes, headers: Headers) -> str | None:
        header = schema_header(headers, "value")
        return formats.decode(value, mixed, header=header).text

    assert keys(b'"ID": 1700000000', decode) == [b"avro", b"newer"]
    assert keys(b'"total": "9.50"', decode, newest=True) == [b"newer"]
    assert keys(str(2**60).encode(), decode) == [b"protobuf"]
    assert keys(b'"id": "17", "note": "by', decode, newest=True) == [b"guid"]
    assert keys("\u00e9".encode(), decode) == [b"json"]
    assert keys(b'"note": "packed"', decode) == [b"messagepack"]
    assert keys(b'"ID": 1700000000', None) == []
    assert keys(b"\xff\xfe\xfd", decode) == [b"broken"]
    formats.close()


def test_every_record_is_exported_with_and_without_a_decoded_value(
    bootstrap: str, registry: str, mixed: str
) -> None:
    """Story: a topic of every kind and of broken bytes is exported from both pages. Each record is
    there with its bytes; those that are known have a decoded column, the others a reason."""
    address, formats = Address(bootstrap), Formats(RegistryFacts(registry))
    seen = take(address, mixed)
    count = len(KINDS) + len(records.BROKEN) + 3
    found = search(address, seen.bounds, seen.ranges, 0, 0, RecordQuery()).rows
    window = read_window(address, mixed, 0, 0, 100, seen.bounds, seen.ranges)
    for rows in (found, window):
        frame = downloads.record_frame(mixed, rows, formats)
        back = pd.read_parquet(io.BytesIO(downloads.as_parquet(frame)))
        assert back.to_dict("records") == frame.to_dict("records")
        lines = [json.loads(line) for line in downloads.as_json(frame).decode().splitlines()]
        assert len(lines) == count and [line["offset"] for line in lines] == [*range(count)]
        known = {line["key"]: json.loads(line["decoded"]) for line in lines if line["decoded"]}
        assert {*known} == {*KINDS}
        assert known["avro"] == ORDER and known["newer"] == ORDER | {"total": "9.50"}
        assert known["text"]["total"] == {"cents": "1000"} and known["schema"] == {"id": 9}
        said = {line["key"]: line["schema"] for line in lines if line["decoded"]}
        guid = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
        assert re.fullmatch(f"Protobuf, schema {guid}", said["guid"])
        broken = [line["schema"] for line in lines if line["key"] == "broken"]
        assert "the bytes end too early" in broken[0] and "has no schema 65535" in broken[4]
        assert all(line["value"] is not None for line in lines[:-2])
        assert lines[-2]["value"] is lines[-2]["decoded"] is lines[-2]["schema"] is None
    formats.close()


@pytest.mark.parametrize("page", ["topics", "compare"])
def test_the_pages_show_decoded_values_and_reasons(
    open_page: OpenPage,
    at_home: object,
    registry: str,
    mixed: str,
    page: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the record's detail has the tree, the schema and its place, beside the raw bytes.
    Broken bytes have the reason. The table shows the decoded text."""
    assert at_home
    monkeypatch.setenv("TOPICPROOF_SCHEMA_REGISTRY", registry)

    def opened(offset: int) -> tuple[str, list[str], list[str]]:
        record = f"0/{offset}" if page == "topics" else str(offset)
        app = open_page(page, topic=mixed, partition="0", offset="0", record=record)
        assert not app.exception
        assert any("Genève" in str(each.value.to_dict()) for each in app.dataframe)
        return texts(app), boxes(app), [one.value for one in app.json]

    said, shown, trees = opened(1)
    assert json.loads(trees[0]) == ORDER | {"total": "9.50"} and len(trees) == 1
    assert "Value, decoded: Avro, schema" in said and f"{mixed}-value version 2" in said
    assert any(text.startswith("0x00000000") for text in shown)
    _said, _shown, trees = opened(len(KINDS) - 1)
    assert json.loads(trees[0]) == records.PACKED
    said, _shown, trees = opened(len(KINDS) + len(records.BROKEN) + 2)
    assert [json.loads(tree) for tree in trees] == [ORDER] and "Key, decoded: Avro" in said
    assert f"{mixed}-key version 1" in said
    _said, _shown, trees = opened(2)
    assert json.loads(trees[0]) == {"id": str(2**60), "note": "<b>bold</b>"}
    said, _shown, trees = opened(KINDS.index("guid"))
    assert json.loads(trees[0]) == {"id": "17", "note": "by guid"}
    assert "Value, decoded: Protobuf, schema " in said
    said, shown, trees = opened(len(KINDS) + 4)
    assert not trees and "has no schema 65535" in said
    assert any(b"unknown id".hex() in text for text in shown)


def test_a_registry_that_is_down_hides_nothing(
    open_page: OpenPage,
    at_home: object,
    mixed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the registry of the properties file does not answer. The page shows bytes and why."""
    assert at_home
    config = tmp_path / "client.properties"
    config.write_text("schema.registry.url=http://127.0.0.1:1\n", encoding="utf-8")
    monkeypatch.setenv("TOPICPROOF_CONFIG", str(config))
    app = open_page("topics", topic=mixed, partition="0", offset="0", record="0/0")
    assert not app.exception and not app.json
    assert "The registry http://127.0.0.1:1 does not answer (ConnectError)." in texts(app)
    assert any(text.startswith("0x00000000") for text in boxes(app))
