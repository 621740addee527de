"""What the probe of a given Spark says; tests/topology asks a real one."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from pyspark.errors import PySparkException

from topicproof.backend.doctor.python_facts import ASKED
from topicproof.backend.doctor.workers import OLDEST, Place, mismatches, unasked, unread, unwritten
from topicproof.backend.settings import ROOT

HERE = version("pyspark")
GOOD = dict.fromkeys(ASKED, "99.0") | {"topicproof": version("topicproof")}


def place(**packages: str | None) -> Place:
    return Place("worker", "node-7", "/opt/python", "3.11.4", GOOD | packages)


def test_the_probe_asks_for_what_the_wheel_requires() -> None:
    """Story: somebody raises a dependency of the wheel. Workers must follow."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = {
        one.name: spec.version
        for one in map(Requirement, required)
        for spec in one.specifier
        if spec.operator == ">=" and one.name != "pyspark"
    }
    assert oldest == OLDEST and set(ASKED) == {"topicproof", *OLDEST}


def test_each_worker_gets_one_sentence() -> None:
    """Story: one worker lacks several packages, another one none."""
    lacking = place(topicproof=None, pyarrow="19.0.1")
    assert list(mismatches(HERE, [place(), lacking])) == [
        "Spark's worker on node-7 has no topicproof and pyarrow 19.0.1. Run there: /opt/python -m"
        f" pip install 'topicproof=={version('topicproof')}' 'pyarrow>=20'"
    ]
    assert list(mismatches(HERE, [place(pyarrow="20.0.0.dev3")])) == []


def test_another_spark_is_named() -> None:
    """Story: the cluster was raised, and this installation was not."""
    assert list(mismatches("4.9.1", [])) == [
        f"The Spark server is 4.9.1, and this is pyspark {HERE}. Run here: pip install"
        " 'pyspark[connect]==4.9.1'"
    ]


@pytest.mark.parametrize(
    ("sentence", "wanted"),
    [
        (
            unasked(
                PySparkException(
                    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than"
                    " that in driver: 3.11, PySpark cannot run with different minor versions."
                )
            ),
            r"^Spark's workers run Python 3\.9, and this is Python 3\.\d+\. Give the workers",
        ),
        (
            unasked(PySparkException('Cannot run program "python3": error=2')),
            r"cannot run Python: .*error=2\. Check PYSPARK_PYTHON there",
        ),
        (
            unread(PySparkException("[DATA_SOURCE_NOT_FOUND] Failed to find kafka."), "4.2.0"),
            r"no Kafka source\. Start it with: --packages \S+:spark-sql-kafka-0-10_2\.13:4\.2\.0$",
        ),
        (
            unwritten("s3a://b/x", PySparkException('No FileSystem for scheme "s3a"')),
            r"no filesystem for s3a://b/x \(s3a is missing\)\. Add its jar there",
        ),
    ],
)
def test_what_spark_raises_becomes_a_sentence(sentence: Exception, wanted: str) -> None:
    """Story: the workers have no Python, or another one; the server lacks a jar."""
    assert re.search(wanted, str(sentence)), sentence
