"""The Spark Connect server, as a child process or at a given address.

One long-lived server serves many short-lived clients: a warm JVM runs the same pipeline twice as
fast as a cold one. Its sessions are in spark_session.py, so that commands without Spark do not load
its client, which takes longer than their work.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from urllib.parse import quote, unquote, urlsplit

from topicproof.backend.errors import SetupError, SparkError, UsageError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.class_archive import ClassArchive, class_archive
from topicproof.backend.services.kafka import require_disk_space
from topicproof.backend.services.prefork_server import write_executable
from topicproof.backend.services.processes import (
    answers_itself,
    await_start,
    emptied,
    end_process,
    free_ports,
    java,
    java_temporary,
)
from topicproof.backend.settings import SPARK_START_TIMEOUT_S, Settings, socket_path
from topicproof.backend.trust.keys import read_secret

SESSION_TIMEOUT_S = 60
"""A session, and its queries, end after nobody has asked for them this long. The embedded server's
keeper releases those of killed clients at once."""
MEANING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    # Java's own upper and lower case take the square of a long text's length.
    "spark.sql.icu.caseMappings.enabled": "true",
}
"""Settings that decide what an expression gives, or how long it takes: Spark's defaults, and UTC. A
contract must mean the same on every server."""
DEFAULT_PORT = 15002
"""Where Spark Connect listens if its address has no port."""
TOKEN_BYTES = 32
PRINTABLE = re.compile(r"[!-~]+")
"""The characters of a token."""
AUTHORIZATION = "authorization"
"""The parameter of an address with the token's header."""
LISTENER_UID = "listener_uid"
"""The parameter of an embedded server's address with the user id whose process must listen there.
"""
KEEPER = "keeper"
"""The parameter of an embedded server's address with the socket of its keeper, which releases the
sessions of killed processes."""
NO_PROVIDERS = "-Dorg.apache.kafka.automatic.config.providers=none"
"""No value of a Kafka property is looked up in a file, a folder or the environment."""
COMPILER = "-XX:ThreadPriorityPolicy=1 -XX:CompilerThreadPriority=10 -XX:ReservedCodeCacheSize=512m"
"""Java compiles hot code for minutes, in threads that took a third of the processor time of a short
run. Now they give way to the run (10 is their nice value), and compiled code is not discarded for
lack of space."""
METASPACE = "-XX:MetaspaceSize=256m"
"""Java marks its whole heap each time that loaded classes reach a limit, which starts at 21 MB."""
REGIONS = "-XX:G1HeapRegionSize=8m"
"""Java begins to mark its whole heap when it allocates an object of half a region, which has 2 MB
by default. Spark allocates 1 MB for the result of many a task."""


def _home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@dataclass
class EmbeddedSpark:
    """A Spark Connect server on loopback whose workers import this project by name."""

    folder: Path
    jars: Sequence[Path]
    cores: int = field(default_factory=lambda: max(2, os.cpu_count() or 2))
    port: int = 0
    token: str = field(default="", repr=False)
    """Whoever sends it may execute code in the server."""
    writes_archive: bool = False
    """Whether the server writes the archive of its classes when it ends."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    forks: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    """The process from which the server's Python processes are forked."""
    held_ports: ExitStack = field(default_factory=ExitStack, repr=False)
    """Keeps the server's port until `stop`."""

    @property
    def python(self) -> Path:
        """The server's Python executable."""
        return self.folder / "python"

    @property
    def remote(self) -> str:
        """The address with the token. PySpark's own client understands it too, but sends `token`
        without TLS only to `localhost`: that may be `::1`, where anybody may listen."""
        token = f"{AUTHORIZATION}={quote(f'Bearer {self.token}')}"
        return f"sc://127.0.0.1:{self.port}/;{token};{LISTENER_UID}={os.getuid()}"

    @property
    def secrets(self) -> Path:
        """Spark properties that no other user may read, as those of a command line. It exists only
        while the server starts."""
        return self.folder / "secrets.conf"

    @property
    def sockets(self) -> Path:
        """The folder of the sockets at which Spark meets its Python processes."""
        return socket_path(self.folder).with_suffix(".python")

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def archive(self) -> ClassArchive:
        return class_archive("spark", java(), [*sorted(_home().glob("jars/*.jar")), *self.jars])

    def start(self) -> None:
        """Start the server. Raises SetupError: no Java, no disk space, or a server that does not
        start (with the end of its log)."""
        java()
        self.folder.mkdir(parents=True, exist_ok=True)
        require_disk_space(self.folder)
        (self.port,) = free_ports(1, self.held_ports)
        spark_home = _home()
        command = [str(spark_home / "bin" / "spark-submit")]
        for name, value in self._conf().items():
            command += ["--conf", f"{name}={value}"]
        temporary = java_temporary(emptied(self.folder / "tmp"))
        emptied(self.folder / "local")
        emptied(self.sockets)
        command += ["--driver-memory", "4g"]
        archive = self.archive.writing if self.writes_archive else self.archive.options
        quoted = " ".join(f'"{option}"' for option in (temporary, *archive))
        command += [
            "--driver-java-options",
            f"{COMPILER} {METASPACE} {REGIONS} {NO_PROVIDERS} {quoted}",
        ]
        command += ["--properties-file", str(self._write_secrets())]
        command += ["--jars", ",".join(str(jar) for jar in self.jars)]
        self._start_forks()
        command += [
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "spark-internal",
        ]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                env=self._environment(spark_home),
            )
        try:
            await_start(
                "The embedded Spark server",
                self.process,
                self._answers,
                SPARK_START_TIMEOUT_S,
                self.log,
            )
        except SetupError:
            self.stop()
            raise
        finally:
            self.secrets.unlink(missing_ok=True)

    def stop(self) -> None:
        self.held_ports.close()
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        end_process(self.process)
        self._stop_forks()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def pids(self) -> list[int]:
        return [self.process.pid] if self.process is not None else []

    def _answers(self) -> bool:
        return self.process is not None and answers_itself(self.process.pid, self.port)

    def _write_secrets(self) -> Path:
        """Write the server's secrets for its start. Returns the file."""
        self.token = token_urlsafe(TOKEN_BYTES)
        self.secrets.unlink(missing_ok=True)
        with open(self.secrets, "x", encoding="utf-8", opener=_private) as file:
            file.write(f"spark.connect.authenticate.token {self.token}\n")
        return self.secrets

    def _start_forks(self) -> None:
        address = socket_path(self.folder)
        write_executable(self.python, address)
        with self.log.open("wb") as output:
            self.forks = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m"),
                    *("topicproof.backend.services.prefork_server", str(address)),
                ],
                # Never written to. It closes when this process ends, however that happens.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                # Spark sets the seed for its workers too, and hashes must agree. No thread may
                # start before the fork.
                env={
                    **python_environment(),
                    "PYTHONHASHSEED": "0",
                    "OPENBLAS_NUM_THREADS": "1",
                },
            )

    def _stop_forks(self) -> None:
        if self.forks is not None and self.forks.stdin is not None:
            self.forks.stdin.close()
            end_process(self.forks)

    def _conf(self) -> dict[str, str]:
        return {
            # Two tasks a core: a task that ends a transaction mostly waits for brokers. Eight tries
            # a task: a fault that kills a Python worker must not end the query.
            "spark.master": f"local[{2 * self.cores},8]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_TIMEOUT_S}s",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark's other ports ask for a secret too, which it makes itself with a local master.
            "spark.authenticate": "true",
            "spark.ui.enabled": "false",
            # The default describes each plan at length, for the page that is off.
            "spark.sql.ui.explainMode": "simple",
            # The default sends with each expression the line of our program that made it: more than
            # half of a plan.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            # Spark's Python processes are met at a file of this folder. At a port of loopback, the
            # one that Spark remembers may belong to another server's processes by now.
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.python.unix.domain.socket.dir": str(self.sockets),
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.session.timeZone": MEANING["spark.sql.session.timeZone"],
            "spark.sql.shuffle.partitions": str(2 * self.cores),
            # Spark decides on broadcasts by Parquet's compressed size, far below the size in
            # memory.
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.sql.streaming.stopTimeout": "30s",
            # Spark's default starts `stat` and `chmod` for each checkpoint file, two files a batch.
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
            ),
            # Spark keeps a task's consumer, with its fetched records, for the next batch. The
            # default of five minutes fills the memory of a busy server.
            **{
                f"spark.kafka.consumer.{cache}.{setting}": value
                for cache in ("cache", "fetchedData.cache")
                for setting, value in (("timeout", "20s"), ("evictorThreadRunInterval", "5s"))
            },
            # Hadoop does not ask for the umask of its process.
            "spark.hadoop.fs.permissions.umask-mode": "077",
            # A task that meets an endless recursion or a record beyond the memory fails alone. By
            # default the executor, which is the server, ends itself, and everybody's work with it.
            "spark.executor.killOnFatalError.depth": "0",
            "spark.speculation": "false",
            "spark.log.level": "WARN",
            # Spark allocates one block for each broadcast, and each task is one, and one page for
            # each sort, aggregation and join of a task. By default they have 4 and 64 MB, and a
            # query on few records fills some kB of them. Larger objects get more blocks, or a page
            # of their own.
            "spark.broadcast.blockSize": "128k",
            "spark.buffer.pageSize": "1m",
            # A verdict needs over a hundred generated classes: with the default of 100 they are
            # compiled again each time.
            "spark.sql.codegen.cache.maxEntries": "2000",
        }

    def _environment(self, spark_home: Path) -> dict[str, str]:
        return {
            **python_environment(),
            "SPARK_HOME": str(spark_home),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }


def without_token(remote: str) -> str:
    """Return scheme, host and port of an `sc://` address, for people. All else may hold a token,
    also where it is written wrongly."""
    scheme, separator, rest = remote.partition("://")
    server = re.split(r"[/?#;]", rest if separator else scheme, maxsplit=1)[0]
    # A name before the host may be a secret, and its end is anybody's guess.
    return f"{scheme + separator if separator else ''}{'…' if '@' in rest else server}"


def server_of(remote: str) -> tuple[str, int]:
    """Return host and port of an `sc://` address. Raises SparkError for any other."""
    try:
        url = urlsplit(remote)
        host, port = url.hostname or "", url.port or DEFAULT_PORT
    except ValueError:
        raise no_address(remote) from None  # Its text has the address.
    if url.scheme != "sc" or not host:
        raise no_address(remote)
    return host, port


def no_address(remote: str) -> SparkError:
    return SparkError(
        f"{without_token(remote)} is not the address of a Spark Connect server. Check SPARK_REMOTE."
    )


def with_session(remote: str, session: str) -> str:
    """Return the address of an existing session on the server."""
    return _with_parameter(remote, "session_id", session)


def with_keeper(remote: str, keeper: Path) -> str:
    """Return the address with the socket of the server's keeper."""
    return _with_parameter(remote, KEEPER, str(keeper))


def keeper_of(remote: str) -> str:
    """Return the socket of the server's keeper; empty for a server that has none."""
    parameters = dict(part.partition("=")[::2] for part in remote.split(";")[1:])
    return unquote(parameters.get(KEEPER, ""))


def given_remote(settings: Settings) -> str:
    """Return the address of the given Spark with its token, empty if none is given.

    PySpark sends the parameter `token` only with TLS, or to `localhost`. It sends a parameter that
    it does not know as metadata of each call, so `authorization` carries the token without TLS.
    Raises UsageError for a token file that is unusable, or beside a token in the address.
    """
    remote, file = settings.spark_remote or "", settings.spark_token_file
    if not remote or file is None:
        return remote
    parameters = [part.partition("=") for part in remote.split(";")[1:]]
    names = {name.strip().lower() for name, _, _ in parameters}
    if names & {"token", AUTHORIZATION}:
        raise UsageError(
            "SPARK_REMOTE has a token, and TOPICPROOF_SPARK_TOKEN_FILE names one too. Remove one of"
            " them."
        )
    token = read_secret(file)
    if not PRINTABLE.fullmatch(token):
        raise UsageError(
            f"The token in {file} has a character that no header of a call may have. Use letters,"
            " digits and punctuation of ASCII."
        )
    if any(name == "use_ssl" and value.lower() == "true" for name, _, value in parameters):
        return _with_parameter(remote, "token", token)
    return _with_parameter(remote, AUTHORIZATION, f"Bearer {token}")


def _with_parameter(remote: str, name: str, value: str) -> str:
    server, _, parameters = remote.partition(";")
    every = filter(None, (parameters.strip(";"), f"{name}={quote(value, safe='')}"))
    return f"{server.rstrip('/')}/;{';'.join(every)}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
