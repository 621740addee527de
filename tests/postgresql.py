"""A real PostgreSQL on loopback for the tests: Debian's server, never as root, in a folder of its
own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.conftest import wait_until
from tests.ports import free_ports

START_TIMEOUT_S = 30


@contextmanager
def server(user: str = "tests", password: Path | None = None) -> Iterator[str]:
    """Gives the address of its first database, as SQLAlchemy writes it. `password`: a file with the
    one that it asks this user for."""
    programs = max(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda found: int(found.parent.name)
    )
    # The server refuses to run as root; Debian's package has made a user for it.
    owner = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="topicproof-postgresql-"))
    if owner:
        shutil.chown(folder, owner)
    data, port = folder / "data", free_ports(1)[0]
    method = ["-A", "trust"]
    if password is not None:
        shutil.copyfile(password, folder / "password")
        method = ["-A", "scram-sha-256", "--pwfile", str(folder / "password")]
    subprocess.run(
        [
            programs / "initdb",
            "-D",
            data,
            "-U",
            user,
            *method,
            "-E",
            "UTF8",
            "--no-locale",
            "-N",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        user=owner,
    )
    process = subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        user=owner,
    )
    address = f"{user}@127.0.0.1:{port}/postgres"
    try:
        wait_until(
            lambda: _answers(f"postgresql://{address}"), START_TIMEOUT_S, "the start of PostgreSQL"
        )
        yield f"postgresql+psycopg://{address}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(START_TIMEOUT_S)
        shutil.rmtree(folder)


def new_database(url: str, name: str) -> str:
    """An empty database on the server of this address; gives its own."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    return f"{url.rpartition('/')[0]}/{name}"


def _answers(address: str) -> bool:
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError as error:
        return "password" in str(error)
    return True
