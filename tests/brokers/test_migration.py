"""A migration by Kafka's own MirrorMaker, small; `python -m tests.brokers.migration` has a million
records."""

from __future__ import annotations

import json
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
        judged = migrate(settings, tmp_path / "mirror", *sides, "migrated", 1_000, 2)
        named = (
            f"{name}: {{bootstrap: '{one}'}}\n" for name, one in zip(NAMES, sides, strict=True)
        )
        (tmp_path / "clusters.yaml").write_text("".join(named))
        monkeypatch.setenv("TOPICPROOF_CLUSTERS", str(tmp_path / "clusters.yaml"))
        contract = tmp_path / "contract.yaml"
        source_line = "source: {topic: migrated, cluster: old}\n"
        sink_lines = "sink: {topic: migrated, cluster: new}\nidentity: key\n"
        topics = ["--source", "migrated", "--sink", "migrated"]
        clusters = ["--cluster", "new", "--source-cluster", "old"]
        assert call("contract", "init", *topics, *clusters, str(contract)) == 0
        drafted = contract.read_text()
        assert sink_lines in drafted and source_line in drafted
        contract.write_text(f"{source_line}{sink_lines}")
        assert call("contract", "preview", str(contract)) == 0
        Cluster(sides[0]).create_topic("nothing", 2)
        sinks = "sinks: [{topic: migrated, cluster: new}, {topic: nothing, cluster: old}]\n"
        contract.write_text(f"{source_line}{sinks}identity: key\norder: none\n")
        assert call("check", "--contract", str(contract), "--out", str(tmp_path / "proof")) == 1
        both = [
            json.loads((tmp_path / "proof" / where / "report.json").read_text())
            for where in ("new/migrated", "old/nothing")
        ]
        assert [each["sink"]["topic"] for each in both] == ["migrated", "nothing"]
        assert [
            {found["kind"]: found["primary"] for found in each["findings"] if found["primary"]}
            for each in both
        ] == [{"duplicate": 3, "gap": 2}, {"gap": 1_000}]
        moved = inspect_topic(sides[1], "migrated").mirrored
    finally:
        west.stop()
        source = Cluster(Address(cluster.bootstrap))
        source.delete_topics([name for name in source.topics() if name.startswith("mm2-")])
    report = judged.report
    assert judged.exact, (judged.primary, report["why"])
    assert report["source_origin"]["name"] == cluster.bootstrap
    assert report["origin"]["name"] == west.bootstrap
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
    assert kept.plan["clusters"] == {"source": cluster.bootstrap, "sink": west.bootstrap}
