"""The command `topicproof`, also as `python -m topicproof`.

The package's core is what Spark's workers need. The command line needs more, and says so.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Exits with 3 if it cannot be loaded: 1 would mean a violated
    guarantee."""
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


if __name__ == "__main__":
    main()
