"""Where a Python searches for modules that we start, on every machine: never in a working folder.

`-P` keeps the working folder, or that of a script, off the path; `-I` also ignores PYTHONPATH.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicproof.backend.interpreter import python_environment, python_path
from topicproof.backend.settings import ROOT

STARTS = {"Popen", "run", "call", "check_call", "check_output", "posix_spawn", "posix_spawnp"}
STARTS |= {"execv", "execve", "execvp", "execvpe", "spawnv", "spawnve", "create_subprocess_exec"}
MODULES = {"subprocess", "os", "asyncio"}
OURS = ("app", "backend", "benchmarks", "topicproof", "validators")
NO_FOLDER = {
    # Neither can be given a folder. The keeper goes to its own at once, and the other replaces a
    # process that Spark has started in Spark's folder.
    "backend/services/keeper.py": "posix_spawn",
    "backend/services/prefork_client.py": "execv",
}
TEXTS = ("*.yml", "*.yaml", "*.tpl", "Dockerfile", "Makefile", "scripts/*", ".ci/*", "*.toml")
PYTHON = re.compile(r"\bpython[\d.]*[\"')\]]*[,\s]+(?:-\s+)?[\"']?(-\w+)")
"""Python and its first option, in a shell, in a list of YAML or of JSON."""
SAFE = ("-P", "-I")


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not (path.is_symlink() or any(parent.is_symlink() for parent in path.parents)):
                text = path.read_text(encoding="utf-8")
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def starts(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in MODULES and node.func.attr in STARTS:
                yield node, node.func.attr


def words(node: ast.AST) -> list[ast.expr]:
    """The elements of a list or a tuple, with those of starred tuples in it."""
    found: list[ast.expr] = []
    for element in getattr(node, "elts", ()):
        starred = isinstance(element, ast.Starred)
        found += words(element.value) if starred and words(element.value) else [element]
    return found


def test_every_process_is_started_in_a_folder_of_ours() -> None:
    """Story: somebody starts a program, and forgets that it begins its work in the folder of
    whoever called: a received one, perhaps."""
    without = {
        name: function
        for name, tree in sources(*OURS)
        for call, function in starts(tree)
        if "cwd" not in {keyword.arg for keyword in call.keywords}
    }
    assert without == NO_FOLDER


def test_every_python_of_ours_searches_no_working_folder() -> None:
    wrong = []
    for name, tree in sources(*OURS):
        for node in ast.walk(tree):
            elements = words(node) if isinstance(node, ast.List | ast.Tuple) else []
            for number, element in enumerate(elements):
                if ast.unparse(element) == "sys.executable":
                    after = elements[number + 1] if number + 1 < len(elements) else None
                    option = after.value if isinstance(after, ast.Constant) else None
                    wrong += [] if option in SAFE else [name]
    # A shell gets the path, and its script has the option: the next test reads it.
    assert set(wrong) == {"backend/sink/task_watch.py"}


def test_every_command_line_in_a_text_does_so_too() -> None:
    """Story: a workflow, an image or a script starts Python in a checked-out folder. A pull request
    brings the modules there."""
    found: dict[str, list[str]] = {}
    listed = subprocess.run(
        ["git", "ls-files", "--", *TEXTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split():
        if not name.startswith("tests/"):
            found[name] = PYTHON.findall((ROOT / name).read_text(encoding="utf-8"))
    for name, tree in sources(*OURS):
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        joined = " ".join(text for text in texts if isinstance(text, str))
        found[name] = re.findall(r"(?:\bpython3?|\"\$0\") (-[a-zA-Z]\b)", joined)
    wrong = {name: options for name, options in found.items() if set(options) - set(SAFE)}
    assert wrong == {}
    known = ("action.yml", "docker-compose.yml", "scripts/setup", "Makefile", "Dockerfile")
    assert all(found[name] for name in known)
    # The images' Python is started by Spark, too.
    assert "PYTHONSAFEPATH=1" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "python -m topicproof",
        "run: python3 -m pip install",
        '["CMD", "python", "-c", "import x"]',
        "  - python\n  - -c\n",
        '"$venv/bin/python" -m tests.s3',
        '"$(find_python)" -m venv && /usr/bin/python3.11 -m x',
    ],
)
def test_the_pattern_sees_each_way_to_write_it(line: str) -> None:
    assert set(PYTHON.findall(line)) - set(SAFE)
    assert not set(PYTHON.findall(re.sub(r"-([mc]\b)", r"-P -\1", line))) - set(SAFE)


def test_children_inherit_no_folder_that_is_named_by_where_somebody_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Story: PYTHONPATH ends in a colon, which to Python means the working folder."""
    monkeypatch.chdir(tmp_path)
    for hostile in ("", ":", ".", f"{tmp_path}/a:", f":{tmp_path}/a::lib", "lib:../x"):
        monkeypatch.setenv("PYTHONPATH", hostile)
        given = [f"{tmp_path}/a"] if "/a" in hostile else []
        assert python_path().split(os.pathsep) == [str(ROOT), *given]
        asked = subprocess.run(
            [sys.executable, "-P", "-c", "import sys; print(sys.path)"],
            env=python_environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert str(tmp_path) not in ast.literal_eval(asked.stdout)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (None, ("-m", "topicproof")),
        (f":{ROOT}", ("-P", "-m", "topicproof")),
        (".", ("-P", "-m", "topicproof")),
    ],
)
def test_the_command_itself_imports_nothing_from_the_working_folder(
    path: str | None, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Story: `cd received; topicproof keys show`. The modules of the folder have the names of those
    that the command needs."""
    for name in ("typer", "psutil", "yaml", "pydantic", "cryptography", "rich"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hostile')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {} if path is None else {"PYTHONPATH": path}
    answer = subprocess.run(
        [sys.executable, *options, "keys", "show"],
        env={**environment, "TOPICPROOF_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "hostile" not in answer.stderr
