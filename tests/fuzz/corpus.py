"""The corpus of each target: inputs that together reach all code that was ever reached. Each is a
zip file beside this module."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def corpus(target: str) -> list[bytes]:
    """Return the inputs of a target; none without a file."""
    path = _path(target)
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as packed:
        return [packed.read(name) for name in packed.namelist()]


def write_corpus(target: str, inputs: Iterable[bytes]) -> None:
    """Write the inputs of a target. The same inputs give the same file."""
    named = {hashlib.sha256(one).hexdigest()[:16]: one for one in inputs}
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(_path(target), "w", zipfile.ZIP_DEFLATED) as packed:
        for name in sorted(named):
            packed.writestr(zipfile.ZipInfo(name), named[name], zipfile.ZIP_DEFLATED)


def _path(target: str) -> Path:
    return FOLDER / f"{target.replace(' ', '-')}.zip"
