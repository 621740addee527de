"""What Streamlit holds of files: no name tells a content, and no session fills the memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from streamlit import config
from streamlit.runtime.media_file_storage import MediaFileKind, MediaFileStorageError
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from tests.app.conftest import OpenPage
from tests.app.test_history_page import HELD
from topicproof.app.shell import stored_files
from topicproof.app.shell.stored_files import (
    UPLOADED_BYTES_MAX,
    UPLOADS_PER_SESSION,
    BoundedUploads,
    PrivateDownloads,
)
from topicproof.app.verdict import signoff_form
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, State
from topicproof.backend.interpreter import python_environment
from topicproof.backend.settings import ROOT, read_settings
from topicproof.validators.finding import Outcome

SECRET = b"HUNTER88"
MASKED = b"(masked)"
FILE = ("text/plain", MediaFileKind.DOWNLOADABLE, "records.jsonl")


def export_of(card: bytes) -> bytes:
    """More than 1 MiB, in which the card lies outside of the three samples that Streamlit takes."""
    return b"x" * 300_000 + card + b"x" * 1_200_000


def test_a_masked_export_is_never_answered_with_the_unmasked_one() -> None:
    """Story: an administrator exports a window, then an operator who does not see the card. Both
    files have one name, one length, and the same beginning, middle and end."""
    streamlits = MemoryMediaFileStorage("/media")
    alike = [streamlits.load_and_get_id(export_of(card), *FILE) for card in (SECRET, MASKED)]
    assert alike[0] == alike[1], "Streamlit has mended this itself: PrivateDownloads may go"

    storage = PrivateDownloads("/media")
    ids = [storage.load_and_get_id(export_of(card), *FILE) for card in (SECRET, MASKED)]
    contents = [storage.get_file(f"{file_id}.txt").content for file_id in ids]
    assert contents == [export_of(SECRET), export_of(MASKED)]
    assert storage.load_and_get_id(export_of(SECRET), *FILE) == ids[0]
    assert storage.load_and_get_id(export_of(SECRET), FILE[0], FILE[1], "other") != ids[0]


def test_nobody_can_compute_the_name_of_a_content() -> None:
    """Story: a viewer asks for the files of all contents that a masked key may have."""
    ids = {PrivateDownloads("/media").load_and_get_id(SECRET, *FILE) for _ in range(3)}
    assert len(ids) == 3 and all(len(file_id) >= 64 for file_id in ids)


def test_all_downloads_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: somebody downloads the evidence of one check after the other, each in a tab."""
    monkeypatch.setattr(stored_files, "DOWNLOADED_BYTES_MAX", 250)
    storage = PrivateDownloads("/media")
    first, _ = (storage.load_and_get_id(bytes([number]) * 100, *FILE) for number in range(2))
    with pytest.raises(MediaFileStorageError, match="Too much is being downloaded"):
        storage.load_and_get_id(b"x" * 100, *FILE)
    storage.delete_file(first)
    storage.load_and_get_id(b"x" * 100, *FILE)


def upload(number: int, size: int) -> UploadedFileRec:
    return UploadedFileRec(f"file-{number}", "contract.yaml", "text/yaml", b"y" * size)


def test_a_session_keeps_few_uploads_and_all_together_a_bound() -> None:
    """Story: somebody uploads without end, in one session, then in many."""
    uploads = BoundedUploads("/upload")
    for number in range(UPLOADS_PER_SESSION + 3):
        uploads.add_file("session", upload(number, 100))
    held = uploads.get_files("session", [f"file-{number}" for number in range(10)])
    assert [file.file_id for file in held] == ["file-3", "file-4", "file-5", "file-6"]
    size = UPLOADED_BYTES_MAX // 4
    for number in range(3):
        uploads.add_file(f"session {number}", upload(number, size))
    with pytest.raises(HTTPException, match="Too much is being uploaded"):
        uploads.add_file("session 3", upload(3, size))
    uploads.remove_session_files("session 0")
    uploads.add_file("another", upload(0, size))


def test_the_dashboard_keeps_files_in_these_classes(tmp_path: Path) -> None:
    program = (
        "from streamlit import config\n"
        "config._main_script_path = 'app/server.py'\n"
        "from topicproof.app.server import app\n"
        "runtime = app._create_runtime()\n"
        "print(type(runtime._uploaded_file_mgr).__name__)\n"
        "print(type(runtime._media_file_mgr._storage).__name__)\n"
        "print(config.get_option('server.maxUploadSize'))\n"
        "print(config.get_option('server.maxWidgetStateSize'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=ROOT,
        env=python_environment() | {"TOPICPROOF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == ["BoundedUploads", "PrivateDownloads", "1", "1"]


@pytest.mark.usefixtures("empty_home")
def test_downloads_are_switched_off_together(
    open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an administrator sets client.disableDataExport. The page Verdict offers neither its
    report nor its evidence, and any other page asks at the same place."""
    history = History(read_settings())
    run = history.create("check", "check", {})
    history.remember(run.id, Facts(source="numbers", sink="squares"))
    history.end(run.id, State.DONE, Outcome.HOLDS, "all is well")
    folder = run.folder(history.settings)
    folder.mkdir(parents=True)
    (folder / REPORT).write_text(replace(HELD, run=run.id).to_json())
    monkeypatch.setattr(signoff_form, "evidence_hash", lambda _folder: "0" * 64)
    monkeypatch.setattr(signoff_form, "evidence_bytes", lambda *_of: 10)
    offered = {}
    for is_off in (False, True):
        config.set_option("client.disableDataExport", is_off)
        try:
            app = open_page("verdict", run=run.id)
        finally:
            config.set_option("client.disableDataExport", False)
        assert not app.exception
        offered[is_off] = {each.proto.label for each in app.get("download_button")}
    assert offered == {False: {"report.json", "Download evidence"}, True: set()}
    places = {
        path.name
        for path in (ROOT / "app").rglob("*.py")
        if ".download_button(" in path.read_text(encoding="utf-8")
    }
    assert places == {"payload.py"}
