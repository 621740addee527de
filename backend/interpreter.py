"""How child processes in Python are started: with `-P`, and in a folder of ours.

Without `-P`, Python searches the working folder, or that of a script, before its own library. So
`psutil.py` in a folder of evidence would run as soon as somebody works there. An empty element of
PYTHONPATH means the working folder too, and a relative one a folder in it. Spark's workers import
this module, so it needs nothing but Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository, or the installed package `topicproof`."""
CHECKOUT = (ROOT / "pyproject.toml").exists()
"""Whether this is a repository. An installed package keeps nothing in its own folder."""
PATH, SAFE_PATH = "PYTHONPATH", "PYTHONSAFEPATH"
"""Variables of Python. The second does what `-P` does, for a Python that others start."""


def python_path() -> str:
    """Return the PYTHONPATH with which child processes find this project, and the absolute folders
    of our own. A package installed with its Python is found without it."""
    return os.pathsep.join(dict.fromkeys(_paths()))


def _paths() -> Iterator[str]:
    if CHECKOUT:
        yield str(ROOT)
    for path in os.environ.get(PATH, "").split(os.pathsep):
        if os.path.isabs(path):  # noqa: PTH117  an empty text is a folder for Path
            yield path
        elif path and not CHECKOUT and Path(path).absolute() == ROOT.parent:
            # Executors may find the package in an archive beside their working folder.
            yield str(ROOT.parent)


def python_environment() -> dict[str, str]:
    """Return our environment for a child process in Python, and for what it starts."""
    return {**os.environ, PATH: python_path(), SAFE_PATH: "1"}
