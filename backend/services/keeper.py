"""Kafka and Spark while any command needs them: at given addresses, or embedded and shared.

The embedded ones belong to one keeper process per home. Every command that needs them holds a
connection to the keeper, which the kernel closes however the command ends. After the last one the
keeper stops Kafka and Spark, and ends. So a kill -9 leaves nothing behind, and concurrent commands
share one warm Spark. Each session in Spark has such a connection too: if its process is killed, the
keeper releases it, and its tasks take no place of those of others.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

from topicproof.backend.address import Address
from topicproof.backend.errors import SetupError, TopicproofError, UsageError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.jars import BROKER, SPARK, ensure_jars, jar_files
from topicproof.backend.services.kafka import CLUSTER_ID, EmbeddedKafka
from topicproof.backend.services.local_servers import accept_all
from topicproof.backend.services.processes import is_own, require_open_files, stopped_process
from topicproof.backend.services.spark import EmbeddedSpark, given_remote, with_keeper, with_session
from topicproof.backend.settings import (
    BROKER_START_TIMEOUT_S,
    SPARK_START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Settings,
    close_files,
    read_settings,
    socket_path,
)
from topicproof.backend.storage import Storage

LINGER_S = 1.0
"""How long the keeper waits for another user after the last one left."""
KEEPER_START_TIMEOUT_S = 30.0
KEEPER_STOP_TIMEOUT_S = 2 * STOP_TIMEOUT_S
"""How long an earlier keeper may take to stop Spark, then Kafka."""
RELEASE_TIMEOUT_S = 30.0
"""How long the release of a killed process's session may take. Spark ends it later by itself."""
BUSY = 75
"""The exit code of a keeper that found another keeper (EX_TEMPFAIL of sysexits.h)."""
RUNNING = "running.json"
"""The file that names the processes of running services."""
OPEN = "Its ports have no password: every user of this machine can use it."


@dataclass(frozen=True)
class Services:
    """The addresses of Kafka and Spark, until the `with` block ends."""

    bootstrap: str
    spark_remote: str = field(repr=False)
    """Empty if Spark was not requested. It may hold a token."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties of the given Kafka."""
    cluster: str = ""
    """The given Kafka's name in the settings, if it has one."""
    storage: Storage | None = None
    """Where Spark keeps files, if it shares no disk with this process."""

    @property
    def address(self) -> Address:
        return Address(self.bootstrap, self.client, self.cluster)


@dataclass(frozen=True)
class ServicesRequest:
    """The first message of a user to the keeper."""

    kafka: bool
    spark: bool
    brokers: int


@contextmanager
def services(
    settings: Settings,
    kafka: bool = True,
    spark: bool = True,
    say: Callable[[str], None] = lambda _text: None,
) -> Iterator[Services]:
    """Provide Kafka and Spark; embedded ones are started if they are not running yet. `say`
    receives progress.

    Raises SetupError if one of them cannot be started.
    """
    want_kafka = kafka and settings.bootstrap is None
    want_spark = spark and settings.spark_remote is None
    if not want_kafka and not want_spark:
        external = settings.bootstrap or "", given_remote(settings), settings.client
        yield Services(*external, settings.cluster or "", storage_of(settings))
        return
    require_open_files()
    ensure_jars(settings)
    connection = _connect(settings, say)
    try:
        addresses = _ask(
            connection, ServicesRequest(want_kafka, want_spark, settings.brokers), settings, say
        )
        yield Services(
            settings.bootstrap or addresses["bootstrap"],
            given_remote(settings) or addresses["spark_remote"],
            settings.client,
            settings.cluster or "",
            storage_of(settings),
        )
    finally:
        connection.close()


def are_running(settings: Settings) -> bool:
    """Whether embedded services run for this home. After a killed keeper, whether they may."""
    return (settings.services / RUNNING).exists()


def require_topics(settings: Settings) -> None:
    """Raises UsageError if no Kafka is given and the embedded one was never filled. A command that
    only reads would start it, and find nothing."""
    if settings.bootstrap is None and not embedded_kafka(settings, settings.brokers).exists():
        raise UsageError(
            "No Kafka is given, and there is no embedded one with topics yet. Name yours with"
            " --bootstrap HOST:PORT, with --cluster NAME, or in TOPICPROOF_BOOTSTRAP. The embedded"
            " one begins with `topicproof run` or `topicproof up`."
        )


def embedded_kafka(settings: Settings, brokers: int) -> Path:
    """Return the folder of an embedded Kafka; it exists once that has been started."""
    return settings.services / f"kafka-{brokers}"


def embedded_cluster_id(settings: Settings) -> str:
    """Return what the embedded Kafka of these settings calls itself; empty before it was started
    first."""
    try:
        return (embedded_kafka(settings, settings.brokers) / CLUSTER_ID).read_text()
    except OSError:
        return ""


def storage_of(settings: Settings) -> Storage | None:
    """Return the storage that the settings name. Raises UsageError without a given Spark: the
    embedded one works on this machine's disk."""
    if settings.storage is None:
        return None
    if settings.spark_remote is None:
        raise UsageError(
            "TOPICPROOF_STORAGE is for a Spark elsewhere, and SPARK_REMOTE names none. Set it, or"
            " unset TOPICPROOF_STORAGE: the embedded Spark uses the disk of this machine."
        )
    return Storage(settings.storage, settings.home)


@contextmanager
def brokers(settings: Settings) -> Iterator[Callable[[int, str], str]]:
    """Yield `handle(node, do)`, which hurts single brokers of this home's embedded Kafka and
    returns a description. `do` is kill, pause, isolate or heal. Brokers still hurt when the block
    or this process ends are healed.

    Raises UsageError for a given Kafka, SetupError if a broker does not come back.
    """
    if settings.bootstrap is not None:
        raise UsageError("Only brokers of the embedded Kafka can be struck. Remove --bootstrap.")
    connection = _connect(settings, lambda _text: None)
    try:
        _ask(
            connection, ServicesRequest(True, False, settings.brokers), settings, lambda _text: None
        )
        connection.settimeout(BROKER_START_TIMEOUT_S + STOP_TIMEOUT_S)

        # Threads share the connection, and an answer does not name its question.
        turn = threading.Lock()

        def handle(node: int, do: str) -> str:
            with turn:
                return ask_keeper(node, do)

        def ask_keeper(node: int, do: str) -> str:
            connection.sendall(json.dumps({"node": node, "do": do}).encode() + b"\n")
            try:
                with connection.makefile() as stream:
                    line = stream.readline()
            except TimeoutError as error:
                raise _no_keeper(settings) from error
            answer = json.loads(line or '{"error": "The keeper of Kafka and Spark ended."}')
            if "error" in answer:
                raise SetupError(answer["error"])
            return str(answer["done"])

        yield handle
    finally:
        connection.close()


def _ask(
    connection: socket.socket,
    request: ServicesRequest,
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, str]:
    connection.settimeout(BROKER_START_TIMEOUT_S + SPARK_START_TIMEOUT_S)
    connection.sendall(json.dumps(asdict(request)).encode() + b"\n")
    # Closing this reader leaves the connection open, which keeps the services alive.
    try:
        with connection.makefile() as stream:
            for line in stream:
                answer: dict[str, Any] = json.loads(line)
                if "say" in answer:
                    say(answer["say"])
                elif "error" in answer:
                    raise SetupError(answer["error"])
                else:
                    return answer
    except TimeoutError as error:
        raise _no_keeper(settings) from error
    raise SetupError(
        f"The keeper of Kafka and Spark ended. Its log: {settings.services / 'keeper.log'}"
    )


def _connect(settings: Settings, say: Callable[[str], None]) -> socket.socket:
    """Connect to this home's keeper, and start one if there is none."""
    deadline = time.monotonic() + KEEPER_START_TIMEOUT_S
    started: int | None = None
    busy = 0
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(socket_path(settings.home)))
            _require_awake(connection)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise _no_keeper(settings) from error
        if started is not None and (code := _exit_code(started)) is not None:
            # A keeper that ended in order had no users left. Another one is started below.
            started = None
            if code not in (0, BUSY):
                raise _no_keeper(settings)
            if code == BUSY:
                # Another keeper accepts no connection: it is starting, or the second time, ending.
                busy += 1
                if busy == 1:
                    deadline += KEEPER_STOP_TIMEOUT_S
                elif busy == 2:
                    say("waiting for Kafka and Spark, which an earlier command is still stopping")
        if started is None:
            started = _start_keeper(settings)
        time.sleep(0.05)


def _require_awake(connection: socket.socket) -> None:
    """Raises SetupError for a keeper that a signal has stopped: the kernel accepts connections to
    it, and nobody answers."""
    if (process := stopped_process(connection)) is not None:
        connection.close()
        raise SetupError(
            f"The keeper of Kafka and Spark (process {process}) was stopped by a signal. To let it"
            f" continue: kill -CONT {process}. Or end it, and the next command starts both again:"
            f" kill -9 {process}"
        )


def _no_keeper(settings: Settings) -> SetupError:
    return SetupError(
        "The keeper of Kafka and Spark does not answer. Its log:"
        f" {settings.services / 'keeper.log'}"
    )


def _start_keeper(settings: Settings) -> int:
    """Start a keeper that outlives this process. Returns its process id."""
    settings.services.mkdir(parents=True, exist_ok=True)
    log = str(settings.services / "keeper.log")
    # Not subprocess: its handle warns if it is dropped while the process lives.
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", "topicproof.backend.services.keeper"],
        {**python_environment(), **settings.environment()},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        # A session of its own: Ctrl-C in this terminal is for the command alone.
        setsid=True,
    )


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


@dataclass
class Keeper:
    """The process that owns the embedded Kafka and Spark of one home."""

    settings: Settings
    kafka: EmbeddedKafka | None = None
    spark: EmbeddedSpark | None = None
    users: int = 0
    hurt: set[int] = field(default_factory=set)
    """Brokers that a user deliberately killed, paused or isolated. They count as alive."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def serve(self) -> None:
        """Serve users until the last one leaves, then stop everything."""
        address = socket_path(self.settings.home)
        # This process has the lock, so a file that is left belongs to a killed keeper.
        address.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        try:
            self._wait_until_unused()
            # No user may connect while the services stop.
            address.unlink(missing_ok=True)
        finally:
            self.stop()
            listener.close()

    def stop(self) -> None:
        with self.lock:
            # Spark first: it is a client of Kafka.
            for service in (self.spark, self.kafka):
                if service is not None:
                    service.stop()
            self._record().unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        for connection in accept_all(listener):
            if not is_own(connection):
                connection.close()
                continue
            # Counted here and not in the user's thread: before that begins, the keeper could see no
            # user and stop.
            with self.changed:
                self.users += 1
                self.changed.notify_all()
            try:
                threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()
            except RuntimeError:  # No thread is left either. The next user may find one.
                connection.close()
                self._leave()

    def _leave(self) -> None:
        with self.changed:
            self.users -= 1
            self.changed.notify_all()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rw") as stream:
                message = json.loads(stream.readline())
                if "session" in message:
                    self._follow_session(stream, **message)
                    return
                request = ServicesRequest(**message)

                def tell(**answer: str) -> None:
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()

                try:
                    tell(**self._provide(request, lambda text: tell(say=text)))
                except TopicproofError as error:
                    tell(error=str(error))
                # Further messages concern single brokers. The stream ends when the user does.
                hurt: set[int] = set()
                try:
                    for line in stream:
                        try:
                            tell(done=self._handle(**json.loads(line), hurt=hurt))
                        except TopicproofError as error:
                            tell(error=str(error))
                finally:
                    # A user that was killed cannot heal what it hurt.
                    for node in sorted(hurt):
                        self._handle(node, "heal", hurt)
        except (OSError, TypeError, ValueError) as error:
            print(f"a client left in the middle of a message: {type(error).__name__}", flush=True)  # noqa: T201
        finally:
            self._leave()

    def _follow_session(self, stream: TextIO, session: str, user: str | None) -> None:
        """Release a session in Spark if its process ends without a further message: it was
        killed."""
        if stream.readline() or self.spark is None:
            return
        environment = python_environment()
        if user is not None:
            environment["SPARK_USER"] = user
        # Its own process: Spark's client would take more memory than this one has. The address
        # holds a token, so it is no argument.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-P", "-m", "topicproof.backend.services.spark_session"],
                input=with_session(self.spark.remote, session).encode(),
                cwd=self.settings.services,
                env=environment,
                timeout=RELEASE_TIMEOUT_S,
                check=False,
            )

    def _provide(self, request: ServicesRequest, say: Callable[[str], None]) -> dict[str, str]:
        # One user at a time: of two that come together, the second finds what the first started.
        with self.lock, ThreadPoolExecutor() as pool:
            waiting = []
            # A broker that is down on purpose comes back by `heal`, not by a restart of all.
            if request.kafka and not self.hurt and not _alive(self.kafka):
                end_rest(self.kafka)
                count = request.brokers
                say(f"starting Apache Kafka ({count} broker{'s' if count > 1 else ''}). {OPEN}")
                folder = embedded_kafka(self.settings, count)
                self.kafka = EmbeddedKafka(folder, jar_files(self.settings, BROKER), count)
                waiting.append(pool.submit(self.kafka.start))
            if request.spark and not _alive(self.spark):
                end_rest(self.spark)
                say("starting Spark")
                self.spark = EmbeddedSpark(self.settings.spark, jar_files(self.settings, SPARK))
                waiting.append(pool.submit(self.spark.start))
            try:
                for start in waiting:
                    start.result()
            finally:
                # Also after a failure: the next keeper must find what did start.
                self._write_record()
        return {
            "bootstrap": self.kafka.bootstrap if self.kafka is not None else "",
            "spark_remote": (
                with_keeper(self.spark.remote, socket_path(self.settings.home))
                if self.spark is not None
                else ""
            ),
        }

    def _handle(self, node: int, do: str, hurt: set[int]) -> str:
        """Kill, pause, isolate or heal an embedded broker. Returns a description. `hurt`: brokers
        hurt by this user."""
        with self.lock:
            if self.kafka is None or not 1 <= node <= len(self.kafka.nodes):
                raise SetupError(f"The embedded Kafka has no broker {node}.")
            description = self.kafka.handle(self.kafka.nodes[node - 1], do)
            # Noted twice: for all users, and for the one whose end heals it.
            for nodes in (self.hurt, hurt):
                nodes.discard(node) if do == "heal" else nodes.add(node)
            self._write_record()
            return description

    def _wait_until_unused(self) -> None:
        with self.changed:
            # The first user starts this process and needs a moment to connect.
            self.changed.wait_for(lambda: self.users > 0, KEEPER_START_TIMEOUT_S)
            while self.users > 0 or self.changed.wait_for(lambda: self.users > 0, LINGER_S):
                self.changed.wait_for(lambda: self.users == 0)

    def _record(self) -> Path:
        return self.settings.services / RUNNING

    def _write_record(self) -> None:
        pids = [
            pid
            for service in (self.kafka, self.spark)
            if service is not None
            for pid in service.pids()
        ]
        started = {pid: psutil.Process(pid).create_time() for pid in pids if psutil.pid_exists(pid)}
        self._record().write_text(json.dumps(started))

    def end_leftovers(self) -> None:
        """Kill processes that a killed keeper left running. Reused process ids are left alone."""
        if not self._record().exists():
            return
        for pid, created in json.loads(self._record().read_text()).items():
            try:
                process = psutil.Process(int(pid))
                if process.create_time() == created:
                    # Each service leads a process group, which has its children too.
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(KEEPER_START_TIMEOUT_S)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        self._record().unlink()


def end_rest(service: EmbeddedKafka | EmbeddedSpark | None) -> None:
    """End what is left of a service of which a process was killed: the other brokers, or the
    process that forks Spark's workers."""
    if service is not None:
        service.stop()


def _alive(service: EmbeddedKafka | EmbeddedSpark | None) -> bool:
    return (
        service is not None and bool(service.pids()) and all(_runs(pid) for pid in service.pids())
    )


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    close_files()
    settings = read_settings()
    settings.services.mkdir(parents=True, exist_ok=True)
    # posix_spawn leaves a process in the folder of its parent, which may be anybody's.
    os.chdir(settings.services)
    # The kernel releases the lock however this process ends. So exactly one keeper runs for a home.
    with (settings.services / "keeper.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another keeper was faster. The process that started this one connects to it.
            sys.exit(BUSY)
        keeper = Keeper(settings)
        keeper.end_leftovers()

        def end(_signal: int, _frame: object) -> None:
            # An exception, so that `serve` stops the services on its way out.
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, end)
        keeper.serve()


if __name__ == "__main__":
    main()
