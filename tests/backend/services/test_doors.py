"""Who may speak to the embedded services: Spark asks for a token, sockets for their own user."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import psutil
import pytest

from topicproof.backend.errors import SetupError, SparkError
from topicproof.backend.services import keeper, peers
from topicproof.backend.services.keeper import Keeper, Services
from topicproof.backend.services.spark import spark_session, with_session, without_token
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
    files = [path for path in settings.services.rglob("*") if path.is_file()]
    assert files and not any(token.encode() in path.read_bytes() for path in files)
    assert token not in repr(cluster)


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
        assert peers.is_own(ours)
        monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
        assert peers.is_own(ours) is (os.geteuid() == 0)
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
