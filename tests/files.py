"""What is in the files of a home, read by another process.

A process that opens and closes an SQLite file itself loses the locks of its own connections to it:
"How To Corrupt An SQLite Database File", section 2.2. Others then do not see what it writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SEARCH = """
import json, os, pathlib, sys
folder, secrets = json.load(sys.stdin)
found = {}
# Services at work remove files, and folders too: os.walk passes over a folder that is gone.
for parent, _folders, names in os.walk(folder):
    for path in (pathlib.Path(parent, name) for name in names):
        try:
            data = path.read_bytes() if path.is_file() else None
        except FileNotFoundError:
            continue
        if data is not None:
            found[str(path)] = any(secret.encode() in data for secret in secrets)
json.dump(found, sys.stdout)
"""


def files_with(folder: Path, secrets: Sequence[str]) -> dict[Path, bool]:
    """Every file below a folder, and whether one of the secrets is in it."""
    answer = subprocess.run(
        [sys.executable, "-c", SEARCH],
        input=json.dumps([str(folder), list(secrets)]),
        capture_output=True,
        text=True,
        check=True,
    )
    return {Path(path): found for path, found in json.loads(answer.stdout).items()}


def paths_in(folder: Path) -> list[Path]:
    """Every file and folder below a folder. What a process at work has just removed is passed over;
    `Path.rglob` ends with an error there."""
    return [
        Path(parent, name) for parent, folders, names in os.walk(folder) for name in folders + names
    ]
