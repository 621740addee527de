"""What `make audit` finds, on locks and advisories written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import NO_DATABASE, audit_advisories, is_affected, read_advisories

ADVISORY = """
id: PYSEC-0000-1
modified: 2026-01-02T00:00:00Z
summary: a made-up hole
affected:
- package: {ecosystem: PyPI, name: Some.Package}
  ranges:
  - type: ECOSYSTEM
    events: [{introduced: "2.0"}, {fixed: "2.0.7"}, {introduced: "0"}, {fixed: 1.26.18}]
  - type: ECOSYSTEM
    events: [{introduced: "3.0"}, {last_affected: "3.2"}]
  versions: ["5.1"]
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "database"
    (folder / "vulns" / "some-package").mkdir(parents=True)
    (folder / "vulns" / "some-package" / "PYSEC-0000-1.yaml").write_text(ADVISORY)
    return folder


def lock_of(folder: Path, version: str) -> Path:
    lock = folder / "requirements.lock"
    lock.write_text(f"some-package=={version} \\\n    --hash=sha256:{'0' * 64}\n")
    return lock


def test_a_locked_version_with_a_hole_is_named(database: Path, tmp_path: Path) -> None:
    """Story: an advisory names a version that is locked. pip-audit asks the folder without any
    network, names the hole, and is silent about the mended version."""
    code, text = audit_advisories(database, lock_of(tmp_path, "2.0.6"))
    assert code == 1
    assert "PYSEC-0000-1" in text
    code, text = audit_advisories(database, lock_of(tmp_path, "2.0.7"))
    assert (code, "PYSEC-0000-1" in text) == (0, False)
    assert "advisories: 1, the newest of 2026-01-02" in text


def test_an_empty_database_is_no_clean_bill(tmp_path: Path) -> None:
    """Story: ADVISORIES names a wrong folder. Nothing was looked up, and nothing is called well."""
    code, text = audit_advisories(tmp_path, lock_of(tmp_path, "2.0.6"))
    assert code == NO_DATABASE
    assert "no advisories" in text


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("1.0", True),
        ("1.26.17", True),
        ("1.26.18", False),
        ("2.0", True),
        ("2.0.7", False),
        ("3.2", True),
        ("3.2.1", False),
        ("5.1", True),
        ("5.2", False),
    ],
)
def test_ranges_are_read_as_osv_reads_them(database: Path, version: str, affected: bool) -> None:
    """Story: events of several ranges in any order, a last affected version, a list of versions."""
    (advisory,) = read_advisories(database)["some-package"]
    assert is_affected(advisory, "some-package", version) is affected
