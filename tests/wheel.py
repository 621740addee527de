"""The wheel, and environments that hold nothing but it and chosen dependencies."""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from topicproof.backend.errors import SetupError
from topicproof.backend.settings import ROOT

CORE = ("confluent-kafka", "numpy", "pyarrow", "pyspark", "tenacity")
"""The dependencies of pyproject.toml."""
CONNECT = ("pyspark[connect]",)
FAILED = "FAILED"
"""How the cell of a table begins that is no success."""


def build_wheel(folder: Path) -> Path:
    """The wheel, as a release is built."""
    command = [str(ROOT / "scripts" / "wheel"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("topicproof-*.whl"))


def fresh_python(wheel: Path, folder: Path, names: tuple[str, ...]) -> Path:
    """The Python of a new environment in `folder`: the wheel, the named distributions and what
    these need. They are links into the environment of the tests, so that nothing is downloaded."""
    venv.create(folder, with_pip=False)
    home = next((folder / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(home)
    for name in _needed(names):
        # A package that was built without a wheel does not list its own metadata.
        about = next(home_of_tests().glob(f"{name.replace('-', '_')}-*.egg-info"), None)
        if about is not None:
            (home / about.name).symlink_to(about)
        for file in metadata.files(name) or ():
            first = Path(file).parts[0]
            there = Path(str(metadata.distribution(name).locate_file(first)))
            # An old pip lists the files of the source, of which not all are installed.
            if first in ("..", "__pycache__") or not there.exists():
                continue
            if not (home / first).exists():
                (home / first).symlink_to(there)
    return folder / "bin" / "python"


def home_of_tests() -> Path:
    """Where the packages of the tests' own environment are."""
    return Path(sysconfig.get_path("purelib"))


def requirements_of(extra: str) -> tuple[str, ...]:
    """What pyproject.toml says that an extra of ours needs, and the extras that it names."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    found: list[str] = []
    for one in map(Requirement, extras[extra]):
        ours = one.name == "topicproof"
        found += [r for e in one.extras for r in requirements_of(e)] if ours else [str(one)]
    return tuple(found)


def _needed(wanted: tuple[str, ...]) -> set[str]:
    """The names of these requirements, and of all that they require here, with their extras."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = list(map(Requirement, wanted))
    while waiting:
        one = waiting.pop()
        known = (one.name, frozenset(one.extras))
        if known not in found:
            found.add(known)
            further = map(Requirement, metadata.requires(one.name) or ())
            waiting += [
                each
                for each in further
                if each.marker is None
                or any(each.marker.evaluate({"extra": extra}) for extra in ("", *one.extras))
            ]
    return {name for name, _ in found}


def installed_python(
    folder: Path, python: str, requirements: Sequence[str], overrides: Sequence[str] = ()
) -> Path:
    """The Python of a new environment in `folder`, with these requirements from the registry;
    `overrides` replace what they ask for. Raises SetupError: no such Python, or something cannot be
    installed."""
    uv = str(Path(sys.executable).with_name("uv"))
    (folder.parent / "overrides.txt").write_text("\n".join(overrides))
    environment = folder / "bin" / "python"
    commands = (
        [uv, "venv", "--quiet", "--python", python, str(folder)],
        [
            *(uv, "pip", "install", "--quiet", "--python", str(environment)),
            *("--overrides", str(folder.parent / "overrides.txt"), *requirements),
        ],
    )
    for command in commands:
        answer = subprocess.run(
            command, cwd=folder.parent, capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            raise SetupError(answer.stderr.strip().splitlines()[0])
    return environment


def print_table(
    description: str,
    versions: Sequence[str],
    columns: Sequence[str],
    try_version: Callable[[str, Path, Path], list[str]],
) -> int:
    """Try the wheel on the versions of the command line, or on `versions`, and print a table in
    Markdown; each row also when it is done. `try_version(version, wheel, folder)` returns a row
    without its version. Returns the exit code: 1 when anything failed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("versions", nargs="*", default=versions, metavar="VERSION")
    chosen = parser.parse_args().versions
    rows = [list(columns), ["---"] * len(columns)]
    with tempfile.TemporaryDirectory(prefix="topicproof-versions-") as name:
        wheel = build_wheel(Path(name))
        for version in chosen:
            (folder := Path(name) / version).mkdir()
            rows.append([version, *try_version(version, wheel, folder)])
            print(_line(rows[-1]), file=sys.stderr, flush=True)  # noqa: T201
    print("\n".join(map(_line, rows)))  # noqa: T201
    return int(any(cell.startswith(FAILED) for row in rows for cell in row))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
