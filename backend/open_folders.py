"""Files in folders that others may write too, such as a team's share or a workspace of CI.

A path is looked up again at each use, so whoever may write the folder can lay a link in between. An
open folder stays the same folder. Its files are made and removed through it, and no link below it
is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path, PurePosixPath

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Return the descriptor of a folder, which the user may have named by a link. Raises
    OSError."""
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_below(
    folder: int, path: PurePosixPath, *, make: bool = False, inherit_mode: bool = False
) -> Iterator[int]:
    """Return the descriptor of a folder at a relative path below an open one. With `make`, missing
    folders are made, and with `inherit_mode` each has the mode of the folder above it. Raises
    OSError, also for a link anywhere in the path."""
    descriptor = os.dup(folder)
    try:
        for name in path.parts:
            is_new = make and _make(name, descriptor)
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            above, descriptor = descriptor, below
            if is_new and inherit_mode:
                os.fchmod(below, stat.S_IMODE(os.fstat(above).st_mode))
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def _make(name: str, folder: int) -> bool:
    """Make a folder in an open one. Returns whether it is new. Raises OSError."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def new_file(folder: int, name: str) -> BufferedWriter:
    """Make a file in an open folder. Raises FileExistsError if the name is taken, also by a link;
    OSError."""
    return os.fdopen(os.open(name, _NEW_FILE, 0o666, dir_fd=folder), "wb")


def read_file(folder: int, name: str) -> BufferedReader:
    """Open a file of an open folder. Raises OSError, also for a link."""
    # A pipe in the file's place must not wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(os.open(name, flags, dir_fd=folder), "rb")
