"""What is in the files of a home, read by another process.

A process that opens and closes an SQLite file itself loses the locks of its own connections to it:
"How To Corrupt An SQLite Database File", section 2.2. Others then do not see what it writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SEARCH = """
import json, pathlib, sys
folder, secrets = json.load(sys.stdin)
found = {}
for path in pathlib.Path(folder).rglob("*"):
    try:
        data = path.read_bytes() if path.is_file() else None
    except FileNotFoundError:
        continue  # of a service that is at work
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
