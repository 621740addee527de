"""The sample projects in examples/: each is red with its bug and green without, from the built
wheel in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from junitparser import JUnitXml, TestCase

from tests.wheel import CORE, fresh_python, requirements_of
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT, Settings

FOUND = {
    "python_loop": "duplicate",
    "java_program": "gap",
    "kafka_streams": "duplicate",
    "spark_job": "duplicate",
    "go_client": "duplicate",
    "transactional_loop": "duplicate",
}
"""What the test of each project finds."""


@pytest.fixture(scope="module")
def projects(
    cluster: Services,
    settings: Settings,
    wheel: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[str, str], TestCase]:
    """The outcome of each project's test, by folder and variant. They run side by side, and share
    Kafka and Spark with the tests of this repository."""
    folder = tmp_path_factory.mktemp("examples")
    names = (*CORE, *requirements_of("test"), "pytest-xdist")
    python = fresh_python(wheel, folder / "fresh", names)
    shutil.copytree(ROOT / "examples", folder / "projects")
    assert cluster.bootstrap
    command = [str(python), "-W", "error::pytest.PytestWarning", "-m", "pytest", "-q"]
    command += [
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        "--numprocesses",
        "2",
        "--dist",
        "loadfile",
    ]
    answer = subprocess.run(
        [*command, "--junitxml", str(folder / "junit.xml")],
        cwd=folder / "projects",
        env={**_clean(), **settings.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1, answer.stdout + answer.stderr
    found = {}
    for suite in JUnitXml.fromfile(str(folder / "junit.xml")):
        for case in suite:
            variant = case.name.rpartition("[")[2].rstrip("]")
            found[case.classname.split(".")[0], variant] = case
    return found


def _clean() -> dict[str, str]:
    """The environment without this repository, and with the Go of its set-up."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**known, "PATH": os.pathsep.join([known["PATH"], str(Path(sys.executable).parent)])}


@pytest.mark.parametrize("project", FOUND)
def test_a_project_is_red_with_its_bug_and_green_without(
    projects: dict[tuple[str, str], TestCase], project: str
) -> None:
    """Story: a program is killed, or its checkpoint is lost. The failure is a verdict with the
    places of what is wrong. Without the bug the same test passes."""
    assert set(projects) == {(name, variant) for name in FOUND for variant in ("bug", "fixed")}
    assert projects[project, "fixed"].is_passed, projects[project, "fixed"].result[0].text
    (failure,) = projects[project, "bug"].result
    assert "AssertionError: VIOLATED exactly_once: " in failure.text
    assert re.search(rf"VIOLATED {FOUND[project]}: [\d,]+ ", failure.text), failure.text
    place = r"((invoices|receipts)-\w{6}-\d@|orders-\w{6}/0/)\d+"
    assert re.search(place, failure.text), failure.text


@pytest.mark.quick
@pytest.mark.parametrize(
    "path",
    [
        *("python_loop/loop.py", "python_loop/test_loop.py"),
        *("transactional_loop/receipts.py", "transactional_loop/test_receipts.py"),
    ],
)
def test_the_examples_of_the_document_are_the_tested_ones(path: str) -> None:
    text = (ROOT / "docs" / "TESTING-YOUR-PIPELINE.md").read_text(encoding="utf-8")
    tested = (ROOT / "examples" / path).read_text(encoding="utf-8")
    assert f"```python\n{tested}```" in text
