"""Feed each parser for a time, guided by coverage: `python -m tests.fuzz SECONDS [TARGET…]`.

It begins with the corpus and the right inputs, and keeps in the corpus what reaches new code.
Prints how many inputs each had, and ends at the first traceback with the input that caused it.
Needs atheris, which runs on Linux: `.venv/bin/pip install atheris==3.0.0`.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.corpus import corpus, write_corpus
from tests.fuzz.targets import TARGETS, TOKENS
from topicproof.backend.settings import ROOT

BYTES_MAX = 8_192
SLOW_S = 20
"""An input that takes longer is an error, too."""


def main(seconds: int, names: list[str]) -> None:
    if find_spec("atheris") is None:
        sys.exit("This needs atheris: .venv/bin/pip install atheris==3.0.0")
    for name in names or TARGETS:
        with TemporaryDirectory(prefix="topicproof-fuzz-") as folder:
            count = feed(name, seconds, Path(folder))
        _say(f"{name}: {count:,} inputs, 0 tracebacks, {len(corpus(name)):,} in the corpus")


def feed(name: str, seconds: int, folder: Path) -> int:
    """Feed one target, and renew its corpus. Returns the number of inputs."""
    found, words = folder / "found", folder / "words"
    found.mkdir()
    for one in (*corpus(name), *TARGETS[name][0]):
        (found / hashlib.sha256(one).hexdigest()).write_bytes(one)
    words.write_text("".join(f'"{_escaped(one)}"\n' for one in TOKENS if 0 < len(one) <= 64))
    told = _fuzz(name, folder, f"-max_total_time={seconds}", f"-dict={words}", str(found))
    counts = re.search(r"stat::number_of_executed_units: *(\d+)", told)
    assert counts is not None, told[-2_000:]
    write_corpus(name, [one.read_bytes() for one in found.iterdir()])
    return int(counts.group(1))


def _fuzz(name: str, folder: Path, *options: str) -> str:
    limits = (f"-max_len={BYTES_MAX}", f"-timeout={SLOW_S}", "-rss_limit_mb=4096")
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.guided", name),
            *(*limits, "-print_final_stats=1", f"-artifact_prefix={folder}/", *options),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if answer.returncode != 0:
        wrong = [
            one for one in folder.iterdir() if one.name.startswith(("crash", "timeout", "oom"))
        ]
        for one in wrong:
            _say(f"{name}: {one.read_bytes()!r}")
        sys.exit(f"{name}: {answer.stdout[-4_000:]}{answer.stderr[-4_000:]}")
    return answer.stderr


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
