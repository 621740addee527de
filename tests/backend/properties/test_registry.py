"""What client properties say of a schema registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicproof.backend.errors import UsageError
from topicproof.backend.properties.reading import Properties
from topicproof.backend.properties.registry import (
    RegistryFacts,
    registry_config,
    take_registry,
)
from topicproof.backend.settings import Settings, read_settings


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
