"""Finished copies of evidence, handed out into the folder that a user names.

Others may write that folder: a team's share, a workspace of CI. So a copy is made and signed in a
private folder, and only finished files are handed out. They are made through open folders, so a
link that appears there meanwhile is refused, and so is any file. What others lay there is never
signed, because nothing is read back.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, gettempdir

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.manifest import (
    ATTESTATION,
    MANIFEST,
    NO_FILE,
    Entry,
    manifest_from,
)
from topicproof.backend.evidence.read_limits import TEXT_BYTES_MAX, is_evidence_file, plain_name
from topicproof.backend.open_folders import new_file, open_below, open_folder, read_file

CHUNK_BYTES = 1 << 20
COPYING, YOUNG_S = ".copy-", 60.0
"""The beginning of a private folder's name, and when it is locked at the latest."""


@contextmanager
def private_folder(home: Path | None) -> Iterator[Path]:
    """Return a folder that only this user reads and writes, in the home or else among temporary
    files. It is removed after the block, and so are those of killed processes. Raises OSError."""
    _sweep(Path(home or gettempdir()))
    with TemporaryDirectory(prefix=COPYING, dir=home) as name, open_folder(Path(name)) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        folder = Path(name).resolve() / "copy"
        folder.mkdir()
        yield folder


def _sweep(folder: Path) -> None:
    """Remove the private folders of processes that ended without doing so: nobody holds the lock.
    Young ones may be about to be locked."""
    for left in folder.glob(f"{COPYING}*"):
        with suppress(OSError):
            status = left.lstat()
            is_old = time.time() - status.st_mtime > YOUNG_S
            if is_old and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                with open_folder(left) as opened:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left)


def require_room(target: Path) -> None:
    """Raises UsageError if a copy would mix with other files."""
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise _not_empty(target)
    if target.exists() and not target.is_dir():
        raise UsageError(
            f"{target} is a file. Choose a folder that is empty, or that does not exist."
        )


def deliver(folder: Path, target: Path) -> None:
    """Hand the files of a private folder out into `target`, in place of an earlier copy. Manifests
    come last: before them, nothing there is evidence.

    Raises UsageError if the target holds anything else, EvidenceError if something appears there
    meanwhile, OSError.
    """
    require_room(target)
    target.mkdir(parents=True, exist_ok=True)
    names = [
        PurePosixPath(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    ]
    names.sort(key=lambda name: (name.name == MANIFEST, name))
    with open_folder(target) as opened:
        _make_room(opened, target)
        for name in names:
            try:
                with open_below(opened, name.parent, make=True) as parent:
                    _hand_over(folder / name, parent)
            except (FileExistsError, NotADirectoryError) as error:
                raise EvidenceError(
                    f"{name} appeared in {target} while the evidence was copied there. Choose a"
                    " folder that nobody else writes."
                ) from error


def _hand_over(path: Path, folder: int) -> None:
    """Give a finished file a name in an open folder. Raises FileExistsError for a name that is
    taken, also by a link; OSError."""
    try:
        os.link(path, path.name, dst_dir_fd=folder)
    except FileExistsError:
        raise
    except OSError:
        # It is on another disk, or on one without hard links.
        with path.open("rb") as source, new_file(folder, path.name) as file:
            shutil.copyfileobj(source, file, CHUNK_BYTES)


def _make_room(folder: int, target: Path) -> None:
    """Remove an earlier copy from the open folder of the path `target`. Raises UsageError, and
    removes nothing, if it is not exactly that: a manifest from elsewhere may name any file."""
    present = os.listdir(folder)
    if not present:
        return
    if MANIFEST not in present:
        raise _not_empty(target)
    entries = _entries(folder)
    expected = _manifest_entries(folder, target)
    others = sorted(
        name
        for name in entries.keys() | expected.keys()
        if entries.get(name) != expected.get(name) or not is_evidence_file(name)
    )
    if others:
        raise UsageError(
            f"{target} is not the copy of evidence that its {MANIFEST} tells of: see"
            f" {plain_name(others[0])}. Choose a folder that is empty, or that does not exist."
        )
    for path in map(PurePosixPath, (*entries, MANIFEST, ATTESTATION)):
        with suppress(FileNotFoundError), open_below(folder, path.parent) as parent:
            os.unlink(path.name, dir_fd=parent)
    for _, folders, _, parent in os.fwalk(".", topdown=False, dir_fd=folder):
        for name in folders:
            with suppress(OSError):  # it is not empty
                os.rmdir(name, dir_fd=parent)
    if os.listdir(folder):
        raise _not_empty(target)


def _manifest_entries(folder: int, target: Path) -> dict[str, Entry]:
    """Return what the manifest in an open folder lists. Raises EvidenceError if it is damaged,
    UsageError if it is no file, OSError."""
    mode = os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode):
        raise _not_empty(target)
    with read_file(folder, MANIFEST) as file:
        data = file.read(TEXT_BYTES_MAX + 1)
    return dict(manifest_from(data, target / MANIFEST).files)


def _entries(folder: int) -> dict[str, Entry]:
    """Return the files in an open folder that a manifest lists, by path: links too, which are no
    files. Raises OSError."""
    entries = {}
    for at, folders, files, parent in os.fwalk(".", dir_fd=folder):
        for name in (*folders, *files):
            path = str(PurePosixPath(at) / name)
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode) and path not in (MANIFEST, ATTESTATION):
                entries[path] = _entry(name, parent) if stat.S_ISREG(mode) else NO_FILE
    return entries


def _entry(name: str, folder: int) -> Entry:
    with read_file(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        return Entry(hashlib.file_digest(file, "sha256").hexdigest(), size)


def _not_empty(target: Path) -> UsageError:
    return UsageError(f"{target} is not empty. Choose a folder that is, or that does not exist.")
