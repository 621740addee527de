"""`make audit`: is what a release runs what was locked, licensed, and free of known holes?

Three questions, each answered in lines of its own:

- hashes: is each installed file of each package the one that its record names, and has each jar
  the hash of jars.sha256?
- licences: has each package one of the licences of tests/sbom.py?
- advisories: does a database name a hole in a locked version? pip-audit asks the database of
  `ADVISORIES`, a clone of github.com/pypa/advisory-database, without any network. Without that
  folder it asks OSV over the network.

Run as `python -m tests.audit [ADVISORIES]`. The exit code is 0 if all is well, 1 if anything is
not, and 3 if no database of advisories answered.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tests.sbom import LOCK, licence_of, locked
from topicproof.backend.services.jars import changed_jars
from topicproof.backend.settings import read_settings

Advisory = Mapping[str, Any]

ANSWERS = {0: "no locked version has a known hole", 1: "a locked version has a known hole"}
NO_DATABASE = 3


def changed_package_files(names: Iterator[str]) -> list[str]:
    """Return each installed file that is missing or differs from the record of its package. Files
    without a hash in the record (compiled at the installation, the record itself) are left out."""
    changed = []
    for name in names:
        for file in metadata.files(name) or []:
            if file.hash is None:
                continue
            path = Path(str(file.locate()))
            if not path.is_file():
                changed.append(f"{name}: {file} is missing")
                continue
            digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
            if urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                changed.append(f"{name}: {file} was changed after it was installed")
    return changed


def read_advisories(folder: Path) -> dict[str, list[Advisory]]:
    """Return the advisories of a folder of OSV files, by the canonical name of the package."""
    advisories: dict[str, list[Advisory]] = defaultdict(list)
    for path in sorted((folder / "vulns").rglob("*.yaml")):
        advisory = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        for name in {canonicalize_name(each["package"]["name"]) for each in advisory["affected"]}:
            advisories[name].append(advisory)
    return dict(advisories)


def is_affected(advisory: Advisory, name: str, version: str) -> bool:
    """Whether OSV's rules name this version of a package: it is listed, or lies in a range of the
    ecosystem (https://ossf.github.io/osv-schema/#evaluation)."""
    return any(
        version in affected.get("versions", ())
        or any(
            _in_range(events["events"], Version(version))
            for events in affected.get("ranges", ())
            if events["type"] == "ECOSYSTEM"
        )
        for affected in advisory["affected"]
        if canonicalize_name(affected["package"]["name"]) == name
    )


def _in_range(events: list[Mapping[str, str]], version: Version) -> bool:
    points: list[tuple[Version, bool]] = []
    for event in events:
        for kind, text in event.items():
            try:
                edge = Version("0" if kind == "introduced" and text == "0" else text)
            except InvalidVersion:
                continue  # Such a version cannot be installed, so it is no edge for one that is.
            if kind == "last_affected":
                if version == edge:
                    return True
                points.append((edge, False))
            else:
                points.append((edge, kind == "introduced"))
    points.sort(key=lambda point: point[0])
    after_last = [*points, (None, False)]
    return any(
        is_open and start <= version and (end is None or version < end)
        for (start, is_open), (end, _) in pairwise(after_last)
        if start is not None
    )


@contextmanager
def osv_server(advisories: Mapping[str, list[Advisory]]) -> Iterator[str]:
    """Serve advisories on loopback as OSV's query does, for pip-audit. Yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name, version = query["package"]["name"], query["version"]
            holes = [each for each in advisories.get(name, ()) if is_affected(each, name, version)]
            body = json.dumps({"vulns": holes} if holes else {}, default=str).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: pip-audit prints what was found."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


def pip_audit(lock: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pip-audit on a lock. Its exit code is 0 without a known hole, else 1."""
    return subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pip_audit", "--requirement", str(lock)),
            *("--require-hashes", "--disable-pip", "--strict"),
            *("--progress-spinner=off", "--desc=off", *options),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=lock.parent,
    )


def audit_advisories(folder: Path | None, lock: Path = LOCK) -> tuple[int, str]:
    """Return 0, 1 or `NO_DATABASE`, and what pip-audit says."""
    if folder is None:
        answer = pip_audit(lock, "--vulnerability-service=osv", "--timeout=10")
        if answer.returncode and "Name" not in answer.stdout:
            return NO_DATABASE, (
                "OSV does not answer. Clone github.com/pypa/advisory-database and name the folder:"
                " make audit ADVISORIES=FOLDER"
            )
        return answer.returncode, answer.stdout
    advisories = read_advisories(folder)
    if not advisories:
        return NO_DATABASE, f"{folder} has no advisories: no file lies below its folder vulns."
    newest = max(str(each["modified"])[:10] for all_ in advisories.values() for each in all_)
    with osv_server(advisories) as address:
        answer = pip_audit(lock, "--vulnerability-service=osv", f"--osv-url={address}")
    count = sum(map(len, advisories.values()))
    lines = answer.stdout or answer.stderr
    return answer.returncode, f"advisories: {count:,}, the newest of {newest}\n{lines}"


def main(folder: Path | None) -> int:
    """Print all answers, and return the exit code."""
    say = sys.stdout.write
    names = [package.name for package in locked(LOCK)]
    changed = [*changed_package_files(iter(names)), *changed_jars(read_settings(make_home=False))]
    say(
        f"hashes: {len(names)} packages and the jars are as they were locked\n"
        if not changed
        else ""
    )
    for line in changed:
        say(f"hashes: {line}\n")
    licences = {licence_of(name) for name in names}
    say(f"licences: {', '.join(sorted(licences))}\n")
    code, text = audit_advisories(folder)
    say(f"advisories: {ANSWERS.get(code, 'not looked up')}\n{text}\n")
    return 1 if changed else code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if sys.argv[1:] and sys.argv[1] else None))
