"""The configuration of each Kafka client. Units are in the names.

No other module spells a setting of a Kafka client, except those of `backend/properties/`, which
translate what people write; a test greps for it. The sink's workers import this module, so it needs
only the core dependencies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NewType

from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.properties.facts import facts_of
from topicproof.backend.properties.spelling import for_java, for_kafka_python, for_librdkafka

FetchLimits = NewType("FetchLimits", dict[str, Any])
"""Settings of a consumer, made from the sizes of the records that it will read."""

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

REQUEST_TIMEOUT_MS = 10_000
"""How long a request may take before its broker counts as unreachable."""
TRANSACTION_TIMEOUT_MS = 60_000
"""Kafka's own default: the coordinator aborts an abandoned transaction after this long."""
SPARK_FETCH_BYTES = 8_000_000
SPARK_SILENCE_MS = 30_000
"""How long a task that reads a range waits for records. By default it is two minutes, and a task
that waits for a deleted topic cannot be interrupted: nothing else runs in its place meanwhile. A
partition gets a new leader within 20 s."""
READER_FETCH_BYTES = 1_048_576
"""librdkafka's default."""
REQUEST_BYTES_MIN = 1_000
"""The least that librdkafka takes as the size of a message."""
_ALWAYS = {
    # librdkafka logs each retry, even while a broker is down. Errors reach the caller anyway.
    "log_level": 2,
    # Python's log has what is left, or what the user's properties ask for. Otherwise librdkafka
    # writes to the terminal, with names from the cluster in it.
    "logger": logging.getLogger("librdkafka"),
    # A new client waits half of this between its first two connections: its first answer takes 14
    # ms instead of 55. For a broker that is down, the wait still grows to ten seconds.
    "reconnect.backoff.ms": 20,
}
"""Defaults of every librdkafka client. The user's properties override them."""
CREATES_NO_TOPIC = {"allow.auto.create.topics": "false"}
"""By default brokers create each topic that a client asks about (auto.create.topics.enable=true),
with their default number of partitions. Java's clients and librdkafka's admin client and producer
ask for that too. A reader must write nothing, and we create each topic of a run by name."""


def admin_config(address: Address) -> dict[str, Any]:
    return {**_librdkafka(address), "socket.timeout.ms": REQUEST_TIMEOUT_MS}


def consumer_config(address: Address, group: str, isolation: str) -> dict[str, Any]:
    """Configure a consumer that never commits by itself, and that fails when its offset is gone."""
    return {
        **_librdkafka(address),
        "group.id": group,
        "isolation.level": isolation,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
    }


def fetch_limits(fetch_bytes: int) -> FetchLimits:
    """Let a consumer fetch little at once, of all partitions together, and nothing ahead. For
    records that become much larger in memory than they are in the log."""
    if fetch_bytes >= READER_FETCH_BYTES:
        return FetchLimits({})
    return FetchLimits(
        {
            "fetch.message.max.bytes": fetch_bytes,
            "fetch.max.bytes": max(fetch_bytes, REQUEST_BYTES_MIN),
            # The client raises the limit above to this one.
            "message.max.bytes": max(fetch_bytes, REQUEST_BYTES_MIN),
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 1,
            # Otherwise the client waits a second before it fetches more into an emptied queue.
            "fetch.queue.backoff.ms": 5,
        }
    )


UNCOMPRESSED = fetch_limits(READER_FETCH_BYTES)
"""For a topic whose broker stores no compressed batch (`KEEPS_UNCOMPRESSED`)."""
KEEPS_UNCOMPRESSED = {"compression.type": "uncompressed"}
"""Configures a topic. The broker decompresses what it receives, and then refuses what is longer
than `max.message.bytes`. Kafka's own topics of offsets and transactions have the same."""


def idempotent_producer_config(address: Address) -> dict[str, Any]:
    return {
        **_librdkafka(address),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 20,
        "queue.buffering.max.messages": 1_000_000,
        # Java's partitioner: each key goes to the same partition as from a Java client.
        "partitioner": "murmur2_random",
    }


def journal_producer_config(address: Address) -> dict[str, Any]:
    """Configure a producer with acknowledgements from all replicas and fixed order. It is not
    idempotent: a producer id costs 0.5 s a task, and an entry repeated by a retry does no harm."""
    return {
        **_librdkafka(address),
        "acks": "all",
        "max.in.flight.requests.per.connection": 1,
        # There is one entry per transaction: without lingering, hundreds of requests a second.
        "linger.ms": 50,
    }


def transactional_producer_config(
    address: Address,
    transactional_id: str,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> dict[str, Any]:
    """Raises UsageError for an id that librdkafka would cut: it would take over another one's
    transaction."""
    if "\0" in transactional_id:
        raise UsageError(
            f"The transactional id {transactional_id!a} has a NUL character, at which librdkafka"
            " ends a name: it would take over another program's id. kafka-transactions.sh abort, or"
            " its coordinator's time-out, ends its transaction."
        )
    return {
        **idempotent_producer_config(address),
        "linger.ms": 50,
        "batch.size": 1_000_000,
        # Right after a transaction the coordinator answers CONCURRENT_TRANSACTIONS. Retrying after
        # 2 ms instead of librdkafka's 100 cuts a transaction of 1,000 records from 37 to 10 ms.
        "retry.backoff.ms": 2,
        # By default a client whose connections broke starts over from its bootstrap servers. A
        # pending offset commit then hangs past any timeout (librdkafka issue 5511).
        "metadata.recovery.strategy": "none",
        # Successful deliveries then need no call into Python.
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


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that are written with underscores under librdkafka's names."""
    return {name.replace("_", "."): value for name, value in settings.items()}


def _librdkafka(address: Address) -> dict[str, Any]:
    """Return the settings of every librdkafka client. None of them creates a topic by asking."""
    return {
        **_ALWAYS,
        **librdkafka_client(address.client),
        **CREATES_NO_TOPIC,
        "bootstrap.servers": address.bootstrap,
    }


def kafka_python_config(address: Address) -> dict[str, Any]:
    """Raises UsageError for client properties that cannot be used."""
    return {
        "bootstrap_servers": address.bootstrap.split(","),
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "bootstrap_timeout_ms": REQUEST_TIMEOUT_MS,
        "reconnect_backoff_max_ms": 1_000,
        # One record batch may be as large as the protocol's length field allows.
        "receive_message_max_bytes": 2**31 - 1,
        **for_kafka_python(facts_of(address.client)),
    }


def java_client(client: Mapping[str, str]) -> dict[str, str]:
    """Return the same client properties for Kafka's Java client. Raises UsageError."""
    return for_java(facts_of(client))


def librdkafka_client(client: Mapping[str, str]) -> dict[str, str]:
    """Return the same client properties for librdkafka, with certificates and keys inline. Raises
    UsageError."""
    return for_librdkafka(facts_of(client))


def address_of_spark_options(options: Mapping[str, str]) -> Address:
    """Read the address from the options of a Spark data source, where each name begins with
    `kafka.`.

    Raises UsageError when it is missing.
    """
    client = {name[6:]: value for name, value in options.items() if name.startswith("kafka.")}
    if not client.get("bootstrap.servers"):
        raise UsageError("The option kafka.bootstrap.servers is missing.")
    return Address(client.pop("bootstrap.servers"), client)


def spark_options_of_address(address: Address) -> dict[str, str]:
    """Return the options from which `address_of_spark_options` makes the address, with certificates
    and keys inline. Raises UsageError."""
    client = {**librdkafka_client(address.client), "bootstrap.servers": address.bootstrap}
    return {f"kafka.{name}": value for name, value in client.items()}


def spark_source_options(
    address: Address, isolation: str, fetch_bytes: int = SPARK_FETCH_BYTES
) -> dict[str, str]:
    """Return the options of Spark's Kafka source. The fetch sizes double its speed. `fetch_bytes`:
    how much of a partition it may fetch at once, before decompression."""
    return {
        **{f"kafka.{name}": value for name, value in java_client(address.client).items()},
        **{f"kafka.{name}": value for name, value in CREATES_NO_TOPIC.items()},
        "kafka.bootstrap.servers": address.bootstrap,
        "kafka.isolation.level": isolation,
        "kafka.max.poll.records": "50000",
        "kafka.max.partition.fetch.bytes": str(fetch_bytes),
        # A read that ends in markers fetches once more at the log's end, where a broker waits 0.5 s
        # by default.
        "kafka.fetch.max.wait.ms": "20",
        "failOnDataLoss": "true",
    }


def spark_range_options(address: Address, fetch_bytes: int) -> dict[str, str]:
    """Return the options of Spark's Kafka source for reading ranges whose records exist."""
    return {
        **spark_source_options(address, READ_COMMITTED, fetch_bytes),
        "kafkaConsumer.pollTimeoutMs": str(SPARK_SILENCE_MS),
        "kafka.default.api.timeout.ms": str(SPARK_SILENCE_MS),
    }
