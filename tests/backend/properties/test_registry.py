"""What client properties say of a schema registry."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.backend.formats import records
from tests.backend.properties.stores import Authority
from tests.registry import Door, door
from topicproof.backend.errors import UsageError
from topicproof.backend.formats.formats import Formats
from topicproof.backend.properties.properties_file import Properties
from topicproof.backend.properties.registry_properties import (
    RegistryFacts,
    registry_config,
    take_registry,
)
from topicproof.backend.settings import Settings, read_settings

ORDER = {"id": 7, "to": {"city": "Bern"}}


def taken(**given: str) -> tuple[RegistryFacts | None, Properties]:
    properties = Properties({name.replace("_", "."): given[name] for name in given}, {})
    return take_registry(properties), properties


def test_the_registry_is_kept_apart_from_kafka() -> None:
    """Story: one file has both. Java's older prefix means the same, the serialisers' own settings
    have no effect, and what both share stays."""
    facts, rest = taken(
        schema_registry_url="http://a:8081/, http://b:8081",
        schema_registry_basic_auth_user_info="me:hid",
        auto_register_schemas="false",
        client_id="x",
        ssl_ca_location="/not/read/for/http",
    )
    assert facts == RegistryFacts("http://a:8081/,http://b:8081", "me:hid")
    assert [*rest] == ["client.id", "ssl.ca.location"] and "hid" not in repr(facts)
    with registry_config(facts) as config:
        assert config["basic.auth.user.info"] == "me:hid" and config["max.retries"] == 0
    assert taken(basic_auth_user_info="me:hid") == (None, {})
    assert taken(schema_registry_url="http://me:hid@a")[0] == RegistryFacts("http://a", "me:hid")


def test_authorities_of_its_own_come_before_kafkas(stores: Path) -> None:
    """Story: the registry has another authority than the brokers."""
    own, shared = str(stores / "ca.pem"), "/no/such/file"
    facts, _rest = taken(
        schema_registry_url="https://a",
        schema_registry_ssl_ca_location=own,
        ssl_ca_location=shared,
    )
    assert facts is not None and facts.ca is not None and facts.ca.startswith("-----BEGIN")
    with registry_config(facts) as config:
        assert Path(config["ssl.ca.location"]).read_text(encoding="ascii") == facts.ca
    assert not Path(config["ssl.ca.location"]).exists()


def test_variables_name_the_registry_and_schema_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a variable overrides the file's address; the file still has the login. A child
    process gets the same settings."""
    config = tmp_path / "client.properties"
    config.write_text("schema.registry.url=http://file\nbasic.auth.user.info=me:hid\n")
    assert read_settings(config=config, home=tmp_path).registry == RegistryFacts(
        "http://file", "me:hid"
    )
    monkeypatch.setenv("TOPICPROOF_SCHEMA_REGISTRY", "http://variable")
    monkeypatch.setenv("TOPICPROOF_AVRO_SCHEMAS", "a=/a.avsc, b=/b.avsc")
    found = read_settings(config=config, home=tmp_path)
    assert found.registry == RegistryFacts("http://variable", "me:hid")
    assert found.avro_files == {"a": Path("/a.avsc"), "b": Path("/b.avsc")}
    assert "hid" not in repr(found) and "hid" not in str(found.environment())
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    assert read_settings() == found
    monkeypatch.setenv("TOPICPROOF_SCHEMA_REGISTRY", "variable")
    with pytest.raises(UsageError, match="TOPICPROOF_SCHEMA_REGISTRY: it must be an http"):
        read_settings(home=tmp_path)
    monkeypatch.setenv("TOPICPROOF_SCHEMA_REGISTRY", "")
    monkeypatch.delenv("TOPICPROOF_CONFIG")
    assert read_settings(home=tmp_path).registry is None
    wrong = Settings(home=tmp_path, avro_schemas="a")
    with pytest.raises(UsageError, match=r"AVRO_SCHEMAS is wrong: a is not topic=file\.avsc"):
        _ = wrong.avro_files


OWN = {
    "Java's JKS": "keystore.location={0}/me.jks\nkeystore.password=store-hidden\n"
    "key.password=key-hidden\ntruststore.location={0}/ca.jks\ntruststore.password=store-hidden",
    "Java's PKCS12": "keystore.location={0}/me.p12\nkeystore.password=store-hidden\n"
    "truststore.location={0}/ca.p12\ntruststore.password=store-hidden",
    "PEM, encrypted": "keystore.location={0}/both.pem\nkey.password=key-hidden\n"
    "keystore.type=PEM\nca.location={0}/ca.pem",
    "librdkafka's words": "certificate.location={0}/me.pem\nkey.location={0}/me.pkcs1.key\n"
    "ca.location={0}/authorities",
}
"""Lines of a file, each after `schema.registry.ssl.`."""


@pytest.fixture
def closed(schema_registry: str, authority: Authority, tmp_path: Path) -> Iterator[Door]:
    """The registry behind TLS, for clients with a certificate of the authority alone."""
    (tmp_path / "ca.pem").write_text(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.middle.issue_cert("127.0.0.1").configure_cert(context)
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with door(schema_registry, context) as server:
        yield server


def answer_of(url: str, lines: str, folder: Path, data: bytes) -> Any:
    """Return the decoded value of a record, or why there is none. The file has these lines."""
    path = folder / "client.properties"
    own = "".join(f"schema.registry.ssl.{line}\n" for line in lines.splitlines())
    path.write_text(f"schema.registry.url={url}\n{own}", encoding="utf-8")
    found = read_settings(config=path, home=folder)
    assert not found.client and "hidden" not in repr(found) and "PRIVATE" not in repr(found)
    with closing(Formats(found.registry)) as formats:
        decoded = formats.decode(data)
        return decoded.value if decoded.known else decoded.reason


@pytest.mark.parametrize("case", OWN)
def test_a_registry_that_demands_a_certificate(
    closed: Door, stores: Path, tmp_path: Path, schema_registry: str, case: str
) -> None:
    """Story: the registry lets in clients with a certificate. The file names it as people do."""
    whole = records.avro(schema_registry, "mutual", records.ORDER, ORDER)
    assert answer_of(closed.url, OWN[case].replace("{0}", str(stores)), tmp_path, whole) == ORDER
    assert closed.asked


def test_a_wrong_or_missing_certificate_is_named(
    closed: Door, stores: Path, tmp_path: Path, schema_registry: str
) -> None:
    """Story: no certificate, one of a stranger, an authority that this client does not know, TLS to
    a port without it, and a name that the registry's certificate lacks. Each has its sentence."""
    whole = records.avro(schema_registry, "mutual", records.ORDER, ORDER)
    stranger = Authority()
    issued = stranger.issue("you@example.org")
    (tmp_path / "you.pem").write_text(issued.chain + issued.key)
    (tmp_path / "other.pem").write_text(stranger.pem)
    trusted, own = f"ca.location={stores}/ca.pem\n", f"keystore.location={tmp_path}/you.pem"
    bare = schema_registry.replace("http:", "https:")
    named = closed.url.replace("127.0.0.1", "localhost")
    said = {
        (closed.url, trusted): "asks for a client certificate. Set schema.registry.ssl.keystore",
        (closed.url, trusted + own): "refuses this client's certificate (unknown ca). Set",
        (closed.url, f"ca.location={tmp_path}/other.pem"): "signed by an authority that this client"
        " does not trust",
        (named, trusted): "is not for this host name. Use a name that the certificate has.",
        (bare, trusted): "does not speak TLS on this port. Begin its address with http:.",
    }
    for (url, lines), why in said.items():
        assert why in answer_of(url, lines, tmp_path, whole), (url, lines)
    assert not closed.asked
