"""Evidence in a zip file, unpacked within limits.

A zip file may name paths outside of the folder, hold links, and grow a million times when it is
unpacked. Python's `extractall` bounds only the first. Of bzip2 and LZMA, Python unpacks all that
it has read at once: 850 bytes are a gigabyte in memory, whatever the file declares. So only the
methods are read that programs use for zip files: stored and deflated.
"""

from __future__ import annotations

import io
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.manifest import MANIFEST
from topicproof.backend.evidence.read_limits import FILES_MAX, UNPACKED_BYTES_MAX, plain_name
from topicproof.backend.settings import DISK_FREE_BYTES_MIN

CHUNK_BYTES = 1 << 20
DAMAGED = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error),
    *(EOFError, RuntimeError, MemoryError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, AssertionError),
)
"""What Python's zip files and decompressors raise for what no program packs, beside OSError and
ValueError."""
DEPTH_MAX = 20
"""Evidence of several sinks and stages has five."""
NAME_BYTES_MAX = 255
"""The longest name of a file on most disks."""
METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
DIRECTORY_BYTES_MAX = 20_000_000
"""The list of files at the end of a zip file, and whatever else is read of it at once. Python makes
an object of some 500 bytes of each entry, which may have 47, before it tells how many there are."""


class _PackedFile(io.BufferedReader):
    """A zip file of which only so much is read at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._path, self._bytes = path, path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises EvidenceError for more than `DIRECTORY_BYTES_MAX` bytes."""
        left = max(0, self._bytes - self.tell())
        if size is None or size < 0 or size > left:
            size = left
        if size > DIRECTORY_BYTES_MAX:
            raise EvidenceError(
                f"{self._path} has a list of its files of more than {DIRECTORY_BYTES_MAX:,} bytes."
                f" Evidence has at most {FILES_MAX:,} files."
            )
        return super().read(size)


@contextmanager
def unpacked(packed: Path) -> Iterator[Path]:
    """Unpack a zip file into a folder that lasts as long as the block, and return the folder with
    the evidence. Raises EvidenceError."""
    with TemporaryDirectory(prefix="topicproof-unpacked-") as name:
        folder = Path(name)
        unpack(packed, folder)
        if (folder / MANIFEST).is_file():
            yield folder
            return
        inner = [path for path in folder.iterdir() if path.is_dir()]
        beside = sorted(plain_name(path.name) for path in folder.iterdir() if path not in inner)
        if len(inner) == 1 and beside:
            # A forged page beside the folder would be opened as if it had been verified.
            raise EvidenceError(f"{packed} holds {beside[0]} beside its one folder of evidence.")
        yield inner[0] if len(inner) == 1 else folder


def unpack(packed: Path, folder: Path) -> None:
    """Unpack a zip file. Raises EvidenceError, before anything is written if its directory shows
    why."""
    try:
        with _PackedFile(packed) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _require_sound(packed, entries, shutil.disk_usage(folder).free)
            left = UNPACKED_BYTES_MAX
            for entry in entries:
                left -= _unpack_one(archive, entry, folder, left)
    except DAMAGED as error:
        why = plain_name(str(error).partition("\n")[0]) or type(error).__name__
        raise EvidenceError(f"{packed} is not a zip file that can be unpacked: {why}.") from error
    except (OSError, ValueError) as error:
        why = plain_name(str(error).partition("\n")[0])
        raise EvidenceError(f"{packed} cannot be unpacked: {why}.") from error


def _require_sound(packed: Path, entries: list[zipfile.ZipInfo], free: int) -> None:
    if len(entries) > FILES_MAX:
        raise EvidenceError(f"{packed} has more than {FILES_MAX:,} files; evidence has fewer.")
    names = set()
    for entry in entries:
        parts = PurePosixPath(entry.filename).parts
        if not parts or entry.filename.startswith("/") or ".." in parts or "\\" in entry.filename:
            name = plain_name(entry.filename)
            raise EvidenceError(f"{packed} names {name!r}, which lies outside of it.")
        if len(parts) > DEPTH_MAX:
            raise EvidenceError(f"{packed} has folders nested more than {DEPTH_MAX} deep.")
        if not entry.filename.isprintable() or max(map(_length, parts)) > NAME_BYTES_MAX:
            raise EvidenceError(
                f"{packed} names {plain_name(entry.filename)}, which is no name of a file of"
                " evidence."
            )
        if entry.compress_type not in METHODS:
            name = plain_name(entry.filename)
            raise EvidenceError(
                f"{packed} holds {name!r} in a compression that is not read. Pack it again with"
                " the usual one, deflate."
            )
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            name = plain_name(entry.filename)
            raise EvidenceError(f"{packed} holds {name!r}, which is not a plain file.")
        if parts in names:
            raise EvidenceError(f"{packed} holds {plain_name(entry.filename)!r} twice.")
        names.add(parts)
    size = sum(entry.file_size for entry in entries)
    if size > UNPACKED_BYTES_MAX:
        raise EvidenceError(
            f"{packed} has {size:,} bytes unpacked; {UNPACKED_BYTES_MAX:,} are allowed."
        )
    if size > free - DISK_FREE_BYTES_MIN:
        raise EvidenceError(
            f"{packed} has {size:,} bytes unpacked, and the disk has {free:,} left. Set TMPDIR to a"
            " larger one."
        )


def _length(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _unpack_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, left: int) -> int:
    """Unpack one entry. Returns its bytes, of which no more are written than it declares."""
    target = folder / entry.filename
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(entry) as source, target.open("xb") as file:
        while data := source.read(CHUNK_BYTES):
            written += len(data)
            if written > min(entry.file_size, left):
                raise EvidenceError(f"{entry.filename!r} is larger than its zip file declares.")
            file.write(data)
    return written
