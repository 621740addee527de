"""What pages and commands read of a run's folder, whatever lies there."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from topicproof.backend.errors import EvidenceError
from topicproof.backend.log_file import NOT_PLAIN
from topicproof.backend.runs.creations import CREATIONS, read_creations
from topicproof.backend.runs.launch import LOG, said
from topicproof.backend.runs.own_names import FILE, _read_names
from topicproof.backend.settings import Settings, read_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings(home=tmp_path)


def test_a_page_reads_the_end_of_an_output_alone(settings: Settings) -> None:
    """Story: a run's process has written a hundred gigabytes. Each page that shows it reads as much
    of the end as it shows."""
    folder = settings.runs / "numbers-1"
    folder.mkdir(parents=True)
    with (folder / LOG).open("wb") as log:
        log.truncate(100 * 10**9)
        log.seek(0, os.SEEK_END)
        log.write(b"\none\n%3|librdkafka\ntwo\n")
    assert said(settings, "numbers-1") == "one\ntwo"
    (folder / LOG).write_bytes(b"one\ntwo\n")
    assert said(settings, "numbers-1") == "one\ntwo"
    (folder / LOG).write_bytes(b"".join(b"%d\n" % line for line in range(100_000)))
    assert said(settings, "numbers-1").splitlines() == [
        str(line) for line in range(99_985, 100_000)
    ]


def _link(path: Path) -> None:
    path.with_name("secret").write_text("secret")
    path.symlink_to(path.with_name("secret"))


@pytest.mark.parametrize("lay", [os.mkfifo, _link, Path.mkdir])
def test_an_output_that_is_no_plain_file_holds_no_page(
    lay: Callable[[Path], None], settings: Settings
) -> None:
    """Story: in place of a run's output lies a pipe, which never ends, or a link to another file.
    The page says so, and an output that begins is not awaited either."""
    folder = settings.runs / "numbers-1"
    folder.mkdir(parents=True)
    lay(folder / LOG)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(said, settings, "numbers-1")
        try:
            assert reading.result(30) == NOT_PLAIN
        finally:
            if lay is os.mkfifo and not reading.done():
                (folder / LOG).open("w").close()  # Lets the thread end.


@pytest.mark.parametrize("read", [read_creations, _read_names])
def test_a_pipe_among_a_runs_files_holds_no_command(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    """Story: somebody who may write a run's folder lays pipes in place of what it wrote down."""
    for name in (CREATIONS, FILE):
        os.mkfifo(tmp_path / name)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, tmp_path)
        try:
            with pytest.raises(EvidenceError, match="not a plain file"):
                reading.result(30)
        finally:
            if not reading.done():
                for name in (CREATIONS, FILE):
                    with suppress(OSError):
                        os.close(os.open(tmp_path / name, os.O_WRONLY | os.O_NONBLOCK))
