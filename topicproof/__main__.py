"""The command `topicproof`, also as `python -P -m topicproof`.

The package's core is what Spark's workers need. The command line needs more, and says so.
"""

from __future__ import annotations

import gc
import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `-m` without `-P` searches the working folder first. What was imported until now may be from
    # there, but nothing after it is.
    del sys.path[0]

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Exits with 3 if it cannot be loaded: 1 would mean a violated
    guarantee."""
    _search_no_relative_folder()
    if sys.argv[1:] == ["--version"]:
        # Before the command line, which takes a second to load.
        from importlib.metadata import version

        sys.stdout.write(f"{version('topicproof')}\n")
        sys.exit(0)
    # Almost everything that is loaded stays, and a search for garbage in it takes a quarter of the
    # time. The command line switches the search on again.
    gc.disable()
    try:
        from topicproof.backend.cli import main as run
        from topicproof.backend.settings import close_files
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        if name is not None and not name.startswith("topicproof"):
            sys.stderr.write(
                f"The command line needs more packages than the sink; {name} is missing. Run: pip"
                " install 'topicproof[cli]', or 'topicproof[dashboard]' for the dashboard too.\n"
            )
        else:
            sys.stderr.write(
                f"The command line cannot be loaded ({type(error).__name__}). Install topicproof"
                " again.\n"
            )
        sys.exit(3)
    close_files()
    run()


def _search_no_relative_folder() -> None:
    """Import nothing more from folders that PYTHONPATH names relative to the working folder."""
    named = os.environ.get("PYTHONPATH", "")
    for path in named.split(os.pathsep) if named else ():
        if not os.path.isabs(path) and (folder := os.path.abspath(path)) in sys.path:  # noqa: PTH100, PTH117
            sys.path.remove(folder)


if __name__ == "__main__":
    main()
