"""The list of a release in CONTRIBUTING.md, on one machine.

    make release-check ARGS="[STEP ...]"

Every step is done, also after one that failed; without arguments, all of them: about two hours. The
last lines name each with `ok` or what is wrong. Exit code: 1 if anything is. What is left then is a
person's: to tag, to upload, and to move the tag of the GitHub Action.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from topicproof.backend.settings import ROOT


def run(*command: str) -> tuple[int, str]:
    """Run a command in the repository, and show its output as it comes. Returns exit code and
    output."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            sys.stderr.write(line)
            lines.append(line)
    return process.returncode, "".join(lines)


def succeeds(*command: str) -> str:
    """Return what is wrong with a command; empty if it succeeds."""
    code, output = run(*command)
    last = output.strip().splitlines()[-1:] or [""]
    return "" if code == 0 else f"exit code {code}: {last[0]}"


def python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", *arguments)


def version() -> str:
    """The version of this commit, without what marks it as unreleased."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def committed() -> str:
    """Nothing of the working tree differs from the commit that will be tagged."""
    changes = run("git", "status", "--porcelain")[1].strip()
    return f"not committed: {changes.splitlines()[0]}" if changes else ""


def changelog() -> str:
    """The version is a release, and CHANGELOG.md has it with a date, below a new *Unreleased*."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if ".dev" in version():
        return f"pyproject.toml has the version {version()}, which is none of a release"
    if not heads or "Unreleased" not in heads[0]:
        return "CHANGELOG.md does not begin with Unreleased"
    is_dated = any(version() in head and re.search(r"\d{4}-\d\d-\d\d", head) for head in heads)
    return "" if is_dated else f"CHANGELOG.md has no date for {version()}"


def tests() -> str:
    """Every test is green. Those of test_tidy.py also compare the version with the images."""
    return succeeds("make", "test")


def same_table(document: Path, module: str) -> str:
    """Return what a command's table says that a document does not; empty if they agree."""
    code, output = run(*python(module))
    written = document.read_text(encoding="utf-8").splitlines()
    other = [line for line in output.splitlines() if line.startswith("| ") and line not in written]
    if other:
        return f"{document.name} does not say: {other[0]}"
    return "" if code == 0 else f"exit code {code}"


def brokers() -> str:
    """The brokers are those of docs/CLUSTERS.md."""
    return same_table(ROOT / "docs" / "CLUSTERS.md", "tests.brokers.versions")


def sparks() -> str:
    """The versions of Spark are those of docs/CLUSTERS.md."""
    return same_table(ROOT / "docs" / "CLUSTERS.md", "tests.sparks")


def lock() -> str:
    """What is installed is what the locks say: locking again changes nothing."""
    failure = succeeds("make", "lock")
    names = ("*.lock", "*.sha256")
    return failure or succeeds("git", "diff", "--exit-code", "--stat", "--", *names)


def audit() -> str:
    """Installed files, jars and licences are as they were locked, and no advisory names one."""
    return succeeds("make", "audit")


def wheel() -> str:
    """The wheel of the version, and its bill of materials."""
    return succeeds("make", "wheel") or succeeds("make", "sbom")


def pythons() -> str:
    """The wheel works on every Python that it names."""
    return succeeds(*python("tests.pythons"))


STEPS: Mapping[str, Callable[[], str]] = {
    step.__name__: step
    for step in (committed, changelog, lock, audit, wheel, pythons, tests, brokers, sparks)
}
"""The quick ones first."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Do the list of a release.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}")
    names = parser.parse_args().steps or list(STEPS)
    if unknown := [name for name in names if name not in STEPS]:
        parser.error(f"no step: {', '.join(unknown)}")
    failures = {name: STEPS[name]() for name in names}
    for name, failure in failures.items():
        print(f"{name}: {failure or 'ok'}")  # noqa: T201
    return int(any(failures.values()))


if __name__ == "__main__":
    sys.exit(main())
