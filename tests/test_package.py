"""The wheel: it installs one package, and its core needs little."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.wheel import CORE, build_wheel, fresh_python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_installs_one_package(wheel: Path) -> None:
    """Story: a company installs the wheel beside packages of its own, which may be called app or
    backend."""
    with zipfile.ZipFile(wheel) as packed:
        top = {name.split("/")[0] for name in packed.namelist()}
    assert top == {"topicproof", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}


def test_the_sink_needs_the_core_dependencies_only(wheel: Path, tmp_path: Path) -> None:
    """Story: Spark's workers have the wheel and what it requires. The sink is imported there,
    without kafka-python, Streamlit or a fault."""
    fresh = fresh_python(wheel, tmp_path / "fresh", CORE)
    asked = (
        "import sys, topicproof.sink\nfrom topicproof import"
        " KafkaTransactionalSink\nprint(*sorted({one.split('.')[0] for one in sys.modules} &"
        " {'kafka', 'streamlit', 'sqlalchemy', 'pandas', 'pydantic'}))\n"
        "print(*(one for one in sys.modules if one.startswith('topicproof.backend.faults')))\n"
        "print(topicproof.sink.__file__)\n"
    )
    answer = subprocess.run(
        [fresh, "-c", asked],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    others, faults, file = answer.stdout.split("\n")[:3]
    assert (others, faults) == ("", "") and Path(file).is_relative_to(tmp_path / "fresh")
