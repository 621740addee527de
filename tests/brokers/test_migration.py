"""A migration by Kafka's own MirrorMaker, small; `python -m tests.brokers.migration` has a million
records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers.migration import migrate
from topicproof.backend.address import Address
from topicproof.backend.history.store import History
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings


def test_a_migration_is_judged_exactly(
    settings: Settings, cluster: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: MirrorMaker copies a topic to a new cluster, under its own name, and leaves two
    records out; three are copied twice. The check names exactly these, both clusters, and
    MirrorMaker's own pairs of offsets; the history names both clusters too."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("SPARK_REMOTE", cluster.spark_remote)
    west = EmbeddedKafka(tmp_path / "west", jar_files(settings, BROKER))
    west.start()
    try:
        sides = Address(cluster.bootstrap), Address(west.bootstrap)
        judged = migrate(settings, tmp_path / "mirror", *sides, "migrated", 1_000, 2)
    finally:
        west.stop()
        source = Cluster(Address(cluster.bootstrap))
        source.delete_topics([name for name in source.topics() if name.startswith("mm2-")])
    report = judged.report
    assert judged.exact, (judged.primary, report["why"])
    assert report["source_origin"]["name"] == cluster.bootstrap
    assert report["origin"]["name"] == west.bootstrap
    assert report["origin"]["cluster"] != report["source_origin"]["cluster"]
    (note,) = report["notes"]
    assert "mm2-offset-syncs.west.internal" in note and "have the same identity" in note
    kept = History(settings).get(report["run"])
    assert kept.plan["clusters"] == {"source": cluster.bootstrap, "sink": west.bootstrap}
