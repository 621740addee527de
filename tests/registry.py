"""A real schema registry on loopback for the tests: Apicurio, in memory, with Confluent's API."""

from __future__ import annotations

import json
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from uuid import NAMESPACE_URL, uuid5

import httpx

from tests.ports import free_ports
from topicproof.backend.services.jars import registry_archive
from topicproof.backend.services.processes import await_start, end_process, java
from topicproof.backend.settings import Settings

START_TIMEOUT_S = 120
API = "/apis/ccompat/v7"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz. Python's own extraction is safe, and without a warning, only in some of its
    versions."""
    subprocess.run(["tar", "-xzf", archive, "-C", folder, "--no-same-owner"], check=True)


@contextmanager
def registry(settings: Settings) -> Iterator[str]:
    """Gives its address."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}{API}"

    def ready() -> bool:
        try:
            return httpx.get(f"{url}/subjects").is_success
        except httpx.TransportError:
            return False

    with tempfile.TemporaryDirectory(prefix="topicproof-registry-") as place:
        folder = Path(place)
        unpack(registry_archive(settings), folder)
        (jar,) = folder.glob("*-runner.jar")
        options = ("-Xmx400m", f"-Djava.io.tmpdir={folder}", "-Dquarkus.http.host=127.0.0.1")
        log = folder / "registry.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [java(), *options, f"-Dquarkus.http.port={port}", "-jar", jar],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        try:
            await_start("The schema registry", process, ready, START_TIMEOUT_S, log)
            yield url
        finally:
            process.terminate()
            end_process(process)


class Door(ThreadingHTTPServer):
    """In front of a registry: it notes each request and hands it on. It gives each schema that is
    registered through it a GUID, as Confluent's registry does, and no other that can be had."""

    daemon_threads = True

    def __init__(self, registry: str, tls: ssl.SSLContext | None = None, login: str = "") -> None:
        """`login` is the value of the header Authorization that it wants."""
        super().__init__(("127.0.0.1", 0), _Request)
        self.behind = registry
        self.client = httpx.Client(timeout=START_TIMEOUT_S)
        self.login = login
        self.asked: list[str] = []
        """The path of each request, without its query."""
        self.ids: dict[str, int] = {}
        """The registry's id of each GUID."""
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.server_port}"


class _Request(BaseHTTPRequestHandler):
    server: Door

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        if self.headers.get("Authorization", "") != self.server.login:
            self._answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
            return
        if path.startswith("/schemas/guids/") and self.server.ids:
            schema_id = self.server.ids.get(path.removeprefix("/schemas/guids/"))
            if schema_id is None:
                self._answer(404, b'{"error_code": 40403, "message": "Schema not found"}')
                return
            self.path = f"/schemas/ids/{schema_id}"
        answer = self.server.client.get(self.server.behind + self.path)
        self._answer(answer.status_code, answer.content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        header = {"Content-Type": self.headers["Content-Type"]}
        answer = self.server.client.post(
            self.server.behind + self.path, content=body, headers=header
        )
        content = answer.json()
        if answer.is_success:
            content["guid"] = str(uuid5(NAMESPACE_URL, f"schema {content['id']}"))
            self.server.ids[content["guid"]] = content["id"]
        self._answer(answer.status_code, json.dumps(content).encode())

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_args: object) -> None:
        """Says nothing; the base class writes each request to stderr."""


@contextmanager
def door(registry: str, tls: ssl.SSLContext | None = None, login: str = "") -> Iterator[Door]:
    with Door(registry, tls, login) as server, server.client:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
