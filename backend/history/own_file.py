"""The file of a history in SQLite, in a folder that others may write.

Who can write the folder can lay a link there, which SQLite follows: it would write a history over
another file of this user. They can also replace the file, or lay a journal beside it, which SQLite
plays back. Who can write a folder above it can exchange the whole folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from topicproof.backend.errors import SetupError

SUFFIXES = ("", "-journal", "-wal", "-shm")
"""SQLite's files: the database, and what lies beside it."""
ROOT = 0
_REMEDY = "Set TOPICPROOF_DATABASE to a file in a folder that only you can write."


def require_own_file(name: str, home: Path) -> None:
    """Check the file of a database, by its name as SQLite gets it, before it is opened or made.
    Raises SetupError for a folder that everybody can write or exchange, and for a link in one that
    others can. The home is closed to others already (settings.py), or it is a container's own
    volume, whatever its mode."""
    if name in ("", ":memory:"):
        return
    path = Path(unquote(urlsplit(name).path) if name.startswith("file:") else name).absolute()
    if path.parent == home.absolute():
        return
    try:
        place = path.parent.resolve()
        folder, *above = (each.stat() for each in (place, *place.parents))
    except (OSError, RuntimeError):
        return  # SQLite says what is wrong with the folder.
    if folder.st_mode & stat.S_IWOTH:
        raise SetupError(
            f"The history {path} is not opened: every user can write its folder. {_REMEDY}"
        )
    # In a folder with the sticky bit, such as /tmp, nobody renames what belongs to another.
    loose = [status.st_mode for status in above if not status.st_mode & stat.S_ISVTX]
    if any(mode & stat.S_IWOTH for mode in loose):
        raise SetupError(
            f"The history {path} is not opened: every user can exchange a folder above it."
            f" {_REMEDY}"
        )
    is_shared = any(mode & stat.S_IWGRP for mode in (folder.st_mode, *loose))
    if is_shared or folder.st_uid not in (os.getuid(), ROOT):
        _require_no_links(path)


def _require_no_links(path: Path) -> None:
    for suffix in SUFFIXES:
        file = path.with_name(f"{path.name}{suffix}")
        if _is_link(file):
            raise SetupError(
                f"The history {path} is not opened: {file.name} is a link or no plain file, and"
                f" others can write its folder. {_REMEDY}"
            )


def _is_link(file: Path) -> bool:
    """Return whether a file is a link, has another name too, or is another user's."""
    try:
        status = file.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return not is_plain or status.st_uid not in (os.getuid(), file.parent.stat().st_uid)
