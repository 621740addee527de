"""Folders that this process shares with Spark, even if they have no disk in common.

By default Spark reads and writes a folder of this process where it is, as a `file:` URL. Executors
on other machines cannot. The setting TOPICPROOF_STORAGE then names a folder on a filesystem that
both reach, such as `s3a://bucket/topicproof`, and each folder of the home has a twin there. Spark
works on the twin. `fetch` brings what Spark wrote, and `sent` takes there what Spark is to read.

This process reaches the storage through pyarrow, and Spark through Hadoop's filesystems. Both find
credentials where they always do: in the environment, or in Spark's own configuration. No secret is
handed over here.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyarrow import fs

from topicproof.backend.address import require_no_secret
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.open_folders import new_file, open_below, open_folder
from topicproof.backend.settings import DISK_FREE_BYTES_MIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

S3 = ("s3", "s3a", "s3n")
"""Hadoop's names of S3, and pyarrow's."""
AT_ONCE = 8
"""Files that are copied at the same time: each mostly waits for the network."""
CHUNK_BYTES = 1 << 20
FILES_MAX = 100_000
ELSEWHERE = "elsewhere"
"""Folder of the storage with the twins of folders outside of the home, which are temporary."""
NAMED_BY_CONTENT = re.compile(r"part-.*[0-9a-f]{8}-[0-9a-f]{4}-.*\.parquet")
"""A file that Spark wrote. Its name holds a random id, so it is never written again."""


@dataclass(frozen=True)
class Storage:
    """A folder that this process and Spark both reach, for the folders of one home."""

    url: str
    home: Path
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    def twin(self, path: Path) -> str:
        """Return the URL of a file's or a folder's twin."""
        if path.is_relative_to(self.home):
            return f"{self.url}/{path.relative_to(self.home).as_posix()}"
        return f"{self._elsewhere}/{path.relative_to(path.anchor).as_posix()}"

    def here(self, url: str) -> Path | None:
        """Return the file or folder of this machine of which a URL is the twin, if it is one."""
        for twin, folder in ((self._elsewhere, Path(self.home.anchor)), (self.url, self.home)):
            if url.startswith(f"{twin}/"):
                return folder / unquote(url.removeprefix(f"{twin}/"))
        return None

    def close(self) -> None:
        """Remove the twins of temporary folders. Raises EvidenceError."""
        remove(self._elsewhere)

    @property
    def _elsewhere(self) -> str:
        return f"{self.url}/{ELSEWHERE}/{self.session}"


_MAKING = threading.RLock()
"""Held while a folder is made: until its mode is set, a file in it would get the wrong one."""
_ATTACHED: WeakKeyDictionary[SparkSession, Storage] = WeakKeyDictionary()


def attach(spark: SparkSession, storage: Storage) -> None:
    """Let this session work on the twins of folders."""
    _ATTACHED[spark] = storage


def _attached(spark: SparkSession) -> Storage | None:
    return _ATTACHED.get(spark) if _ATTACHED else None


def spark_url(spark: SparkSession, path: Path) -> str:
    """Return the URL by which Spark reads and writes a file or a folder of this process."""
    storage = _attached(spark)
    return path.as_uri() if storage is None else storage.twin(path)


def in_storage(spark: SparkSession, url: str) -> bool:
    """Return whether a URL lies in the storage of this session."""
    storage = _attached(spark)
    return storage is not None and url.startswith(f"{storage.url}/")


def local_path(spark: SparkSession, url: str) -> Path | None:
    """Return the path here of what Spark names by a URL; None if only Spark knows it."""
    if urlsplit(url).scheme == "file":
        return Path(unquote(urlsplit(url).path))
    storage = _attached(spark)
    return None if storage is None else storage.here(url)


def keep_in(frame: DataFrame, path: Path, offsets: int, columns: str | None = None) -> DataFrame:
    """Keep a frame in a folder, as `validators.readings.keep` does under a URL. `fetch` brings its
    files here, if Spark wrote them elsewhere."""
    from topicproof.validators.readings import keep  # late: storage is known without Spark

    return keep(frame, spark_url(frame.sparkSession, path), offsets, columns)


class FrameFolder(NamedTuple):
    """A folder of frames that all cover the same offsets."""

    path: Path
    offsets: int
    """How many offsets a frame covers at most."""

    def keep(self, frame: DataFrame, name: str, columns: str | None = None) -> DataFrame:
        """Keep a frame under a name, as `keep_in` does."""
        return keep_in(frame, self.path / name, self.offsets, columns)


def fetch(spark: SparkSession, folder: Path) -> None:
    """Bring here what Spark wrote into a folder. Raises EvidenceError."""
    if (storage := _attached(spark)) is not None:
        download(storage.twin(folder), folder)


def sent(spark: SparkSession, path: Path) -> str:
    """Let Spark see a file, or a folder with exactly the files that it has here, and return its
    URL. Raises EvidenceError."""
    publish(_attached(spark), path)
    return spark_url(spark, path)


def discard(spark: SparkSession, folder: Path) -> None:
    """Remove a folder here and where Spark wrote it. Raises EvidenceError."""
    shutil.rmtree(folder, ignore_errors=True)
    forget(spark, folder)


def forget(spark: SparkSession, folder: Path) -> None:
    """Remove what Spark wrote into a folder, but not what is here. Raises EvidenceError."""
    withdraw(_attached(spark), folder)


def publish(storage: Storage | None, folder: Path) -> None:
    """Make the twin of a file or a folder hold what is here, and nothing else. Raises
    EvidenceError."""
    if storage is not None:
        upload(folder, storage.twin(folder))


def withdraw(storage: Storage | None, folder: Path) -> None:
    """Remove the twin of a folder. Raises EvidenceError."""
    if storage is not None:
        remove(storage.twin(folder))


def is_url(place: str) -> bool:
    """Return whether a place is named by a URL, and not by a path of this machine."""
    return "://" in place


@contextmanager
def downloaded(url: str, bytes_max: int | None = None) -> Iterator[Path]:
    """Copy a folder into a temporary one, which lasts as long as the block. Raises EvidenceError if
    it is empty, or has more than `bytes_max` bytes."""
    with TemporaryDirectory(prefix="topicproof-downloaded-") as name:
        folder = Path(name) / "evidence"
        if not download(url, folder, bytes_max):
            raise EvidenceError(f"{url} holds no files. Check the address.")
        yield folder


@contextmanager
def uploading(url: str, is_copy: Callable[[Collection[str]], bool]) -> Iterator[Path]:
    """Give an empty folder, and copy what the block wrote into it to `url`. An earlier copy there
    is replaced: `is_copy` tells by the paths of all files whether nothing else is there.

    Raises UsageError, before the block, if anything else is; EvidenceError.
    """
    present = listed(url)
    if present and not is_copy(present):
        raise UsageError(f"{url} is not empty. Choose a folder that is, or that does not exist.")
    with TemporaryDirectory(prefix="topicproof-uploading-") as name:
        folder = Path(name) / "evidence"
        yield folder
        upload(folder, url)


def download(url: str, folder: Path, bytes_max: int | None = None) -> int:
    """Copy the files under a URL into a folder, which may hold some of them. Returns their number.
    Raises EvidenceError, also for names that lie outside of the folder. With `bytes_max`, no more
    bytes are written, whatever the storage has said about the sizes of its files."""
    system, root = _opened(url)
    sizes = listed(url)
    for name in sizes:
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise EvidenceError(f"{url} holds {name!r}, which lies outside of it.")
    if len(sizes) > FILES_MAX:
        raise EvidenceError(f"{url} has more than {FILES_MAX:,} files; evidence has fewer.")
    if not sizes:
        return 0
    size = sum(sizes.values())
    if bytes_max is not None and size > bytes_max:
        raise EvidenceError(
            f"{url} has {size:,} bytes; {bytes_max:,} are allowed. Evidence has fewer, so it is not"
            " read."
        )
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size > free - DISK_FREE_BYTES_MIN:
        raise EvidenceError(
            f"{url} has {size:,} bytes, and the disk of {folder} has {free:,} left. Set"
            " TOPICPROOF_HOME, or TMPDIR for what is only verified, to a larger one."
        )

    def bring(name: str) -> None:
        target = folder / name
        if _same(name, sizes[name], target):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            system.open_input_stream(f"{root}/{name}") as source,
            target.open("wb") as file,
        ):
            if bytes_max is None:
                shutil.copyfileobj(source, file, CHUNK_BYTES)
                return
            left = sizes[name]
            while chunk := source.read(min(CHUNK_BYTES, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise EvidenceError(
                        f"{url} has a file with more than the {sizes[name]:,} bytes that it is said"
                        f" to have: {name!r}. Evidence does not grow, so it is not read."
                    )
                file.write(chunk)

    _each(bring, sizes, url, "read")
    return len(sizes)


def upload(path: Path, url: str) -> None:
    """Make a URL hold a file, or exactly the files of a folder. Raises EvidenceError."""
    system, root = _opened(url)
    if path.is_file():
        parent, _, own_name = root.rpartition("/")
        _each(lambda name: _put(system, path, parent, name), {own_name: 0}, url, "written")
        return
    present = listed(url)
    files = [file for file in path.rglob("*") if file.is_file()]
    names = {file.relative_to(path).as_posix(): file.stat().st_size for file in files}

    def take(name: str) -> None:
        if not _same(name, present.get(name), path / name):
            _put(system, path / name, root, name)

    _each(take, names, url, "written")
    _each(lambda name: _delete(system, root, name), present.keys() - names, url, "written")


def remove(url: str) -> None:
    """Remove the files under a URL. Raises EvidenceError."""
    system, root = _opened(url)
    _each(lambda name: _delete(system, root, name), listed(url), url, "written")


def listed(url: str) -> dict[str, int]:
    """Return the sizes of all files under a URL, by their path from there."""
    system, root = _opened(url)
    try:
        entries = system.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise _unusable(url, "read", error) from error
    files = (entry for entry in entries if entry.type is fs.FileType.File)
    return {entry.path[len(root) :].lstrip("/"): entry.size for entry in files}


def _opened(url: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a URL, and the path there. Raises EvidenceError, and UsageError for
    a URL with a password."""
    try:
        parts = urlsplit(require_no_secret(url))
    except ValueError as error:
        raise UsageError(f"The address of the folder is wrong: {error}.") from error
    try:
        if parts.scheme in S3:
            return _s3(parts.netloc), f"{parts.netloc}{parts.path}".rstrip("/")
        # Hadoop takes a URL's path as it is written, and pyarrow decodes it.
        system, path = fs.FileSystem.from_uri(quote(url, safe=":/"))
        return system, path.rstrip("/")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unusable(url, "reached", error) from error


def _s3(bucket: str) -> fs.FileSystem:
    """Return S3 as the usual variables of the environment describe it."""
    variables = os.environ
    endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
    if endpoint is None:
        return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket))
    try:
        address = urlsplit(require_no_secret(endpoint))
    except ValueError as error:
        raise UsageError(f"The variable AWS_ENDPOINT_URL is wrong: {error}.") from error
    # An interface of somebody else's has one name for all buckets.
    return fs.S3FileSystem(
        endpoint_override=address.netloc, scheme=address.scheme, region=region or "us-east-1"
    )


def _same(name: str, size: int | None, other: Path) -> bool:
    """Return whether both sides surely have the same content under this name."""
    ours = NAMED_BY_CONTENT.fullmatch(PurePosixPath(name).name)
    return bool(ours) and other.is_file() and other.stat().st_size == size


def _put(system: fs.FileSystem, path: Path, root: str, name: str) -> None:
    if system.type_name == "local":
        _put_on_disk(path, Path(root), PurePosixPath(name))
        return
    target = f"{root}/{name}"
    if system.type_name == "hdfs":
        # In an object store, a folder is there as soon as a file is in it.
        system.create_dir(target.rpartition("/")[0], recursive=True)
    with path.open("rb") as file, system.open_output_stream(target) as written:
        shutil.copyfileobj(file, written, CHUNK_BYTES)


def _put_on_disk(path: Path, root: Path, name: PurePosixPath) -> None:
    """Write a file below a folder in place of an earlier one. Others may write there too, so no
    link below the folder is followed. Raises OSError."""
    _make_folder(root)
    with ExitStack() as opened:
        with _MAKING:
            top = opened.enter_context(open_folder(root))
            below = open_below(top, name.parent, make=True, inherit_mode=True)
            folder = opened.enter_context(below)
        with suppress(FileNotFoundError):
            os.unlink(name.name, dir_fd=folder)
        with path.open("rb") as source, new_file(folder, name.name) as file:
            shutil.copyfileobj(source, file, CHUNK_BYTES)
            os.fchmod(file.fileno(), os.fstat(folder).st_mode & 0o666)


def _delete(system: fs.FileSystem, root: str, name: str) -> None:
    if system.type_name != "local":
        system.delete_file(f"{root}/{name}")
        return
    path = PurePosixPath(name)
    with open_folder(Path(root)) as top, open_below(top, path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def _make_folder(folder: Path) -> int:
    """Make a folder of a storage that is a local disk. Returns its mode, which is that of the first
    folder above it: Spark may be another user, whom our umask would shut out."""
    with _MAKING:
        if folder.exists():
            return stat.S_IMODE(folder.stat().st_mode)
        mode = _make_folder(folder.parent)
        folder.mkdir()
        folder.chmod(mode)
        return mode


def _each(do: Callable[[str], None], names: Iterable[str], url: str, action: str) -> None:
    """Do something with each file, several at once. Raises EvidenceError."""
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(do, names))
    except (OSError, pa.ArrowException) as error:
        raise _unusable(url, action, error) from error


def _unusable(url: str, action: str, error: Exception) -> EvidenceError:
    lines = str(error).splitlines() or [type(error).__name__]
    return EvidenceError(
        f"{url} cannot be {action}: {lines[0].rstrip('.')}. Check the address, and that the"
        " environment of this process has the credentials for it."
    )
