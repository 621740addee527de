"""A worker of Kafka Connect, standalone, as a child process on loopback.

Run as `python -m tests.brokers.connect` it fetches the jars: those of MirrorMaker have the worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers.mirror_maker import VERSION, mirror_maker_jars
from topicproof.backend.errors import TopicproofError
from topicproof.backend.services.jars import fetch
from topicproof.backend.services.kafka import LOG4J
from topicproof.backend.services.processes import end_process, java
from topicproof.backend.settings import Settings, read_settings

_IVY = f"""<ivy-module version="2.0">
  <info organisation="topicproof" module="connect-file"/>
  <configurations><conf name="file"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="connect-file" rev="{VERSION}" conf="file->master" transitive="false"/>
  </dependencies>
</ivy-module>
"""  # noqa: E501
_WORKER = """
bootstrap.servers={bootstrap}
listeners=http://127.0.0.1:0
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=500
"""
_SINK = """
name=lines
connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector
topics={source}
file={folder}/lines.txt
tasks.max=1
errors.tolerance=all
errors.deadletterqueue.topic.name={letters}
errors.deadletterqueue.topic.replication.factor=1
errors.deadletterqueue.context.headers.enable=true
"""


def connect_jars(settings: Settings) -> list[Path]:
    """Return the jars of a worker with a sink that writes a file. Missing ones are fetched. Raises
    SetupError."""
    folder = settings.jars / f"connect-file-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    definition = folder / "ivy.xml"
    if not definition.exists() or definition.read_text() != _IVY:
        definition.write_text(_IVY)
    fetch(definition, folder, ["file"])
    return [*mirror_maker_jars(settings), *sorted((folder / "file").glob("*.jar"))]


@contextmanager
def file_sink(
    settings: Settings, folder: Path, bootstrap: str, source: str, letters: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Write the records of a topic into a file until the block ends, and those that are no JSON
    into the topic `letters`. Gives the process and the file."""
    (folder / "log4j2.properties").write_text(LOG4J.format(log=folder / "connect.log"))
    names = {"bootstrap": bootstrap, "folder": folder, "source": source, "letters": letters}
    (folder / "worker.properties").write_text(_WORKER.format(**names))
    (folder / "sink.properties").write_text(_SINK.format(**names))
    options = ["-Xms128m", "-Xmx512m", f"-Dlog4j2.configurationFile={folder}/log4j2.properties"]
    classpath = os.pathsep.join(map(str, connect_jars(settings)))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with (folder / "stdout.log").open("wb") as output:
        process = subprocess.Popen(
            [java(), *options, "-cp", classpath, main, "worker.properties", "sink.properties"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
    try:
        yield process, folder / "lines.txt"
    finally:
        process.send_signal(signal.SIGTERM)
        end_process(process)


if __name__ == "__main__":
    try:
        connect_jars(read_settings())
    except TopicproofError as error:
        sys.exit(str(error))
