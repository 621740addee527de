"""What `topicproof rights` prints, granted by Kafka's own tool on a broker that denies everything
else."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.backend.kafka.test_mirror_offsets import OFFSETS
from tests.backend.kafka.topics import Writer
from topicproof.backend import cli
from topicproof.backend.address import Address
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.doctor.diagnosis import Health
from topicproof.backend.doctor.services import rights
from topicproof.backend.errors import ClusterError, TopicError, TopicproofError, UsageError
from topicproof.backend.history.store import History
from topicproof.backend.kafka.acls import Task
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    admin_config,
    consumer_config,
    idempotent_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.abort import plan_abort
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.mirror_offsets import checkpoints
from topicproof.backend.runs.check import check
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.jars import BROKER, TOOLS, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.processes import java
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Outcome, Witness
from topicproof.validators.report import Report

pytestmark = pytest.mark.services

OF_READERS = b"\x00\x07readers\x00\x04seen\x00\x00\x00\x00"
"""Key of a checkpoint of MirrorMaker: group, topic and partition."""
USERS = ("owner", "inspector", "checker", "runner")


@dataclass(frozen=True)
class Denying:
    """A broker that denies what no ACL allows, except to its owner."""

    bootstrap: str
    folder: Path
    jars: str

    def address(self, user: str) -> Address:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        return Address(
            self.bootstrap, {**login, "sasl.username": user, "sasl.password": f"{user}-secret"}
        )

    def grant(self, *arguments: str) -> None:
        """Print the commands of `topicproof rights`, and run each as its line says, with the class
        behind kafka-acls.sh."""
        told = self.folder / "rights.json"
        given = ["--bootstrap", self.bootstrap, "--config", str(self.folder / "owner.properties")]
        with pytest.raises(SystemExit) as ended:
            cli.main(["rights", *arguments, *given, "--json", str(told)])
        assert ended.value.code == 0
        for right in json.loads(told.read_text()):
            script, *words = shlex.split(right["command"])
            assert script == "kafka-acls.sh"
            command = [java(), "-Xmx96m", "-cp", self.jars, "org.apache.kafka.tools.AclCommand"]
            answer = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
            assert answer.returncode == 0 and "Adding ACLs" in answer.stdout, answer

    def take(
        self, user: str, kind: ResourceType, name: str, operation: AclOperation, prefixed: bool
    ) -> None:
        """Take one right away."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        who = (pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        admin = AdminClient(admin_config(self.address("owner")))
        for removed in admin.delete_acls([AclBindingFilter(kind, name, *who)]).values():
            assert len(removed.result()) == 1


@pytest.fixture(scope="module")
def denying(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Denying]:
    folder = tmp_path_factory.mktemp("denying")
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    known = " ".join(f'user_{user}="{user}-secret"' for user in USERS)
    kafka = EmbeddedKafka(
        folder / "kafka",
        jar_files(settings, BROKER),
        overrides={
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": (
                f'{plain} username="owner" password="owner-secret" {known};'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:owner;User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "false",
        },
    )
    kafka.start()
    jars = [*jar_files(settings, BROKER), *jar_files(settings, TOOLS)]
    (folder / "owner.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        f'{plain} username="owner" password="owner-secret";\n'
    )
    yield Denying(kafka.bootstrap, folder, os.pathsep.join(map(str, jars)))
    kafka.stop()


def _lacking(address: Address) -> list[str]:
    """What the doctor says that this user lacks to inspect the topic `seen`."""
    told = Settings(bootstrap=address.bootstrap).model_copy(update={"client": address.client})
    found = rights(told, Task.INSPECT, ["seen"], [])
    return [each.found for each in found if each.health is not Health.OK]


def test_inspect_needs_what_rights_prints_and_no_more(denying: Denying) -> None:
    """Story: an inspector is granted what `rights --for inspect` prints. They see all of one topic,
    nothing of another, and may not write. Without one of the rights, its name is in the error."""
    owner, inspector = denying.address("owner"), denying.address("inspector")
    for topic in ("seen", "hidden", "east.checkpoints.internal"):
        Cluster(owner).create_topic(topic, 1)
    mirror_maker = Producer(idempotent_producer_config(owner))
    mirror_maker.produce("east.checkpoints.internal", OFFSETS, OF_READERS)
    mirror_maker.flush(30)
    writer = Writer(denying.bootstrap, "seen", client=owner.client)
    writer.write("A2 A+ B3 B- C1")
    consumer = Consumer(consumer_config(owner, "readers", READ_COMMITTED))
    consumer.commit(offsets=[TopicPartition("seen", 0, 1)], asynchronous=False)
    consumer.close()
    with pytest.raises(TopicError, match="it lacks Describe on topic seen"):
        inspect_topic(inspector, "seen")
    assert list(checkpoints(inspector, ["seen"], budget=LookBudget())) == []
    wanted = ["--topic", "seen", "--mirror", "east"]
    denying.grant("--for", "inspect", "--principal", "User:inspector", *wanted)
    ((translated,),) = [
        each.found for each in checkpoints(inspector, ["seen"], budget=LookBudget())
    ]
    assert (translated.group, translated.source_offset) == ("readers", 725)
    assert _lacking(inspector) == []
    view = inspect_topic(inspector, "seen")
    assert view.not_heard == ()
    assert [(each.transactional_id, each.hanging) for each in view.open] == [("seen-C", False)]
    assert [(each.group, each.visible) for each in view.lags] == [("readers", 1)]
    assert view.transactions.aborted_by == {"declared": 1}
    with pytest.raises(TopicError, match="it lacks Describe on topic hidden"):
        inspect_topic(inspector, "hidden")
    with pytest.raises(ClusterError, match="it lacks Read on group readers"):
        Cluster(inspector).commit_offsets("readers", "seen", {0: 0})
    with pytest.raises(TopicError, match="it lacks Create on topic new"):
        Cluster(inspector).create_topic("new", 1)
    # Coordinators then hide the open transaction. It does not hang, and no abort may tear it.
    ids, describe = ResourceType.TRANSACTIONAL_ID, AclOperation.DESCRIBE
    denying.take("inspector", ids, "*", describe, False)
    (unseen,) = inspect_topic(inspector, "seen").open
    assert (unseen.unseen, unseen.hanging) == (True, False)
    assert "without Describe on its transactional id" in unseen.why
    with pytest.raises(UsageError, match="nothing was aborted"):
        plan_abort(inspector, "seen", unseen.partition, unseen.start_offset, open_too=True)
    kind, read = ResourceType.TOPIC, AclOperation.READ
    denying.take("inspector", kind, "__transaction_state", read, False)
    (missing,) = inspect_topic(inspector, "seen").not_heard
    assert "lacks Describe on topic __transaction_state" in missing
    # The doctor finds the same before anything is inspected.
    lacks, hidden = _lacking(inspector)
    assert lacks == "This user lacks Describe on transactional-id *."
    assert hidden.startswith("There is no topic __transaction_state")
    denying.take("inspector", kind, "seen", read, False)
    with pytest.raises(TopicError, match="it lacks Describe on topic seen"):
        inspect_topic(inspector, "seen")


def test_a_run_and_its_check_need_what_rights_prints(
    settings: Settings, cluster: Services, denying: Denying
) -> None:
    """Story: a runner runs a pipeline from end to end with what `rights --for run` prints, and it
    holds. A checker judges its topics with the rights of a check. Each is refused, by the name of
    the right, once it is taken away."""
    runner, checker = denying.address("runner"), denying.address("checker")
    history = History(settings)

    def there(address: Address) -> tuple[Settings, Services]:
        """The given Spark, and this cluster."""
        found = replace(cluster, bootstrap=address.bootstrap, client=address.client)
        wanted = {"bootstrap": address.bootstrap, "client": address.client}
        return settings.model_copy(update=wanted), found

    plan = make_plan({"records": 2_000, "partitions": 2, "abort_probability": 0.3})
    with pytest.raises(TopicError, match="it lacks Create on topic squares-"):
        create(*there(runner), history, plan)
    denying.grant("--for", "run", "--principal", "User:runner")
    run = create(*there(runner), history, plan)
    report = execute(make_context(*there(runner), history, run))
    assert report is not None and report.verdict is Outcome.HOLDS, report
    witnesses = {witness for each in report.checked for witness in each.witnesses}
    assert witnesses >= {Witness.RAW_LOG, Witness.COORDINATOR, Witness.JOURNAL}

    source, sink = run.facts.source, run.facts.sink
    fields = {"source": {"topic": source}, "sink": {"topic": sink}, "identity": "key"}
    (contract,) = make_contract(fields).each()

    def judged() -> Report:
        question = question_of(contract, Cluster(checker))
        return check(*there(checker), history, question)

    unseen = "There is no topic {} .* that this user may describe it"
    with pytest.raises(TopicproofError, match=unseen.format(source)):
        judged()
    topics = ["--topic", str(source), "--topic", str(sink)]
    denying.grant("--for", "check", "--principal", "User:checker", *topics)
    second = judged()
    assert second.verdict is Outcome.HOLDS, second.why
    denying.take("checker", ResourceType.TOPIC, str(sink), AclOperation.READ, False)
    with pytest.raises(TopicproofError, match=unseen.format(sink)):
        judged()
    denying.take("runner", ResourceType.GROUP, "squares-", AclOperation.READ, True)
    with pytest.raises(TopicproofError, match="it lacks Read on group squares-"):
        create(*there(runner), history, plan)
