"""The command line. Every command has `--help` with an example and `--json [FILE]` for machines.

Exit codes: 0 holds; 1 violated; 2 holds, but a contract warns; 3 not judged, or failed; 4 evidence
could not be written; 64 wrong usage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer._click.exceptions import ClickException  # typer carries its own click

from topicproof.backend.characters import require_text
from topicproof.backend.commands.terminal import err, out, plain
from topicproof.backend.errors import TopicproofError
from topicproof.backend.settings import close_files

USAGE = 64

COMMANDS: Mapping[str, str] = {
    "up": "up",
    "fill": "topics",
    "floor": "topics",
    "run": "runs",
    "process": "runs",
    "check": "check",
    "contract": "contracts",
    "inspect": "inspecting",
    "transactions": "inspecting",
    "abort": "inspecting",
    "rights": "rights",
    "stop": "runs",
    "release": "runs",
    "strike": "runs",
    "resume": "runs",
    "runs": "runs:list_runs",
    "show": "runs",
    "totals": "totals",
    "clean": "runs",
    "evidence": "evidence",
    "verify": "evidence",
    "signoff": "evidence",
    "keys": "keys",
    "login": "login",
    "logout": "login",
    "whoami": "login",
    "audit": "login",
    "compare": "history",
    "trend": "history",
    "matrix": "matrix",
    "torture": "torture",
    "doctor": "doctor",
}
"""The module in backend/commands of each command, in the order of the help. The function has the
command's name, or the one after the colon. Modules are imported when they are needed, because some
of them take a second to load."""


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(version("topicproof"), highlight=False)
        raise typer.Exit


def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """See, and prove, what Kafka transactions did to your topics."""


def command_line(names: Iterable[str]) -> typer.Typer:
    """Return a command line of these commands."""
    app = typer.Typer(
        help="See, and prove, what Kafka transactions did to your topics.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        callback=options,
    )
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        found = import_module(f"topicproof.backend.commands.{module}")
        app.command(name)(getattr(found, function or name))
    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command. Every error becomes one sentence and an exit code, without a traceback."""
    out.quiet = False
    given = _with_json_value(sys.argv[1:] if arguments is None else arguments)
    try:
        require_text((f"The argument {one!a}", one) for one in given)
        require_text(
            (f"The environment variable {name!a}", value)
            for name, value in os.environ.items()
            if name.startswith("TOPICPROOF_")
        )
        wanted = given[:1] if given and given[0] in COMMANDS else COMMANDS
        code = command_line(wanted)(args=given, prog_name="topicproof", standalone_mode=False)
    except ClickException as error:
        error.show()
        code = USAGE
    except TopicproofError as error:
        err.print(f"[red]{type(error).__name__}[/]: {plain(str(error))}", highlight=False)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        code = 130
    sys.exit(code or 0)


def _with_json_value(arguments: list[str]) -> list[str]:
    """Add the value `-` (terminal) to a `--json` without a file: click has no optional values."""
    made: list[str] = []
    for number, argument in enumerate(arguments):
        made.append(argument)
        following = arguments[number + 1] if number + 1 < len(arguments) else "-"
        if argument == "--json" and (
            (following.startswith("-") and following != "-") or number + 1 == len(arguments)
        ):
            made.append("-")
    return made


if __name__ == "__main__":
    close_files()
    main()
