"""The GitHub Action and GitLab's component: their steps, run as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

from topicproof.backend.evidence.ctrf import COUNTED
from topicproof.backend.harness.broker import Broker
from topicproof.backend.harness.scratch_topics import Topic
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT, Settings

pytest_plugins = ["topicproof.pytest_plugin"]


@pytest.fixture(scope="session")
def topicproof_home(cluster: Services, settings: Settings) -> Path:
    assert cluster.bootstrap
    return settings.home


@pytest.fixture
def runner(cluster: Services, settings: Settings, tmp_path: Path) -> dict[str, str]:
    """The environment of a runner's job. Its Spark is that of the tests."""
    return {
        **os.environ,
        **settings.environment(),
        "SPARK_REMOTE": cluster.spark_remote,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }


def _contract(folder: Path, source: Topic, sink: Topic) -> str:
    path = folder / "contract.yaml"
    path.write_text(f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nidentity: key\n")
    return path.name


def _shell(script: str, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_action_annotates_keeps_the_evidence_and_fails(
    topicproof_broker: Broker,
    topicproof_topic: Callable[..., Topic],
    runner: dict[str, str],
    tmp_path: Path,
) -> None:
    """Story: a workflow checks a pair with a duplicate. The job goes red, the annotation has its
    offset, and the evidence is there to be uploaded."""
    source = topicproof_topic("orders", committed=range(3))
    sink = topicproof_topic("invoices", committed=[0, 1, 1, 2])
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {
        "inputs.contract": _contract(tmp_path, source, sink),
        "inputs.bootstrap": topicproof_broker.bootstrap,
        "inputs.install": "false",
    }
    for name, one in action["inputs"].items():
        given.setdefault(f"inputs.{name}", one.get("default"))
    steps = []
    for step in action["runs"]["steps"]:
        if step.get("if") == "${{ inputs.install == 'true' }}":
            continue
        if "uses" in step:
            assert re.fullmatch(r"actions/upload-artifact@[0-9a-f]{40}", step["uses"])
            assert step["if"] == "${{ always() }}"
            kept = tmp_path / _filled(step["with"]["path"], given)
            assert (kept / "report.json").exists() and (kept / "junit.xml").exists()
            continue
        named = {name: _filled(value, given) for name, value in step.get("env", {}).items()}
        steps.append(_shell(step["run"], {**runner, **named}, tmp_path))
        for line in (tmp_path / "output").read_text().splitlines():
            name, _, value = line.partition("=")
            given[f"steps.check.outputs.{name}"] = value
    check, end = steps
    assert check.returncode == 0 and end.returncode == 1, check.stderr
    errors = [line for line in check.stdout.splitlines() if line.startswith("::error")]
    assert errors[0].startswith(
        f"::error title=VIOLATED {source} -> {sink}::Not exactly once: 1 of 4 "
    )
    assert any(
        f"title=duplicate in {sink}::" in line and f"%0A{sink}-0@2 (input {source}-0@1)" in line
        for line in errors
    )
    assert "| `duplicate` |" in (tmp_path / "summary.md").read_text()


def _filled(text: str, given: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ ([a-z.-]+) \}\}", lambda found: given[found[1]], text)


def test_gitlab_forgives_no_install_that_failed(tmp_path: Path) -> None:
    """Story: a mirror of packages stalls, and pip ends with 2, which the job forgives as a warning
    of a check. Nothing was judged, so the job must fail."""
    _spec, jobs = yaml.safe_load_all((ROOT / "templates" / "topicproof.yml").read_text())
    for name in ("python", "apt-get"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexit 2\n")
        program.chmod(0o700)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PACKAGE": "topicproof[cli]"}
    for line in jobs["topicproof"]["before_script"]:
        assert _shell(line, environment, tmp_path).returncode == 3


def test_gitlab_shows_findings_as_test_cases(
    topicproof_broker: Broker,
    topicproof_topic: Callable[..., Topic],
    runner: dict[str, str],
    tmp_path: Path,
) -> None:
    """Story: the same in GitLab, for a pair that lost an output. The report is GitLab's own."""
    source = topicproof_topic("orders", committed=range(3))
    sink = topicproof_topic("invoices", committed=[0, 2])
    text = (ROOT / "templates" / "topicproof.yml").read_text()
    spec, jobs = yaml.safe_load_all(text)
    given: dict[str, Any] = {
        name: (one or {}).get("default") for name, one in spec["spec"]["inputs"].items()
    }
    given |= {
        "contract": _contract(tmp_path, source, sink),
        "bootstrap": topicproof_broker.bootstrap,
    }
    job = jobs["topicproof"]
    variables = {
        name: re.sub(r"\$\[\[ inputs\.([a-z]+) \]\]", lambda found: given[found[1]], value)
        for name, value in job["variables"].items()
    }
    answer = _shell("\n".join(job["script"]), {**runner, **variables}, tmp_path)
    assert answer.returncode == 1, answer.stderr
    assert job["allow_failure"] == {"exit_codes": 2} and job["artifacts"]["when"] == "always"
    cases = JUnitXml.fromfile(str(tmp_path / job["artifacts"]["reports"]["junit"]))
    assert cases.failures >= 1
    evidence, ctrf = (tmp_path / path for path in job["artifacts"]["paths"])
    assert evidence.is_dir()
    results = json.loads(ctrf.read_text())["results"]
    tests = {test["name"]: test for test in results["tests"]}
    assert tests["verdict: exactly_once"]["status"] == tests["gap"]["status"] == "failed"
    assert f"{source}-0@1" in tests["gap"]["trace"]
    statuses = [test["status"] for test in results["tests"]]
    counted = {status: statuses.count(status) for status in COUNTED}
    assert results["summary"] == results["summary"] | counted | {"tests": len(statuses)}
