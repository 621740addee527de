"""A probe of a given Spark: can its driver and its workers do what runs and checks need?

A worker without Topicproof, or with another version, fails in the middle of a run with an error
that names a module. The probe asks every Python of Spark first, and says what to install where. It
also lets Spark write a file where readings go, and reads it here. It takes a second or two.

The workers asked are those that Spark has now. One that is busy, or starts later, is not asked.
"""

from __future__ import annotations

import json
import platform
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import StringType

from topicproof.backend.address import Address
from topicproof.backend.doctor import python_facts
from topicproof.backend.errors import SparkError
from topicproof.backend.kafka.client_configs import READ_COMMITTED, spark_source_options
from topicproof.backend.storage import discard, fetch, spark_url
from topicproof.validators.spark_errors import setup_line

OLDEST = {"confluent-kafka": "2.12", "numpy": "2", "pyarrow": "20", "tenacity": "9"}
"""The dependencies of pyproject.toml, which a test compares with this."""
DRIVER, WORKER = "driver", "worker"
ROWS = 4_096
"""Spark distributes them over all cores of its workers."""
FIRST_OF_ITS_TASK = "monotonically_increasing_id() % 8589934592 = 0"
"""The lower 33 bits count the rows of a task."""
SHOWN_MAX = 3

register_pickle_by_value(python_facts)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Place:
    """A Python of Spark: the one beside its driver, or one beside its workers."""

    role: str
    host: str
    executable: str
    python: str
    packages: Mapping[str, str | None]


def require_workers(spark: SparkSession, address: Address, folder: Path) -> None:
    """Check everything that a run or a check needs of a given Spark. `folder` will hold readings.
    Raises SparkError that says what to install or to set, and where."""
    require_versions(spark)
    require_kafka(spark, address)
    require_shared(spark, folder)


def require_versions(spark: SparkSession) -> None:
    """Raises SparkError if Spark, or a Python of it, lacks a package or has an unusable version."""
    wrong = list(mismatches(spark.version, places(spark)))
    if wrong:
        more = f" {len(wrong) - SHOWN_MAX} more like this." if len(wrong) > SHOWN_MAX else ""
        raise SparkError(" ".join(wrong[:SHOWN_MAX]) + more)


def places(spark: SparkSession) -> list[Place]:
    """Ask the Pythons beside Spark's driver and workers. Raises SparkError if one cannot run."""
    # A type, not text: PySpark parses text with its default session, which may be another one.
    ask = F.udf(python_facts.facts, StringType(), useArrow=False)
    rows = spark.range(ROWS).where(F.expr(FIRST_OF_ITS_TASK)).select(ask("id").alias("facts"))
    try:
        spark.dataSource.register(python_facts.DriverFacts)
        (driver,) = spark.read.format(python_facts.FORMAT).load().columns
        worker_facts = sorted({row["facts"] for row in rows.collect()})
    except PySparkException as error:
        raise unasked(error) from error
    return [_place(DRIVER, driver), *(_place(WORKER, worker) for worker in worker_facts)]


def _place(role: str, facts_json: str) -> Place:
    fields = json.loads(facts_json)
    return Place(role, *(fields[name] for name in ("host", "executable", "python", "packages")))


def unasked(error: PySparkException) -> SparkError:
    """Return the sentence for a Python of Spark that could not be asked."""
    ours = platform.python_version().rpartition(".")[0]
    if theirs := re.search(r"different version: (\d+\.\d+)", str(error)):
        return SparkError(
            f"Spark's workers run Python {theirs[1]}, and this is Python {ours}. Give the workers"
            f" Python {ours} (PYSPARK_PYTHON there), or install Topicproof here with Python"
            f" {theirs[1]}."
        )
    return SparkError(
        f"Spark's workers cannot run Python: {setup_line(error)}. Check PYSPARK_PYTHON there: it"
        f" must be Python {ours} with topicproof {version('topicproof')}."
    )


def mismatches(server: str, pythons: Iterable[Place]) -> Iterator[str]:
    """Yield a sentence for each place that lacks something, with the command that installs it.
    `server` is Spark's version."""
    client = version("pyspark")
    if _numbers(server)[:2] != _numbers(client)[:2]:
        yield (
            f"The Spark server is {server}, and this is pyspark {client}. Run here: pip install"
            f" 'pyspark[connect]=={server}'"
        )
    for place in pythons:
        if wrong := dict(_wrong(place)):
            has = " and ".join(
                f"{name} {installed}" if installed else f"no {name}"
                for name, installed in ((name, place.packages.get(name)) for name in wrong)
            )
            requirements = " ".join(f"'{requirement}'" for requirement in wrong.values())
            yield (
                f"Spark's {place.role} on {place.host} has {has}. Run there: {place.executable} -m"
                f" pip install {requirements}"
            )


def _wrong(place: Place) -> Iterator[tuple[str, str]]:
    """Yield the packages to install there, with the requirement of each."""
    topicproof_version = version("topicproof")
    # Queries name our functions by module, so both sides must have the same ones.
    if place.packages.get("topicproof") != topicproof_version:
        yield "topicproof", f"topicproof=={topicproof_version}"
    for name, oldest in OLDEST.items():
        installed = place.packages.get(name)
        if installed is None or _numbers(installed) < _numbers(oldest):
            yield name, f"{name}>={oldest}"


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", text)[0]))


def require_kafka(spark: SparkSession, address: Address) -> None:
    """Raises SparkError if Spark has no Kafka source. Asks no broker."""
    try:
        options = spark_source_options(address, READ_COMMITTED)
        spark.read.format("kafka").options(**options, subscribe="any").load().columns  # noqa: B018
    except PySparkException as error:
        raise unread(error, spark.version) from error


def unread(error: PySparkException, server: str) -> SparkError:
    """Return the sentence for a Kafka source that Spark cannot load."""
    if "DATA_SOURCE_NOT_FOUND" in str(error):
        return SparkError(
            "The Spark server has no Kafka source. Start it with: --packages"
            f" org.apache.spark:spark-sql-kafka-0-10_2.13:{server}"
        )
    return SparkError(f"The Spark server cannot load its Kafka source: {setup_line(error)}.")


def require_shared(spark: SparkSession, folder: Path) -> None:
    """Raises SparkError if what Spark's workers write for a folder is not found here."""
    probe = folder / f"probe-{uuid.uuid4().hex[:8]}"
    url = spark_url(spark, probe)
    try:
        spark.range(ROWS).write.parquet(url)
        fetch(spark, probe)
    except PySparkException as error:
        raise unwritten(url, error) from error
    rows = sum(pq.read_metadata(part).num_rows for part in probe.glob("*.parquet"))
    discard(spark, probe)
    if rows == ROWS:
        return
    raise SparkError(
        f"Spark's workers do not share the folder {folder} with this machine: of {ROWS:,} rows that"
        f" they wrote there, {rows:,} are here. Set TOPICPROOF_STORAGE to the URL of a folder that"
        " both reach, such as s3a://bucket/folder."
    )


def unwritten(url: str, error: PySparkException) -> SparkError:
    """Return the sentence for a storage that Spark cannot write."""
    if scheme := re.search(r'No FileSystem for scheme "(\w+)"|Class (\S+) not found', str(error)):
        return SparkError(
            f"The Spark server has no filesystem for {url} ({scheme[1] or scheme[2]} is missing)."
            " Add its jar there: for s3a, --packages org.apache.hadoop:hadoop-aws with the version"
            " of Spark's Hadoop."
        )
    return SparkError(
        f"Spark's workers cannot write {url}: {setup_line(error)}. Check that they may, and that"
        " Spark's configuration has the credentials for it. Without a disk in common, set"
        " TOPICPROOF_STORAGE."
    )
