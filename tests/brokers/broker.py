"""A real broker of any version on loopback: KRaft, and before 3.3 with a ZooKeeper.

Run as `python -m tests.brokers.broker` it fetches the jars of the versions that the tests use.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports
from topicproof.backend.errors import SetupError, TopicproofError
from topicproof.backend.services.jars import BROKER, fetch
from topicproof.backend.services.kafka import EmbeddedBroker, EmbeddedKafka
from topicproof.backend.services.processes import await_start, end_process, listens
from topicproof.backend.settings import BROKER_START_TIMEOUT_S, Settings, read_settings

TESTED = ("2.8.2", "4.4.0")
"""The oldest and the newest broker that the tests start."""

_IVY = """<ivy-module version="2.0">
  <info organisation="topicproof" module="broker"/>
  <configurations><conf name="broker"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{0}" conf="broker->default(runtime)"/>
    <dependency org="{1}" name="{2}" rev="{3}" conf="broker->default(runtime)"/>
  </dependencies>
</ivy-module>
"""
_LOG4J_1 = """
log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.file={log}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_ZOOKEEPER = """
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
"""


def broker_jars(
    settings: Settings, version: str, say: Callable[[str], None] = lambda _text: None
) -> list[Path]:
    """Return the jars of one broker version. Missing ones are fetched; `say` receives progress.
    Raises SetupError."""
    logger = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
    if release(version) < (4, 0):
        logger = ("org.slf4j", "slf4j-reload4j", "1.7.36")
    folder = settings.jars / f"kafka-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / BROKER).exists():
        say(f"fetching the jars of Kafka {version}")
    definition, wanted = folder / "ivy.xml", _IVY.format(version, *logger)
    # Another process may be reading it.
    if not definition.exists() or definition.read_text() != wanted:
        definition.write_text(wanted)
    fetch(definition, folder, [BROKER])
    return sorted((folder / BROKER).glob("*.jar"))


def release(version: str) -> tuple[int, ...]:
    """Return major and minor number."""
    return tuple(map(int, version.split(".")[:2]))


def broker_of(settings: Settings, version: str, folder: Path) -> EmbeddedKafka:
    """Return a broker of this version, not started. Raises SetupError if its jars are missing."""
    kind = EmbeddedKafka
    if release(version) < (4, 0):
        kind = Kafka3 if release(version) >= (3, 3) else Kafka2
    return kind(folder, broker_jars(settings, version))


class Kafka3(EmbeddedKafka):
    """A broker of Kafka 3.3 to 3.9: it logs with Log4j 1, and advertises no controller."""

    def _java(self, command: str, node: EmbeddedBroker) -> list[str]:
        (node.folder / "log4j.properties").write_text(_LOG4J_1.format(log=node.log))
        program, *rest = super()._java(command, node)
        return [program, f"-Dlog4j.configuration=file:{node.folder / 'log4j.properties'}", *rest]

    def _properties(self, node: EmbeddedBroker) -> dict[str, str]:
        listener = f"PLAINTEXT://127.0.0.1:{node.port}"
        return {**super()._properties(node), "advertised.listeners": listener}


@dataclass
class Kafka2(Kafka3):
    """A broker of Kafka 2, with its ZooKeeper."""

    zookeeper: subprocess.Popen[bytes] | None = None

    def wait_ready(self, node: EmbeddedBroker) -> None:
        def ready() -> bool:
            return node.log.exists() and f"[KafkaServer id={node.node}] started" in (
                node.log.read_text(errors="replace")
            )

        await_start("Kafka 2", node.process, ready, BROKER_START_TIMEOUT_S, node.log)

    def stop(self) -> None:
        super().stop()
        if self.zookeeper is not None:
            self.zookeeper.terminate()
            end_process(self.zookeeper)

    def _format(self, command: str, node: EmbeddedBroker, _cluster_id: str) -> None:
        """Start ZooKeeper: the broker formats its own storage."""
        node.data.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        written = self._properties(node) | {"zookeeper.connect": f"127.0.0.1:{port}"}
        (node.folder / "server.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in written.items())
        )
        config, log = node.folder / "zookeeper.properties", node.folder / "zookeeper.log"
        config.write_text(_ZOOKEEPER.format(data=self.folder / "zookeeper", port=port))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        with log.open("wb") as output:
            self.zookeeper = subprocess.Popen(
                [*self._java(command, node), main, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            await_start("ZooKeeper", self.zookeeper, lambda: listens(port), 60, node.log, log)
        except SetupError:
            self.stop()
            raise

    def _properties(self, node: EmbeddedBroker) -> dict[str, str]:
        kraft = ("process.roles", "node.id", "controller.", "authorizer.")
        listener = f"PLAINTEXT://127.0.0.1:{node.port}"
        return {
            **{k: v for k, v in super()._properties(node).items() if not k.startswith(kraft)},
            "broker.id": str(node.node),
            "listeners": listener,
        }


if __name__ == "__main__":
    try:
        for tested in TESTED:
            broker_jars(read_settings(), tested, say=print)
    except TopicproofError as error:
        sys.exit(str(error))
