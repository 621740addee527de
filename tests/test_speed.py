"""The benchmark of speed, on so few records that it shows only that it measures, not how fast
anything is."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import speed
from benchmarks.line import Line
from benchmarks.rows import growth, machines, throughput, waiting
from benchmarks.sides import Bench
from benchmarks.speed import measure, write
from topicproof.backend.address import Address
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

RECORDS = 2_000


def test_the_benchmark_measures_and_writes_what_it_found(
    settings: Settings, cluster: Services, tmp_path: Path
) -> None:
    """Story: somebody runs the benchmark without peers. The row that needs one stands alone, and
    nothing but the filled sources stays in Kafka."""
    there = set(Cluster(Address(cluster.bootstrap)).topics())
    bench = Bench(settings, cluster)
    said: list[str] = []
    found = measure(bench, ("streams",), RECORDS, 1, said.append)
    assert [(line.row, line.against) for line in found] == [("streams", "")] * 2
    assert not any("left out" in text for text in said), said
    assert all(rate > 0 for line in found for rate in (*line.ours, *line.theirs))
    assert set(Cluster(Address(cluster.bootstrap)).topics()) - there == set(bench.filled.values())
    write(found, tmp_path, RECORDS)
    lines = json.loads((tmp_path / "speed.json").read_text())["lines"]
    assert [line["what"] for line in lines] == [line.what for line in found]
    assert (tmp_path / "speed.md").read_text().count("\n| ") == len(found) + 2
    assert "<title>Speed</title>" in (tmp_path / "speed.html").read_text()


def test_a_ratio_belongs_to_a_turn() -> None:
    """Story: both sides were slow in the second turn, as the machine had something else to do.
    Their ratio was not."""
    assert Line("row", "ours", "records/s", (100.0, 50.0), "theirs", (200.0, 100.0)).ratios == (
        0.5,
        0.5,
    )
    assert Line("row", "ours", "records/s", (100.0,)).ratios == ()


def test_every_row_can_be_asked_for() -> None:
    modules = (growth, machines, throughput, waiting)
    made = {name for one in modules for name in vars(one) if name.startswith("row_")}
    assert {row.__name__ for row in speed.ROWS.values()} == made
