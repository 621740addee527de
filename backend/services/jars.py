"""The jars of ivy.xml, fetched once with the Apache Ivy in PySpark, and compared with jars.sha256.

Run as `python -P -m topicproof.backend.services.jars`; with the argument `registry` it fetches the
schema registry of the tests. After a change of ivy.xml, the argument `hashes` fetches all of it
and rewrites jars.sha256.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from topicproof.backend.errors import SetupError, TopicproofError
from topicproof.backend.services.processes import java
from topicproof.backend.settings import ROOT, Settings, read_settings

BROKER = "broker"
SPARK = "spark"
TOOLS = "tools"
STREAMS = "streams"
IVY, HASHES = ROOT / "ivy.xml", ROOT / "jars.sha256"
CONFIGURATIONS = (BROKER, SPARK, TOOLS, STREAMS)
REGISTRY = "registry"
"""An archive instead of jars, large, and for the tests alone, so nobody else fetches it."""


def ensure_jars(
    settings: Settings,
    configurations: Sequence[str] = CONFIGURATIONS,
    stamp_name: str = ".complete",
) -> None:
    """Fetch missing jars of ivy.xml. Several processes may call this at once. Raises SetupError as
    `fetch` does."""
    fetch(IVY, settings.jars, configurations, stamp_name, known_hashes())


def fetch(
    definition: Path,
    folder: Path,
    configurations: Sequence[str],
    stamp_name: str = ".complete",
    hashes: Mapping[str, str] | None = None,
) -> None:
    """Fetch the jars of an Ivy file into one subfolder for each configuration, unless they are
    there. `stamp_name` is the file that says so. `hashes` are those of `known_hashes`; None accepts
    every file. Several processes may call this at once.

    Raises SetupError with Ivy's last lines if it fails, or with the names of files that have other
    hashes.
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
        _retrieve(definition, folder, configurations, hashes)
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


def known_hashes() -> dict[str, str]:
    """Return the SHA-256 hash of each file that ivy.xml stands for, by `configuration/file`."""
    lines = HASHES.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def unknown_files(
    folder: Path, configurations: Sequence[str], hashes: Mapping[str, str]
) -> list[str]:
    """Return the fetched files, by `configuration/file`, that have another hash or none."""
    files = [file for name in configurations for file in sorted((folder / name).glob("*"))]
    named = [(f"{file.parent.name}/{file.name}", file) for file in files]
    return [name for name, file in named if hashes.get(name) != _digest(file)]


def require_known(folder: Path, configurations: Sequence[str], hashes: Mapping[str, str]) -> None:
    """Raises SetupError if any of the fetched files has another hash or none."""
    if unknown := unknown_files(folder, configurations, hashes):
        raise SetupError(
            f"The registry of the jars gave other files than expected: {', '.join(unknown)}."
            f" {HASHES.name} has the right hashes. Nothing was installed. Check which registry or"
            " proxy this machine asks."
        )


def changed_jars(settings: Settings) -> list[str]:
    """Return the jars, by `configuration/file`, that are not what ivy.xml stands for."""
    return unknown_files(settings.jars, CONFIGURATIONS, known_hashes())


def rewrite_hashes() -> None:
    """Fetch everything again and trust it: write the hashes into jars.sha256."""
    names = (*CONFIGURATIONS, REGISTRY)
    with tempfile.TemporaryDirectory(prefix="topicproof-jars-") as scratch:
        fetch(IVY, Path(scratch), names)
        files = [file for name in names for file in sorted((Path(scratch) / name).iterdir())]
        lines = [f"{_digest(file)}  {file.parent.name}/{file.name}\n" for file in files]
    HASHES.write_text("".join(lines), encoding="utf-8")


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _says(stamp: Path, digest: str) -> bool:
    return stamp.exists() and stamp.read_text() == digest


def _retrieve(
    definition: Path,
    folder: Path,
    configurations: Sequence[str],
    hashes: Mapping[str, str] | None,
) -> None:
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
        answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=fetched)
        if answer.returncode != 0:
            lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
            tail = "\n".join(lines[-15:])
            raise SetupError(
                f"The jars of {definition.name} could not be fetched. Check that this machine"
                " reaches the Maven registry (a proxy is set with JAVA_TOOL_OPTIONS), then run the"
                f" command again. Ivy said:\n{tail}"
            )
        if hashes is not None:
            require_known(Path(fetched), configurations, hashes)
        for configuration in configurations:
            _put(Path(fetched) / configuration, folder / configuration)


def _put(fetched: Path, folder: Path) -> None:
    """Bring a folder of jars up to date. Existing jars stay: a running process may have them open,
    and their names hold the version."""
    folder.mkdir(exist_ok=True)
    names = {jar.name for jar in fetched.iterdir()}
    for jar in folder.iterdir():
        if jar.name not in names:
            jar.unlink()
    for name in names:
        if not (folder / name).exists():
            (fetched / name).rename(folder / name)


if __name__ == "__main__":
    try:
        if sys.argv[1:] == [REGISTRY]:
            registry_archive(read_settings(make_home=False))
        elif sys.argv[1:] == ["hashes"]:
            rewrite_hashes()
        else:
            ensure_jars(read_settings(make_home=False))
    except TopicproofError as error:
        sys.exit(str(error))
