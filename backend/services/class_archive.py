"""Java's archives of classes: what the embedded servers load and verify at each start, kept in the
form that Java has in memory (JEP 350). They halve the processor time of a start.

They are made once, when the project is set up (backend/runs/class_archives.py). Java uses one only
with the very same Java and the same jars in the same place, and else does without. It believes what
is in it, so it lies in the user's own cache, and is not used if others could have written it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from topicproof.backend.settings import CACHE

FOLDER = "java-classes"
_SILENT = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""An archive that cannot be used is none."""
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one server's classes, which may not have been made yet."""

    path: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Java's options to use it; none if it is missing, or may be somebody else's."""
        if not all(_is_own(each) for each in (self.path, self.path.parent)):
            return ()
        return f"-XX:SharedArchiveFile={self.path}", *_SILENT

    @property
    def writing(self) -> tuple[str, ...]:
        """Java's options to write it, beside its own place, when the server ends."""
        brief = "-XX:TieredStopAtLevel=1"  # A server that is soon over gains nothing by more.
        return f"-XX:ArchiveClassesAtExit={self.unfinished}", "-Xlog:cds=off", brief

    @property
    def unfinished(self) -> Path:
        return self.path.with_suffix(".unfinished")

    @property
    def exists(self) -> bool:
        return bool(self.options)

    def begin(self) -> None:
        """Make its folder, closed to others. It is not used meanwhile: Java writes no archive while
        it reads one."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (self.unfinished, self.path):
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Put what was written in its place, and remove what was there for other jars or another
        Java. Raises OSError if nothing was written."""
        self.unfinished.chmod(0o400)
        self.unfinished.replace(self.path)
        server, place, _ = self.path.stem.split("-")
        for other in self.path.parent.glob(f"{server}-{place}-*.jsa"):
            if other != self.path:
                other.unlink(missing_ok=True)


def class_archive(server: str, java: str, jars: Sequence[Path]) -> ClassArchive:
    """Return the archive for a server with this Java and these jars. Its name is of their places,
    times and sizes, which Java compares too."""
    files = [Path(java).resolve(), *jars]
    place = _digest(str(file) for file in files)
    state = _digest(f"{(status := file.stat()).st_mtime_ns} {status.st_size}" for file in files)
    return ClassArchive(CACHE.expanduser() / FOLDER / f"{server}-{place}-{state}.jsa")


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _is_own(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return is_plain and status.st_uid == os.getuid() and not status.st_mode & OTHERS_MAY_WRITE
