"""Kafka's own MirrorMaker 2, as a child process on loopback: one topic from one cluster to
another, under the same name.

Run as `python -m tests.brokers.mirror_maker` it fetches MirrorMaker's jars.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topicproof.backend.errors import TopicproofError
from topicproof.backend.services.jars import fetch
from topicproof.backend.services.kafka import LOG4J
from topicproof.backend.services.processes import end_process, java
from topicproof.backend.settings import Settings, read_settings

VERSION = "4.3.1"
LOST = "lost"
"""MirrorMaker is told to leave out records with a header of this name."""

_IVY = """<ivy-module version="2.0">
  <info organisation="topicproof" module="mirror-maker"/>
  <configurations><conf name="mirror"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="connect-mirror" rev="{0}" conf="mirror->default(runtime)"/>
    <dependency org="org.apache.kafka" name="connect-runtime" rev="{0}" conf="mirror->default(runtime)"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4" conf="mirror->default(runtime)"/>
  </dependencies>
</ivy-module>
"""  # noqa: E501
_PROPERTIES = """
clusters = east, west
east.bootstrap.servers = {east}
west.bootstrap.servers = {west}
east->west.enabled = true
east->west.topics = {topic}
west->east.enabled = false
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.interval.seconds = 1
sync.topic.acls.enabled = false
tasks.max = {tasks}
east->west.predicates = lost
east->west.predicates.lost.type = org.apache.kafka.connect.transforms.predicates.HasHeaderKey
east->west.predicates.lost.name = {lost}
east->west.transforms = lose
east->west.transforms.lose.type = org.apache.kafka.connect.transforms.Filter
east->west.transforms.lose.predicate = lost
"""


def mirror_maker_jars(settings: Settings) -> list[Path]:
    """Return its jars. Missing ones are fetched. Raises SetupError."""
    folder = settings.jars / f"mirror-maker-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    definition, wanted = folder / "ivy.xml", _IVY.format(VERSION)
    if not definition.exists() or definition.read_text() != wanted:
        definition.write_text(wanted)
    fetch(definition, folder, ["mirror"])
    return sorted((folder / "mirror").glob("*.jar"))


@contextmanager
def mirror_maker(
    settings: Settings, folder: Path, east: str, west: str, topic: str, tasks: int = 1
) -> Iterator[Path]:
    """Mirror the topic from the cluster at `east` to the one at `west` until the block ends. Gives
    MirrorMaker's log."""
    jars = mirror_maker_jars(settings)
    folder.mkdir(parents=True, exist_ok=True)
    log, config = folder / "mirror-maker.log", folder / "mirror-maker.properties"
    (folder / "log4j2.properties").write_text(LOG4J.format(log=log))
    told = {"east": east, "west": west, "topic": topic, "tasks": tasks, "lost": LOST}
    config.write_text(_PROPERTIES.format(**told))
    options = ["-Xms128m", "-Xmx512m", f"-Dlog4j2.configurationFile={folder}/log4j2.properties"]
    classpath = os.pathsep.join(map(str, jars))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    with (folder / "stdout.log").open("wb") as output:
        process = subprocess.Popen(
            [java(), *options, "-cp", classpath, main, str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        end_process(process)


if __name__ == "__main__":
    try:
        mirror_maker_jars(read_settings())
    except TopicproofError as error:
        sys.exit(str(error))
