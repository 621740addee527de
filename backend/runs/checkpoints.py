"""Where the checkpoints of a run's queries lie.

Spark believes a checkpoint. It names the class that reads the state, and files that Spark writes
anywhere on the machine, with content from beside it. So only this user may write there.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from topicproof.backend.errors import SparkError
from topicproof.backend.evidence.private_copy import only_we_enter, only_we_write
from topicproof.backend.storage import Storage, in_storage, listed

CHECKPOINTS_MAX = 1_000
"""Checkpoints of a stage that may be left without a complete batch."""


def private_checkpoints(url: str, storage: Storage | None, is_spark_ours: bool = True) -> str:
    """Return the URL of a folder for a run's checkpoints, which is made if it is not there. The
    plan's author has named it, so it must be in the storage of this installation, or, if Spark is
    of this machine, where nobody else can write. Raises SparkError otherwise, before anything is
    written."""
    if storage is not None and url.startswith(f"{storage.url}/"):
        return url
    if urlsplit(url).scheme != "file" or not is_spark_ours:
        where = "neither on this machine nor" if is_spark_ours else "on a machine of Spark's, not"
        raise SparkError(
            f"The plan's checkpoints, {url}, are {where} in TOPICPROOF_STORAGE."
            " Who can write them can run programs here. Set TOPICPROOF_STORAGE to a folder above"
            " them if you trust its owners, or leave `checkpoints` out of the plan."
        )
    folder = Path(unquote(urlsplit(url).path)).resolve()
    try:
        for path in (*reversed(folder.parents), folder):
            if not path.exists():
                path.mkdir(mode=0o700)
        if not only_we_enter(folder) and only_we_write(folder):
            folder.chmod(0o700)
        is_private = only_we_enter(folder)
    except OSError as error:
        raise SparkError(
            f"The plan's checkpoints, {url}, cannot be made: {error.strerror}."
        ) from error
    if not is_private:
        raise SparkError(
            f"Other users can write the plan's checkpoints, {folder}, or a folder above them. Who"
            " can write them can run programs as you. Name a folder below one that only you can"
            " write, or leave `checkpoints` out of the plan."
        )
    return folder.as_uri()


def usable_checkpoint(spark: SparkSession, checkpoint: str) -> str:
    """Return the checkpoint from which a query starts: this one, or a new one beside it for each
    that holds no complete batch. Those are seen here and in the storage only.

    A query that is stopped while it writes its first batch leaves half a file. Spark then refuses
    the checkpoint (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). Nothing is lost: the position is the
    group's offset. It is not removed, because the plan may name any place.
    """
    tries = (checkpoint, *(f"{checkpoint}-{number}" for number in range(2, CHECKPOINTS_MAX + 1)))
    for url in tries:
        if not _is_unbegun(spark, url):
            return url
    raise SparkError(
        f"{CHECKPOINTS_MAX:,} starts in a row were stopped in their first batch: see {checkpoint}"
        " and the folders beside it. Remove them, and resume the run."
    )


def _is_unbegun(spark: SparkSession, checkpoint: str) -> bool:
    """Return whether a checkpoint is here or in the storage, and holds no complete batch."""
    if in_storage(spark, checkpoint):
        batches = list(listed(f"{checkpoint}/offsets"))
        return bool(batches) and not any(map(str.isdecimal, batches))
    url = urlsplit(checkpoint)
    offsets = Path(unquote(url.path)) / "offsets"
    if url.scheme != "file" or not offsets.is_dir():
        return False
    return not any(batch.name.isdecimal() for batch in offsets.iterdir())
