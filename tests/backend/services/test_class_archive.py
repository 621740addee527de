"""Archives of Java's classes: used where they are this user's own, and never needed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from topicproof.backend.services import class_archive as module
from topicproof.backend.services.class_archive import ClassArchive, class_archive
from topicproof.backend.services.jars import BROKER, SPARK, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.processes import java
from topicproof.backend.services.spark import EmbeddedSpark
from topicproof.backend.settings import Settings


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """One in a cache of its own, with content that Java cannot use."""
    monkeypatch.setattr(module, "CACHE", tmp_path)
    jar = tmp_path / "server.jar"
    jar.write_bytes(b"jar")
    archive = class_archive("server", java(), [jar])
    assert not archive.exists and archive.options == ()
    archive.begin()
    archive.unfinished.write_bytes(b"damaged" * 10_000)
    archive.finish()
    assert archive.exists
    return archive


@pytest.mark.usefixtures("cluster")
def test_both_servers_use_the_archive_that_was_made_at_the_set_up(settings: Settings) -> None:
    """Story: whoever waits for a demo waits half as long, because Java finds the classes of Spark
    and Kafka as it had them in memory. `scripts/setup` has made the archives."""
    servers = (
        EmbeddedKafka(settings.home, jar_files(settings, BROKER)),
        EmbeddedSpark(settings.home, jar_files(settings, SPARK)),
    )
    for server in servers:
        assert server.archive.exists, "scripts/setup makes it"
        users = [
            maps.parent.name
            for maps in Path("/proc").glob("[0-9]*/maps")
            if str(server.archive.path) in _content(maps)
        ]
        assert users, server.archive.path


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # The process is another user's, or has ended.


def test_java_starts_without_an_archive_that_it_cannot_use(archive: ClassArchive) -> None:
    """Story: the disk was full when the archive was written, or Java is a newer one by now. The
    server starts, and says nothing of it."""
    answer = subprocess.run(
        [java(), *archive.options, "-version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "" and "version" in answer.stderr and "warning" not in answer.stderr


def _writable(path: Path) -> None:
    path.chmod(0o622)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def _in_an_open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def _of_another_user(path: Path) -> None:
    os.chown(path, os.getuid() + 1, -1)


CHANGES = (_writable, _link, _in_an_open_folder, *([_of_another_user] if os.getuid() == 0 else []))


@pytest.mark.parametrize("change", CHANGES)
def test_an_archive_that_others_may_have_written_is_not_used(
    change: Callable[[Path], None], archive: ClassArchive
) -> None:
    """Story: another user of the machine lays an archive there. Java would run what is in it."""
    change(archive.path)
    assert archive.options == () and not archive.exists


def test_an_archive_is_not_used_while_it_is_written_again(archive: ClassArchive) -> None:
    """Story: the jars of one server have changed, so the archives of both are made again."""
    archive.begin()
    assert archive.options == ()


def test_other_jars_are_another_archive(archive: ClassArchive, tmp_path: Path) -> None:
    """Story: the project is updated, and its jars with it. The old archive goes when the new one is
    made."""
    jar = tmp_path / "server.jar"
    jar.write_bytes(b"another jar")
    newer = class_archive("server", java(), [jar])
    assert newer.path != archive.path and not newer.exists
    newer.unfinished.write_bytes(b"new")
    newer.finish()
    assert newer.exists and not archive.path.exists()
