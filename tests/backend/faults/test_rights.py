"""Rights that are taken away in the middle of a transaction, by a broker that asks who may do
what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.errors import NotAllowed, SinkError
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import Declared, TransactionEnded
from topicproof.backend.sink.hooks import NoHooks, Step
from topicproof.backend.sink.journal import JournalWriter, read_journal
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.writer import PartitionWriter, Receipt, partition_writer

pytestmark = pytest.mark.services

TOPICS = ("source", "sink", "journal")
RECORDS, PER_TRANSACTION = 40, 10


@dataclass(frozen=True)
class Guarded:
    """A broker with an authorizer, and the two who know its passwords: one who may everything, and
    a worker."""

    bootstrap: str
    owner: dict[str, str]
    worker: dict[str, str]

    @property
    def admin(self) -> AdminClient:
        return AdminClient(admin_config(Address(self.bootstrap, self.owner)))

    def grant(self, kind: ResourceType, name: str) -> None:
        """The worker may write to it, and somebody else may read it: what nobody owns is open to
        all."""
        wanted = [
            _right(kind, name, "worker", AclOperation.WRITE),
            _right(kind, name, "auditor", AclOperation.READ),
        ]
        admin = self.admin
        for made in admin.create_acls(wanted).values():
            made.result()

    def revoke(self, kind: ResourceType, name: str) -> None:
        place = (
            ResourcePatternType.LITERAL,
            "User:worker",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        admin = self.admin
        for removed in admin.delete_acls([AclBindingFilter(kind, name, *place)]).values():
            assert len(removed.result()) == 1


def _right(kind: ResourceType, name: str, user: str, may: AclOperation) -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", may, AclPermissionType.ALLOW
    )


@pytest.fixture(scope="module")
def guarded(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    kafka = EmbeddedKafka(
        folder,
        jar_files(settings, BROKER),
        overrides={
            # The one listener keeps its name, and speaks another protocol.
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": (
                f'{plain} username="owner" password="o" user_owner="o" user_worker="w";'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:owner;User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    kafka.start()
    told = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    yield Guarded(
        kafka.bootstrap,
        {**told, "sasl.username": "owner", "sasl.password": "o"},
        {**told, "sasl.username": "worker", "sasl.password": "w"},
    )
    kafka.stop()


class Striking(NoHooks):
    """Takes a right away, once, at a step of the second transaction. What was produced until then
    is in the log."""

    lose: Callable[[], None]
    at: Step
    lost = False

    def reach(
        self,
        step: Step,
        sequence: int,
        inputs: tuple[int, int],  # noqa: ARG002
        journal: JournalWriter | None,  # noqa: ARG002
        flush: Callable[[], None],
    ) -> None:
        if (step, sequence) == (self.at, 2) and not self.lost:
            self.lost = True
            flush()
            self.lose()


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        (ResourceType.TOPIC, Step.PRODUCING),
        (ResourceType.TRANSACTIONAL_ID, Step.PRODUCING),
        # All records are in the log: the offset is what the brokers refuse first.
        (ResourceType.TRANSACTIONAL_ID, Step.PRODUCED),
    ],
)
def test_a_right_that_is_taken_away_stops_the_sink_and_loses_nothing(
    guarded: Guarded, kind: ResourceType, at: Step
) -> None:
    """Story: in the middle of a transaction the worker may not write to the sink any more, or not
    use its transactional id. The sink stops with the brokers' own error, after all its allowed
    tries, and nothing of the transaction is in the sink. The permission is granted again, and the
    next task continues: exact."""
    prefix = f"{kind.name}-{at.name}".lower().replace("_", "-")
    topics = {name: f"{prefix}-{name}" for name in TOPICS}
    cluster = Cluster(Address(guarded.bootstrap, guarded.owner))
    for name in topics.values():
        cluster.create_topic(name, 1)
    cluster.commit_offsets(prefix, topics["source"], {0: 0})
    struck = topics["sink"] if kind is ResourceType.TOPIC else f"{prefix}-{topics['source']}-0"
    guarded.grant(kind, struck)
    options = {
        "kafka.bootstrap.servers": guarded.bootstrap,
        **{f"kafka.{key}": value for key, value in guarded.worker.items()},
        "topic": topics["sink"],
        "group": prefix,
        "transactionalIdPrefix": prefix,
        "journal": topics["journal"],
        "recordsPerTransaction": str(PER_TRANSACTION),
        "attemptsMax": "3",
    }

    def task(writer: PartitionWriter) -> Receipt:
        offsets = pa.array(range(RECORDS), pa.int64())
        texts = pa.array([b"%d" % n for n in range(RECORDS)], pa.binary())
        partition = pa.array([0] * RECORDS, pa.int32())
        columns = {"topic": [topics["source"]] * RECORDS, "partition": partition, "offset": offsets}
        with writer:
            writer.accept(pa.RecordBatch.from_pydict({**columns, "key": texts, "value": texts}))
            return writer.finish()

    def sunk() -> Counter[bytes | None]:
        return Counter(
            message.value
            for message in read_all(guarded.bootstrap, topics["sink"], client=guarded.owner)
        )

    class Losing(Striking):
        @staticmethod
        def lose() -> None:
            guarded.revoke(kind, struck)

    Losing.at = at
    losing = partition_writer(SinkOptions.parse(options), Losing, topics["source"], 0)
    with pytest.raises(SinkError, match=f"{kind.name}_AUTHORIZATION_FAILED"):
        task(losing)
    assert sunk() == Counter(b"%d" % n for n in range(PER_TRANSACTION))
    guarded.grant(kind, struck)
    done = task(partition_writer(SinkOptions.parse(options), NoHooks, topics["source"], 0))
    assert (done.skipped, done.inputs) == (PER_TRANSACTION, RECORDS - PER_TRANSACTION)
    assert sunk() == Counter(b"%d" % n for n in range(RECORDS))
    ended = [
        one
        for one in read_journal(Address(guarded.bootstrap, guarded.owner), topics["journal"])
        if isinstance(one, TransactionEnded)
    ]
    assert sum(one.outcome is not Declared.COMMITTED for one in ended) <= 3


def test_what_cannot_be_aborted_is_left_to_whoever_comes_next(guarded: Guarded) -> None:
    """Story: the pipeline fails in a transaction whose transactional id it may not use any more, so
    it cannot abort either. It ends with the brokers' error. The permission is granted again, and
    the next pipeline settles what was left open."""
    kind, name = ResourceType.TRANSACTIONAL_ID, "left-open"
    Cluster(Address(guarded.bootstrap, guarded.owner)).create_topic("left-open-sink", 1)
    guarded.grant(kind, name)
    producer = TransactionalProducer(Address(guarded.bootstrap, guarded.worker), name)

    def fail() -> None:
        with producer, producer.transaction():
            producer.produce([("left-open-sink", None, b"lost", ())])
            producer.flush()
            guarded.revoke(kind, name)
            raise ZeroDivisionError

    with pytest.raises(NotAllowed, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        fail()
    assert producer.open
    guarded.grant(kind, name)
    with (
        TransactionalProducer(Address(guarded.bootstrap, guarded.worker), name) as another,
        another.transaction(),
    ):
        another.produce([("left-open-sink", None, b"kept", ())])
    read = read_all(guarded.bootstrap, "left-open-sink", client=guarded.owner)
    assert [message.value for message in read] == [b"kept"]
