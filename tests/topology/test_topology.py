"""Three brokers, Spark's master and two workers without the repository, a Connect server, S3,
PostgreSQL and the dashboard. One cluster serves all of these tests, which go from its start to the
death of a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.browser.conftest import CHROMIUM, FLAGS, PAGE_MS
from tests.conftest import wait_until
from tests.ports import free_ports
from tests.postgresql import new_database
from tests.runs import read_all
from tests.s3 import BUCKET, S3, s3
from tests.topology.spark_cluster import SparkCluster, packages_of, spark_cluster
from topicproof.backend.doctor.workers import places, require_shared, require_versions
from topicproof.backend.errors import SparkError
from topicproof.backend.evidence.manifest import Manifest, read_manifest
from topicproof.backend.history.store import History, Run
from topicproof.backend.interpreter import python_path
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.storage import Storage, attach, downloaded

pytestmark = pytest.mark.services
RECORDS, PARTITIONS = 3_000, 4
RATE = 300
"""Records a second: a run lasts longer than it takes to notice its first commits."""


@dataclass(frozen=True)
class Topology:
    settings: Settings
    services: Services
    spark: SparkCluster
    store: S3
    history: History

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of ours, as an operator does."""
        return subprocess.Popen(
            [sys.executable, "-m", "topicproof", *arguments],
            env={**os.environ, **self.settings.environment(), "PYTHONPATH": python_path()},
            cwd=self.settings.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self, *arguments: str) -> Any:
        """Run a command that must end well; returns what it says as JSON."""
        return said(self.command(*arguments, "--json"))


def said(command: subprocess.Popen[str]) -> Any:
    answer, errors = command.communicate()
    assert command.returncode == 0, f"{answer}\n{errors}"
    return json.loads(answer)


@pytest.fixture(scope="module")
def topology(
    settings: Settings, postgresql: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Topology]:
    folder = tmp_path_factory.mktemp("topology")
    home = read_settings(home=folder / "home", brokers=3)
    with ExitStack() as ended:
        store = ended.enter_context(s3(settings, folder))
        patch = ended.enter_context(pytest.MonkeyPatch.context())
        for name, value in store.environment.items():
            patch.setenv(name, value)
        with ThreadPoolExecutor() as pool:
            kafka = pool.submit(ended.enter_context, services(home, spark=False))
            spark = pool.submit(ended.enter_context, spark_cluster(settings, wheel, folder, store))
        given = home.model_copy(
            update={
                "bootstrap": kafka.result().bootstrap,
                "spark_remote": spark.result().remote,
                "storage": f"{store.url}/home",
                "database": new_database(postgresql, "topology"),
            }
        )
        found = ended.enter_context(services(given))
        history = History(given)
        ended.callback(history.engine.dispose)
        yield Topology(given, found, spark.result(), store, history)


@pytest.fixture(scope="module")
def session(topology: Topology) -> Iterator[SparkSession]:
    """A session on the cluster once all of its workers answer."""
    with spark_session(topology.services.spark_remote) as opened:
        wait_until(lambda: len(places(opened)) == 3, 60, "an answer of the driver and two workers")
        require_versions(opened)
        yield opened


@contextmanager
def planted(packages: Path, name: str, version: str | None) -> Iterator[None]:
    """Let an environment have another version of a package, or none."""
    (known,) = packages.glob(f"{name}-*.dist-info")
    hidden = known.rename(known.with_suffix(".hidden"))
    other = packages / f"{name}-{version}.dist-info"
    if version:
        other.mkdir()
        (other / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    try:
        yield
    finally:
        if version:
            (other / "METADATA").unlink()
            other.rmdir()
        hidden.rename(known)


@pytest.mark.parametrize(
    ("name", "version", "says", "wanted"),
    [
        ("topicproof", None, "no topicproof", "topicproof=="),
        ("topicproof", "0.1.0", "topicproof 0.1.0", "topicproof=="),
        ("confluent_kafka", None, "no confluent-kafka", "confluent-kafka>=2.12'"),
        ("pyarrow", "9.0.0", "pyarrow 9.0.0", "pyarrow>=20'"),
    ],
)
def test_the_probe_says_what_to_install_where(
    topology: Topology,
    session: SparkSession,
    name: str,
    version: str | None,
    says: str,
    wanted: str,
) -> None:
    """Story: one of the workers was forgotten when a package was installed or raised."""
    worker = topology.spark.workers[0]
    with planted(packages_of(worker.folder), name, version), pytest.raises(SparkError) as told:
        require_versions(session)
    assert f"has {says}. Run there: {worker.python} -m pip install '{wanted}" in str(told.value)
    assert str(told.value).count("Spark's worker on") == 1


def test_a_contract_means_the_same_on_every_server(session: SparkSession) -> None:
    """Story: the server has another time zone, and lets a cast that fails give null. Expressions
    give there what they give on Topicproof's own."""
    epoch = "select date_format(timestamp_seconds(id), 'yyyy-MM-dd HH:mm') from range(1)"
    assert session.sql(epoch).collect()[0][0] == "1970-01-01 00:00"
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        session.sql("select cast(concat('x', id) as int) from range(1)").collect()


def test_the_probe_says_that_a_folder_is_not_shared(session: SparkSession, tmp_path: Path) -> None:
    """Story: workers on other machines write readings to their own disks, where nothing finds them.
    Or Spark lacks the jar for the storage."""
    # The same path is another folder for each process.
    elsewhere = Path("/proc/self/cwd") / tmp_path.name
    with pytest.raises(SparkError, match=r"do not share .*, 0 are here. Set TOPICPROOF_STORAGE"):
        require_shared(session, elsewhere)
    attach(session, Storage("gs://bucket/home", tmp_path))
    with pytest.raises(SparkError, match=r"no filesystem for gs://bucket/home/.* Add its jar"):
        require_shared(session, tmp_path)


@dataclass(frozen=True)
class Survived:
    """A run that went on after the death of a worker."""

    run: Run
    report: Any


@pytest.fixture(scope="module")
def survived(topology: Topology) -> Survived:
    options = ("--records", str(RECORDS), "--partitions", str(PARTITIONS), "--rate", str(RATE))
    command = topology.command("run", *options, "--per-transaction", "10", "--json")
    history, cluster = topology.history, Cluster(topology.services.address)

    def stable() -> int:
        """Offsets below the sink's last stable offsets. The group's own would be waited for while
        transactions are open."""
        ready = [run for run in history.list() if run.facts.sink]
        if not ready or command.poll() is not None:
            return 0
        return sum(
            partition.lso for partition in cluster.bounds(str(ready[0].facts.sink)).partitions
        )

    wait_until(lambda: stable() > RECORDS / 10 or command.poll() is not None, 120, "commits")
    topology.spark.workers[1].kill()
    assert 0 < stable() < RECORDS
    report = said(command)
    return Survived(history.list()[0], report)


def test_each_input_has_its_output_once(topology: Topology, survived: Survived) -> None:
    """Story: a machine dies in the middle of a run. The other one does its work again. One has the
    wheel in its image, and the other one got it as an archive."""
    assert survived.report["verdict"] == "HOLDS"
    counts = {one["kind"]: one["count"] for one in survived.report["findings"]}
    assert counts["duplicate"] == counts["gap"] == 0
    found = read_all(topology.services.bootstrap, str(survived.run.facts.sink))
    squares = sorted(int(one.value or b"") for one in found)
    assert squares == sorted(number * number for number in range(RECORDS))


def test_everything_of_a_run_is_in_the_storage(topology: Topology, survived: Survived) -> None:
    """Story: this machine is lost. The bucket has the evidence, whole, and it is judged again from
    there; the checkpoint is there too."""
    folder = f"{topology.store.url}/home/runs/{survived.run.id}"
    here = survived.run.folder(topology.settings)
    with downloaded(f"{folder}/evidence") as copy:
        assert files(copy) == files(here / "evidence")
    with downloaded(f"{folder}/checkpoint") as copy:
        assert "offsets/0" in {name.partition("/")[2] for name in files(copy)}
    assert not (here / "checkpoint").exists()
    again = topology.told("verify", f"{folder}/evidence")
    assert again["judged_again"] == "HOLDS" and not again["differences"]


def files(folder: Path) -> dict[str, int]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}


def test_a_check_goes_through_the_storage_too(topology: Topology, survived: Survived) -> None:
    """Story: another program's topics are judged on the same cluster, and the evidence is handed
    over in a bucket."""
    names = survived.run.facts
    topics = ("--source", str(names.source), "--sink", str(names.sink))
    proof = f"s3a://{BUCKET}/proof"
    assert topology.told("check", *topics, "--out", proof)["verdict"] == "HOLDS"
    with downloaded(proof) as copy:
        manifest: Manifest = read_manifest(copy)
        assert set(files(copy)) - set(manifest.files) == {
            "manifest.json",
            "attestation.intoto.json",
        }


def test_the_dashboard_shows_the_run(topology: Topology, survived: Survived) -> None:
    """Story: the dashboard runs beside the cluster and reads the same history."""
    with dashboard(topology.settings, free_ports(1)[0]) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(f"{address}/verdict?run={survived.run.id}")
        expect(page.get_by_text("HOLDS").first).to_be_visible(timeout=PAGE_MS)
        browser.close()
