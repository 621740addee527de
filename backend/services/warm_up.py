"""Warms up a Spark server: its first job loads classes and starts workers, which takes longer than
the job. As a process, so that it ends with its parent and costs no memory afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from topicproof.backend.errors import SparkError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.processes import end_process
from topicproof.backend.settings import Settings

ROWS = 8


@contextmanager
def warming_up(settings: Settings, remote: str) -> Iterator[None]:
    """Let another process run small jobs on the server at `remote` while the block goes on. It has
    no say in anything: if it fails, the first run is slower."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "topicproof.backend.services.warm_up"],
        # The address holds a token, so it is no argument.
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=settings.services,
        start_new_session=True,
        env=python_environment(),
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.write(remote.encode())
        child.stdin.close()
    try:
        yield
    finally:
        child.terminate()
        end_process(child)


def main() -> None:
    """Run what a run needs, on the server whose address is the input: workers in Python, and a
    streaming query."""
    from pyspark.errors import PySparkException

    from topicproof.backend.services.spark_session import spark_session

    with suppress(SparkError, PySparkException), spark_session(sys.stdin.read()) as spark:
        rows = spark.range(ROWS).mapInArrow(lambda batches: batches, "id long")
        rows.write.format("noop").mode("overwrite").save()
        stream = spark.readStream.format("rate").load().writeStream.format("noop")
        stream.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
