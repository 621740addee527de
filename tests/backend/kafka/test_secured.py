"""A cluster that asks for TLS and a login: every client of ours reaches it with one file of client
properties, as people have it."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.backend.kafka.secured_broker import (
    LIMITED,
    PASSWORD,
    PLANTED,
    USER,
    Secured,
    secured_broker,
)
from tests.backend.kafka.secured_ways import REFUSED, WAYS, Way
from tests.backend.kafka.topics import look
from tests.backend.properties.stores import KEY_PASSWORD, STORE_PASSWORD
from tests.field.reports import REPORTS
from tests.files import files_with
from tests.runs import read_all
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, UsageError
from topicproof.backend.evidence.folder import read_report
from topicproof.backend.kafka.client_configs import spark_source_options
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.log.rawlog import connect, fetch_bounds
from topicproof.backend.kafka.plain_producer import PlainProducer
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.properties.properties_file import read_properties
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.trust.keyring import signing_key
from topicproof.backend.trust.keys import key_path
from topicproof.validators.finding import Outcome, Witness
from topicproof.validators.report import Report

pytestmark = pytest.mark.services

TOPIC, RECORDS = "guarded", 3


@pytest.fixture(scope="module")
def secured(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(settings, tmp_path_factory.mktemp("secured")) as found:
        address = found.address("open", {})
        Cluster(address).create_topic(TOPIC, 1)
        fill(address)
        yield found


@pytest.fixture
def client(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Reads a way's file of properties as the command line does."""
    monkeypatch.setenv("KAFKA_USER", USER)

    def read(way: Way) -> Address:
        path = tmp_path / "client.properties"
        path.write_text(way.text(secured.folder, secured.tokens, secured.tls_tokens))
        return secured.address(way.listener, read_settings(config=path, home=tmp_path).client)

    return read


def librdkafka(address: Address, _spark: SparkSession) -> int:
    return len(read_all(address.bootstrap, TOPIC, client=dict(address.client)))


def kafka_python(address: Address, _spark: SparkSession) -> int:
    (partition,) = fetch_bounds(address, TOPIC).partitions
    return partition.hw


def java(address: Address, spark: SparkSession) -> int:
    options = spark_source_options(address, "read_committed")
    rows = spark.read.format("kafka").options(**options, subscribe=TOPIC).load()
    return rows.count()


@pytest.mark.parametrize(
    "reading", [librdkafka, kafka_python, java], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("name", WAYS)
def test_each_client_reads_with_each_file(
    spark: SparkSession, client: Client, name: str, reading: Callable[..., int]
) -> None:
    """Story: somebody's client.properties works with librdkafka, kafka-python and Spark's Java
    client, whoever it was written for."""
    assert reading(client(WAYS[name]), spark) == RECORDS


@pytest.mark.parametrize("asking", [fetch_bounds, lambda at, _: Cluster(at).topics()])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_named(
    client: Client, name: str, asking: Callable[[Address, str], object]
) -> None:
    """Story: one setting does not fit the cluster. Both clients of the command line say which,
    and never show a password."""
    way, sentence = REFUSED[name]
    address = client(way)
    with pytest.raises(ClusterError, match=sentence) as told:
        asking(address, TOPIC)
    assert "hidden" not in str(told.value) and PASSWORD not in str(told.value)


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        ("unresolved", "says: reach me at kafka.invalid:29092, which this machine cannot resolve"),
        ("closed", "says: reach me at 127.0.0.1:1, where nothing listens on this machine"),
    ],
)
def test_an_advertised_address_that_cannot_be_reached_is_named(
    secured: Secured, listener: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: the broker answers, and sends clients to an address that is not theirs to reach. The
    healthy twins are all other listeners of this broker."""
    address = secured.address(listener, {})
    for asking in (fetch_bounds, lambda at, _: Cluster(at).topics()):
        with pytest.raises(ClusterError, match=re.escape(says)) as error:
            asking(address, TOPIC)
        assert "advertised.listeners" in str(error.value)
    for command in (("inspect", TOPIC), ("status",), ("transactions",), ("doctor",)):
        assert call(*command, "--bootstrap", address.bootstrap) == 3
        text = "".join(capsys.readouterr())
        assert says in " ".join(text.split())
        assert listener != "unresolved" or REPORTS["provectus/kafka-ui#2021"].is_in(text)


def test_one_address_of_several_is_enough(client: Client) -> None:
    """Story: the first address of the list is dead. A right password gets in by the second; a wrong
    one is named."""
    right, wrong = client(WAYS["plain, librdkafka"]), client(REFUSED["a wrong password"][0])
    for at in ("127.0.0.1:1,{}", "{},127.0.0.1:1"):
        assert Cluster(Address(at.format(right.bootstrap), right.client)).topics() == [TOPIC]
        with pytest.raises(ClusterError, match="does not know user reader with this password"):
            Cluster(Address(at.format(wrong.bootstrap), wrong.client)).topics()


def test_a_sink_takes_the_same_names(secured: Secured) -> None:
    """Story: a program has one dict of `kafka.*` options for Spark's source, in Java's names. The
    sink takes it too, and names a wrong one before it starts."""
    way = WAYS["scram 512, java, pkcs12"]
    text = way.text(secured.folder, secured.tokens, secured.tls_tokens)
    path = secured.folder / "client.properties"
    path.write_text(text)
    options = {
        **{f"kafka.{name}": value for name, value in read_properties(path).items()},
        "kafka.bootstrap.servers": secured.address(way.listener, {}).bootstrap,
        "kafka.isolation.level": "read_committed",
        "group": "same",
        "transactionalIdPrefix": "same",
        "topic": "same",
    }
    address = SinkOptions.parse(options).address
    Cluster(address).create_topic("same", 1)
    with TransactionalProducer(address, "same") as producer, producer.transaction():
        producer.produce([("same", None, b"value", ())])
    assert len(read_all(address.bootstrap, "same", client=dict(address.client))) == 1
    with pytest.raises(
        UsageError, match=r"ssl\.trustore\.location: .* mean ssl\.truststore\.location"
    ):
        SinkOptions.parse({**options, "kafka.ssl.trustore.location": "a"})


def test_a_missing_acl_is_named(secured: Secured) -> None:
    """Story: a user may log in and has no other right. Each operation names the one that it
    needs."""
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login = {"sasl.username": LIMITED, "sasl.password": "l"}
    address = secured.address("sasl_plain", {**properties, **login})
    cluster = Cluster(address)
    for right, asking in (
        ("Create on topic new", lambda: cluster.create_topic("new", 1)),
        ("Read on group g and topic t", lambda: cluster.commit_offsets("g", "t", {0: 0})),
        ("Delete on group g", lambda: cluster.delete_group("g")),
        (f"Describe on topic {TOPIC}", lambda: fetch_bounds(address, TOPIC)),
        ("Describe on group g", lambda: _admin(address, "list_group_offsets", {"g": None})),
        ("Describe on transactional id t", lambda: _admin(address, "describe_transactions", ["t"])),
        ("Describe on the cluster", lambda: _admin(address, "describe_metadata_quorum")),
    ):
        with pytest.raises(ClusterError, match=f"it lacks {re.escape(right)}\\."):
            asking()
    with pytest.raises(
        ClusterError, match=r"no topic guarded.*, and that this user may describe it"
    ):
        cluster.partitions(TOPIC)


def test_a_run_and_its_verdict_on_a_secured_cluster(
    *,
    secured: Secured,
    settings: Settings,
    cluster: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Story: a cluster with TLS and passwords, and a file for Java with a JKS. Fill, Spark's
    source, the sink, both readings, the raw log and the coordinator all get in, and the verdict
    holds, although workers fail on the way. Afterwards neither that password nor the schema
    registry's is anywhere: not in the home with its history, evidence and logs, in no output,
    command line or environment. The key that signs is in its own file alone."""
    way = WAYS["plain, java, jks"]
    path = tmp_path / "client.properties"
    registry = f"planted{uuid.uuid4().hex}"
    path.write_text(
        way.text(secured.folder, secured.tokens, secured.tls_tokens)
        + "schema.registry.url=http://127.0.0.1:1\n"
        + f"schema.registry.basic.auth.user.info=reader:{registry}\n"
    )
    signing_key(settings)
    secrets = (PLANTED, registry, key_path(settings).read_text().splitlines()[1])
    bootstrap = secured.address(way.listener, {}).bootstrap
    there = ("--bootstrap", bootstrap, "--config", str(path))
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("SPARK_REMOTE", cluster.spark_remote)
    shape = ("--records", "2000", "--partitions", "2", "--abort-probability", "0.3")
    faults = ("--fault", "error@transaction=2", "--fault", "crash@transaction=3")
    told = tmp_path / "report.json"
    with showing(*secrets) as shown:
        assert call("run", *shape, *faults, *there, "--json", str(told)) == 0
        report = Report.from_json(told.read_text())
        assert call("inspect", report.sink.topic, *there) == 0
        assert call("transactions", *there) == 0
        assert call("status", *there) == 0
        assert call("inspect", "no-such-topic", *there) == 3
    assert report.verdict is Outcome.HOLDS, report.why
    heard = {witness for check in report.checked for witness in check.witnesses}
    assert heard >= {Witness.READ_COMMITTED, Witness.RAW_LOG, Witness.COORDINATOR, Witness.JOURNAL}
    address = Address(bootstrap, read_settings(config=path, home=tmp_path).client)
    assert look(address, open_transactions, report.sink.topic) == ()
    assert shown == set()
    assert all(one in path.read_text() for one in secrets[:2])
    assert kept_in(settings, secrets, capfd) == [key_path(settings)]


def test_the_key_of_a_client_certificate_is_nowhere_else(
    *,
    secured: Secured,
    settings: Settings,
    cluster: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Story: a cluster that knows its clients by their certificates, and a JKS with the key. All
    clients get in, and the verdict holds. Neither the key nor a password of the store is in the
    home, in an output, a command line or an environment."""
    way = WAYS["certificate, java, jks"]
    path = tmp_path / "client.properties"
    path.write_text(way.text(secured.folder, secured.tokens, secured.tls_tokens))
    keys = [(secured.folder / name).read_text().splitlines() for name in ("me.key", "me.pkcs1.key")]
    secrets = (KEY_PASSWORD, STORE_PASSWORD, *(lines[1] for lines in keys))
    bootstrap = secured.address(way.listener, {}).bootstrap
    there = ("--bootstrap", bootstrap, "--config", str(path))
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("SPARK_REMOTE", cluster.spark_remote)
    told = tmp_path / "report.json"
    with showing(*secrets) as shown:
        shape = ("--records", "500", "--partitions", "1")
        assert call("run", *shape, *there, "--json", str(told)) == 0
        report = Report.from_json(told.read_text())
        assert call("inspect", report.sink.topic, *there) == 0
        assert call("transactions", *there) == 0
        assert call("status", *there) == 0
    assert report.verdict is Outcome.HOLDS, report.why
    assert shown == set()
    assert kept_in(settings, secrets, capfd) == []


def kept_in(
    settings: Settings, secrets: Sequence[str], capfd: pytest.CaptureFixture[str]
) -> list[Path]:
    """The files of the home that hold one of the secrets. No output does."""
    output = "".join(capfd.readouterr())
    assert not [one for one in secrets if one in output]
    files = files_with(settings.home, secrets)
    assert {"history.db", "report.json", "server.log"} <= {one.name for one in files}
    return [one for one, found in files.items() if found]


@contextmanager
def showing(*secrets: str) -> Iterator[set[str]]:
    """Collects, while the block works, the processes with one of the secrets in their command line
    or environment."""
    found: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    texts = [*process.cmdline(), *process.environ().values()]
                    if any(secret in text for secret in secrets for text in texts):
                        found.add(process.name())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def test_a_copy_is_judged_with_the_properties_of_each_side(
    *,
    secured: Secured,
    settings: Settings,
    cluster: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: a topic of the secured cluster is copied to an open one under its own name, with
    headers that name transactions of the original. One contract names both clusters. The copy is
    judged and judged again; a record less is a gap."""
    way = WAYS["plain, java, jks"]
    (tmp_path / "east.properties").write_text(
        way.text(secured.folder, secured.tokens, secured.tls_tokens)
    )
    (tmp_path / "clusters.yaml").write_text(
        f'east: {{bootstrap: "{secured.address(way.listener, {}).bootstrap}", config:'
        f' east.properties}}\nwest: {{bootstrap: "{cluster.bootstrap}"}}\n'
    )
    contract = tmp_path / "mirror.yaml"
    contract.write_text(
        "source: {topic: copied, cluster: east}\nsink: {topic: copied, cluster: west}\n"
        "identity: key\n"
    )
    monkeypatch.setenv("KAFKA_USER", USER)
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("TOPICPROOF_CLUSTERS", str(tmp_path / "clusters.yaml"))
    monkeypatch.setenv("SPARK_REMOTE", cluster.spark_remote)
    sides = secured.address("open", {}), Address(cluster.bootstrap)
    for address in sides:
        Cluster(address).create_topic("copied", 1)
        with TransactionalProducer(address, "copier") as producer, producer.transaction():
            for number in range(6):
                named = f"id/{number // 3 + 1}/1/task/3".encode()
                key, headers = b"%d" % number, [("topicproof-transaction", named)]
                producer.produce([("copied", key, b"value", headers)])
    proof = tmp_path / "proof"
    assert call("check", "--contract", str(contract), "--out", str(proof)) == 0
    report = read_report(proof)
    assert report.origin is not None and report.source_origin is not None
    assert report.origin.name == f"west ({cluster.bootstrap})"
    assert str(report.source_origin.name).startswith("east (")
    assert call("verify", str(proof), "--cluster", "west", "--source-cluster", "east") == 0
    assert call("verify", str(proof), "--cluster", "east", "--source-cluster", "west") == 4

    for address, keys in zip(sides, ((b"6", b"7"), (b"7",)), strict=True):
        writer = PlainProducer(address, idempotence=True, acks="all")
        writer.produce([("copied", key, b"value", ()) for key in keys])
        writer.flush()
    assert call("check", "--contract", str(contract)) == 1


def fill(address: Address) -> None:
    producer = PlainProducer(address, idempotence=True, acks="all")
    producer.produce([(TOPIC, None, b"value", ())] * RECORDS)
    producer.flush()


def _admin(address: Address, method: str, *asked: object) -> None:
    with connect(address) as kafka:
        getattr(kafka.admin, method)(*asked)


Client = Callable[[Way], Address]
