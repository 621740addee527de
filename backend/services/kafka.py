"""A real Apache Kafka as child processes: KRaft with combined roles, one broker by default, three
on request.

It listens only on loopback and keeps its data in a given folder, so a restart finds every topic
again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from topicproof.backend.address import Address
from topicproof.backend.errors import SetupError
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.services.class_archive import ClassArchive, class_archive
from topicproof.backend.services.peer_proxy import Links
from topicproof.backend.services.processes import (
    await_start,
    connects,
    emptied,
    end_process,
    free_ports,
    giving_way,
    java,
    java_temporary,
)
from topicproof.backend.settings import BROKER_START_TIMEOUT_S, DISK_FREE_BYTES_MIN
from topicproof.backend.waiting import ask_until

READY = "Kafka Server started"
CLUSTER_ID = "cluster.id"
"""The file with the id that the data was formatted with."""
LEADERS_TIMEOUT_S, ASKED_S = 30.0, 5.0

# Appended: a broker that fails opens the file once more while it stops, and its reason would be
# gone. Each start begins a new file.
LOG4J = """
status = error
appenders = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.append = true
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRefs = file
rootLogger.appenderRef.file.ref = file
"""


@dataclass
class EmbeddedBroker:
    """One node of the embedded cluster, both broker and controller."""

    node: int
    folder: Path
    port: int
    """Port for clients."""
    controller_port: int
    peers_port: int
    """Port for the other brokers."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def data(self) -> Path:
        return self.folder / "data"


@dataclass
class EmbeddedKafka:
    """An embedded cluster. `start` blocks until every broker serves; `stop` leaves no process."""

    folder: Path
    jars: Sequence[Path]
    brokers: int = 1
    overrides: dict[str, str] = field(default_factory=dict)
    """Server properties that override ours, for tests that need a special broker."""
    writes_archive: bool = False
    """Whether a broker writes the archive of its classes when it ends."""
    nodes: list[EmbeddedBroker] = field(default_factory=list)
    links: Links | None = None
    """The proxy between several brokers."""
    fronts: dict[int, int] = field(default_factory=dict)
    """The proxy's port, by the peer port that it forwards to."""
    held_ports: ExitStack = field(default_factory=ExitStack, repr=False)
    """Keeps the brokers' ports until `stop`."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def archive(self) -> ClassArchive:
        return class_archive("kafka", java(), self.jars)

    def start(self) -> None:
        """Start all brokers. Raises SetupError: no Java, no disk space, or a broker that does not
        start (with the end of its log)."""
        command = java()
        self.folder.mkdir(parents=True, exist_ok=True)
        require_disk_space(self.folder)
        cluster_id = self._cluster_id()
        # A broker that is killed must find its port again.
        ports = free_ports(3 * self.brokers, self.held_ports)
        self.nodes = [
            EmbeddedBroker(
                n + 1,
                self.folder / f"broker-{n + 1}",
                ports[3 * n],
                ports[3 * n + 1],
                ports[3 * n + 2],
            )
            for n in range(self.brokers)
        ]
        if self.brokers > 1:
            self.links = Links(self._node_of)
            self.links.start()
        self.fronts = {
            port: port if self.links is None else self.links.listen(node.node, port)
            for node in self.nodes
            for port in (node.controller_port, node.peers_port)
        }
        again = any(node.data.exists() for node in self.nodes)
        try:
            for node in self.nodes:
                self._format(command, node, cluster_id)
            for node in self.nodes:
                self.start_node(node)
            for node in self.nodes:
                self.wait_ready(node)
        except SetupError:
            self.stop()
            raise
        if again:
            self._await_leaders()

    def _await_leaders(self) -> None:
        """Wait until all partitions of an earlier start have a leader again. A broker that has
        just started still calls them unknown, and their coordinators unavailable."""
        admin = AdminClient(admin_config(Address(self.bootstrap)))

        def led() -> bool:
            try:
                topics = admin.list_topics(timeout=ASKED_S).topics.values()
            except KafkaException:
                return False  # It is too busy to answer; asked again until the time is over.
            return all(
                partition.leader >= 0 for topic in topics for partition in topic.partitions.values()
            )

        # A partition whose brokers are gone never has a leader. Whoever needs it says so.
        ask_until(led, bool, LEADERS_TIMEOUT_S)

    def start_node(self, node: EmbeddedBroker) -> None:
        node.log.unlink(missing_ok=True)
        program, *options = self._java(java(), node)
        if self.writes_archive:
            options = [*self.archive.writing, *options]
        with (node.folder / "stdout.log").open("wb") as output, giving_way():
            node.process = subprocess.Popen(
                [program, *options, "kafka.Kafka", str(node.folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=node.folder,
            )

    def wait_ready(self, node: EmbeddedBroker) -> None:
        def ready() -> bool:
            return node.log.exists() and READY in node.log.read_text(errors="replace")

        name = f"The embedded Kafka broker {node.node}"
        logs = (node.log, node.folder / "stdout.log")
        await_start(name, node.process, ready, BROKER_START_TIMEOUT_S, *logs)

    def handle(self, node: EmbeddedBroker, do: str) -> str:
        """Kill (SIGKILL) a broker, pause it (SIGSTOP), isolate it from its peers, or heal it and
        wait until it serves. Returns a description.

        Raises SetupError if it does not come back.
        """
        process = node.process
        if process is None:
            raise SetupError(f"The embedded Kafka broker {node.node} was never started.")
        if do == "kill":
            process.kill()
            process.wait()
            return f"broker {node.node} (process {process.pid}) was killed"
        if do == "pause":
            process.send_signal(signal.SIGSTOP)
            return f"broker {node.node} (process {process.pid}) was stopped"
        if do == "isolate" and self.links is not None:
            self.links.cut(node.node)
            return f"broker {node.node} (process {process.pid}) was cut off from its peers"
        if self.links is not None and node.node in self.links.apart:
            self.links.heal(node.node)
            return f"broker {node.node} reaches its peers again"
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            return f"broker {node.node} (process {process.pid}) continues"
        self.start_node(node)
        self.wait_ready(node)
        return f"broker {node.node} is back" + (
            f" (process {node.process.pid})" if node.process else ""
        )

    def stop(self) -> None:
        """Ask every broker to stop, then make sure that it has."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGTERM)
                # A paused broker must continue before it can end.
                node.process.send_signal(signal.SIGCONT)
        for node in self.nodes:
            if node.process is not None:
                end_process(node.process)
        if self.links is not None:
            self.links.stop()
            self.links = None
        self.held_ports.close()

    def pids(self) -> list[int]:
        return [node.process.pid for node in self.nodes if node.process is not None]

    def _node_of(self, port: int, front: int) -> int | None:
        """Return the node whose process has the connection from this local port to that one."""
        for node in self.nodes:
            if node.process is not None and connects(node.process.pid, port, front):
                return node.node
        return None

    def _cluster_id(self) -> str:
        """Return the id that the data was formatted with; a new one for an empty folder."""
        path = self.folder / CLUSTER_ID
        if not path.exists():
            path.write_text(urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        return path.read_text()

    def _java(self, command: str, node: EmbeddedBroker) -> list[str]:
        classpath = os.pathsep.join(str(jar) for jar in self.jars)
        options = ["-Xms256m", "-Xmx512m", "-XX:+UseG1GC", "-Djava.awt.headless=true"]
        options += [f"-Dlog4j2.configurationFile={node.folder / 'log4j2.properties'}"]
        options.append(java_temporary(node.folder / "tmp"))
        options += self.archive.options
        return [command, *options, "-cp", classpath]

    def _format(self, command: str, node: EmbeddedBroker, cluster_id: str) -> None:
        node.data.mkdir(parents=True, exist_ok=True)
        emptied(node.folder / "tmp")
        (node.folder / "log4j2.properties").write_text(LOG4J.format(log=node.log))
        path = node.folder / "server.properties"
        path.write_text(
            "".join(f"{name}={value}\n" for name, value in self._properties(node).items())
        )
        answer = subprocess.run(
            [*self._java(command, node), "kafka.tools.StorageTool", "format"]  # noqa: RUF005
            # An id may begin with a dash. The equals sign keeps it from looking like an option.
            + [f"--cluster-id={cluster_id}", "--config", str(path), "--ignore-formatted"],
            capture_output=True,
            text=True,
            check=False,
            cwd=node.folder,
        )
        if answer.returncode != 0:
            lines = [
                line
                for line in (answer.stdout + answer.stderr).splitlines()
                if not line.startswith("\tat ")
            ]
            raise SetupError(
                f"The storage of the embedded Kafka in {self.folder} cannot be used. If it belongs"
                " to another version or cluster size, delete that folder. Kafka said:"
                f" {' '.join(lines)[:800]}"
            )

    def _properties(self, node: EmbeddedBroker) -> dict[str, str]:
        voters = ",".join(
            f"{other.node}@127.0.0.1:{self.fronts[other.controller_port]}" for other in self.nodes
        )
        replicas, in_sync = str(min(3, self.brokers)), str(min(2, self.brokers))
        clients = f"PLAINTEXT://127.0.0.1:{node.port}"
        # Controllers also tell each other where they listen, and then use these addresses instead
        # of the voters' list.
        controller = f"CONTROLLER://127.0.0.1:{self.fronts[node.controller_port]}"
        peers, fronts = (
            [f"PEERS://127.0.0.1:{port}"] if self.brokers > 1 else []
            for port in (node.peers_port, self.fronts[node.peers_port])
        )
        # Everything is allowed until a fault adds an ACL. Several brokers would refuse each other
        # until they have read the ACLs, and end.
        authorizer = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
        return {
            **(authorizer if self.brokers == 1 else {}),
            "process.roles": "broker,controller",
            "node.id": str(node.node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(
                [clients, *peers, f"CONTROLLER://127.0.0.1:{node.controller_port}"]
            ),
            "advertised.listeners": ",".join([clients, *fronts, controller]),
            "inter.broker.listener.name": "PEERS" if peers else "PLAINTEXT",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "log.dirs": str(node.data),
            "auto.create.topics.enable": "false",
            "delete.topic.enable": "true",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": "8",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            # By default Kafka looks for expired transactions every 10 s only.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            # Of several brokers the last to start may wait for long on a busy machine.
            "initial.broker.registration.timeout.ms": f"{BROKER_START_TIMEOUT_S * 1000:.0f}",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.ms": "-1",
            # As large as the kernel allows: with Kafka's 100 kB, a request of 1 MB wakes the broker
            # ten times.
            "socket.receive.buffer.bytes": "-1",
            "socket.send.buffer.bytes": "-1",
            "num.network.threads": "2",
            "num.io.threads": "4",
            **self.overrides,
        }


def require_disk_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < DISK_FREE_BYTES_MIN:
        needed = DISK_FREE_BYTES_MIN // 1_000_000
        raise SetupError(
            f"Only {free // 1_000_000} MB are free at {folder}; Kafka and Spark need {needed} MB. "
            "Free some space or set TOPICPROOF_HOME to a folder on a larger disk."
        )
