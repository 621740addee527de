"""The doctor: what is missing is named within seconds, with what to do."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.test_cli import call
from topicproof.backend.doctor import machine
from topicproof.backend.doctor.diagnosis import Health, exit_code
from topicproof.backend.doctor.services import spark
from topicproof.backend.kafka.log import client
from topicproof.backend.services.jars import SPARK
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings, read_settings


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that accepts connections and never answers. Nobody waits long for it."""
    questions = [(question, 0.1) for question, _ in client._QUESTIONS]
    monkeypatch.setattr(client, "_QUESTIONS", questions)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_healthy_machine_has_nothing_to_do(
    bootstrap: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Story: somebody asks before the first check. Every line says what was found. Without topics
    the rights are not known, which is a warning."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setattr(machine, "MEMORY_BYTES_MIN", 0)
    told = tmp_path / "told.json"
    assert call("doctor", "--bootstrap", bootstrap, "--json", str(told)) == 2
    found = {each["name"]: each for each in json.loads(told.read_text())["found"]}
    assert {name for name, each in found.items() if each["health"] != "ok"} <= {"rights", "ports"}
    assert found["broker"]["found"].startswith("1 broker at 127.0.0.1:")
    assert "topicproof doctor --for check --topic T" in found["rights"]["remedy"]


def test_each_dead_service_is_named_with_what_to_do(
    mute: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: Kafka's address is wrong, Spark's too, JAVA_HOME names an empty folder, and jars are
    not there. All are found in one go."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOPICPROOF_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1/;token=planted")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert call("doctor", "--bootstrap", f"127.0.0.1:{mute}", "--json") == 3
    told = capsys.readouterr().out
    assert "planted" not in told
    found = {each["name"]: each for each in json.loads(told)["found"]}
    assert "it accepts connections, but answers nothing" in found["broker"]["found"]
    assert found["broker"]["remedy"] == "Check the address and that the broker runs."
    assert found["spark"]["found"].startswith("Nothing listens at sc://127.0.0.1:1 (")
    assert "check SPARK_REMOTE" in found["spark"]["remedy"]
    # Both services are given, so neither Java nor jars are needed here.
    assert found["java"]["health"] == found["jars"]["health"] == "ok"
    monkeypatch.delenv("SPARK_REMOTE")
    assert call("doctor", "--json") == 3
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["found"]}
    assert found["java"]["found"] == "No Java was found under JAVA_HOME."
    assert found["java"]["remedy"].startswith("Install a JDK of version 17 or later")
    assert found["jars"]["health"] == "warning"


def test_a_jar_that_was_changed_is_named(tmp_path: Path) -> None:
    """Story: somebody puts another jar where Spark loads its Kafka source from."""
    settings = read_settings(home=tmp_path / "home")
    for folder in settings.jars.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    told = read_settings(home=tmp_path / "home").model_copy(update={"jars": tmp_path})
    assert machine.jars(told, embedded=True).health is Health.OK
    (tmp_path / SPARK).unlink()
    shutil.copytree(settings.jars / SPARK, tmp_path / SPARK)
    changed = next((tmp_path / SPARK).glob("kafka-clients-*.jar"))
    changed.write_bytes(b"another")
    found = machine.jars(told, embedded=True)
    assert found.health is Health.FAILED and f"spark/{changed.name}." in found.found
    assert found.remedy.startswith("Delete ")


def test_wrong_settings_do_not_hide_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: the properties file is missing, and the home cannot be made. Python and Java are
    examined all the same."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "file" / "home"))
    assert call("doctor", "--json") == 3
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["found"]}
    assert "cannot be written" in found["settings"]["found"]
    assert found["java"]["health"] == "ok" and found["python"]["found"].startswith("Python 3.")
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    assert call("doctor", "--config", str(tmp_path / "none.properties")) == 3
    assert "none.properties" in capsys.readouterr().out


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Story: the doctor is asked in a folder of somebody's own. It promises to change nothing."""
    monkeypatch.delenv("TOPICPROOF_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    told = tmp_path / "told.json"
    assert call("doctor", "--json", str(told)) in (0, 2, 3)
    assert "disk" in {each["name"] for each in json.loads(told.read_text())["found"]}
    assert list(tmp_path.iterdir()) == [told]


def test_versions_of_spark_that_differ_are_a_warning(
    settings: Settings, cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the cluster runs another Spark than the one installed here."""
    given = settings.model_copy(update={"spark_remote": cluster.spark_remote})
    assert spark(given).health is Health.OK
    monkeypatch.setattr("topicproof.backend.doctor.services.version", lambda _name: "4.1.0")
    other = spark(given)
    assert other.health is Health.WARNING and exit_code([other]) == 2
    assert other.remedy == "Install the same version here: pip install 'pyspark[connect]==4.2.0'"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """Story: somebody files an issue, and says what they use."""
    assert call("--version") == 0
    assert capsys.readouterr().out.strip() == version("topicproof")
