"""The command `topicproof`, also as `python -m topicproof`.

The package's core is what Spark's workers need. The command line needs more, and says so.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Exits with 3 if its packages are not installed."""
    try:
        from topicproof.backend.cli import main as run
        from topicproof.backend.settings import close_files
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("topicproof"):
            raise
        sys.stderr.write(
            f"The command line needs more packages than the sink; {error.name} is missing. Run:"
            " pip install 'topicproof[cli]', or 'topicproof[dashboard]' for the dashboard too.\n"
        )
        sys.exit(3)
    close_files()
    run()


if __name__ == "__main__":
    main()
