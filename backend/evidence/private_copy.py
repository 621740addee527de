"""Received evidence that nobody else can change while it is verified.

`verify` compares hashes and the signature first, and Spark reads the same files later. Whoever may
write them, or rename a folder above them, could lay other evidence there in between. So such
evidence is copied first. Where only this user and root may write, it is read as it is.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.manifest import MANIFEST
from topicproof.backend.evidence.read_limits import FILES_MAX, UNPACKED_BYTES_MAX, plain_name
from topicproof.backend.settings import DISK_FREE_BYTES_MIN

CHUNK_BYTES = 1 << 20
COPY = "evidence"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def private_evidence(folder: Path) -> Iterator[Path]:
    """Return a folder with this content that nobody else can change, for as long as the block
    lasts: the folder itself, or a copy. Errors in the block name the folder. Raises
    EvidenceError."""
    received = folder.absolute()
    place = folder.resolve()
    if not place.is_dir():
        raise EvidenceError(f"{received} holds no evidence: there is no {MANIFEST} in it.")
    with TemporaryDirectory(prefix="topicproof-verify-") as name:
        try:
            if not only_we_write(place):
                place = _copy(place, Path(name).resolve() / COPY)
            yield place
        except EvidenceError as error:
            raise EvidenceError(str(error).replace(str(place), str(received))) from error


def only_we_write(folder: Path) -> bool:
    """Return whether only this user and root can change a folder without links in its path, what it
    holds, or which folder has its name; False with a link in it, which leads elsewhere. POSIX
    access lists show in the group's bits."""
    try:
        # From the root on: a folder that passes cannot be replaced before the next is looked at.
        above = [_is_ours(path, entries_only=True) for path in reversed(folder.parents)]
        return all(above) and all(map(_is_ours, (folder, *folder.rglob("*"))))
    except OSError:
        return False


def only_we_enter(folder: Path) -> bool:
    """Return whether only this user and root can reach what a folder without links in its path
    holds, or change which folder has its name. Raises OSError."""
    above = [_is_ours(path, entries_only=True) for path in reversed(folder.parents)]
    return all(above) and _is_ours(folder) and not stat.S_IMODE(folder.lstat().st_mode) & 0o077


def _is_ours(path: Path, entries_only: bool = False) -> bool:
    """Return whether only this user and root can write a file or a folder. With `entries_only` a
    sticky folder such as /tmp passes: others add entries there, and cannot rename ours."""
    status = path.lstat()
    if status.st_uid not in (0, os.getuid()) or stat.S_ISLNK(status.st_mode):
        return False
    sticky = entries_only and bool(status.st_mode & stat.S_ISVTX)
    return sticky or not status.st_mode & _OTHERS_WRITE


def _copy(folder: Path, target: Path) -> Path:
    """Copy a folder through open descriptors: a link that appears meanwhile is not followed. Links,
    pipes and devices become links to nowhere, so that the manifest's comparison refuses them."""
    left = min(UNPACKED_BYTES_MAX, shutil.disk_usage(target.parent).free - DISK_FREE_BYTES_MIN)
    count = 0
    try:
        for at, folders, files, descriptor in os.fwalk(folder, onerror=_raise):
            inner = target / Path(at).relative_to(folder)
            inner.mkdir()
            count += len(folders) + len(files)
            if count > FILES_MAX:
                raise EvidenceError(
                    f"{folder} has more than {FILES_MAX:,} files; evidence has fewer."
                )
            for name in (*folders, *files):
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    left -= _copy_file(name, descriptor, inner / name, left)
                elif not stat.S_ISDIR(mode):
                    (inner / name).symlink_to(os.devnull)
    except OSError as error:
        raise EvidenceError(f"{folder} cannot be copied to be read: {error.strerror}.") from error
    return target


def _copy_file(name: str, folder: int, target: Path, left: int) -> int:
    """Copy a file of an open folder. Returns its bytes. Raises EvidenceError beyond `left` bytes,
    OSError."""
    # A pipe in the file's place must not wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    written = 0
    descriptor = os.open(name, flags, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as source, target.open("xb") as file:
        while data := source.read(CHUNK_BYTES):
            written += len(data)
            if written > left:
                raise EvidenceError(
                    f"The evidence with {plain_name(name)} is larger than what may be copied:"
                    f" {UNPACKED_BYTES_MAX:,} bytes, and {DISK_FREE_BYTES_MIN:,} must stay free on"
                    f" the disk of {target.parent}."
                )
            file.write(data)
    return written


def _raise(error: OSError) -> None:
    raise error
