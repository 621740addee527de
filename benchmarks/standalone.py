"""A Spark standalone cluster on loopback, with as many executors of one core as are asked for."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from benchmarks.sides import Bench
from topicproof.backend.errors import SetupError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.jars import SPARK, jar_files
from topicproof.backend.services.processes import end_process, free_ports, listens
from topicproof.backend.services.spark import EmbeddedSpark
from topicproof.backend.settings import SPARK_START_TIMEOUT_S

EXECUTOR_MEMORY = "2g"


@dataclass
class StandaloneSpark(EmbeddedSpark):
    """A Spark Connect server whose work is done by executors of a cluster, each with one core."""

    master: str = ""

    def _conf(self) -> dict[str, str]:
        return {
            **super()._conf(),
            "spark.master": self.master,
            # The executors would need the server's secret.
            "spark.authenticate": "false",
            "spark.task.maxFailures": "8",
            "spark.executor.cores": "1",
            "spark.cores.max": str(self.cores),
            "spark.executor.memory": EXECUTOR_MEMORY,
        }


@contextmanager
def standalone(bench: Bench, executors: int) -> Iterator[Bench]:
    """The same Kafka, and a Spark of its own: a master, a worker, `executors` executors. Raises
    SetupError."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    spark_home = Path(spec.origin).parent
    master_port, *web_ports = free_ports(3)
    master = f"spark://127.0.0.1:{master_port}"
    with ExitStack() as ended:
        folder = Path(
            ended.enter_context(tempfile.TemporaryDirectory(prefix="topicproof-standalone-"))
        )
        environment = {
            **python_environment(),
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(folder / "work"),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

        def start(name: str, *arguments: str) -> None:
            command = [
                str(spark_home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name}",
                *arguments,
            ]
            with (folder / "cluster.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=folder,
                    start_new_session=True,
                )
            ended.callback(end_process, process)
            ended.callback(process.terminate)

        start(
            "master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(master_port),
            "--webui-port",
            str(web_ports[0]),
        )
        _wait_for(master_port)
        held = [
            "--cores",
            str(executors),
            "--memory",
            f"{2 * executors + 1}g",
            "--webui-port",
            str(web_ports[1]),
        ]
        start("worker.Worker", "--host", "127.0.0.1", *held, master)
        spark = StandaloneSpark(
            folder / "spark", jar_files(bench.settings, SPARK), cores=executors, master=master
        )
        ended.callback(spark.stop)
        spark.start()
        yield replace(bench, services=replace(bench.services, spark_remote=spark.remote))


def _wait_for(port: int) -> None:
    asked = Retrying(
        retry=retry_if_result(lambda up: not up),
        stop=stop_after_delay(SPARK_START_TIMEOUT_S),
        wait=wait_fixed(0.1),
        retry_error_callback=lambda _state: False,
    )
    if not asked(listens, port):
        raise SetupError(
            f"Spark's master did not listen on port {port} within {SPARK_START_TIMEOUT_S} s."
        )
