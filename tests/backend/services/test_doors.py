"""Who may speak to the embedded services: Spark asks for a token, sockets for their own user."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import psutil
import pytest
from pyspark.sql.connect.client import DefaultChannelBuilder

from tests.files import files_with
from topicproof.backend.doctor import services as doctor
from topicproof.backend.doctor.diagnosis import Health
from topicproof.backend.errors import SetupError, SparkError, UsageError
from topicproof.backend.services import keeper, processes
from topicproof.backend.services.keeper import Keeper, Services
from topicproof.backend.services.spark import given_remote, with_session, without_token
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings, socket_path

TOKEN = "sc://localhost:1/;token=abc"


def test_spark_refuses_whoever_has_no_token(cluster: Services, settings: Settings) -> None:
    """Story: another user of the machine finds Spark's port. Without the token, and with a wrong
    one, nothing is executed. The token is in no command line and in no file."""
    address = without_token(cluster.spark_remote)
    token = cluster.spark_remote.partition("token=")[2]
    assert len(token) > 40
    for tried in (address, f"{address}/;token={token[::-1]}"):
        with pytest.raises(SparkError, match=r"UNAUTHENTICATED|[Aa]uthentication token") as told:
            spark_session(tried).__enter__()
        assert token not in str(told.value)
    assert not any(token in " ".join(_command(one)) for one in psutil.process_iter())
    files = files_with(settings.services, [token])
    assert files and not any(files.values())
    assert token not in repr(cluster)


def test_a_token_goes_to_a_server_elsewhere(
    cluster: Services, settings: Settings, tmp_path: Path
) -> None:
    """Story: Spark runs in another container, without TLS. PySpark sends a token without TLS to
    `localhost` alone. Ours comes from a file, and reaches all calls, those with a stream too."""
    token, file = cluster.spark_remote.partition("token=")[2], tmp_path / "token"
    remote = without_token(cluster.spark_remote).replace("localhost", "127.0.0.1")
    elsewhere = settings.model_copy(update={"spark_remote": remote})
    with pytest.raises(SparkError, match=r"[Aa]uthentication token"):
        spark_session(given_remote(elsewhere)).__enter__()
    file.write_text(f"{token}\n")
    file.chmod(0o600)
    elsewhere = elsewhere.model_copy(update={"spark_token_file": file})
    assert "TOPICPROOF_SPARK_TOKEN_FILE" in elsewhere.environment()
    assert token not in str(elsewhere.environment())
    sent = tmp_path / "sent.txt"
    sent.write_text("sent")
    with (
        keeper.services(elsewhere, kafka=False) as found,
        spark_session(found.spark_remote) as spark,
    ):
        spark.addArtifacts(str(sent), file=True)
        assert spark.range(3).selectExpr("sum(id)").collect() == [(3,)]
        assert token not in repr(found) + without_token(found.spark_remote)
    assert doctor.spark(elsewhere).health is Health.OK
    file.write_text(token[::-1])
    with pytest.raises(SparkError, match=r"UNAUTHENTICATED|[Aa]uthentication token") as refusal:
        spark_session(given_remote(elsewhere)).__enter__()
    assert token[::-1] not in str(refusal.value)


def test_a_token_of_a_file_needs_an_address_without_one(tmp_path: Path) -> None:
    """Story: a token is in both places, is no header, or can be read by others. With TLS it goes
    the way of PySpark."""
    file = tmp_path / "token"

    def remote(address: str, text: str = "a=b;c") -> str:
        file.write_text(text)
        file.chmod(0o600)
        return given_remote(Settings(spark_remote=address, spark_token_file=file))

    assert remote("sc://h:1;use_ssl=true") == "sc://h:1/;use_ssl=true;token=a%3Db%3Bc"
    plain = remote("sc://h:1/")
    assert plain == "sc://h:1/;authorization=Bearer%20a%3Db%3Bc"
    assert DefaultChannelBuilder(plain).metadata() == [("authorization", "Bearer a=b;c")]
    assert without_token(plain) == "sc://h:1"
    for address in ("sc://h:1/;token=x", "sc://h:1;Authorization=x"):
        with pytest.raises(UsageError, match="Remove one of them"):
            remote(address)
    for text in ("a b", "a\nb", "ä"):
        with pytest.raises(UsageError, match="no header"):
            remote("sc://h:1", text)
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        given_remote(Settings(spark_remote="sc://h:1", spark_token_file=file))


def test_addresses_are_shown_without_their_token() -> None:
    assert without_token(TOKEN) == without_token("sc://localhost:1") == "sc://localhost:1"
    assert with_session(TOKEN, "s") == f"{TOKEN};session_id=s"
    assert with_session("sc://h:1", "s") == "sc://h:1/;session_id=s"
    assert with_session("sc://h:1/", "s") == "sc://h:1/;session_id=s"


def test_the_folder_of_sockets_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: another user prepares the folder, open to all or as a link into a folder of ours."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    place = tmp_path / f"topicproof-{os.getuid()}"
    place.mkdir()
    place.chmod(0o777)
    assert socket_path(Path("home")).parent == place
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.rmdir()
    (tmp_path / "other").mkdir()
    place.symlink_to(tmp_path / "other")
    with pytest.raises(SetupError, match="belongs to another user"):
        socket_path(Path("home"))


def test_a_stranger_at_the_socket_is_not_answered(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the folder's permissions failed. The keeper still asks the kernel who connects."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert processes.is_own(ours)
        monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
        assert processes.is_own(ours) is (os.geteuid() == 0)
    monkeypatch.setattr(keeper, "is_own", lambda _connection: False)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as stranger:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        served = Keeper(settings)
        stranger.connect(str(tmp_path / "s"))
        threading.Thread(target=served._accept, args=(listener,), daemon=True).start()
        stranger.settimeout(20)
        assert stranger.recv(1) == b"" and served.users == 0


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
