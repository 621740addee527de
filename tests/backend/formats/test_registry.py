"""Decoding with a real registry: each kind of schema, evolution and references, what goes wrong."""

from __future__ import annotations

import ssl
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
import trustme
from confluent_kafka.serialization import MessageField

from tests.backend.formats import records
from tests.registry import door
from topicproof.backend.formats import registry as asking
from topicproof.backend.formats.decoded import DecodedValue, Format
from topicproof.backend.formats.formats import Formats, Part
from topicproof.backend.formats.frames import schema_header
from topicproof.backend.properties.registry_properties import RegistryFacts
from topicproof.backend.settings import read_settings

ORDER = {"id": 7, "to": {"city": "Bern"}}


def test_every_kind_of_schema_is_decoded_with_its_place(schema_registry: str) -> None:
    """Story: one topic holds Avro of two versions with a reference, Protobuf from two kinds of
    client and JSON Schema. Each shows what was written, its schema, subject and version."""
    topic = "kinds"
    old = records.avro(schema_registry, topic, records.ORDER, ORDER)
    new = records.avro(schema_registry, topic, records.NEWER, ORDER | {"total": Decimal("1.25")})
    formats = Formats(RegistryFacts(schema_registry))
    first, second = formats.decode(old, topic), formats.decode(new, topic)
    assert (first.value, first.format) == (ORDER, Format.AVRO)
    assert second.value == ORDER | {"total": "1.25"}
    assert first.schema_id != second.schema_id
    assert [(one.subject, one.version) for one in (first, second)] == [
        ("kinds-value", 1),
        ("kinds-value", 2),
    ]
    assert first.origin == f"Avro, schema {first.schema_id}, kinds-value version 1"
    message = formats.decode(
        records.protobuf(schema_registry, "kinds-protobuf", id=2**60, note="x"), "kinds-protobuf"
    )
    assert message.value == {"id": str(2**60), "note": "x"} and message.format is Format.PROTOBUF
    nested = formats.decode(records.protobuf_text(schema_registry, "kinds-text"), "kinds-text")
    assert nested.value == {
        "id": 7,
        "total": {"cents": "1000"},
        "at": "1970-01-01T00:01:00Z",
    }, nested
    document = formats.decode(records.json_schema(schema_registry, "kinds-json", {"id": 9}))
    assert (document.value, document.format) == ({"id": 9}, Format.JSON_SCHEMA)
    assert document.subject == "kinds-json-value"
    formats.close()


def test_headers_name_schemas_by_guid(schema_registry: str) -> None:
    """Story: producers write each schema's GUID into a header and leave the payload alone. The
    header decides before the payload's first bytes, the last of several decides, and each GUID is
    asked for once. Without a registry, JSON is still JSON. A registry without GUIDs says so."""
    with door(schema_registry) as guids:
        of_avro: records.Headers = []
        of_key: records.Headers = []
        of_protobuf: records.Headers = []
        of_json: records.Headers = []
        order = ORDER | {"id": 0}
        avro = records.avro(guids.url, "guids", records.ORDER, order, headers=of_avro)
        key = records.avro(guids.url, "guids", records.ORDER, ORDER, MessageField.KEY, of_key)
        message = records.protobuf(guids.url, "guids-p", of_protobuf, id=7, note="x")
        document = records.json_schema(guids.url, "guids-j", {"id": 9}, of_json)
        assert avro[:1] == b"\0" and document[:1] == b"{", "no id is in front"
        assert of_key[0][0] == "__key_schema_id" and len(of_protobuf[0][1]) == 18
        guids.asked.clear()
        formats = Formats(RegistryFacts(guids.url))

        def decoded(data: bytes, headers: records.Headers, part: Part = "value") -> DecodedValue:
            return formats.decode(data, "guids", part, header=schema_header(headers, part))

        for _ in range(2):
            first = decoded(avro, of_avro)
            assert (first.value, first.format) == (order, Format.AVRO)
            assert first.origin == f"Avro, schema {UUID(bytes=of_avro[0][1][1:])}"
            assert decoded(key, of_key, "key").value == ORDER
            assert decoded(message, of_protobuf).value == {"id": "7", "note": "x"}
            assert decoded(document, of_json).format is Format.JSON_SCHEMA
            assert decoded(message, [*of_json, *of_protobuf]).value == {"id": "7", "note": "x"}
            assert decoded(document, [*of_protobuf, ("other", b""), *of_json]).value == {"id": 9}
            unknown = decoded(document, [("__value_schema_id", b"\1" + b"\7" * 16)])
        guid = "07070707-0707-0707-0707-070707070707"
        assert (unknown.known, unknown.schema_id) == (False, UUID(guid))
        assert unknown.reason == f"The registry {guids.url} has no schema {guid}."
        framed = records.avro(guids.url, "guids", records.ORDER, ORDER)
        assert decoded(framed, []).value == decoded(framed, [("__value_schema_id", None)]).value
        by_id = [("__value_schema_id", framed[:5])]
        assert decoded(framed[5:], by_id).value == decoded(framed, of_key).value == ORDER
        asked = [path for path in guids.asked if path.startswith("/schemas/guids/")]
        assert len(asked) == len({*asked}) and f"/schemas/guids/{guid}" in asked, guids.asked
        formats.close()

    formats = Formats()
    plain = formats.decode(document, header=of_json[0][1])
    assert (plain.value, plain.format) == ({"id": 9}, Format.JSON)
    why = formats.decode(avro, header=of_avro[0][1]).reason or ""
    assert "and no schema.registry.url is given." in why, why
    formats = Formats(RegistryFacts(schema_registry))
    why = formats.decode(avro, header=of_avro[0][1]).reason or ""
    assert "HTTP 404: it gives no schemas by GUID, as Confluent Platform 8 does" in why, why
    formats.close()


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"", "of 0 bytes, it is not a byte 1 with the 16 bytes of a GUID."),
        (b"\1" + b"g" * 15, "of 16 bytes"),
        (b"\2" + b"g" * 16, "of 17 bytes"),
        (b"\0\0\0\0\0", "of 5 bytes"),
        (b"\1" + b"g" * 1_000_000, "of over 100 bytes"),
    ],
)
def test_a_header_that_names_no_schema_is_asked_of_nobody(header: bytes, why: str) -> None:
    """Story: somebody writes anything into the header. Even JSON behind it is not decoded."""
    with door("http://127.0.0.1:1") as counted:
        formats = Formats(RegistryFacts(counted.url))
        decoded = formats.decode(b'{"id": 1}', header=header)
        assert (decoded.value, decoded.schema_id) == (None, None)
        begin = "Its header __value_schema_id names no schema: "
        assert (decoded.reason or "").startswith(begin + why), decoded.reason
        formats.close()
    assert counted.asked == []


def test_each_schema_is_asked_for_once(schema_registry: str) -> None:
    """Story: eight threads decode a thousand records of two schemas and one unknown id. The
    registry gets one request for each schema. Only a schema to which both refer may be asked for by
    each, because they are asked for at once."""
    topic = "once"
    known = [
        records.avro(schema_registry, topic, schema, ORDER | {"total": Decimal(1)})
        for schema in (records.ORDER, records.NEWER)
    ]
    unknown = b"\0\0\0\xff\xffabc"
    with door(schema_registry) as counted:
        formats = Formats(RegistryFacts(counted.url))
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda one: formats.decode(one, topic), [*known, unknown] * 333))
        formats.close()
    assert [one.known for one in found[:3]] == [True, True, False]
    schemas = [one for one in counted.asked if one.count("/") == 3]
    assert len(schemas) == len({*schemas}) == 3, counted.asked
    often = {path: count for path, count in Counter(counted.asked).items() if count > 1}
    assert len({*counted.asked}) == 6, counted.asked
    assert often in ({}, {"/subjects/addresses/versions/1": 2}), counted.asked


def test_what_cannot_be_decoded_says_why(schema_registry: str) -> None:
    """Story: unknown ids, truncated and longer bytes, fields that a schema lacks, a wrong
    address."""
    topic = "wrong"
    whole = records.avro(schema_registry, topic, records.ORDER, ORDER)
    formats = Formats(RegistryFacts(schema_registry))
    said = {
        b"\0\0\0\xff\xffabc": f"The registry {schema_registry} has no schema 65535.",
        whole[:-1]: "the bytes end too early",
        whole[:5]: "the bytes end too early",
        whole + b"xy": "2 bytes follow the value",
    }
    for data, why in said.items():
        found = formats.decode(data, topic)
        assert not found.known and found.value is None and why in (found.reason or ""), found
    message = records.protobuf(schema_registry, "wrong-protobuf", id=1, note="x")
    assert "no shop.Order" in (formats.decode(message[:-1]).reason or "")
    more = formats.decode(message + b"\x1a\x01z")
    assert more.known and more.reason == "3 bytes are in fields that the schema does not have."
    for data in records.BROKEN:
        assert not formats.decode(data, topic).known
    formats.close()
    elsewhere = Formats(RegistryFacts(schema_registry.removesuffix("/apis/ccompat/v7")))
    assert "not the address of a registry" in (elsewhere.decode(whole).reason or "")
    elsewhere.close()


def test_a_registry_that_is_down_costs_one_attempt(
    schema_registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the registry goes down and comes back. Meanwhile, records are shown as bytes with the
    reason, and nobody waits for each of them."""
    whole = records.avro(schema_registry, "down", records.ORDER, ORDER)
    with door(schema_registry) as counted:
        pass
    formats = Formats(RegistryFacts(counted.url))
    for data in (whole, whole, b"\0\0\0\0\x01abc"):
        assert "does not answer" in (formats.decode(data).reason or "")
    assert formats.registry is not None and formats.registry.url == counted.url
    formats.close()
    monkeypatch.setattr(asking, "ASKED_AGAIN_S", 0.0)
    with door(schema_registry, login="nobody") as locked:
        formats = Formats(RegistryFacts(locked.url))
        assert "HTTP 401: user, password" in (formats.decode(whole).reason or "")
        locked.login = ""
        assert formats.decode(whole).value == ORDER
        formats.close()


@pytest.mark.parametrize(
    ("lines", "login"),
    [
        ("basic.auth.user.info=me:p:w", "Basic bWU6cDp3"),
        ("bearer.auth.credentials.source=STATIC_TOKEN\nbearer.auth.token=abc", "Bearer abc"),
    ],
    ids=["basic", "bearer"],
)
def test_a_registry_with_tls_and_a_login(
    schema_registry: str, tmp_path: Path, lines: str, login: str
) -> None:
    """Story: the file of the client properties names the registry, its login and the authority
    that signed its certificate. Kafka's clients get nothing of it."""
    whole = records.avro(schema_registry, "tls", records.ORDER, ORDER)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with door(schema_registry, context, login) as closed:
        path = tmp_path / "client.properties"
        path.write_text(
            f"bootstrap.servers=a:1\nschema.registry.url={closed.url}\n{lines}\n"
            f"ssl.ca.location={tmp_path / 'ca.pem'}\n",
            encoding="utf-8",
        )
        found = read_settings(config=path, home=tmp_path)
        assert not found.client and login.split()[1] not in repr(found)
        formats = Formats(found.registry)
        assert formats.decode(whole).value == ORDER
        formats.close()
        path.write_text(f"bootstrap.servers=a:1\nschema.registry.url={closed.url}\n{lines}\n")
        formats = Formats(read_settings(config=path, home=tmp_path).registry)
        assert "does not trust" in (formats.decode(whole).reason or "")
        formats.close()
