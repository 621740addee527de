"""The one place for addresses, timeouts, isolation levels and client settings. Units are in the
names.

Nothing else in the project spells a client setting of Kafka; a test greps for it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topicproof.backend.address import Address
from topicproof.backend.errors import SetupError, UsageError

ROOT = Path(__file__).resolve().parent.parent

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

REQUEST_TIMEOUT_MS = 10_000
"""How long one question to a broker may take before the broker counts as unreachable."""
BROKER_START_TIMEOUT_S = 180
SPARK_START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 20
TRANSACTION_TIMEOUT_MS = 60_000
"""Kafka's own default: an abandoned transaction is aborted by its coordinator after this long."""
DISK_FREE_BYTES_MIN = 500_000_000
_ALWAYS = {
    # librdkafka writes what it tries again to the terminal, even a broker that is away; errors
    # reach the caller anyway.
    "log_level": 2,
    # A client that starts waits half of this between its first connection and its second: 55 ms
    # before its first answer, now 14. To a broker that is away the wait grows from here to ten
    # seconds, as before.
    "reconnect.backoff.ms": 20,
}
"""What every client of librdkafka is told, unless the user's properties say otherwise."""
DASHBOARD_PORT = 8501
DASHBOARD_ADDRESS = os.environ.get("TOPICPROOF_DASHBOARD_ADDRESS", "127.0.0.1")
"""Loopback unless told otherwise; a container must listen on all its addresses to be published."""
JAVA_VERSION_MIN = 17


@dataclass(frozen=True)
class Settings:
    """What the surroundings decide, read once from the environment and the command line."""

    home: Path
    """Folder of everything this project keeps: history, runs, evidence, logs, the embedded broker's
    data."""
    jars: Path
    """Folder of the jars of ivy.xml, one sub-folder a configuration."""
    bootstrap: str | None
    """host:port list of a given Kafka; None means the embedded one."""
    spark_remote: str | None
    """sc:// address of a given Spark Connect server; None means the embedded one."""
    brokers: int = 1
    """Brokers of the embedded cluster: 1 or 3."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties (TLS, SASL) of the given Kafka, in librdkafka's names. Never printed."""
    config: Path | None = None
    """The file they were read from."""

    @property
    def database_url(self) -> str:
        return os.environ.get("TOPICPROOF_DATABASE", f"sqlite:///{self.home / 'history.db'}")

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def services(self) -> Path:
        """Folder of the embedded services: data, logs, and what is running."""
        return self.home / "services"

    @property
    def spark(self) -> Path:
        """Folder of the embedded Spark server."""
        return self.services / "spark"

    def environment(self) -> dict[str, str]:
        """The variables that make a child process read these same settings."""
        given = {
            "TOPICPROOF_HOME": str(self.home),
            "TOPICPROOF_JARS": str(self.jars),
            "TOPICPROOF_BROKERS": str(self.brokers),
            "TOPICPROOF_BOOTSTRAP": self.bootstrap,
            "SPARK_REMOTE": self.spark_remote,
            "TOPICPROOF_CONFIG": None if self.config is None else str(self.config),
        }
        return {name: value for name, value in given.items() if value is not None}


def read_settings(
    bootstrap: str | None = None,
    config: Path | None = None,
    brokers: int | None = None,
    home: Path | None = None,
) -> Settings:
    """Settings from the environment; arguments win over variables.

    Raises UsageError for an unreadable `config`, SetupError when the home cannot be made or
    written.
    """
    config = config or _path("TOPICPROOF_CONFIG")
    client = read_properties(config) if config else {}
    home = (home or _path("TOPICPROOF_HOME") or Path(".topicproof")).absolute()
    writable(home)
    given = (
        bootstrap or os.environ.get("TOPICPROOF_BOOTSTRAP") or client.pop("bootstrap.servers", None)
    )
    return Settings(
        home=home,
        jars=_path("TOPICPROOF_JARS") or ROOT / ".jars",
        bootstrap=given or None,
        spark_remote=os.environ.get("SPARK_REMOTE") or None,
        brokers=brokers or int(os.environ.get("TOPICPROOF_BROKERS", "1")),
        client=client,
        config=config.absolute() if config else None,
    )


def writable(folder: Path) -> None:
    """Make `folder` and prove that it can be written. Raises SetupError naming the remedy."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SetupError(
            f"The home folder {folder} cannot be written ({error.strerror}). "
            "Set TOPICPROOF_HOME to a folder that you may write."
        ) from error


def socket_path(folder: Path) -> Path:
    """The path of a Unix socket that belongs to `folder`: short (the kernel allows about 100
    characters), and in a place of this user alone. Raises SetupError when that place is somebody
    else's."""
    place = Path(tempfile.gettempdir()) / f"topicproof-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise SetupError(f"{place} belongs to another user. Set TMPDIR to a folder of your own.")
    return place / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.sock"


def read_properties(path: Path) -> dict[str, str]:
    """A Java-style properties file: `name=value` lines, `#` comments. Raises UsageError naming the
    line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(
            f"The client properties {path} cannot be read: {error.strerror}."
        ) from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"{path}, line {number}: expected name=value.")
        found[name.strip()] = value.strip()
    return found


def admin_config(address: Address) -> dict[str, Any]:
    return {
        **_ALWAYS,
        **address.client,
        "bootstrap.servers": address.bootstrap,
        "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    }


def consumer_config(address: Address, group: str, isolation: str) -> dict[str, Any]:
    """A consumer that never commits by itself and fails, instead of jumping, when its offset is
    gone."""
    return {
        **_ALWAYS,
        **address.client,
        "bootstrap.servers": address.bootstrap,
        "group.id": group,
        "isolation.level": isolation,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
    }


def idempotent_producer_config(address: Address) -> dict[str, Any]:
    return {
        **_ALWAYS,
        **address.client,
        "bootstrap.servers": address.bootstrap,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 20,
        "queue.buffering.max.messages": 1_000_000,
        # Java's partitioner, so that a key goes where any Java client would put it.
        "partitioner": "murmur2_random",
    }


def journal_producer_config(address: Address) -> dict[str, Any]:
    """Acknowledged by all replicas and in order, but not idempotent: asking for a producer id first
    took 0.5 s a task, and an entry that a retry repeats says nothing new."""
    return {
        **_ALWAYS,
        **address.client,
        "bootstrap.servers": address.bootstrap,
        "acks": "all",
        "max.in.flight.requests.per.connection": 1,
        # An entry a transaction: of some hundred a second each would be a request.
        "linger.ms": 50,
    }


def transactional_producer_config(
    address: Address,
    transactional_id: str,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> dict[str, Any]:
    return {
        **idempotent_producer_config(address),
        "linger.ms": 50,
        "batch.size": 1_000_000,
        # Right after a transaction the coordinator answers "still completing"
        # (CONCURRENT_TRANSACTIONS): asking again soon instead of after librdkafka's 100 ms took a
        # transaction of 1,000 records from 37 to 10 ms, and 2 instead of 5 ms one of 100 records
        # from 6.7 to 5.3.
        "retry.backoff.ms": 2,
        # When its connections broke, the client would forget the brokers and begin anew; an offset
        # that it was handing to the group's coordinator meanwhile then waits for ever, past any
        # time-out (librdkafka issue 5511).
        "metadata.recovery.strategy": "none",
        # A delivery that succeeded then costs no call into Python.
        "delivery.report.only.error": True,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
    }


def plain_producer_config(address: Address, idempotence: bool, acks: str) -> dict[str, Any]:
    return {
        **idempotent_producer_config(address),
        "linger.ms": 50,
        "batch.size": 1_000_000,
        "delivery.report.only.error": True,
        "enable.idempotence": idempotence and acks == "all",
        "acks": acks,
        **({} if acks == "all" else {"retries": 0}),
    }


def kafka_python_config(address: Address) -> dict[str, Any]:
    """kafka-python's keyword arguments for the same cluster, translated from librdkafka's names."""
    names = {
        "security.protocol": "security_protocol",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.mechanisms": "sasl_mechanism",
        "sasl.username": "sasl_plain_username",
        "sasl.password": "sasl_plain_password",
        "ssl.ca.location": "ssl_cafile",
        "ssl.certificate.location": "ssl_certfile",
        "ssl.key.location": "ssl_keyfile",
        "ssl.key.password": "ssl_password",
    }
    return {
        "bootstrap_servers": address.bootstrap.split(","),
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "bootstrap_timeout_ms": REQUEST_TIMEOUT_MS,
        "reconnect_backoff_max_ms": 1_000,
        # One record batch may be as large as the protocol's length field allows.
        "receive_message_max_bytes": 2**31 - 1,
        **{names[name]: value for name, value in address.client.items() if name in names},
    }


def java_client(client: Mapping[str, str]) -> dict[str, str]:
    """Kafka's Java client properties for the same cluster, translated from librdkafka's names;
    others pass as they are.

    Certificates and keys are PEM on both sides (KIP-651). Raises UsageError when a key file cannot
    be read.
    """
    java = {name: value for name, value in client.items() if name not in _NOT_JAVA}
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms"))
    if mechanism is not None:
        java["sasl.mechanism"] = mechanism
    if "sasl.username" in client:
        module = (
            "scram.ScramLoginModule"
            if (mechanism or "").startswith("SCRAM")
            else "plain.PlainLoginModule"
        )
        user, password = (
            _quoted(client.get(name, "")) for name in ("sasl.username", "sasl.password")
        )
        java["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={user}"
            f" password={password};"
        )
    if "ssl.ca.location" in client:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": client["ssl.ca.location"]}
    if "ssl.certificate.location" in client:
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _read(client["ssl.certificate.location"]),
            "ssl.keystore.key": _read(
                client.get("ssl.key.location", client["ssl.certificate.location"])
            ),
        }
    return java


_NOT_JAVA = {
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError as error:
        raise UsageError(
            f"The client property file {path} cannot be read: {error.strerror}."
        ) from error


def address_of_spark_options(options: Mapping[str, str]) -> Address:
    """The address in the options of a Spark data source, where each name begins with `kafka.`.

    Raises UsageError when it is missing.
    """
    client = {name[6:]: value for name, value in options.items() if name.startswith("kafka.")}
    if not client.get("bootstrap.servers"):
        raise UsageError("The option kafka.bootstrap.servers is missing.")
    return Address(client.pop("bootstrap.servers"), client)


def spark_source_options(address: Address, isolation: str) -> dict[str, str]:
    """Options of Spark's Kafka source, with fetch sizes that were measured to double its speed."""
    return {
        **{f"kafka.{name}": value for name, value in java_client(address.client).items()},
        "kafka.bootstrap.servers": address.bootstrap,
        "kafka.isolation.level": isolation,
        "kafka.max.poll.records": "50000",
        "kafka.max.partition.fetch.bytes": "8000000",
        # A read that ends in markers asks once more at the end of the log; Kafka's default answer
        # to that takes 0.5 s.
        "kafka.fetch.max.wait.ms": "20",
        "failOnDataLoss": "true",
    }


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser().absolute() if value else None
