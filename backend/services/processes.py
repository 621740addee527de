"""Child processes of the services: their start, end and ports; and the process at the other end of
a Unix socket."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

import psutil

from topicproof.backend.characters import visible_lines
from topicproof.backend.errors import SetupError
from topicproof.backend.log_file import end_of
from topicproof.backend.settings import JAVA_VERSION_MIN, STOP_TIMEOUT_S
from topicproof.backend.waiting import ask_until

LOG_LINES_SHOWN, LOG_ERRORS_SHOWN = 40, 10
ERROR_LINE = re.compile(r"\b(ERROR|FATAL)\b|^(Caused by: )?[\w.$]+(Exception|Error)\b")
"""A line that log4j, or Java for an exception, writes about what went wrong."""
LOOPBACK_TIMEOUT_S = 0.5
LOOPBACK = "127.0.0.1"
LISTENS = "0A"
"""The kernel's number for the state LISTEN."""
CLOSED = 0
"""The kernel's inode of a connection that no process holds any more."""


def _as_words(address: bytes) -> str:
    """Return an address as those tables write it: words in the machine's byte order."""
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words)


IPV4_TABLE, IPV6_TABLE = "/proc/net/tcp", "/proc/net/tcp6"
LOOPBACK_TABLES = {
    IPV4_TABLE: tuple(
        _as_words(socket.inet_pton(socket.AF_INET, address)) for address in (LOOPBACK, "0.0.0.0")
    ),
    IPV6_TABLE: tuple(
        _as_words(socket.inet_pton(socket.AF_INET6, address))
        for address in (f"::ffff:{LOOPBACK}", "::")
    ),
}
"""Linux's tables of sockets, and in each 127.0.0.1 and the address of all listeners."""
OPEN_FILES, OPEN_FILES_MIN = 4_096, 512
"""How many files a process should be able to open, and the least that is enough for small runs."""


def await_start(
    name: str,
    process: subprocess.Popen[bytes] | None,
    ready: Callable[[], bool],
    timeout_s: float,
    *logs: Path,
) -> None:
    """Wait until a process is ready. Raises SetupError with the end of its log if it ends first or
    takes too long."""

    def look() -> tuple[bool, bool]:
        return ready(), process is None or process.poll() is not None

    is_ready, has_ended = ask_until(look, any, timeout_s)
    if not is_ready:
        failure = "ended while starting" if has_ended else f"was not ready after {timeout_s:.0f} s"
        raise SetupError(f"{name} {failure}. {end_of_log(*logs)}")


def end_of_log(*logs: Path) -> str:
    """Return the last lines of the first log that has any, without the frames of Java stack
    traces. Errors before them come first: a server that cannot start still says much about how it
    stops."""
    for path in logs:
        lines = [line for line in end_of(path) if not line.startswith(("\tat ", "\t..."))]
        if lines:
            last_lines = visible_lines("\n".join(lines[-LOG_LINES_SHOWN:]))
            errors = [line for line in lines[:-LOG_LINES_SHOWN] if ERROR_LINE.search(line)]
            end = f"The end of its log ({path}):\n{last_lines}"
            if errors:
                last_errors = visible_lines("\n".join(errors[-LOG_ERRORS_SHOWN:]))
                return f"Its last errors:\n{last_errors}\n{end}"
            return end
    return "It wrote no log."


def emptied(folder: Path) -> Path:
    """Make a folder for temporary files, without what an earlier process left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def java_temporary(folder: Path) -> str:
    """Return the option that makes Java use a folder for its temporary files. A killed process
    leaves them behind, where the next start finds them."""
    return f"-Djava.io.tmpdir={folder}"


def end_process(process: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Wait for a process that was told to end. Kill its whole session after the timeout."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def giving_way() -> Iterator[None]:
    """Keep processes started in this block from preempting others when a thread wakes (SCHED_BATCH
    on Linux). Elsewhere, or if it is forbidden, nothing changes.

    A transaction is about 15 requests, and each wakes two or three threads of the broker. On a
    machine shared with Spark this saves a fifth of the context switches.
    """
    if not hasattr(os, "SCHED_BATCH"):
        yield
        return
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    # A child inherits this thread's policy. A running Java would have many threads to change.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, policy, priority)


def require_open_files() -> None:
    """Let this process and its children open as many files as the embedded services need. Raises
    SetupError if the system forbids it: Java then fails in ways that name no cause."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return
    allowed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if allowed < OPEN_FILES_MIN:
        raise SetupError(
            f"A process may open only {hard} files here. Kafka and Spark need {OPEN_FILES_MIN}:"
            f" raise the limit, as with `ulimit -n {OPEN_FILES}`."
        )
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def free_ports(count: int, held: ExitStack | None = None) -> list[int]:
    """Return different loopback ports that nothing listens on.

    With `held`, the system gives them to no connection and to no other program until that stack is
    closed (Linux). A server that sets SO_REUSEADDR, as Java's do, can listen at one meanwhile, and
    again after it was killed.
    """
    with ExitStack() as sockets:
        ports = [_bound_port(sockets) for _ in range(count)]
        # Elsewhere not even SO_REUSEADDR lets two sockets have one port.
        if held is not None and sys.platform == "linux":
            held.callback(sockets.pop_all().close)
    return ports


def _bound_port(sockets: ExitStack) -> int:
    bound = sockets.enter_context(socket.socket())
    # A socket that does not listen keeps no listener away if both set this.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((LOOPBACK, 0))
    return int(bound.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether anything listens on this loopback port."""
    try:
        connect_once(LOOPBACK, port, LOOPBACK_TIMEOUT_S)
    except OSError:
        return False
    return True


def answers_itself(pid: int, port: int) -> bool:
    """Return whether this process accepts a connection at a port of 127.0.0.1. Any other program
    may have taken the port since it was free."""
    with (
        suppress(OSError),
        socket.create_connection((LOOPBACK, port), LOOPBACK_TIMEOUT_S) as connection,
    ):
        from_port = connection.getsockname()[1]
        return ask_until(lambda: connects(pid, port, from_port), bool, LOOPBACK_TIMEOUT_S)
    return False


def listener_uids(port: int) -> frozenset[int] | None:
    """Return the users whose processes listen at a port of 127.0.0.1. None elsewhere than on
    Linux."""
    uids = set()
    for table, addresses in LOOPBACK_TABLES.items():
        # Listeners come first. A table may have many thousand connections.
        for socket_row in takewhile(lambda row: row.state == LISTENS, _sockets(table)):
            address, _, hexadecimal = socket_row.local.partition(":")
            if int(hexadecimal, 16) == port and address in addresses:
                uids.add(socket_row.uid)
    return frozenset(uids) if Path(IPV4_TABLE).exists() else None


def client_is_of(uids: Collection[int], port: int, to: int) -> bool:
    """Return whether a process of one of these users has the connection from this port of 127.0.0.1
    to that one. True elsewhere than on Linux, where nobody can tell."""
    return connection_is_of(uids, (LOOPBACK, port), (LOOPBACK, to))


def connection_is_of(
    uids: Collection[int], client: tuple[str, int], server: tuple[str, int]
) -> bool:
    """Return whether a process of one of these users has the client's end of a connection within
    this machine, by the addresses and ports of both ends. True elsewhere than on Linux."""
    if not Path(IPV4_TABLE).exists():
        return True
    # The kernel writes a table in pieces. A row may be missing while others come and go.
    for row in chain.from_iterable(_rows_between(client, server) for _ in range(2)):
        # The kernel says root of a connection whose process has closed it.
        return row.uid in uids and row.inode != CLOSED
    return False


def _rows_between(client: tuple[str, int], server: tuple[str, int]) -> Iterator[_Socket]:
    """Return the rows of the client's end. A socket for IPv6 may have an IPv4 address."""
    for table, client_end in _ends(*client).items():
        ends = client_end, _ends(*server).get(table, "")
        for row in _sockets(table, containing=client_end):
            if (row.local, row.remote) == ends:
                yield row


def _ends(host: str, port: int) -> dict[str, str]:
    """Return how each table writes an address and a port; none for what is no address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return {}
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        texts = {IPV6_TABLE: _as_words(address.packed)}
    else:
        packed = address.packed[-4:]
        mapped = ipaddress.ip_address(f"::ffff:{ipaddress.IPv4Address(packed)}").packed
        texts = {IPV4_TABLE: _as_words(packed), IPV6_TABLE: _as_words(mapped)}
    return {table: f"{text}:{port:04X}" for table, text in texts.items()}


class _Socket(NamedTuple):
    """A row of Linux's tables of sockets. Addresses are words and a port, in hexadecimal."""

    local: str
    remote: str
    state: str
    uid: int
    inode: int


def _sockets(table: str, containing: str = "") -> Iterator[_Socket]:
    # A kernel without IPv6 has one table.
    with suppress(OSError), Path(table).open() as rows:
        next(rows, None)
        # Taking a row apart costs more than reading it.
        for row in (row for row in rows if containing in row):
            _, local, remote, state, _, _, _, uid, _, inode, *_ = row.split()
            yield _Socket(local, remote, state, int(uid), int(inode))


def connect_once(host: str, port: int, timeout_s: float) -> None:
    """Connect to a port, and say nothing. Raises OSError if nothing listens there."""
    socket.create_connection((host, port), timeout_s).close()


def connects(pid: int, port: int, to: int) -> bool:
    """Return whether a process has a connection from this local port to that one. The local port
    alone is ambiguous: connections to different ports may share it."""
    with suppress(psutil.Error):
        for connection in psutil.Process(pid).net_connections("tcp"):
            if (
                connection.laddr
                and connection.raddr
                and (connection.laddr.port, connection.raddr.port) == (port, to)
            ):
                return True
    return False


REMEDY = (
    f"Install a JDK of version {JAVA_VERSION_MIN} or later (Debian, Ubuntu: apt-get install"
    " openjdk-17-jre-headless) or set JAVA_HOME to one."
)


def java() -> str:
    """Return the path of the java command. Raises SetupError if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if command is None:
        raise SetupError(f"No Java was found{' under JAVA_HOME' if home else ''}. {REMEDY}")
    command = str(Path(command).absolute())
    version = java_version(command)
    if version < JAVA_VERSION_MIN:
        raise SetupError(f"Java {version} is too old for Apache Kafka 4 and Spark 4. {REMEDY}")
    return command


@cache
def java_version(command: str) -> int:
    """Return the feature version of a java command: 8, 17, 21. Only the first call starts it.
    Raises SetupError if it prints none."""
    answer = subprocess.run(
        [command, "-version"], capture_output=True, text=True, check=False, cwd="/"
    )
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if match is None:
        raise SetupError(f"{command} does not print its version. {REMEDY}")
    return int(match.group(1))


_CREDENTIALS = struct.Struct("3i")
"""Linux's `struct ucred`: process, user, group."""


def _credentials(connection: socket.socket) -> tuple[int, int, int] | None:
    """Return process, user and group of the other end; None elsewhere than on Linux."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    return _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))


def is_own(connection: socket.socket) -> bool:
    """Return whether the other end belongs to this user, or to root. Elsewhere than on Linux, the
    permissions of the socket's folder are the only check."""
    credentials = _credentials(connection)
    return credentials is None or credentials[1] in (os.getuid(), 0)


def stopped_process(connection: socket.socket) -> int | None:
    """Return the process that listens at the other end if a signal has stopped it; else None."""
    credentials = _credentials(connection)
    try:
        if credentials and psutil.Process(credentials[0]).status() == psutil.STATUS_STOPPED:
            return credentials[0]
    except psutil.NoSuchProcess:
        return None
    return None
