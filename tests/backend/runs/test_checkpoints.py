"""Places for checkpoints: only those that nobody else can write."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicproof.backend.errors import SparkError
from topicproof.backend.runs.checkpoints import private_checkpoints
from topicproof.backend.storage import Storage


def folder_of_mode(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)  # The umask does not count.
    return path


def test_checkpoints_lie_where_nobody_else_can_write(tmp_path: Path) -> None:
    """Story: a plan names a new folder below one that everybody may list, and below one like /tmp.
    The run's own folder is closed, and a second start finds it as it was."""
    for name, mode in (("shared", 0o755), ("like-tmp", 0o1777)):
        above = folder_of_mode(tmp_path / name, mode)
        url = f"{above.as_uri()}/run-1"
        assert private_checkpoints(url, None) == private_checkpoints(url, None) == url
        assert (above / "run-1").stat().st_mode & 0o777 == 0o700
    older = folder_of_mode(tmp_path / "shared" / "run-2", 0o755)
    (older / "metadata").write_text("{}", encoding="utf-8")
    (older / "metadata").chmod(0o644)
    assert private_checkpoints(older.as_uri(), None) == older.as_uri()
    assert older.stat().st_mode & 0o777 == 0o700


def test_a_plan_does_not_choose_who_writes_checkpoints(tmp_path: Path) -> None:
    """Story: the author of a plan names an open folder, a link to one, a checkpoint with a file
    that others can write, or their own bucket, to lay their files of state there. Nothing runs."""
    inside = folder_of_mode(tmp_path / "open", 0o777)
    (tmp_path / "link").symlink_to(inside)
    left = folder_of_mode(tmp_path / "left", 0o755)
    (left / "metadata").write_text("{}", encoding="utf-8")
    (left / "metadata").chmod(0o666)
    sticky = folder_of_mode(tmp_path / "like-tmp", 0o1777)
    theirs = folder_of_mode(sticky / "run-1", 0o777)
    for folder in (inside / "run-1", tmp_path / "link" / "run-1", left, theirs):
        with pytest.raises(SparkError, match="Other users can write the plan's checkpoints"):
            private_checkpoints(folder.as_uri(), None)
    storage = Storage("s3a://ours/topicproof", tmp_path)
    for url in ("s3a://theirs/x", "s3a://ours/topicproof-2/x", "hdfs://h:8020/x"):
        for place in (None, storage):
            with pytest.raises(SparkError, match="neither on this machine nor in TOPICPROOF_STOR"):
                private_checkpoints(url, place)
    with pytest.raises(SparkError, match="on a machine of Spark's, not in TOPICPROOF_STORAGE"):
        private_checkpoints((left / "run-1").as_uri(), storage, is_spark_ours=False)
    assert private_checkpoints("s3a://ours/topicproof/x", storage) == "s3a://ours/topicproof/x"
