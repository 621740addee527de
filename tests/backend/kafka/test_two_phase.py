"""A transaction under two-phase commit (KIP-939): another system decides how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.producer import InitProducerIdRequest

from tests.backend.kafka.hanging import append
from tests.backend.kafka.topics import look
from tests.conftest import wait_until
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.abort import abort, plan_abort
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.settings import Settings
from topicproof.validators.coordinator import TWO_PHASE_TIMEOUT_MS

pytestmark = pytest.mark.services
TOPIC, NAME = "payments", "flink-sink-0"


@pytest.fixture
def allowing(settings: Settings, tmp_path: Path) -> Iterator[str]:
    """The address of a broker that allows two-phase commit. Its part of the protocol still counts
    as unstable in Kafka 4.3."""
    kafka = EmbeddedKafka(
        tmp_path,
        jar_files(settings, BROKER),
        overrides={
            "transaction.two.phase.commit.enable": "true",
            "unstable.api.versions.enable": "true",
        },
    )
    try:
        kafka.start()
        yield kafka.bootstrap
    finally:
        kafka.stop()


def test_a_transaction_in_a_two_phase_commit_is_aborted_only_when_told_twice(
    allowing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a sink has prepared a transaction, and its job is down. `inspect` says that only its
    owner ends it. An operator's `abort` is refused, and refused again with --open-too alone. With
    --two-phase-too as well it is done."""
    address = Address(allowing)
    Cluster(address).create_topic(TOPIC, 1)
    producer_id, epoch = _init(allowing)
    assert append(allowing, TOPIC, producer_id, epoch, transactional_id=NAME) == 0
    (opened,) = look(address, open_transactions, TOPIC)
    assert (opened.timeout_ms, opened.two_phase) == (TWO_PHASE_TIMEOUT_MS, True)
    assert f"{NAME} (Ongoing) takes part in a two-phase commit" in opened.why
    assert not opened.overdue

    assert call("transactions", "--bootstrap", allowing) == 0
    assert "Only its owner ends it" in " ".join(capsys.readouterr().out.split())
    for told in ({}, {"open_too": True}, {"two_phase_too": True}):
        with pytest.raises(UsageError, match=r"Ask that system first\. .*--two-phase-too"):
            plan_abort(address, TOPIC, 0, 0, **told)
    assert call("abort", TOPIC, "0", "0", "--open-too", "--yes", "--bootstrap", allowing) == 64
    assert len(look(address, open_transactions, TOPIC)) == 1

    plan = plan_abort(address, TOPIC, 0, 0, open_too=True, two_phase_too=True)
    assert "Kafka's differ from then on" in plan.means
    assert abort(address, plan).lso == 2
    assert look(address, open_transactions, TOPIC) == ()


def _init(bootstrap: str) -> tuple[int, int]:
    """The producer id and epoch of a producer under two-phase commit."""
    # An ordinary producer of the name first: the broker then makes the coordinators' log.
    Cluster(Address(bootstrap)).fence_and_abort([NAME])
    request = InitProducerIdRequest(
        transactional_id=NAME,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
        enable2_pc=True,
        keep_prepared_txn=False,
        min_version=6,
    )
    answers = []
    with connect(Address(bootstrap)) as kafka:

        def answered() -> bool:
            # There is one broker, so it is the coordinator.
            (answer,) = kafka.send({None: request}).values()
            answers.append(answer)
            return bool(answer.error_code == 0)

        wait_until(answered, 20, "a coordinator that gives a producer id")
    return answers[-1].producer_id, answers[-1].producer_epoch
