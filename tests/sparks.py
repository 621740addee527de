"""Topicproof on versions of Spark.

    make sparks ARGS="[4.1.1 4.3.0 ...]"

Each version is installed with the wheel into an environment of its own, whose driver, server and
workers are then that version. Five things are tried. The result is a table in Markdown. Exit code:
1 when anything failed.

Spark's Kafka connector is a jar of its own. Where the registry of jars lacks that of a version, the
one of `ivy.xml` is tried with it, and the table says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.wheel import FAILED, installed_python, print_table
from topicproof.backend.errors import SetupError
from topicproof.backend.services.jars import SPARK, ensure_jars, fetch
from topicproof.backend.settings import read_settings
from topicproof.backend.sink.outputs import REAL_TIME_SINCE

VERSIONS = ("4.1.1", "4.2.0", "4.2.1", "4.3.0")
COLUMNS = ("Spark", "connector", "aborts", "crash", "check", "check by key", "real time")
CONNECTOR = "spark-sql-kafka-0-10_2.13"
_IVY = f"""<ivy-module version="2.0">
  <info organisation="topicproof" module="connector"/>
  <configurations><conf name="{SPARK}"/></configurations>
  <dependencies>
    <dependency org="org.apache.spark" name="{CONNECTOR}" rev="{{}}" conf="{SPARK}->master"
                transitive="false"/>
  </dependencies>
</ivy-module>
"""
RUN = "run --records 3000 --partitions 2 --per-transaction 300 --seed 1"
HOLD = (
    "import sys\n"
    "from topicproof.backend.services.keeper import services\n"
    "from topicproof.backend.settings import read_settings\n"
    "with services(read_settings()):\n"
    "    print('up', flush=True)\n"
    "    sys.stdin.read()\n"
)
"""A program that keeps Kafka and Spark until its standard input ends."""
OK = "ok"


@dataclass
class Installed:
    """Topicproof with one version of Spark."""

    python: Path
    home: Path
    jars: Path
    topics: dict[str, str] = field(default_factory=dict)
    """Source and sink of the run before."""

    @property
    def environment(self) -> dict[str, str]:
        ours = {"TOPICPROOF_HOME": str(self.home), "TOPICPROOF_JARS": str(self.jars)}
        without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return without | ours | {"COLUMNS": "2000"}

    def cell(self, command: str) -> str:
        """Run a command, which must hold. Returns `ok`, or what it says."""
        answer = subprocess.run(
            [str(self.python), "-P", "-m", "topicproof", *command.split(), "--json"],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            sentences = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
            return f"{FAILED}: {sentences[-1]}"
        report = json.loads(answer.stdout)
        self.topics = {side: report[side]["topic"] for side in ("source", "sink")}
        return OK if report["verdict"] == "HOLDS" else f"{FAILED}: {report['headline']}"

    def real_time(self) -> str:
        """Run in real time, as `cell`. A version that has none must refuse it with its sentence."""
        answer = self.cell(f"{RUN} --real-time")
        since = ".".join(map(str, REAL_TIME_SINCE))
        return f"refused: from {since} on" if f"Real time needs Spark {since}" in answer else answer

    @contextmanager
    def services(self) -> Iterator[None]:
        """Kafka and Spark, warm for all commands of the block. Raises SetupError."""
        with subprocess.Popen(
            [str(self.python), "-P", "-c", HOLD],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "up\n":
                raise SetupError(process.stderr.read().strip().splitlines()[-1])
            try:
                yield
            finally:
                assert process.stdin is not None
                process.stdin.close()


def connector_jars(version: str, folder: Path) -> tuple[Path, str]:
    """Return a folder of jars like that of the settings, with the connector of this version where
    there is one, and the connector's version."""
    settings = read_settings()
    ensure_jars(settings)
    definition = folder / "connector.xml"
    definition.write_text(_IVY.format(version))
    try:
        fetch(definition, folder / "connector", [SPARK])
    except SetupError:
        (ours,) = (settings.jars / SPARK).glob(f"{CONNECTOR}-*.jar")
        return settings.jars, ours.stem.rpartition("-")[2]
    (own,) = (folder / "connector" / SPARK).glob(f"{CONNECTOR}-*.jar")
    jars = folder / "jars"
    (jars / SPARK).mkdir(parents=True)
    for path in settings.jars.iterdir():
        if path.name != SPARK:
            (jars / path.name).symlink_to(path)
    for path in (settings.jars / SPARK).glob("*.jar"):
        if not path.name.startswith(CONNECTOR):
            (jars / SPARK / path.name).symlink_to(path)
    (jars / SPARK / own.name).symlink_to(own)
    return jars, version


def try_version(version: str, wheel: Path, folder: Path) -> list[str]:
    """Return the cells of one version."""
    try:
        python = installed_python(
            folder / "environment",
            sys.executable,
            [f"{wheel}[cli]"],
            [f"pyspark[connect]=={version}"],
        )
    except SetupError as error:
        return ["", f"{FAILED}: {error}", *[""] * 4]
    jars, connector = connector_jars(version, folder)
    (home := folder / "home").mkdir()
    installed = Installed(python, home, jars)
    cells = [connector]
    try:
        with installed.services():
            cells.append(installed.cell(f"{RUN} --abort-probability 0.3"))
            cells.append(installed.cell(f"{RUN} --fault crash@transaction=2"))
            topics = installed.topics
            check = "check --source {source} --sink {sink}".format(**topics) if topics else "check"
            cells.append(installed.cell(check))
            cells.append(installed.cell(f"{check} --identity key --payloads none"))
            cells.append(installed.real_time())
    except SetupError as error:
        cells += [f"{FAILED}: {error}", *[""] * 4]
    return cells[:6]


def main() -> int:
    columns = (
        "Spark",
        "connector",
        "run, aborts",
        "run, crash",
        "check",
        "check by key",
        "real time",
    )
    return print_table("Try Topicproof on versions of Spark.", VERSIONS, columns, try_version)


if __name__ == "__main__":
    sys.exit(main())
