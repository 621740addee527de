"""The README's ten-line program, run as it stands there: a PySpark program of somebody else that
uses the sink."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.runs import read_all
from tests.wheel import CONNECT, CORE, fresh_python
from topicproof.backend import cli
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.initial_offsets import commit_initial_offsets
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT
from topicproof.backend.sink.entries import FaultFired
from topicproof.backend.sink.journal import read_journal

RECORDS, PARTITIONS = 3_000, 2
WITH_FAULTS = {
    "topicproof import KafkaTransactionalSink": (
        "topicproof.backend.faults.injecting import InjectingSink as KafkaTransactionalSink"
    )
}
"""Only the sink with faults takes the option; it is the document's in all else."""


def program(words: Mapping[str, str]) -> str:
    """The README's ten lines, with its reader's own words in place of those of the README."""
    lines = code_of("README.md", "## The sink in your own program", words)
    assert len([line for line in lines.splitlines() if line]) == 10
    return lines


def code_of(document: str, heading: str, words: Mapping[str, str]) -> str:
    """The first Python code below a heading, with its reader's own words."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.search(rf"{heading}.*?```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    lines = found[1]
    for old, new in words.items():
        assert old in lines, f"{document} no longer says {old}"
        lines = lines.replace(old, new)
    return lines


def begin(cluster: Services, group: str, topic: str) -> int:
    """`topicproof floor`, as the README says; gives its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["floor", "--group", group, "--topic", topic, "--bootstrap", cluster.bootstrap])
    return int(ended.value.code or 0)


def fill(bootstrap: str, topic: str, first: int) -> None:
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for number in range(first, first + RECORDS):
        producer.produce(topic, f"word {number:04}", str(number))
    assert producer.flush(10) == 0


def test_the_ten_lines_of_the_readme_are_exact_under_a_killed_worker(
    cluster: Services,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wheel: Path,
) -> None:
    """Story: somebody copies the program out of the README, puts in words of their own, and asks
    for a crash: each worker is killed -9 in its second transaction, with all of its records in the
    log. A plain read_committed consumer still gets every record once, in order. More records come.
    The program continues without a fault, from the wheel, in an environment with the core
    dependencies and Spark Connect's alone."""
    quiet, loud, journal = new_topic(PARTITIONS), new_topic(PARTITIONS), new_topic(1)
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    assert begin(cluster, f"{loud}-run", quiet) == 0
    fresh = fresh_python(wheel, tmp_path / "fresh", (*CORE, *CONNECT))
    here = {"PATH": os.environ["PATH"], "SPARK_REMOTE": cluster.spark_remote}
    starts: tuple[tuple[str | Path, dict[str, str], str, dict[str, str]], ...] = (
        (
            sys.executable,
            {**here, "PYTHONPATH": str(ROOT)},
            ', "faults": "crash@transaction=2"',
            WITH_FAULTS,
        ),
        (fresh, here, "", {}),
    )
    for number, (python, environment, faults, words) in enumerate(starts):
        fill(cluster.bootstrap, quiet, number * RECORDS)
        more = f'"journal": "{journal}", "recordsPerTransaction": "500"{faults}'
        text = program(
            {
                **words,
                "broker:9092": cluster.bootstrap,
                '"loud"': f'"{loud}"',
                "loud-run": f"{loud}-run",
                '"quiet"': f'"{quiet}"',
                '"file:/loud"': f'"{(tmp_path / "checkpoint").as_uri()}", {more}',
            }
        )
        answer = subprocess.run(
            [python, "-c", text],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        got = read_all(cluster.bootstrap, loud)
        wanted = [b"WORD %04d" % n for n in range((number + 1) * RECORDS)]
        assert sorted(message.value or b"" for message in got) == wanted
        for partition in range(PARTITIONS):
            values = [message.value or b"" for message in got if message.partition == partition]
            assert values == sorted(values)
    killed = [
        entry
        for entry in read_journal(Address(cluster.bootstrap), journal)
        if isinstance(entry, FaultFired)
    ]
    assert len(killed) == PARTITIONS
    assert begin(cluster, f"{loud}-run", quiet) == ClusterError.exit_code, (
        "initial offsets are committed once"
    )


def test_a_declarative_pipeline_is_exact_under_a_killed_worker(
    cluster: Services,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: a flow of Spark's Declarative Pipelines writes to the sink, as in docs/CLUSTERS.md.
    Each worker is killed -9 in its second transaction. A consumer gets every record once."""
    quiet, loud, journal = new_topic(PARTITIONS), new_topic(PARTITIONS), new_topic(1)
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    assert begin(cluster, f"{loud}-run", quiet) == 0
    fill(cluster.bootstrap, quiet, 0)
    more = f'"journal": "{journal}", "recordsPerTransaction": "500"'
    words = {
        **WITH_FAULTS,
        "broker:9092": cluster.bootstrap,
        '"topic": "loud"': f'"topic": "{loud}", {more}, "faults": "crash@transaction=2"',
        "loud-run": f"{loud}-run",
        '"quiet"': f'"{quiet}"',
    }
    (tmp_path / "loud.py").write_text(
        code_of("docs/CLUSTERS.md", "### Declarative Pipelines", words)
    )
    spec = tmp_path / "pipeline.yaml"
    spec.write_text(
        f"name: loud\nstorage: {(tmp_path / 'storage').as_uri()}\n"
        "libraries: [{glob: {include: loud.py}}]\n"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_REMOTE": cluster.spark_remote},
        capture_output=True,
        text=True,
        check=False,
    )
    # The exit code of PySpark 4.2.0 says nothing: see the document.
    assert "Run is COMPLETED." in answer.stdout + answer.stderr, answer
    values = sorted(message.value or b"" for message in read_all(cluster.bootstrap, loud))
    assert values == [b"WORD %04d" % n for n in range(RECORDS)]
    entries = read_journal(Address(cluster.bootstrap), journal)
    assert len([each for each in entries if isinstance(each, FaultFired)]) == PARTITIONS


def test_a_group_that_has_begun_is_left_where_it_is(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: `floor` is called twice, the second time after records came and for the end of the
    topic. The second one is refused and moves nothing. A topic that does not exist is refused by
    its name."""
    topic, cluster = new_topic(2), Cluster(Address(bootstrap))
    assert commit_initial_offsets(cluster, f"{topic}-run", topic) == {0: 0, 1: 0}
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    producer.produce(topic, b"late", partition=1)
    assert producer.flush(10) == 0
    with pytest.raises(
        ClusterError, match=rf"has already begun \({topic}-0 at 0, {topic}-1 at 0\)"
    ):
        commit_initial_offsets(cluster, f"{topic}-run", topic, latest=True)
    assert cluster.committed(f"{topic}-run", topic) == {0: 0, 1: 0}
    assert commit_initial_offsets(cluster, f"{topic}-other", topic, latest=True) == {0: 0, 1: 1}
    with pytest.raises(TopicError, match="There is no topic nowhere"):
        commit_initial_offsets(cluster, "nobody", "nowhere")
