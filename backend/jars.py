"""The jars of ivy.xml, fetched once by the Apache Ivy that PySpark ships. Run as `python -m backend.jars`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from backend.errors import SetupError, TopicproofError
from backend.java import java
from backend.settings import ROOT, Settings, read_settings

BROKER = "broker"
SPARK = "spark"
TOOLS = "tools"


def ensure_jars(settings: Settings) -> None:
    """Fetch what ivy.xml names unless it is there already; safe when several processes call it at once.

    Raises SetupError when Ivy fails, with its own last lines.
    """
    definition = ROOT / "ivy.xml"
    digest = hashlib.sha256(definition.read_bytes()).hexdigest()
    stamp = settings.jars / ".complete"
    if _says(stamp, digest):
        return
    settings.jars.mkdir(parents=True, exist_ok=True)
    with (settings.jars / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _says(stamp, digest):
            return
        _retrieve(definition, settings.jars)
        stamp.write_text(digest)


def jar_files(settings: Settings, configuration: str) -> list[Path]:
    """The jars of one configuration of ivy.xml, fetched when they are missing."""
    ensure_jars(settings)
    return sorted((settings.jars / configuration).glob("*.jar"))


def _says(stamp: Path, digest: str) -> bool:
    return stamp.exists() and stamp.read_text() == digest


def _retrieve(definition: Path, folder: Path) -> None:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed. Run: pip install -r requirements.txt")
    ivy = next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    command = [java(), "-jar", str(ivy), "-ivy", str(definition), "-cache", str(folder / ".ivy")]
    command += ["-confs", BROKER, SPARK, TOOLS, "-types", "jar", "bundle", "-sync"]
    command += ["-retrieve", str(folder / "[conf]" / "[artifact]-[revision].[ext]")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if answer.returncode != 0:
        lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
        tail = "\n".join(lines[-15:])
        raise SetupError(
            "The jars of ivy.xml could not be fetched. Check that this machine reaches the Maven registry "
            f"(a proxy is set with JAVA_TOOL_OPTIONS), then run the command again. Ivy said:\n{tail}"
        )


if __name__ == "__main__":
    try:
        ensure_jars(read_settings())
    except TopicproofError as error:
        sys.exit(str(error))
