"""A cluster that asks for TLS and a password: every client of ours reaches it with one file of
client properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.backend.kafka.topics import ask
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.history.store import History
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.client_configs import java_client
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings, read_properties
from topicproof.validators.finding import Outcome, Witness

pytestmark = pytest.mark.services

PASSWORD = 'a "quoted\\ secret'
"""What has to be escaped in a JAAS configuration."""


@pytest.fixture(scope="module")
def secured(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A broker whose only listener for clients is SASL_SSL; its address, and the properties that
    open it."""
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    # The one form of a key that Java reads from PEM (KIP-651).
    own_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "broker.pem").write_bytes(own_key + issued.cert_chain_pems[0].bytes())
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(folder / "ca.pem"),
    }
    own = java_client(client)["sasl.jaas.config"].rstrip(";")
    known = own.partition("password=")[2]
    kafka = EmbeddedKafka(
        folder / "kafka",
        jar_files(settings, BROKER),
        overrides={
            # The one listener keeps its name, and speaks another protocol.
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": f"{own} user_reader={known};".replace(
                "\\", "\\\\"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
        },
    )
    kafka.start()
    yield Address(kafka.bootstrap, client)
    kafka.stop()


def test_a_run_and_its_verdict_on_a_secured_cluster(
    settings: Settings, cluster: Services, secured: Address
) -> None:
    """Story: a cluster with TLS and passwords. Fill, Spark's source, the sink, both readings, the
    raw log and the coordinator all get in, and the verdict holds."""
    there = {"bootstrap": secured.bootstrap, "client": secured.client}
    given = settings.model_copy(update=there)
    services = replace(cluster, bootstrap=secured.bootstrap, client=secured.client)
    history = History(given)
    run = create(
        given,
        services,
        history,
        make_plan({"records": 2_000, "partitions": 2, "abort_probability": 0.3}),
    )
    report = execute(make_context(given, services, history, run))
    assert report is not None
    assert report.verdict is Outcome.HOLDS, report.why
    heard = {witness for check in report.checked for witness in check.witnesses}
    assert heard >= {Witness.READ_COMMITTED, Witness.RAW_LOG, Witness.COORDINATOR, Witness.JOURNAL}
    assert inspect_topic(secured, run.facts.sink).to_json()["topic"] == run.facts.sink
    assert ask(secured, open_transactions, run.facts.sink) == ()


def test_without_the_password_it_is_said(secured: Address) -> None:
    """Story: the password is wrong. One sentence says who was asked, and never the password."""
    wrong = {**secured.client, "sasl.password": "wrong one"}
    with pytest.raises(ClusterError) as told:
        Cluster(Address(secured.bootstrap, wrong)).check()
    assert secured.bootstrap in str(told.value) and "wrong one" not in str(told.value)


def test_without_tls_it_is_said(secured: Address) -> None:
    """Story: the client properties were forgotten. One sentence names the setting."""
    with pytest.raises(ClusterError, match=r"TLS listener needs security\.protocol"):
        Cluster(Address(secured.bootstrap)).check()


def test_properties_are_read_and_spelled_for_java(tmp_path: Path) -> None:
    """Story: a file with client certificates and SCRAM, in librdkafka's names, as Spark's Kafka
    source wants it."""
    (tmp_path / "me.pem").write_text("CERTIFICATE")
    (tmp_path / "me.key").write_text("KEY")
    path = tmp_path / "client.properties"
    path.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanisms=SCRAM-SHA-512\nsasl.username=me\nsasl.password=secret\n"
        f"ssl.ca.location=/ca.pem\nssl.certificate.location={tmp_path / 'me.pem'}\n"
        f"ssl.key.location={tmp_path / 'me.key'}\nssl.key.password=open\nclient.id=mine\n"
    )
    assert java_client(read_properties(path)) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="secret";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CERTIFICATE",
        "ssl.keystore.key": "KEY",
        "ssl.key.password": "open",
        "client.id": "mine",
    }
