"""Copies of evidence in a folder that others may write: nothing of theirs is signed, and no link of
theirs is followed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.test_history_page import HELD, TWICE
from tests.backend.evidence.test_attestation import made
from tests.test_cli import call
from topicproof.backend.commands import evidence_commands
from topicproof.backend.errors import EvidenceError, TopicproofError, UsageError
from topicproof.backend.evidence import attestation, copy as copying, delivery
from topicproof.backend.evidence.attestation import Trust, attest, attest_copy
from topicproof.backend.evidence.copy import content_of, copy_all, copy_evidence, zip_evidence
from topicproof.backend.evidence.folder import EVIDENCE, evidence_in
from topicproof.backend.evidence.manifest import (
    ATTESTATION,
    MANIFEST,
    Payloads,
    manifest_hash,
    require_unchanged,
    write_manifest,
)
from topicproof.backend.history.evidence_export import export_folder
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.settings import Settings
from topicproof.backend.trust.keyring import read_keyring
from topicproof.backend.verifying.unchanged import unchanged_parts

pytestmark = pytest.mark.quick


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """An empty folder that all may write, as a team's share or a workspace of CI."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Story: kill -9 while evidence of 30 GB is copied. The next copy removes what is left, and no
    copy that another process still writes."""
    left, young = (tmp_path / f"{delivery.COPYING}{name}" for name in ("left", "young"))
    for folder in (left, young):
        (folder / "copy").mkdir(parents=True)
    os.utime(left, (0, 0))
    with delivery.private_folder(tmp_path) as ours:
        assert not left.exists() and young.exists()
        os.utime(ours.parent, (0, 0))
        with delivery.private_folder(tmp_path):
            assert ours.exists()
    assert not ours.exists()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's, in a folder with others."""
    (tmp_path / "ada").mkdir()
    file = tmp_path / "ada" / ".vimrc"
    file.write_text("set number\n")
    return file


def history_in(home: Path) -> History:
    home.mkdir()
    return History(Settings(home=home, signer="ada@lab"))


def violated_run(history: History, parts: Sequence[str] = (EVIDENCE,)) -> Run:
    """A run that ended, with signed evidence of several parts."""
    run = history.create("run", "chain", {})
    for part in parts:
        folder = made(history.settings.runs / run.id / part, replace(TWICE, run=run.id))
        attest(history.settings, folder)
    history.remember(run.id, Facts(source="numbers", sink="squares"))
    history.end(run.id, State.DONE, "VIOLATED", "x")
    return history.get(run.id)


def with_ledger(folder: Path) -> Path:
    """Evidence with a file two folders below it."""
    (made(folder) / "ledger" / "sink").mkdir(parents=True)
    (folder / "ledger" / "sink" / "part-0.parquet").write_bytes(b"")
    write_manifest(folder, None, "VIOLATED")
    return folder


def at_first_call(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, act: Callable[[], object]
) -> None:
    """Let somebody else act right after a function has been called for the first time."""
    function = getattr(module, name)
    acts = [act]

    def called(*arguments: object, **named: object) -> object:
        answer = function(*arguments, **named)
        while acts:
            acts.pop()()
        return answer

    monkeypatch.setattr(module, name, called)


@pytest.mark.parametrize("payloads", Payloads)
@pytest.mark.parametrize("parts", [(EVIDENCE,), (EVIDENCE, f"stages/b/{EVIDENCE}")])
def test_evidence_of_others_in_the_target_is_never_signed(
    parts: tuple[str, ...],
    payloads: Payloads,
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: a run was VIOLATED. While its evidence is exported to a share, somebody lays a forged
    HOLDS there, and waits for the signature of this installation."""
    history = history_in(tmp_path / "home")
    settings = history.settings
    run = violated_run(history, parts)
    forged = made(tmp_path / "forged", replace(HELD, run=run.id))

    def swap() -> None:
        place = shared if len(parts) == 1 else shared / EVIDENCE
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(forged, place)

    # Whether a copy is signed is decided after a look at the original's manifest.
    at_first_call(monkeypatch, attestation, "manifest_hash", swap)
    with suppress(TopicproofError):
        export_folder(history, run, shared, payloads)
    history.engine.dispose()
    vouched = {
        part.manifest.verdict
        for part in unchanged_parts(shared, read_keyring(settings))
        if part.vouched is not None and part.vouched.trust is Trust.VOUCHED
    }
    # One part replaces the forged copy; several replace nothing, so the export is refused.
    assert vouched == ({"VIOLATED"} if len(parts) == 1 else set())
    assert not list(settings.home.glob(".copy-*"))


@pytest.mark.parametrize("by_url", [False, True])
def test_the_command_names_what_it_handed_out(
    by_url: bool,
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a CI job prints the hash of the evidence that it exports. Somebody replaces the
    evidence on the share before the hash is printed."""
    history = history_in(tmp_path / "home")
    run = violated_run(history)
    history.engine.dispose()
    for name, value in history.settings.environment().items():
        monkeypatch.setenv(name, value)

    def swap() -> None:
        shutil.rmtree(shared)
        made(shared, HELD)

    target = shared.as_uri() if by_url else str(shared)
    if not by_url:
        at_first_call(monkeypatch, evidence_commands, "export_folder", swap)
    assert call("evidence", run.id, "--out", target, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    digest = manifest_hash(run.folder(history.settings) / EVIDENCE)
    assert (answer["manifest"], answer["folders"]) == (digest, [target])
    assert (manifest_hash(shared) == digest) is by_url


def test_only_the_copied_manifest_is_signed(tmp_path: Path) -> None:
    """Story: a copy differs from what was copied, for whatever reason."""
    settings = Settings(home=tmp_path / "home", signer="ada@lab")
    original = made(tmp_path / "run" / EVIDENCE)
    attest(settings, original)
    copied = copy_evidence(original, tmp_path / "copy", Payloads.NONE)
    shutil.rmtree(tmp_path / "copy")
    made(tmp_path / "copy", HELD)
    with pytest.raises(EvidenceError, match="was changed before it was signed"):
        attest_copy(settings, original, tmp_path / "copy", copied)
    assert not (tmp_path / "copy" / ATTESTATION).exists()


@pytest.mark.parametrize("payloads", Payloads)
def test_a_link_laid_after_the_look_at_the_target_is_not_followed(
    payloads: Payloads,
    shared: Path,
    secret: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the target is empty. Before the copy is made, somebody lays a link to a file of the
    user's, with the name of a file of evidence."""
    evidence = made(tmp_path / EVIDENCE)
    link = shared / "plan.json"
    at_first_call(monkeypatch, copying, "require_room", lambda: link.symlink_to(secret))
    with suppress(TopicproofError):
        copy_evidence(evidence, shared, payloads)
    assert secret.read_text() == "set number\n"
    assert list(shared.iterdir()) == [link]


@pytest.mark.parametrize("name", ["plan.json", "ledger", "ledger/sink", MANIFEST])
@pytest.mark.parametrize("disks", [1, 2])
def test_a_link_laid_while_files_are_handed_out_is_not_followed(
    disks: int,
    name: str,
    shared: Path,
    secret: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the same, after the last look at the target: a link to a file, or to a folder, on the
    disk of the home or on another one."""
    evidence = with_ledger(tmp_path / EVIDENCE)
    goal = secret.parent if name.startswith("ledger") else secret

    def lay() -> None:
        (shared / name).parent.mkdir(exist_ok=True)
        (shared / name).symlink_to(goal)

    def other_disk(*_: object, **_named: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if disks == 2:
        monkeypatch.setattr(os, "link", other_disk)
    at_first_call(monkeypatch, delivery, "_make_room", lay)
    with pytest.raises(EvidenceError, match=f"appeared in {shared} while"):
        copy_evidence(evidence, shared)
    assert secret.read_text() == "set number\n"
    assert list(secret.parent.iterdir()) == [secret]
    assert (shared / name).is_symlink()


@pytest.mark.parametrize("place", ["", "ledger", "ledger/sink"])
def test_an_earlier_copy_with_a_link_in_it_removes_nothing(
    place: str, shared: Path, tmp_path: Path
) -> None:
    """Story: somebody moves a folder of an earlier copy away, and lays a link to it. What the link
    leads to is the user's by now. A copy through a link that the user names is replaced."""
    evidence = with_ledger(tmp_path / EVIDENCE)
    target = shared / "proof"
    copy_evidence(evidence, target)
    (target / place).rename(tmp_path / "moved")
    (target / place).symlink_to(tmp_path / "moved")
    if place == "":
        copy_evidence(evidence, target, Payloads.ALL)
        require_unchanged(tmp_path / "moved")
        return
    files = sorted((tmp_path / "moved").rglob("*"))
    with pytest.raises(UsageError, match="is not the copy of evidence"):
        copy_evidence(evidence, target)
    assert sorted((tmp_path / "moved").rglob("*")) == files
    assert (target / MANIFEST).exists()


def test_a_zip_file_is_not_written_through_a_link(
    shared: Path, secret: Path, tmp_path: Path
) -> None:
    made(tmp_path / "run" / EVIDENCE)
    (shared / "run.zip").symlink_to(secret)
    with pytest.raises(EvidenceError, match="cannot be packed: File exists"):
        zip_evidence(tmp_path / "run", shared / "run.zip", Payloads.ALL, "run")
    assert secret.read_text() == "set number\n"


@pytest.mark.parametrize("payloads", [Payloads.ALL, Payloads.NONE])
def test_all_parts_are_handed_out(payloads: Payloads, shared: Path, tmp_path: Path) -> None:
    """Story: nobody disturbs the export of several parts."""
    for name in (EVIDENCE, f"stages/b/{EVIDENCE}"):
        made(tmp_path / "run" / name)
    content = copy_all(tmp_path / "run", shared, payloads)
    assert content == content_of(shared)
    parts = evidence_in(shared)
    assert [str(part.relative_to(shared)) for part in parts] == [EVIDENCE, f"stages/b/{EVIDENCE}"]
    for part in parts:
        require_unchanged(part)
