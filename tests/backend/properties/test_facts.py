"""Client properties in anybody's names are translated once, and said again for each client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.properties.stores import KEY_PASSWORD, STORE_PASSWORD, Authority, Issued
from topicproof.backend.kafka.client_configs import address_of_spark_options, admin_config
from topicproof.backend.properties.facts import ClientFacts, facts_of
from topicproof.backend.properties.properties_file import Properties
from topicproof.backend.properties.spelling import (
    for_java,
    for_kafka_python,
    for_librdkafka,
    tls_context,
)
from topicproof.backend.settings import read_settings

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
LOGIN = {**SASL, "sasl.username": "me", "sasl.password": "hid"}
MODULE = "org.apache.kafka.common.security"
OAUTH = f"{MODULE}.oauthbearer"
TOKENS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}


def test_names_of_java_and_of_librdkafka_say_the_same() -> None:
    """Story: one cluster, three files. Each is the same login."""
    java = {
        **SASL,
        "sasl.jaas.config": f'{MODULE}.plain.PlainLoginModule required username="me"'
        ' password="hid";',
        "ssl.endpoint.identification.algorithm": "",
        "key.serializer": "a.Serializer",
        "acks": "all",
    }
    librdkafka = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hid",
        "ssl.endpoint.identification.algorithm": "none",
    }
    mixed = {**java, "sasl.username": "me"}
    expected = ClientFacts("SASL_SSL", "PLAIN", "me", "hid", check_host=False)
    assert facts_of(java) == facts_of(librdkafka) == facts_of(mixed) == expected
    assert for_librdkafka(expected) == {
        **LOGIN,
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert for_java(expected) == {
        **SASL,
        "sasl.jaas.config": java["sasl.jaas.config"],
        "ssl.endpoint.identification.algorithm": "",
    }
    kafka_python = for_kafka_python(expected)
    assert not kafka_python.pop("ssl_context").check_hostname
    assert kafka_python == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": "hid",
    }


def test_tokens_in_three_spellings_say_the_same() -> None:
    """Story: client credentials in Java's JAAS, in Java's names since 4.1, and in librdkafka's."""
    java = {
        **TOKENS,
        "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required clientId='me'"
        " clientSecret='hid' scope='kafka' extension_logicalCluster='lkc-1';",
    }
    credentials = "sasl.oauthbearer.client.credentials"
    newer = {
        **TOKENS,
        "sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required"
        " extension_logicalCluster='lkc-1';",
        f"{credentials}.client.id": "me",
        f"{credentials}.client.secret": "hid",
        "sasl.oauthbearer.scope": "kafka",
    }
    librdkafka = {
        **TOKENS,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "hid",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
    }
    assert facts_of(java) == facts_of(newer) == facts_of(librdkafka)
    assert for_librdkafka(facts_of(java)) == librdkafka
    assert facts_of(for_java(facts_of(java))) == facts_of(java)


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.ca.location": "ca.pem"},
        {"ssl.ca.location": "authorities"},
        {"ssl.truststore.location": "ca.pem", "ssl.truststore.type": "PEM"},
        {"ssl.truststore.location": "ca.jks", "ssl.truststore.password": STORE_PASSWORD},
        # Java does not need the password of a JKS for its certificates.
        {"ssl.truststore.location": "ca.jks"},
        {
            "ssl.truststore.location": "ca.p12",
            "ssl.truststore.password": STORE_PASSWORD,
            "ssl.truststore.type": "PKCS12",
        },
    ],
    ids=lambda given: " ".join(given.values()),
)
def test_an_authority_is_read_from_each_kind_of_store(
    stores: Path, authority: Authority, given: dict[str, str]
) -> None:
    facts = facts_of({"security.protocol": "SSL", **_here(given, stores)})
    assert _compact(facts.ca) == _compact(authority.pem)


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.certificate.location": "me.pem", "ssl.key.location": "me.key"},
        {"ssl.certificate.location": "me.pem", "ssl.key.location": "me.pkcs1.key"},
        {
            "ssl.certificate.location": "me.pem",
            "ssl.key.location": "me.encrypted.key",
            "ssl.key.password": KEY_PASSWORD,
        },
        {
            "ssl.keystore.location": "both.pem",
            "ssl.keystore.type": "PEM",
            "ssl.key.password": KEY_PASSWORD,
        },
        {"ssl.keystore.location": "me.p12", "ssl.keystore.password": STORE_PASSWORD},
        {
            "ssl.keystore.location": "me.jks",
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": KEY_PASSWORD,
            "ssl.keystore.type": "JKS",
        },
    ],
    ids=lambda given: " ".join(given.values()),
)
def test_an_identity_is_read_from_each_kind_of_store(
    stores: Path, me: Issued, given: dict[str, str]
) -> None:
    """Story: each client gets the chain, and the key as PKCS#8 without encryption."""
    facts = facts_of({"security.protocol": "SSL", **_here(given, stores)}).with_plain_key()
    assert facts.identity is not None
    assert _compact(facts.identity.chain) == _compact(me.chain)
    assert _compact(facts.identity.key) == _compact(me.key)
    assert tls_context(facts).verify_mode
    for said in (for_librdkafka(facts), for_java(facts)):
        assert facts_of(said) == facts


def test_settings_hold_all_material_inline(stores: Path, tmp_path: Path) -> None:
    """Story: Spark's executors see no file of this machine. What a process hands on names none, and
    a sink's options carry it."""
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=a:1\nsecurity.protocol=SSL\nclient.id=mine\n"
        f"ssl.truststore.location={stores}/ca.jks\nssl.keystore.location={stores}/me.jks\n"
        f"ssl.keystore.password={STORE_PASSWORD}\nssl.key.password={KEY_PASSWORD}\n"
    )
    found = read_settings(config=path, home=tmp_path)
    assert found.bootstrap == "a:1"
    assert set(found.client) == {
        *("security.protocol", "client.id", "ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem")
    }
    assert str(stores) not in str(found.client.values())
    options = {f"kafka.{name}": value for name, value in found.client.items()}
    address = address_of_spark_options({**options, "kafka.bootstrap.servers": "a:1"})
    assert address.client == found.client
    assert admin_config(address).items() >= found.client.items()


def test_no_secret_is_in_a_repr(stores: Path) -> None:
    given = {**LOGIN, **_here({"ssl.keystore.location": "me.p12"}, stores)}
    facts = facts_of({**given, "ssl.keystore.password": STORE_PASSWORD})
    tokens = facts_of(
        {**TOKENS, "sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": "hid"}
    )
    for shown in (repr(facts), repr(facts.identity), repr(tokens), repr(Properties(given, {}))):
        assert "hid" not in shown and "PRIVATE" not in shown


def _here(given: dict[str, str], folder: Path) -> dict[str, str]:
    return {
        name: str(folder / value) if name.endswith("location") else value
        for name, value in given.items()
    }


def _compact(pem: str | None) -> str:
    return "".join((pem or "").split())
