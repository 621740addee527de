"""An operator commits what a dead program left prepared: the plan, the deed, and every refusal in
between."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException
from kafka import KafkaProducer

from tests.backend.kafka.hanging import append, ghost
from tests.backend.kafka.topics import Writer, delivered, look
from tests.backend.trust.people import ADA, GRACE
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.coordination.commit import commit, plan_commit, require_confirmed
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.settings import read_settings
from topicproof.backend.trust.acting import ACTING, environment_for
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import PartitionBounds

NewTopic = Callable[..., str]


def delivered_offsets(bootstrap: str, topic: str) -> list[tuple[int, int]]:
    """Partition and offset of each record that a read_committed consumer gets."""
    bounds = fetch_bounds(Address(bootstrap), topic)
    return sorted(delivered(bootstrap, bounds, READ_COMMITTED))


def test_an_operator_commits_what_a_dead_job_prepared(
    bootstrap: str,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a job wrote to two partitions, completed its checkpoint and died before its commit.
    The command says what it would do, and does nothing without the transactional id, nor for a
    viewer. Then all records are delivered, the old producer is fenced, and the log says who did
    it. A second time there is nothing to commit."""
    topic = new_topic(partitions=2)
    job = Writer(bootstrap, topic)
    job.write("A3 n1")
    job.write("A2", partition=1)
    name = job.transactional_id("A")
    command = ["commit", topic, "0", "0", "--bootstrap", bootstrap]
    earlier = len(audit_entries(History(read_settings())))

    assert call(*command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Delivered to every read_committed consumer, for good: 3 records" in printed
    assert f"Committed with it: what the transaction wrote to {topic}-1" in printed
    assert "Kafka does not know whether the program had finished the transaction" in printed
    assert (
        f"Nothing was done. To commit it, repeat the command with --yes --confirm {name}" in printed
    )
    for wrong in ((), ("--confirm", "another")):
        assert call(*command, "--yes", *wrong) == 64
        assert "A commit cannot be taken back" in capsys.readouterr().err
    with monkeypatch.context() as viewer:
        viewer.setenv(ACTING, environment_for(ADA)[ACTING])
        assert call(*command, "--yes", "--confirm", name) != 0
        assert "Ada Lovelace" in capsys.readouterr().err
    assert delivered_offsets(bootstrap, topic) == []

    monkeypatch.setenv(ACTING, environment_for(GRACE)[ACTING])
    assert call(*command, "--yes", "--confirm", name, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["after"]["lso"]) == (True, 5)
    assert delivered_offsets(bootstrap, topic) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    with pytest.raises(KafkaException):
        job.write("A+")
    entries = audit_entries(History(read_settings()))[earlier:]
    assert [(entry.by.name, entry.allowed) for entry in entries] == [
        ("Ada Lovelace", False),
        ("Grace Hopper", True),
    ]
    assert name in entries[1].what
    assert call(*command, "--yes", "--confirm", name) == 64
    assert "None is open there." in capsys.readouterr().err


def test_a_transaction_of_a_java_client_is_committed(bootstrap: str, new_topic: NewTopic) -> None:
    """Story: the dead program is Flink, whose client speaks version 2 of transactions (KIP-890):
    the broker itself adds the partition, and each end raises the epoch."""
    topic, name = new_topic(), f"flink-{ghost()}"
    # Only its identity is used: kafka-python itself speaks version 1.
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    identity = producer._transaction_manager.producer_id_and_epoch
    assert append(bootstrap, topic, identity.producer_id, identity.epoch, 0, name) == 0
    plan = plan_commit(Address(bootstrap), topic, 0, producer_id=identity.producer_id)
    assert (plan.raises_epoch, plan.others) == (True, ())
    with pytest.raises(UsageError, match="repeat its transactional id after --confirm"):
        require_confirmed(plan, name.upper())
    require_confirmed(plan, name)
    assert commit(Address(bootstrap), plan) == PartitionBounds(0, 0, 2, 2)
    assert delivered_offsets(bootstrap, topic) == [(0, 0)]
    assert look(Address(bootstrap), open_transactions, topic) == ()
    with pytest.raises(UsageError, match="None is open there"):
        commit(Address(bootstrap), plan)
    producer.close()


@pytest.mark.parametrize(
    ("state", "changes", "refusal"),
    [
        ("PrepareAbort", {}, r"payments is already decided \(PrepareAbort\)"),
        ("PrepareEpochFence", {}, r"its coordinator says PrepareEpochFence"),
        (None, {"hanging": True}, "can only be aborted"),
        ("Ongoing", {"unseen": True}, "Grant this client Describe on all transactional ids"),
    ],
)
def test_only_a_coordinator_commits_what_is_undecided(
    state: str | None,
    changes: dict[str, bool],
    refusal: str,
    bootstrap: str,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the coordinator has decided to abort, or knows nothing of the transaction. A marker
    on one partition would tear it."""
    fields = {"hanging": False, "unseen": False} | changes
    transaction = OpenTransaction(
        0,
        7,
        0,
        0,
        0,
        None if fields["hanging"] else "payments",
        state,
        90_000,
        60_000,
        1,
        1,
        **fields,
    )
    monkeypatch.setattr(
        "topicproof.backend.kafka.coordination.abort.open_transactions",
        lambda *_, **__: (transaction,),
    )
    with pytest.raises(UsageError, match=refusal):
        plan_commit(Address(bootstrap), new_topic(), 0, 0)
