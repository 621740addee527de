"""A migration by Kafka's own MirrorMaker, small; `python -m tests.brokers.migration` has a million
records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers.migration import GROUP, READ, migrate
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.history.store import History
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

NAMES = ("old", "new")
SOURCE, COPY = "source: {topic: migrated, cluster: old}\n", "{topic: migrated, cluster: new}"
KEY = "identity: key\n"


def test_a_migration_is_judged_exactly(
    settings: Settings, cluster: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: MirrorMaker copies a topic to a new cluster, under its own name, and leaves two
    records out; three are copied twice. The check names exactly these, both clusters, and
    MirrorMaker's own pairs of offsets, and where a group would continue; the history names both
    clusters too. A contract drafted from both says the same, and each of its sinks may be on its
    own cluster."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("SPARK_REMOTE", cluster.spark_remote)
    west = EmbeddedKafka(tmp_path / "west", jar_files(settings, BROKER))
    west.start()
    try:
        sides = Address(cluster.bootstrap), Address(west.bootstrap)
        named = (
            f"{name}: {{bootstrap: '{one}'}}\n" for name, one in zip(NAMES, sides, strict=True)
        )
        (tmp_path / "clusters.yaml").write_text("".join(named))
        monkeypatch.setenv("TOPICPROOF_CLUSTERS", str(tmp_path / "clusters.yaml"))
        contract, drafted = tmp_path / "contract.yaml", tmp_path / "drafted.yaml"
        contract.write_text(f"{SOURCE}sinks: [{COPY}, {{topic: nothing, cluster: old}}]\n{KEY}")
        Cluster(sides[0]).create_topic("nothing", 2)
        place = settings, tmp_path / "mirror"
        judged = migrate(*place, *sides, "migrated", 1_000, 2, contract=contract)
        topics = ["--source", "migrated", "--sink", "migrated"]
        clusters = ["--cluster", "new", "--source-cluster", "old"]
        assert call("contract", "init", *topics, *clusters, str(drafted)) == 0
        assert f"{SOURCE}sink: {COPY}\n{KEY}" in drafted.read_text()
        contract.write_text(f"{SOURCE}sink: {COPY}\n{KEY}")
        assert call("contract", "preview", str(contract)) == 0
        moved = inspect_topic(sides[1], "migrated").mirrored
    finally:
        west.stop()
        source = Cluster(Address(cluster.bootstrap))
        source.delete_topics([name for name in source.topics() if name.startswith("mm2-")])
    report = judged.report
    assert judged.exact, (judged.primary, report["why"])
    (near,) = judged.others
    assert near["sink"]["topic"] == "nothing" and near.get("source_origin") is None
    assert [one["count"] for one in near["findings"] if one["kind"] == "gap"] == [1_000]
    names = [f"{name} ({one.bootstrap})" for name, one in zip(NAMES, sides, strict=True)]
    assert [report[side]["name"] for side in ("source_origin", "origin")] == names
    assert report["origin"]["cluster"] != report["source_origin"]["cluster"]
    synced, translated = report["notes"]
    assert "mm2-offset-syncs.west.internal" in synced and "have the same identity" in synced
    assert [(one.group, one.partition, one.source_offset) for one in moved] == [
        (GROUP, partition, READ) for partition in range(2)
    ]
    assert all(0 < one.sink_offset <= READ for one in moved), moved
    for one in moved:
        assert f"partition {one.partition}, {READ} to {one.sink_offset}" in translated
    kept = History(settings).get(report["run"])
    assert kept.plan["clusters"] == dict(zip(("source", "sink"), names, strict=True))
