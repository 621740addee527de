"""What the two Java programs need. In your project, the build gives the class path."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from topicproof.backend.services.jars import BROKER, STREAMS, jar_files
from topicproof.backend.settings import read_settings


@pytest.fixture(scope="module")
def compiled(
    topicproof_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], str]:
    """Compile a Java file, and return the class path with which it runs."""
    settings = read_settings(home=topicproof_home)
    jars = [*jar_files(settings, BROKER), *jar_files(settings, STREAMS)]

    def compile_(source: Path) -> str:
        folder = tmp_path_factory.mktemp("classes")
        path = os.pathsep.join(map(str, jars))
        subprocess.run(["javac", "-cp", path, "-d", str(folder), str(source)], check=True)
        return os.pathsep.join([str(folder), path])

    return compile_
