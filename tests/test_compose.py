"""The secrets of docker-compose.yml: made at the first start, kept, and asked for."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.postgresql import server
from topicproof.backend.errors import TopicproofError
from topicproof.backend.history.store import History
from topicproof.backend.settings import ROOT, Settings
from topicproof.backend.trust.keys import read_secret


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return compose


@pytest.fixture
def secrets(services: dict[str, Any], tmp_path: Path) -> Path:
    """The folder of the secrets after the service that makes them has run once."""
    for name in ("postgresql", "spark"):
        (tmp_path / "secrets" / name).mkdir(parents=True)
    _start(services, tmp_path)
    return tmp_path / "secrets"


def _start(services: dict[str, Any], folder: Path) -> None:
    python, *arguments = services["secrets"]["command"]
    assert python == "python"
    command = [each.replace("/secrets/", f"{folder}/secrets/") for each in arguments]
    subprocess.run([sys.executable, *command], cwd=folder, check=True)


def test_secrets_are_made_once_and_for_their_owner(
    services: dict[str, Any], secrets: Path, tmp_path: Path
) -> None:
    """Story: the cluster is started a second time. PostgreSQL keeps the password of its first
    start, so the file must, too."""
    files = {path: path.read_text() for path in secrets.rglob("*") if path.is_file()}
    _start(services, tmp_path)
    assert {path: path.read_text() for path in secrets.rglob("*") if path.is_file()} == files
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert modes == {"password": 0o644, "pgpass": 0o600, "token": 0o600, "properties": 0o600}
    token, password = (secrets / name for name in ("spark/token", "postgresql/password"))
    assert len(read_secret(token)) > 40 and len(password.read_text()) > 40
    assert (secrets / "spark/properties").read_text().split() == [
        "spark.connect.authenticate.token",
        token.read_text(),
    ]
    assert len(set(files.values())) == 4


def test_nothing_is_published_beyond_loopback_and_no_secret_is_written_down(
    services: dict[str, Any],
) -> None:
    """Story: somebody starts everything on a machine in an open network."""
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert service.get("network_mode", "none") == "none", name
        words = [*service.get("command", ()), *service.get("environment", {})]
        secret = [word for word in words if "PASSWORD" in word.upper() and "_FILE" not in word]
        assert not secret or name == "secrets", name


def test_each_container_has_the_secrets_that_it_needs(services: dict[str, Any]) -> None:
    """Story: code on Spark looks for the password of the history. Its containers do not have it."""
    mounts = {
        name: {each for each in service.get("volumes", ()) if "-secrets:" in each}
        for name, service in services.items()
    }
    database, spark = (f"{name}-secrets:/secrets/{name}" for name in ("postgresql", "spark"))
    assert {name: volumes for name, volumes in mounts.items() if volumes} == {
        "secrets": {database, spark},
        "postgresql": {f"{database}:ro"},
        "spark-connect": {f"{spark}:ro"},
        "cluster-dashboard": {f"{database}:ro", f"{spark}:ro"},
    }
    for name in mounts.keys() - {"secrets"}:
        waits = "secrets" in services[name].get("depends_on", ())
        assert waits or not mounts[name] or name == "cluster-dashboard"
    connect = services["spark-connect"]["command"]
    assert "--properties-file=/secrets/spark/properties" in connect
    environment = services["cluster-dashboard"]["environment"]
    assert environment["TOPICPROOF_SPARK_TOKEN_FILE"] == "/secrets/spark/token"
    # A new volume has the owner and the mode of the folder in the image.
    assert "chown -R topicproof /home/topicproof/data /storage /secrets" in (
        ROOT / "Dockerfile"
    ).read_text(encoding="utf-8")


def test_postgresql_asks_for_the_password(
    services: dict[str, Any], secrets: Path, tmp_path: Path
) -> None:
    """Story: another user of the host reaches the container of PostgreSQL. It lets in those who
    have the file of the password, and nobody else."""
    environment = services["postgresql"]["environment"]
    assert environment["POSTGRES_HOST_AUTH_METHOD"] == "scram-sha-256"
    assert environment["POSTGRES_PASSWORD_FILE"] == "/secrets/postgresql/password"
    database = services["cluster-dashboard"]["environment"]["TOPICPROOF_DATABASE"]
    user = environment["POSTGRES_USER"]
    assert database.startswith(f"postgresql+psycopg://{user}@postgresql/")
    parameters = database.partition("?")[2].replace("/secrets/", quote(f"{secrets}/"))
    with server(user, secrets / "postgresql" / "password") as address:
        settings = Settings(home=tmp_path, database=f"{address}?{parameters}")
        history = History(settings)
        assert history.list() == []
        with pytest.raises(TopicproofError, match="password"):
            History(settings.model_copy(update={"database": address}))
