"""A folder that somebody else has packed, and in which all commands are run."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.conftest import wait_until
from tests.files import paths_in
from tests.ports import free_ports

pytestmark = pytest.mark.services

HOSTILE = """
import sys
with open({mark!r}, "a") as mark:
    mark.write(f"{name} in {{sys.argv}}\\n")
"""
NAMES = (
    *("sitecustomize", "usercustomize", "typing", "dataclasses", "socket", "json", "random"),
    *("psutil", "yaml", "pydantic", "numpy", "pandas", "pyarrow", "pyspark", "grpc", "google"),
    *("confluent_kafka", "kafka", "sqlalchemy", "alembic", "typer", "rich", "httpx", "streamlit"),
    *("starlette", "uvicorn", "plotly", "tenacity", "cryptography", "sqlglot", "jinja2"),
    *("topicproof", "app", "backend", "validators", "pip", "server", "main"),
)
"""What a process of ours imports, or Python itself."""


def pack(folder: Path, mark: Path) -> None:
    """Fill a folder with what Python, Streamlit, Java and Spark look for where they work."""
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(HOSTILE.format(mark=str(mark), name=name))
    texts = {
        ".streamlit/config.toml": '[server]\nbaseUrlPath = "elsewhere"\nport = 1\n',
        ".streamlit/secrets.toml": 'of = "somebody else"\n',
        ".env": "TOPICPROOF_BOOTSTRAP=evil.example:9092\n",
        "alembic.ini": "[alembic]\nscript_location = .\n",
        "log4j2.properties": "rootLogger.level = broken\n",
        "spark-defaults.conf": "spark.master spark://evil.example:7077\n",
        "conf/spark-defaults.conf": "spark.master spark://evil.example:7077\n",
        ".topicproof/clusters.yaml": "{",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_nothing_of_the_working_folder_runs_or_configures(tmp_path: Path) -> None:
    """Story: an archive is unpacked, and its reader works in its folder: starts everything, runs
    the demo with all its workers, checks, and verifies. Nobody else can read what that wrote."""
    folder, mark, home = tmp_path / "received", tmp_path / "mark", tmp_path / "home"
    pack(folder, mark)
    (port,) = free_ports(1)
    environment: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "TOPICPROOF_HOME": str(home),
    }
    topicproof = str(Path(sys.executable).with_name("topicproof"))

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [topicproof, *arguments],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    with (
        (tmp_path / "up.log").open("wb") as log,
        subprocess.Popen(
            [topicproof, "up", "--port", str(port)],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        ) as up,
    ):
        try:
            said = tmp_path / "up.log"
            ready = "The dashboard is at"
            wait_until(
                lambda: ready in said.read_text() or up.poll() is not None, 120, "the dashboard"
            )
            assert up.poll() is None, said.read_text()
            answer = httpx.get(f"http://127.0.0.1:{port}/_stcore/health")
            assert (answer.status_code, answer.text) == (200, "ok")
            (run,) = json.loads(call("runs", "--json").stdout)
            evidence = home / "runs" / run["run"] / "evidence"
            for arguments in (
                ("verify", str(evidence)),
                ("check", "--source", run["topics"]["source"], "--sink", run["topics"]["sink"]),
            ):
                answer_ = call(*arguments)
                assert answer_.returncode == 0, (answer_.stdout, answer_.stderr)
        finally:
            up.send_signal(signal.SIGINT)
    assert not mark.exists(), mark.read_text()
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".py") == [
        *(".env", ".streamlit", ".topicproof", "alembic.ini", "conf"),
        *("log4j2.properties", "spark-defaults.conf"),
    ]
    # While it runs, Spark has copies of its jars, as open as they are elsewhere.
    copies = home / "services" / "spark" / "local"
    wait_until(
        lambda: not any(path.parent.name.startswith("userFiles-") for path in paths_in(copies)),
        60,
        "the end of Spark",
    )
    assert [path for path in (home, *paths_in(home)) if open_to_others(path)] == []


def open_to_others(path: Path) -> bool:
    """Whether another user may look into it. What a process that ends has just removed is not."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISLNK(mode) and bool(mode & 0o077)
