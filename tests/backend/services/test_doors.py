"""Who may speak to the embedded services: Spark asks for a token, sockets for their own user."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import grpc
import psutil
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.connect.client import DefaultChannelBuilder

from tests.files import files_with
from topicproof.backend.doctor import services as doctor
from topicproof.backend.doctor.diagnosis import Health
from topicproof.backend.errors import SetupError, SparkError, UsageError
from topicproof.backend.services import keeper, processes, spark_session as spark_session_module
from topicproof.backend.services.keeper import Keeper, Services
from topicproof.backend.services.spark import (
    EmbeddedSpark,
    given_remote,
    with_session,
    without_token,
)
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings, socket_path

TOKEN = "sc://localhost:1/;token=abc"


class Listener(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """A gRPC server that keeps the headers of each call, and answers none."""

    def __init__(self) -> None:
        self.headers = list[str]()
        self.server = grpc.server(ThreadPoolExecutor(1), [self])

    def service(self, details: grpc.HandlerCallDetails) -> None:
        self.headers += [str(value) for _, value in details.invocation_metadata]

    def listen(self, address: str) -> int:
        """Listen at a free port of an address. Returns the port."""
        port = int(self.server.add_insecure_port(f"{address}:0"))
        self.server.start()
        return port

    def connect(self, remote: str) -> str:
        """Return why no session can be opened at an address."""
        with pytest.raises(SparkError) as refusal:
            spark_session(remote).__enter__()
        return str(refusal.value)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(spark_session_module, "CONNECT_RETRIES", 0)
    listener = Listener()
    yield listener
    listener.server.stop(None)


def token_of(remote: str) -> str:
    return unquote(remote).partition("Bearer ")[2].partition(";")[0]


@pytest.mark.parametrize(
    "remote",
    [
        "",
        "sc://localhost:PORT/;token=secret-token",
        "sc://localhost:PORT/;authorization=Bearer%20secret-token",
    ],
)
def test_a_token_is_not_sent_to_another_address_of_this_machine(
    listener: Listener, tmp_path: Path, remote: str
) -> None:
    """Story: our server listens at 127.0.0.1. Another user listens at ::1, at the same port, and
    `localhost` is both."""
    port = listener.listen("[::1]")
    embedded = EmbeddedSpark(tmp_path, [], port=port, token="secret-token").remote
    assert "does not answer" in listener.connect(remote.replace("PORT", str(port)) or embedded)
    assert not listener.headers
    # PySpark's own client, as programs under test use it.
    assert DefaultChannelBuilder(embedded).endpoint == f"127.0.0.1:{port}"


def test_a_token_is_sent_to_the_user_who_started_the_server(
    listener: Listener, tmp_path: Path
) -> None:
    """Story: our server has ended, and another user takes its port. A client connects again."""
    port = listener.listen("127.0.0.1")
    spark = EmbeddedSpark(tmp_path, [], port=port, token="secret-token")
    other = spark.remote.replace(f"uid={os.getuid()}", f"uid={os.getuid() + 1}")
    assert "Another user's" in listener.connect(other)
    assert not listener.headers
    assert "Method not found" in listener.connect(spark.remote)
    assert "Bearer secret-token" in listener.headers


def test_the_workers_of_spark_send_the_token_to_its_address(
    cluster: Services, settings: Settings, tmp_path: Path
) -> None:
    """Story: a program uses `foreachBatch`. Its worker connects to the server: Spark says
    `localhost` to it, with the token, and the worker prints that."""
    lines, batches = tmp_path / "lines", tmp_path / "batches"
    lines.mkdir()
    (lines / "a.txt").write_text("one\ntwo\n")

    def note(batch: DataFrame, _number: int) -> None:
        import os
        from pathlib import Path

        text = f"{batch.count()} {os.environ['SPARK_CONNECT_LOCAL_URL']}"
        Path(batches).write_text(text)

    with spark_session(cluster.spark_remote) as spark:
        query = (
            spark.readStream.text(str(lines))
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert batches.read_text().startswith(f"2 {without_token(cluster.spark_remote)}/;user_id=")
    token = token_of(cluster.spark_remote)
    assert not any(files_with(settings.services, [token]).values())


def test_spark_refuses_whoever_has_no_token(cluster: Services, settings: Settings) -> None:
    """Story: another user of the machine finds Spark's port. Without the token, and with a wrong
    one, nothing is executed. The token is in no command line and in no file."""
    address = without_token(cluster.spark_remote)
    token = token_of(cluster.spark_remote)
    assert len(token) > 40
    for tried in (address, cluster.spark_remote.replace(token, token[::-1])):
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
    token, file = token_of(cluster.spark_remote), tmp_path / "token"
    remote = without_token(cluster.spark_remote)
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


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("sc://h:15002;token=planted", "sc://h:15002"),
        ("sc://h/?token=planted", "sc://h"),
        ("sc://h/planted", "sc://h"),
        ("sc://h#planted", "sc://h"),
        ("sc://ann:planted@h:1/", "sc://…"),
        ("sc:/;token=planted", "sc:"),
        ("h:15002;token=planted", "h:15002"),
        ("http://h:15002/;token=planted", "http://h:15002"),
        ("sc://h/;token=plan=ted", "sc://h"),
    ],
)
def test_a_token_in_a_wrong_address_is_not_shown(
    remote: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody writes the parameters as in another product, or forgets the slash."""
    monkeypatch.setattr(spark_session_module, "CONNECT_RETRIES", 0)
    settings = Settings(spark_remote=remote)
    diagnosis = doctor.spark(settings)
    assert diagnosis.health is Health.FAILED and "planted" not in str(diagnosis) + repr(settings)
    assert without_token(remote) == shown


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
