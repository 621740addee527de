"""What a release is made of: pinned, hashed, licensed, listed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.sbom import JAR_LICENCES, LICENCES, locked, sbom
from topicproof.backend.services.jars import known_hashes
from topicproof.backend.settings import ROOT


def test_the_locks_have_what_is_required_and_what_is_installed() -> None:
    """Story: a version is raised in requirements.txt and `make lock` is forgotten. Both locks have
    to follow, and each package has a hash."""
    for name in ("requirements", "requirements-dev"):
        found = {one.name: one for one in locked(ROOT / f"{name}.lock")}
        assert [one.name for one in found.values() if not one.hashes] == []
        lines = (ROOT / f"{name}.txt").read_text().splitlines()
        wanted = [Requirement(line) for line in lines if re.match(r"\w", line)]
        assert wanted
        for one in wanted:
            assert f"=={found[canonicalize_name(one.name)].version}" == str(one.specifier), one
        installed = {name: metadata.version(name) for name in found}
        assert installed == {name: one.version for name, one in found.items()}


def test_the_bill_names_every_part_with_hash_and_licence() -> None:
    """Story: an auditor reads the bill with a tool of their own. It is valid, complete, and each
    part has a hash and a licence that goes together with ours."""
    bill = sbom()
    # With the checks of international URLs, which the tests' own process leaves out.
    validate = (
        "import sys\nfrom cyclonedx.schema import SchemaVersion\nfrom cyclonedx.validation.json"
        " import JsonStrictValidator\nimport rfc3987_syntax\n"
        "print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-P", "-c", validate],
        input=bill,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "None\n", answer.stdout + answer.stderr
    parts = json.loads(bill)["components"]
    names = {part["name"] for part in parts}
    assert {one.name for one in locked(ROOT / "requirements.lock")} < names
    assert {"kafka-clients", "spark-sql-kafka-0-10_2.13", *JAR_LICENCES} < names
    hashes = {each["content"] for part in parts for each in part["hashes"]}
    jars = {digest for name, digest in known_hashes().items() if name.endswith(".jar")}
    assert jars <= hashes
    for part in parts:
        (licence,) = part["licenses"]
        told = licence.get("expression") or licence["license"]["id"]
        assert set(re.split(r" (?:AND|OR) ", told)) <= LICENCES, part["name"]
