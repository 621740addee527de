"""Evidence that others may write is verified as a copy, which they cannot change meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_history_page import HELD, TWICE
from tests.backend.evidence.test_attestation import made
from tests.test_cli import call
from topicproof.backend.commands import verify_commands
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.attestation import attest
from topicproof.backend.evidence.folder import EVIDENCE, evidence_in, read_report
from topicproof.backend.evidence.private_copy import only_we_write, private_evidence
from topicproof.backend.settings import Settings
from topicproof.backend.verifying.unchanged import unchanged, unchanged_parts


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that all may write, as a team's share or a CI workspace."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def _swap(folder: Path, other: Path) -> None:
    folder.rename(folder.with_name("genuine"))
    shutil.copytree(other, folder)


def test_a_folder_swapped_after_the_first_look_is_not_read(shared: Path, tmp_path: Path) -> None:
    """Story: hashes and signature are compared. Then the owner of the share lays other evidence at
    the same place. What is judged is still what was compared."""
    genuine = made(shared / EVIDENCE, TWICE)
    with private_evidence(genuine) as place:
        assert unchanged(place).differences == ()
        _swap(genuine, made(tmp_path / "other", HELD))
        assert read_report(place).verdict is TWICE.verdict
        assert unchanged(place).differences == ()
    assert not place.exists()


def test_verify_names_the_folder_and_reads_its_copy(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: the same swap, in the moment before `verify` compares hashes."""
    settings = Settings(home=tmp_path / "home", signer="ada@lab")
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    genuine, unsigned = made(shared / EVIDENCE), made(tmp_path / "other", HELD)
    attest(settings, genuine)
    compare = unchanged_parts

    def swapped(*arguments: Any) -> Any:
        _swap(genuine, unsigned)
        return compare(*arguments)

    monkeypatch.setattr(verify_commands, "unchanged_parts", swapped)
    assert call("verify", str(genuine), "--hashes-only", "--require-signature", "--json", "-") == 0
    assert f'"folder": "{genuine}"' in capsys.readouterr().out


def _link_above(folder: Path) -> Path:
    link = folder.parent.parent / "link"
    link.symlink_to(folder.parent)
    return link / folder.name


OPEN: dict[str, Callable[[Path], object]] = {
    "the folder": lambda folder: folder.chmod(0o770),
    "a file": lambda folder: (folder / "report.json").chmod(0o666),
    "a folder above": lambda folder: folder.parent.chmod(0o777),
}


@pytest.mark.parametrize("what", OPEN)
def test_only_a_folder_of_ours_is_read_in_place(what: str, tmp_path: Path) -> None:
    """Story: the owner's own folder is not copied, nor is one below /tmp. One bit that lets others
    write is enough for a copy."""
    folder = made(tmp_path / "home" / EVIDENCE)
    for path in (folder, *folder.rglob("*"), folder.parent):
        path.chmod(path.stat().st_mode & ~0o022)
    with private_evidence(_link_above(folder)) as place:
        assert place == folder and only_we_write(folder)
    OPEN[what](folder)
    with private_evidence(folder) as place:
        assert place != folder and unchanged(place).differences == ()


def test_links_and_pipes_are_refused_in_a_copy_too(shared: Path) -> None:
    folder = made(shared / EVIDENCE)
    (folder / "schemas.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / "journal.jsonl")
    with private_evidence(folder) as place:
        names = [difference.file for difference in unchanged(place).differences]
    assert names == ["journal.jsonl", "schemas.json"]


def test_errors_name_the_folder_and_not_its_copy(shared: Path) -> None:
    folder = made(shared / EVIDENCE)
    (folder / "report.json").write_text("{")
    sentence = f"The report {folder}/report.json cannot be read"
    with pytest.raises(EvidenceError, match=sentence), private_evidence(folder) as place:
        read_report(place)
    nothing = f"{shared}/none holds no evidence"
    with pytest.raises(EvidenceError, match=nothing), private_evidence(shared / "none"):
        pass


@pytest.mark.parametrize("inner", [EVIDENCE, "stage", "cluster/sink"])
def test_evidence_behind_a_link_is_not_read(inner: str, shared: Path, tmp_path: Path) -> None:
    """Story: a received folder is its owner's alone, and the evidence in it is a link to where
    others write: they could lay other evidence there once hashes and signature were compared."""
    made(shared / EVIDENCE)
    folder = tmp_path / "received"
    link = folder / Path(inner).parts[0]
    folder.mkdir(mode=0o700)
    if "/" in inner:
        (shared / "sink").symlink_to(shared / EVIDENCE)
    link.symlink_to(shared if "/" in inner else shared / EVIDENCE)
    assert not only_we_write(folder)
    with pytest.raises(EvidenceError, match="is a link or behind one"):
        evidence_in(folder)
    with (
        private_evidence(folder) as place,
        pytest.raises(EvidenceError, match="holds no evidence"),
    ):
        evidence_in(place)
