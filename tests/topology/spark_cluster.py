"""A Spark cluster on loopback: a master, two workers, and a Connect server attached to it.

Each process has a folder and an environment of its own, and none has the repository on its path.
The driver and the first worker have the wheel in their environments, as in an image. The second
worker lacks it; its operator has set PYTHONPATH to an archive that the Connect server hands out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.ports import free_ports
from tests.s3 import S3, s3_jars
from tests.wheel import CORE, fresh_python
from topicproof.backend.services.jars import SPARK, jar_files
from topicproof.backend.services.processes import await_start, end_process, listens
from topicproof.backend.settings import SPARK_START_TIMEOUT_S, Settings

PACKAGES = "packages"
FOUND_IN = f"{PACKAGES}:../{PACKAGES}"
"""Spark unpacks an archive in the folder of an executor. The Python of a Connect session works in
that folder, or in one of the session's own within it."""
CORES = 2
"""Of each worker, which its one executor takes."""
START_S = 60
OF_JAVA = ("HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS")
"""Variables with which a node starts Java. The last one has the options of all tests."""


@dataclass(frozen=True)
class Node:
    """One process of the cluster."""

    folder: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python3"

    def kill(self) -> None:
        """Kill the process and those that it has started: a worker takes its executor with it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def packages_of(folder: Path) -> Path:
    """Return the folder of the packages of a node's environment."""
    return next((folder / "environment" / "lib").glob("python*")) / "site-packages"


@dataclass(frozen=True)
class SparkCluster:
    remote: str
    workers: tuple[Node, ...]


@contextmanager
def spark_cluster(
    settings: Settings, wheel: Path, folder: Path, store: S3
) -> Iterator[SparkCluster]:
    """Start it. Its executors are there some seconds after the block has begun."""
    names = ("driver", "worker-1", "worker-2")
    with ThreadPoolExecutor() as pool:
        for made in [
            pool.submit(fresh_python, wheel, folder / name / "environment", CORE) for name in names
        ]:
            made.result()
    packed = _pack(folder / names[2])
    with ExitStack() as ended:
        port, interface, connect = free_ports(3)
        master = f"spark://127.0.0.1:{port}"

        def start(name: str, *command: str, **variables: str) -> Node:
            return ended.enter_context(_node(folder / name, command, store, variables))

        daemon = ("spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
        first = start("driver", *daemon, "--port", str(port), "--webui-port", str(interface))
        await_start(
            "Spark's master", first.process, lambda: listens(port), START_S, _log(first.folder)
        )
        worker = ("spark-class", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1")
        options = ("--cores", str(CORES), "--memory", "1g", "--webui-port", "0", master)
        workers = (
            start(names[1], *worker, *options),
            start(names[2], *worker, *options, PYTHONPATH=FOUND_IN),
        )
        conf = {"spark.archives": f"{packed}#{PACKAGES}", **store.spark_conf}
        server = start("driver", *_connect(settings, folder / "driver", master, connect, conf))
        await_start(
            *("Spark Connect", server.process, lambda: listens(connect)),
            *(SPARK_START_TIMEOUT_S, _log(server.folder)),
        )
        yield SparkCluster(f"sc://127.0.0.1:{connect}", workers)


def _pack(folder: Path) -> Path:
    """Move what the wheel needs beyond Spark and its own packages into an archive."""
    packed = folder / "packages.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=1, dereference=True) as archive:
        for name in ("topicproof", "confluent_kafka", "tenacity"):
            for path in packages_of(folder).glob(f"{name}*"):
                archive.add(path, path.name)
                path.unlink() if path.is_symlink() else shutil.rmtree(path)
    return packed


@contextmanager
def _node(
    folder: Path, command: tuple[str, ...], store: S3, further: Mapping[str, str]
) -> Iterator[Node]:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    spark_home = Path(spec.origin).parent
    variables: Mapping[str, str] = {
        **{name: os.environ[name] for name in OF_JAVA if name in os.environ},
        **store.environment,
        # Spark starts `python3`, which each process finds in its own environment.
        "PATH": f"{folder / 'environment' / 'bin'}:{os.environ['PATH']}",
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m" if command[0] == "spark-class" else "2g",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        **further,
    }
    with _log(folder).open("ab") as output:
        process = subprocess.Popen(
            [str(spark_home / "bin" / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=variables,
            start_new_session=True,
        )
    try:
        yield Node(folder, process)
    finally:
        process.terminate()
        end_process(process)


def _log(folder: Path) -> Path:
    return folder / "node.log"


def _connect(
    settings: Settings, folder: Path, master: str, port: int, further: Mapping[str, str]
) -> tuple[str, ...]:
    conf = {
        "spark.master": master,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": str(CORES),
        "spark.executor.memory": "1g",
        "spark.task.maxFailures": "8",
        # A contract must not depend on what somebody has set there.
        "spark.sql.session.timeZone": "Asia/Kolkata",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        **further,
    }
    jars = (*jar_files(settings, SPARK), *s3_jars(settings))
    return (
        *("spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--jars", ",".join(map(str, jars))),
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    )
