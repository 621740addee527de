"""What the machine must have: Python, packages, Java, memory, disk, ports, jars."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

import psutil

from topicproof.backend.doctor.diagnosis import Diagnosis, Health, failed, ok, warning
from topicproof.backend.errors import SetupError
from topicproof.backend.services.jars import changed_jars, jars_present
from topicproof.backend.services.kafka import require_disk_space
from topicproof.backend.services.processes import free_ports, java, java_version, listens
from topicproof.backend.settings import DASHBOARD_PORT, Settings, nearest

PACKAGES = {
    "topicproof": "topicproof",
    "confluent-kafka": "topicproof",
    "pyspark": "topicproof",
    "pyarrow": "topicproof",
    "kafka-python": "topicproof[cli]",
    "grpcio": "topicproof[cli]",
    "streamlit": "topicproof[dashboard]",
}
"""Packages, and what installs each."""
OPTIONAL = {"streamlit"}
MEMORY_BYTES_MIN = 6_000_000_000
"""The embedded Spark takes up to 4 GB, the embedded Kafka 0.5 GB a broker, the rest is ours."""


def python() -> Diagnosis:
    """Versions below 3.11 cannot even import this."""
    return ok("python", f"Python {platform.python_version()} ({sys.executable})")


def packages() -> Diagnosis:
    """Look up what is installed. Nothing is imported."""
    installed, missing = [], []
    for name, requirement in PACKAGES.items():
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append((name, requirement))
    needed = [package for package in missing if package[0] not in OPTIONAL]
    if needed:
        name, requirement = needed[0]
        why = f"Package {name} is not installed. Run: pip install '{requirement}'"
        return failed("packages", SetupError(why))
    return ok("packages", ", ".join(installed))


def java_found(needed: bool) -> Diagnosis:
    """`needed`: whether Kafka or Spark is embedded; otherwise nothing here uses Java."""
    try:
        command = java()
    except SetupError as error:
        diagnosis = failed("java", error)
        if needed:
            return diagnosis
        why = "Only the embedded Kafka and Spark need it, and both are given. Nothing to do."
        return ok("java", f"{diagnosis.found} {why}")
    return ok("java", f"Java {java_version(command)} ({command})")


def memory(embedded: bool) -> Diagnosis:
    free = psutil.virtual_memory().available
    state = f"{free / 1e9:,.1f} GB are available"
    if embedded and free < MEMORY_BYTES_MIN:
        return warning(
            "memory",
            f"{state}; the embedded Kafka and Spark may take {MEMORY_BYTES_MIN / 1e9:,.0f} GB.",
            "End other programs, or name Kafka and Spark elsewhere (--bootstrap, SPARK_REMOTE).",
        )
    return ok("memory", state)


def disk(settings: Settings) -> Diagnosis:
    existing = nearest(settings.home)
    try:
        require_disk_space(existing)
    except SetupError as error:
        return failed("disk", error)
    free = shutil.disk_usage(existing).free
    return ok("disk", f"{free / 1e9:,.1f} GB are free in the home {settings.home}")


def ports() -> Diagnosis:
    try:
        free_ports(1)
    except OSError as error:
        why = f"No port can be opened on 127.0.0.1 ({error.strerror})."
        return failed("ports", SetupError(f"{why} Allow this user to listen on loopback."))
    if listens(DASHBOARD_PORT):
        return warning(
            "ports",
            f"Something listens on port {DASHBOARD_PORT}, the dashboard's.",
            f"Choose another one: topicproof up --port {DASHBOARD_PORT + 1}",
        )
    return ok("ports", f"loopback ports can be opened; {DASHBOARD_PORT} is free for the dashboard")


def jars(settings: Settings, embedded: bool) -> Diagnosis:
    if jars_present(settings):
        if changed := changed_jars(settings):
            return Diagnosis(
                "jars",
                Health.FAILED,
                f"These jars are not the ones that were tested: {', '.join(changed)}.",
                f"Delete {settings.jars}. The next start fetches it again.",
            )
        count = len(list(settings.jars.glob("*/*.jar")))
        return ok("jars", f"{count} jars of Kafka and Spark in {settings.jars}")
    if not embedded:
        return ok("jars", "none; only the embedded Kafka and Spark need them, and both are given")
    return warning(
        "jars",
        f"The jars of Kafka and Spark are not in {settings.jars} yet.",
        "The first command that starts them fetches 150 MB from the Maven registry. To do it now:"
        " python -P -m topicproof.backend.services.jars",
    )
