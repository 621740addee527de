"""A real Kafka for tests: embedded, or the one that TOPICPROOF_BOOTSTRAP names."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from topicproof.backend.harness.scratch_topics import Record, Topic
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services, brokers, services
from topicproof.backend.settings import Settings, read_settings


@dataclass
class Broker:
    """One cluster, until the `with` block of `open_broker` ends."""

    settings: Settings = field(repr=False)
    services: Services
    stack: ExitStack = field(repr=False)
    pool: ThreadPoolExecutor = field(repr=False)
    _cluster: Cluster | None = field(default=None, repr=False)
    _spark: Future[str] | None = field(default=None, repr=False)
    _handle: Callable[[int, str], str] | None = field(default=None, repr=False)

    @property
    def bootstrap(self) -> str:
        """host:port of every broker, separated by commas."""
        return self.services.bootstrap

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.services.address)
        return self._cluster

    def topic(
        self,
        name: str,
        partitions: int = 1,
        committed: Iterable[Record] = (),
        aborted: Iterable[Record] = (),
        open: Iterable[Record] = (),
        **config: str,
    ) -> Topic:
        """Make a topic whose name begins with `name`, with records of each fate in this order.
        `config`: topic settings, with underscores for dots. Raises ClusterError, KafkaException."""
        whole = f"{name}-{uuid.uuid4().hex[:6]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.cluster.create_topic(whole, partitions, exists_ok=False, **settings)
        topic = Topic(whole, self.cluster)
        for records, write in (
            (committed, topic.committed),
            (aborted, topic.aborted),
            (open, topic.open),
        ):
            if batch := list(records):
                write(batch)
        return topic

    def kill(self, node: int = 1) -> None:
        """Kill a broker with SIGKILL; `heal` starts it again. Brokers count from 1. Raises
        UsageError for a Kafka that is not embedded."""
        self._strike(node, "kill")

    def pause(self, node: int = 1) -> None:
        """Stop a broker with SIGSTOP; `heal` lets it continue."""
        self._strike(node, "pause")

    def isolate(self, node: int) -> None:
        """Cut a broker off from its peers; `heal` ends that. Clients still reach it."""
        self._strike(node, "isolate")

    def heal(self, node: int = 1) -> None:
        """Undo what was done to a broker, and wait until it serves."""
        self._strike(node, "heal")

    def prepare_spark(self) -> None:
        """Begin to start Spark, which judges. `spark_remote` waits for it."""
        if self._spark is None:
            self._spark = self.pool.submit(self._start_spark)

    @property
    def spark_remote(self) -> str:
        """The address of the Spark that judges. Raises SetupError if it does not start."""
        self.prepare_spark()
        assert self._spark is not None
        return self._spark.result()

    def _start_spark(self) -> str:
        spark_services = self.stack.enter_context(services(self.settings, kafka=False))
        return spark_services.spark_remote

    def _strike(self, node: int, how: str) -> None:
        if self._handle is None:
            self._handle = self.stack.enter_context(brokers(self.settings))
        self._handle(node, how)


@contextmanager
def open_broker(home: Path, count: int = 1) -> Iterator[Broker]:
    """Start an embedded Kafka of one or three brokers in `home`, or connect to the one that
    TOPICPROOF_BOOTSTRAP names. A Kafka that runs in this home already is shared.

    Raises SetupError if it cannot be started, UsageError for wrong settings.
    """
    settings = read_settings(home=home, brokers=count)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        yield Broker(settings, stack.enter_context(services(settings, spark=False)), stack, pool)
