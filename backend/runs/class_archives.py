"""Make Java's archives of classes for the embedded servers, by a small run that loads them.

Run as `python -P -m topicproof.backend.runs.class_archives`. It does nothing if they are there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from topicproof.backend.characters import visible
from topicproof.backend.errors import TopicproofError
from topicproof.backend.history.store import History
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.jars import BROKER, SPARK, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.keeper import Services, embedded_kafka
from topicproof.backend.services.spark import EmbeddedSpark
from topicproof.backend.settings import Settings, read_settings

PLAN = {"records": 300, "partitions": 2, "per_transaction": 100, "abort_probability": 0.3}
WRITING_TIMEOUT_S = 120.0


def make_class_archives(settings: Settings) -> None:
    """Write the archives that are missing. Raises TopicproofError if the servers do not start, or
    the run fails."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topicproof-classes-")))
        # Nobody's services, database or login: neither from the environment nor from files.
        scratch = Settings.model_construct(home=home, jars=settings.jars)
        brokers = jar_files(scratch, BROKER)
        kafka = EmbeddedKafka(embedded_kafka(scratch, 1), brokers, writes_archive=True)
        spark = EmbeddedSpark(scratch.spark, jar_files(scratch, SPARK), writes_archive=True)
        archives = [kafka.archive, spark.archive]
        if all(archive.exists for archive in archives):
            return
        for archive in archives:
            archive.begin()
            stack.callback(archive.unfinished.unlink, missing_ok=True)
        stack.callback(kafka.stop)
        kafka.start()
        stack.callback(spark.stop)
        spark.start()
        cluster = Services(kafka.bootstrap, spark.remote)
        history = History(scratch)
        run = create(scratch, cluster, history, make_plan(PLAN))
        execute(make_context(scratch, cluster, history, run, threading.Event()))
        history.engine.dispose()
        for process in (spark.process, *(node.process for node in kafka.nodes)):
            assert process is not None
            process.terminate()
            process.wait(WRITING_TIMEOUT_S)
        for archive in archives:
            archive.finish()


def main() -> None:
    try:
        make_class_archives(read_settings(make_home=False))
    except (TopicproofError, OSError, subprocess.TimeoutExpired) as error:
        sys.exit(
            "Java's archives of classes were not made. Kafka and Spark take longer to start without"
            f" them: {visible(str(error))}"
        )


if __name__ == "__main__":
    main()
