"""The wheel, and environments that hold nothing but it and chosen dependencies."""

from __future__ import annotations

import re
import subprocess
import venv
import zipfile
from importlib import metadata
from pathlib import Path

from topicproof.backend.settings import ROOT

CORE = ("confluent-kafka", "numpy", "pyarrow", "pyspark", "tenacity")
"""The dependencies of pyproject.toml."""
CONNECT = ("googleapis-common-protos", "grpcio", "grpcio-status", "pandas", "zstandard")
"""What pyspark[connect] adds."""


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
        for file in metadata.files(name) or ():
            first = Path(file).parts[0]
            if first not in ("..", "__pycache__") and not (home / first).exists():
                (home / first).symlink_to(Path(str(metadata.distribution(name).locate_file(first))))
    return folder / "bin" / "python"


def _needed(names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            plain = (one for one in metadata.requires(name) or () if ";" not in one)
            waiting += [re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in plain]
    return found
