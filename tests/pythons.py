"""The wheel on each Python that it is for.

    make pythons ARGS="[3.11 3.14 ...]"

Each is looked for as `pythonX.Y`, then among those of pyenv, and then uv may fetch it. What step 5
of a release in CONTRIBUTING.md asks is tried in a fresh environment. The result is a table in
Markdown. Exit code: 1 when anything failed; a Python that cannot be had is no failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.wheel import FAILED, installed_python, print_table
from topicproof.backend.errors import SetupError
from topicproof.backend.settings import ROOT, read_settings

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OK, ABSENT = "ok", "cannot be had"
DEFICIENT = 2
"""The exit code of a doctor who found something that deserves attention."""


def interpreter(version: str) -> str:
    """Return the path of an interpreter, or the version, which uv looks up and may fetch."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    return next(filter(is_python, candidates(version, pyenv)), version)


def candidates(version: str, pyenv: Path) -> Iterator[str]:
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))


def is_python(path: str) -> bool:
    """Whether it starts. The shims of pyenv exist for versions that do not."""
    command = [path, "-I", "-c", ""]
    return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0


def try_version(version: str, wheel: Path, folder: Path) -> list[str]:
    """Return the cells of one Python."""
    try:
        python = installed_python(folder / "environment", interpreter(version), [f"{wheel}[test]"])
    except SetupError as error:
        is_absent = not (folder / "environment").exists()
        return [f"{ABSENT if is_absent else FAILED}: {error}", "", "", ""]
    shutil.copytree(ROOT / "examples", folder / "projects")
    topicproof = str(python.with_name("topicproof"))
    examples = [str(python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "fixed"]
    (full_version,) = output_of([str(python), "-I", "-V"], folder)[1].split()[1:]
    cells = (
        ([topicproof, "--version"], lambda code: code == 0),
        ([topicproof, "doctor"], lambda code: code in (0, DEFICIENT)),
        (examples, lambda code: code == 0),
    )
    return [full_version, *(cell(command, is_right, folder) for command, is_right in cells)]


def cell(command: list[str], is_right: Callable[[int], bool], folder: Path) -> str:
    code, text = output_of(command, folder)
    if is_right(code):
        return OK
    (folder / "failed.log").write_text(text)
    print(text, file=sys.stderr)  # noqa: T201
    return f"{FAILED}: exit code {code}"


def output_of(command: list[str], folder: Path) -> tuple[int, str]:
    """Return exit code and output of a command that works outside of this repository."""
    environment = {
        "PATH": os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]),
        "HOME": os.environ["HOME"],
        "TOPICPROOF_HOME": str(folder / "home"),
        "TOPICPROOF_JARS": str(read_settings(make_home=False).jars),
    }
    work = folder / "projects" if (folder / "projects").exists() else folder
    answer = subprocess.run(
        command,
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return answer.returncode, answer.stdout


def main() -> int:
    columns = ("Python", "found", "--version", "doctor", "examples")
    return print_table("Try the wheel on each Python.", VERSIONS, columns, try_version)


if __name__ == "__main__":
    sys.exit(main())
