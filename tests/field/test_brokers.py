"""Brokers that answer, but not as needed: what people report, and the sentence that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.field.conftest import BrokerWith
from tests.field.reports import require_sentence
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordinator_logs import require_coordinator_logs

pytestmark = pytest.mark.services


@pytest.mark.parametrize(
    ("overrides", "report_id"),
    [
        (
            # Kafka's defaults, on a single broker.
            {
                "transaction.state.log.replication.factor": "3",
                "transaction.state.log.min.isr": "2",
            },
            "confluentinc/cp-docker-images#706",
        ),
        (
            {
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "2",
            },
            "Apicurio/apicurio-registry#1147",
        ),
    ],
    ids=["replicas", "in-sync"],
)
def test_a_cluster_where_no_transaction_can_begin_is_named(
    broker_with: BrokerWith,
    overrides: dict[str, str],
    report_id: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: init_transactions hangs on such a broker for ever. `run` and `doctor` name the
    setting before anything is written, and reading commands work."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    with broker_with(overrides) as bootstrap:
        cluster = Cluster(Address(bootstrap))
        cluster.create_topic("orders", 1)
        with pytest.raises(ClusterError, match="no transaction can begin") as error:
            require_coordinator_logs(cluster)
        require_sentence(report_id, str(error.value))
        assert call("doctor", "--for", "run", "--bootstrap", bootstrap) == 3
        require_sentence(report_id, capsys.readouterr().out)
        assert call("inspect", "orders", "--bootstrap", bootstrap) == 0
        assert cluster.topics() == ["orders"]


def test_a_cluster_that_can_write_its_logs_is_ready(bootstrap: str) -> None:
    """Story: the healthy twin, before and after the first transaction made the log."""
    cluster = Cluster(Address(bootstrap))
    require_coordinator_logs(cluster)
    cluster.fence_and_abort(["ready-probe"])
    require_coordinator_logs(cluster)


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "orders"),
        ("transactions",),
        ("abort", "orders", "0", "1"),
        ("check", "--source", "a", "--sink", "b", "--identity", "key"),
        ("contract", "init", "--source", "a", "--sink", "b"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_reads_starts_no_kafka_of_its_own(
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: somebody forgets --bootstrap. An empty Kafka would have no topics to read."""
    home = tmp_path / "home"
    monkeypatch.setenv("TOPICPROOF_HOME", str(home))
    assert call(*command) == 64
    assert "Name yours with --bootstrap" in " ".join(capsys.readouterr().err.split())
    assert not (home / "services").exists()
