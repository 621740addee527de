"""A real Prometheus and a real Alertmanager on loopback, and a webhook that takes notes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import yaml

from tests.ports import free_ports
from topicproof.backend.services.processes import await_start, end_process
from topicproof.backend.settings import ROOT

UNPACKED = ROOT / ".jars" / "monitoring" / "usr" / "bin"
"""Where scripts/setup puts them on machines that do not have them."""
RULES = ROOT / "contracts" / "monitoring"
START_TIMEOUT_S = 60.0


def program(name: str) -> str:
    """The path of one of Prometheus' programs."""
    return shutil.which(name) or str(UNPACKED / name)


class Listener(ThreadingHTTPServer):
    """A webhook. It answers with the next of the given codes, and then 200 for ever."""

    daemon_threads = True

    def __init__(self, codes: list[int] | None = None) -> None:
        self.documents: list[Any] = []
        self.codes = codes or []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = listener.codes.pop(0) if listener.codes else 200
                if code == 200:
                    listener.documents.append(json.loads(body))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


@contextmanager
def listener(codes: list[int] | None = None) -> Iterator[Listener]:
    server = Listener(codes)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def prometheus(folder: Path, metrics_port: int, webhook: str) -> Iterator[str]:
    """Both with our rules, quickly evaluated, in a folder of their own. Gives Prometheus'
    address."""
    web, alerts = free_ports(2)
    receiver = {"name": "people", "webhook_configs": [{"url": webhook, "send_resolved": True}]}
    route = {"receiver": "people", "group_wait": "0s", "group_interval": "1s"}
    (folder / "alertmanager.yml").write_text(
        yaml.safe_dump({"route": route, "receivers": [receiver]})
    )
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "topicproof.rules.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts}"]}]}]},
        "scrape_configs": [
            {
                "job_name": "topicproof",
                "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    commands = (
        (
            alerts,
            [
                program("prometheus-alertmanager"),
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alerts'}",
                f"--web.listen-address=127.0.0.1:{alerts}",
                "--cluster.listen-address=",
            ],
        ),
        (
            web,
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'series'}",
                f"--web.listen-address=127.0.0.1:{web}",
            ],
        ),
    )
    processes = []
    try:
        for port, command in commands:
            log = folder / f"{port}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, cwd=folder
                )
            processes.append(process)
            url = f"http://127.0.0.1:{port}/-/ready"
            await_start(command[0], process, partial(_answers, url), START_TIMEOUT_S, log)
        yield f"http://127.0.0.1:{web}"
    finally:
        for process in processes:
            process.terminate()
            end_process(process)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
