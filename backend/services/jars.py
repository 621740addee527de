"""The jars of ivy.xml, fetched once with the Apache Ivy in PySpark.

Run as `python -m topicproof.backend.services.jars`; with the argument `registry` it fetches the
schema registry of the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from topicproof.backend.errors import SetupError, TopicproofError
from topicproof.backend.services.java import java
from topicproof.backend.settings import ROOT, Settings, read_settings

BROKER = "broker"
SPARK = "spark"
TOOLS = "tools"
STREAMS = "streams"
IVY = ROOT / "ivy.xml"
CONFIGURATIONS = (BROKER, SPARK, TOOLS, STREAMS)
REGISTRY = "registry"
"""An archive instead of jars, large, and for the tests alone, so nobody else fetches it."""


def ensure_jars(
    settings: Settings,
    configurations: Sequence[str] = CONFIGURATIONS,
    stamp_name: str = ".complete",
) -> None:
    """Fetch missing jars of ivy.xml. Several processes may call this at once.

    Raises SetupError with Ivy's last lines if it fails.
    """
    fetch(IVY, settings.jars, configurations, stamp_name)


def fetch(
    definition: Path, folder: Path, configurations: Sequence[str], stamp_name: str = ".complete"
) -> None:
    """Fetch the jars of an Ivy file into one subfolder for each configuration, unless they are
    there. `stamp_name` is the file that says so. Several processes may call this at once.

    Raises SetupError with Ivy's last lines if it fails.
    """
    digest = _digest(definition)
    stamp = folder / stamp_name
    if _says(stamp, digest):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _says(stamp, digest):
            return
        _retrieve(definition, folder, configurations)
        stamp.write_text(digest)


def jar_files(settings: Settings, configuration: str) -> list[Path]:
    """Return the jars of one configuration of ivy.xml. Missing ones are fetched."""
    ensure_jars(settings)
    return sorted((settings.jars / configuration).glob("*.jar"))


def registry_archive(settings: Settings) -> Path:
    """Return the archive of the schema registry. It is fetched if it is missing. Raises
    SetupError."""
    ensure_jars(settings, (REGISTRY,), ".complete-registry")
    (archive,) = (settings.jars / REGISTRY).iterdir()
    return archive


def jars_present(settings: Settings) -> bool:
    """Return whether the jars are there, and are those of ivy.xml."""
    return _says(settings.jars / ".complete", _digest(IVY))


def _digest(definition: Path) -> str:
    return hashlib.sha256(definition.read_bytes()).hexdigest()


def _says(stamp: Path, digest: str) -> bool:
    return stamp.exists() and stamp.read_text() == digest


def _retrieve(definition: Path, folder: Path, configurations: Sequence[str]) -> None:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed. Run: pip install -r requirements.txt")
    ivy = next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder) as fetched:
        command = [
            java(),
            "-jar",
            str(ivy),
            "-ivy",
            str(definition),
            "-cache",
            str(Path(fetched) / ".ivy"),
        ]
        command += ["-confs", *configurations, "-types", "jar", "bundle", "tar.gz"]
        command += ["-retrieve", str(Path(fetched) / "[conf]" / "[artifact]-[revision].[ext]")]
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ
        )
        if answer.returncode != 0:
            lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
            tail = "\n".join(lines[-15:])
            raise SetupError(
                f"The jars of {definition.name} could not be fetched. Check that this machine"
                " reaches the Maven registry (a proxy is set with JAVA_TOOL_OPTIONS), then run the"
                f" command again. Ivy said:\n{tail}"
            )
        for configuration in configurations:
            _put(Path(fetched) / configuration, folder / configuration)


def _put(fetched: Path, folder: Path) -> None:
    """Bring a folder of jars up to date. Existing jars stay: a running process may have them open,
    and their names hold the version."""
    folder.mkdir(exist_ok=True)
    wanted = {jar.name for jar in fetched.iterdir()}
    for jar in folder.iterdir():
        if jar.name not in wanted:
            jar.unlink()
    for name in wanted:
        if not (folder / name).exists():
            (fetched / name).rename(folder / name)


if __name__ == "__main__":
    try:
        if sys.argv[1:] == [REGISTRY]:
            registry_archive(read_settings())
        else:
            ensure_jars(read_settings())
    except TopicproofError as error:
        sys.exit(str(error))
