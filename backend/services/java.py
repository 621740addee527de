"""The Java of the embedded broker and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from topicproof.backend.errors import SetupError
from topicproof.backend.settings import JAVA_VERSION_MIN

REMEDY = (
    f"Install a JDK of version {JAVA_VERSION_MIN} or later (Debian, Ubuntu: apt-get install"
    " openjdk-17-jre-headless) or set JAVA_HOME to one."
)


def java() -> str:
    """Return the path of the java command. Raises SetupError if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if command is None:
        raise SetupError(f"No Java was found{' under JAVA_HOME' if home else ''}. {REMEDY}")
    command = str(Path(command).absolute())
    version = java_version(command)
    if version < JAVA_VERSION_MIN:
        raise SetupError(f"Java {version} is too old for Apache Kafka 4 and Spark 4. {REMEDY}")
    return command


def java_version(command: str) -> int:
    """Return the feature version of a java command: 8, 17, 21. Raises SetupError if it prints
    none."""
    answer = subprocess.run(
        [command, "-version"], capture_output=True, text=True, check=False, cwd="/"
    )
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if match is None:
        raise SetupError(f"{command} does not print its version. {REMEDY}")
    return int(match.group(1))
