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
        "RUNNER_TEMP": str(_temporary(tmp_path)),
    }


def _temporary(folder: Path) -> Path:
    temporary = folder / "runner-temp"
    temporary.mkdir(exist_ok=True)
    return temporary


UPLOADED_IF = "${{ always() && steps.check.outputs.evidence != '' }}"


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
            assert step["if"] == UPLOADED_IF
            kept = Path(_filled(step["with"]["path"], given))
            assert kept.is_relative_to(tmp_path / "runner-temp")
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


WRITES = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in --out) out=$2 ;; --ctrf) ctrf=$2 ;; esac
  shift
done
# As the check: nothing is written over what is there.
[ -e "$out" ] && exit 64
mkdir "$out" && echo genuine > "$out/junit.xml"
[ -z "$ctrf" ] || echo genuine > "$ctrf"
exit 1
"""
REFUSES = "#!/bin/sh\nexit 64\n"
"""Programs in place of Python."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """The checkout of a pull request that has laid a folder in place of the evidence, with a link
    to a file of the runner."""
    (tmp_path / "client.properties").write_text("sasl.password=from-a-secret")
    for program in ("apt-get", "pip"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o700)
    checkout = tmp_path / "checkout"
    evidence = checkout / "topicproof-evidence"
    evidence.mkdir(parents=True)
    (evidence / "leak").symlink_to("../../client.properties")
    (evidence / "junit.xml").write_text("forged")
    (checkout / "topicproof-ctrf.json").symlink_to("../client.properties")
    return checkout


def _with_python(folder: Path, program: str) -> dict[str, str]:
    (folder / "python").write_text(program)
    (folder / "python").chmod(0o700)
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "GITHUB_OUTPUT": str(folder / "output"),
        "RUNNER_TEMP": str(_temporary(folder)),
        **dict.fromkeys(("CONTRACT", "BOOTSTRAP", "PAYLOADS", "PACKAGE"), "x"),
    }


def _uploaded(*places: Path) -> dict[str, str]:
    """Return what an uploader that follows links would send: contents by name."""
    files = [place for place in places if place.is_file()]
    for place in places:
        files += [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else []
    return {path.name: path.read_text().strip() for path in files}


@pytest.mark.parametrize("program", [WRITES, REFUSES])
def test_the_action_uploads_what_the_check_wrote_alone(
    program: str, hostile: Path, tmp_path: Path
) -> None:
    """Story: a pull request has files and links in place of the evidence, and the check cannot
    begin. Nothing of them is uploaded as evidence, and no file of the runner behind a link."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = {step["name"]: step for step in action["runs"]["steps"]}
    environment = _with_python(tmp_path, program) | {"EVIDENCE": "topicproof-evidence"}
    assert _shell(steps["Check"]["run"], environment, hostile).returncode == 0
    lines = (tmp_path / "output").read_text().splitlines()
    given = {
        "inputs.evidence": "topicproof-evidence",
        "steps.check.outputs.evidence": "",
        **{f"steps.check.outputs.{name}": value for name, value in (x.split("=") for x in lines)},
    }
    upload = steps["Keep the evidence"]
    path = _filled(upload["with"]["path"], given)
    is_uploaded = upload["if"] != UPLOADED_IF or given["steps.check.outputs.evidence"] != ""
    uploaded = _uploaded(hostile / path) if is_uploaded else {}
    assert uploaded == ({"junit.xml": "genuine"} if program == WRITES else {})
    assert given["steps.check.outputs.exit-code"] == ("1" if program == WRITES else "64")


@pytest.mark.parametrize("program", [WRITES, REFUSES])
def test_gitlab_uploads_what_the_check_wrote_alone(
    program: str, hostile: Path, tmp_path: Path
) -> None:
    """Story: the same in GitLab, whose merge request would show the forged JUnit file as passed.
    If packages cannot be installed, nothing is uploaded either."""
    _spec, jobs = yaml.safe_load_all((ROOT / "templates" / "topicproof.yml").read_text())
    job = jobs["topicproof"]
    environment = _with_python(tmp_path, program)
    places = [hostile / path for path in job["artifacts"]["paths"]]
    _shell(job["before_script"][0], environment, hostile)
    assert _uploaded(*places) == {}
    answer = _shell("\n".join(job["script"]), environment, hostile)
    assert answer.returncode == (1 if program == WRITES else 64), answer.stderr
    ours = {"junit.xml": "genuine", "topicproof-ctrf.json": "genuine"}
    assert _uploaded(*places) == (ours if program == WRITES else {})
    assert (tmp_path / "client.properties").read_text() == "sasl.password=from-a-secret"
