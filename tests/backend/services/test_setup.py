"""What a machine may lack: each shortcoming is one sentence that names the remedy."""

from __future__ import annotations

import socket
from hashlib import sha256
from pathlib import Path

import pytest

from tests.ports import free_ports
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, SetupError, UsageError
from topicproof.backend.kafka.cluster import TXN_OFFSET_COMMIT, Cluster, require_transactions
from topicproof.backend.properties.properties_file import read_properties
from topicproof.backend.services import kafka as broker
from topicproof.backend.services.dashboard import require_port
from topicproof.backend.services.jars import BROKER, _put, jar_files, require_known
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.processes import java
from topicproof.backend.settings import read_settings

pytestmark = pytest.mark.services


def test_no_java_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Story: the machine has no Java. The sentence says which version, and how to get it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SetupError, match=r"No Java was found.*JDK of version 17"):
        java()


def test_an_old_java_is_named_with_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Story: the machine's Java is of version 11. The sentence says so."""
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="Java 11 is too old"):
        java()


def test_jars_that_are_there_are_left_alone(tmp_path: Path) -> None:
    """Story: a version is raised while a broker runs from these jars. What is new comes, what is no
    longer named goes, and the file that the broker has open stays the same one."""
    fetched, folder = tmp_path / "fetched", tmp_path / "broker"
    for jar in (
        fetched / "kept-1.jar",
        fetched / "new-2.jar",
        folder / "kept-1.jar",
        folder / "old-1.jar",
    ):
        jar.parent.mkdir(exist_ok=True)
        jar.write_text(str(jar))
    before = (folder / "kept-1.jar").stat().st_ino
    _put(fetched, folder)
    assert sorted(jar.name for jar in folder.iterdir()) == ["kept-1.jar", "new-2.jar"]
    assert (folder / "kept-1.jar").stat().st_ino == before


def test_jars_with_another_hash_are_not_installed(tmp_path: Path) -> None:
    """Story: a registry gives another file under a known name, or one that nobody asked for."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "known-1.jar").write_text("as expected")
    hashes = {"broker/known-1.jar": sha256(b"as expected").hexdigest()}
    require_known(tmp_path, [BROKER], hashes)
    (tmp_path / "broker" / "added-1.jar").write_text("as expected")
    with pytest.raises(SetupError, match=r"other files than expected: broker/added-1\.jar\."):
        require_known(tmp_path, [BROKER], hashes)
    (tmp_path / "broker" / "known-1.jar").write_text("changed")
    with pytest.raises(SetupError, match=r"broker/added-1\.jar, broker/known-1\.jar.*Nothing was"):
        require_known(tmp_path, [BROKER], hashes)


def test_storage_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Story: the broker's folder does not fit its configuration. Kafka's own sentence is in the
    error."""
    kafka = EmbeddedKafka(tmp_path, jar_files(read_settings(home=tmp_path), BROKER))
    kafka.overrides["num.network.threads"] = "0"
    with pytest.raises(SetupError, match=r"storage of the embedded Kafka.*num\.network\.threads"):
        kafka.start()


def test_a_cluster_id_may_begin_with_a_dash(tmp_path: Path) -> None:
    """Story: the random id of a new cluster begins with a dash, as one in 64 does. Kafka does not
    take it for an option."""
    (tmp_path / "cluster.id").write_text("-fYEIF6JSk6aCFOe0AAfNA")
    kafka = EmbeddedKafka(tmp_path, jar_files(read_settings(home=tmp_path), BROKER))
    kafka.start()
    kafka.stop()
    assert (
        "cluster.id=-fYEIF6JSk6aCFOe0AAfNA" in (kafka.nodes[0].data / "meta.properties").read_text()
    )


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Story: less space is left than Kafka needs. The sentence says how much, where, and what to
    set."""
    monkeypatch.setattr(broker, "DISK_FREE_BYTES_MIN", 10**18)
    with pytest.raises(SetupError, match=r"MB are free at .*TOPICPROOF_HOME"):
        EmbeddedKafka(tmp_path, []).start()


def test_a_broker_that_does_not_come_up_shows_the_end_of_its_log(tmp_path: Path) -> None:
    """Story: the broker refuses its configuration. Its own words are in the error, and nothing is
    left running."""
    kafka = EmbeddedKafka(tmp_path, jar_files(read_settings(home=tmp_path), BROKER))
    kafka.overrides["metric.reporters"] = "no.such.Reporter"
    with pytest.raises(SetupError, match=r"(?s)broker 1 ended while starting.*no\.such\.Reporter"):
        kafka.start()
    assert all(node.process is None or node.process.poll() is not None for node in kafka.nodes)


def test_a_broker_whose_port_is_taken_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Story: another program listens at a broker's port. The error begins with that, not with the
    many lines in which the broker says how it stops."""
    kafka = EmbeddedKafka(tmp_path, jar_files(read_settings(home=tmp_path), BROKER))
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], *free_ports(2)]
        monkeypatch.setattr(broker, "free_ports", lambda _count, _held: ports)
        with pytest.raises(SetupError, match=r"(?s)Address already in use.*The end of its log"):
            kafka.start()


def test_a_taken_port_names_another() -> None:
    """Story: something else listens on the dashboard's port. The sentence gives the command with
    another."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match=f"Port {port} is taken.*--port {port + 1}"):
            require_port(port)


def test_a_broker_too_old_for_transactions_is_named() -> None:
    """Story: the cluster runs Kafka 2.4, which does not know KIP-447. The sentence says what is
    needed."""
    with pytest.raises(ClusterError, match=r"too old for transactions.*2\.5 or later"):
        require_transactions(Address("old:9092"), {TXN_OFFSET_COMMIT: (0, 2)})
    with pytest.raises(ClusterError, match="too old"):
        require_transactions(Address("ancient:9092"), {})


def test_our_broker_is_new_enough(bootstrap: str) -> None:
    """Story: the embedded broker is asked. It speaks what our transactions need."""
    Cluster(Address(bootstrap)).check()


def test_client_properties_are_read_and_a_bad_line_is_named(tmp_path: Path) -> None:
    """Story: somebody has a client.properties for their cluster. It is read, and an invalid line is
    named."""
    path = tmp_path / "client.properties"
    path.write_text("# ours\nbootstrap.servers = a:1,b:2\n\nsasl.password=x=y\n")
    assert read_properties(path) == {"bootstrap.servers": "a:1,b:2", "sasl.password": "x=y"}
    found = read_settings(config=path, home=tmp_path)
    assert found.bootstrap == "a:1,b:2" and "x=y" not in repr(Cluster(Address("a:1", found.client)))
    path.write_text("words\n")
    with pytest.raises(UsageError, match="line 1: expected name=value"):
        read_properties(path)


def test_settings_pass_to_child_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the dashboard starts a run. The run's process reads the same settings from its
    environment."""
    config = tmp_path / "client.properties"
    config.write_text("sasl.username=me\n")
    mine = read_settings(bootstrap="a:1", config=config, brokers=3, home=tmp_path)
    for name, value in mine.environment().items():
        monkeypatch.setenv(name, value)
    assert read_settings() == mine


def test_a_variable_that_does_not_fit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: TOPICPROOF_BROKERS holds a word. The sentence names the variable; an empty one counts
    as unset."""
    monkeypatch.setenv("TOPICPROOF_BROKERS", "")
    assert read_settings(home=tmp_path).brokers == 1
    monkeypatch.setenv("TOPICPROOF_BROKERS", "many")
    with pytest.raises(UsageError, match="TOPICPROOF_BROKERS is wrong"):
        read_settings(home=tmp_path)
