"""The command line. Every command has `--help` with an example and `--json [FILE]` for machines.

Exit codes: 0 holds; 1 violated; 2 holds, but a contract warns; 3 not judged, or failed; 4 evidence
could not be written; 64 wrong usage. Only a verdict, and what `status` lists, end with 1: whatever
else goes wrong, foreseen or not, is caught in `main`.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn

import typer

# typer carries its own click
from typer._click.exceptions import ClickException, NoArgsIsHelpError, UsageError as ClickUsageError

from topicproof.backend import log_file
from topicproof.backend.characters import require_text
from topicproof.backend.commands.shared_options import flattened
from topicproof.backend.commands.terminal import err, out, silence
from topicproof.backend.errors import TopicproofError
from topicproof.backend.exit_codes import UNJUDGED
from topicproof.backend.settings import close_files, read_settings, temporary_folder

USAGE = 64

COMMANDS: Mapping[str, str] = {
    "up": "up",
    "fill": "topic",
    "floor": "topic",
    "run": "run",
    "process": "run",
    "check": "check",
    "contract": "contract",
    "status": "inspect",
    "inspect": "inspect",
    "transactions": "inspect",
    "records": "record",
    "watch": "watch",
    "mcp": "mcp",
    "abort": "abort",
    "commit": "abort",
    "rights": "rights",
    "stop": "run",
    "release": "run",
    "strike": "run",
    "resume": "run",
    "runs": "run:list_runs",
    "show": "run",
    "totals": "totals",
    "clean": "run",
    "evidence": "evidence",
    "verify": "verify",
    "signoff": "evidence",
    "keys": "key",
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
"""The module in backend/commands of each command, without `_commands`, in the order of the help.
The function has the command's name, or the one after the colon. Modules are imported when they are
needed, because some of them take a second to load."""


def _print_version(is_set: bool) -> None:
    if is_set:
        out.line(version("topicproof"))
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
        command_module = import_module(f"topicproof.backend.commands.{module}_commands")
        app.command(name)(flattened(getattr(command_module, function or name)))
    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command. Every error becomes one sentence and an exit code. A traceback goes to a log,
    which the sentence names."""
    out.quiet = err.quiet = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal of another encoding shows an escape instead of ending the command.
            stream.reconfigure(errors="backslashreplace")
    with log_file.logged_to(_log_path), log_file.errors_logged():
        try:
            code = _run(sys.argv[1:] if arguments is None else arguments)
        except (KeyboardInterrupt, typer.Abort):
            err.line("interrupted")
            code = 130
        except BaseException as error:
            # Also SystemExit: a library's exit code is no verdict.
            code = _unforeseen(error)
        code = _flushed(code)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    completed = _with_json_value(arguments)
    try:
        require_text((f"The argument {argument!a}", argument) for argument in completed)
        require_text(
            (f"The environment variable {name!a}", value)
            for name, value in os.environ.items()
            if name.startswith("TOPICPROOF_")
        )
        names = completed[:1] if completed and completed[0] in COMMANDS else COMMANDS
        command = command_line(names)
        _collect_garbage()
        code = command(args=completed, prog_name="topicproof", standalone_mode=False)
    except NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except SystemExit as error:
        # click prints help by itself, and ends so when nobody reads it any more. A pipe that breaks
        # anywhere else is not the reader's, so it is a fault, and never exit code 0.
        is_help = not completed or "--help" in completed
        if is_help and isinstance(error.__context__, BrokenPipeError):
            silence(sys.stdout)
            return 0 if completed else USAGE
        raise
    except ClickException as error:
        _print_usage(error)
        return USAGE
    except TopicproofError as error:
        err.error(error)
        return error.exit_code
    return code or 0


def _collect_garbage() -> None:
    """Switch the search for garbage on, if `topicproof/__main__.py` has switched it off. What is
    loaded by now is not searched."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _print_usage(error: ClickException) -> None:
    """Print what click says of a request. It quotes arguments, so it does not print by itself."""
    if isinstance(error, ClickUsageError) and error.ctx is not None:
        err.line(" ".join(error.ctx.get_usage().split()))
        err.line(f"Try '{error.ctx.command_path} --help' for help.")
    err.failure("Error", error.format_message())


def _unforeseen(error: BaseException) -> int:
    """Say in one sentence that this is a fault of ours, and keep the traceback. What the error says
    is in the log alone: it may quote a record."""
    text = log_file.traceback_of(error)
    try:
        path = _log_path()
        log_file.append(path, text)
    except (OSError, TopicproofError):
        path = Path(tempfile.mkdtemp(prefix="topicproof-")) / log_file.NAME
        log_file.append(path, text)
    err.failure(
        type(error).__name__,
        f"this is a fault of Topicproof, and nothing was judged. The traceback is in {path}.",
    )
    return UNJUDGED


def _log_path() -> Path:
    """Return the log of this home. Raises SetupError if the settings name none, and another user
    has made the folder that is used instead."""
    try:
        home = read_settings(make_home=False).home
    except TopicproofError:
        home = temporary_folder()
    return home / log_file.FOLDER / log_file.NAME


def _flushed(code: int) -> int:
    """Write what is still in a buffer. Returns the exit code: the verdict's, unless the disk of the
    output is full."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        err.failure("OSError", f"the output cannot be written: {error.strerror}.")
        return UNJUDGED
    return code


def _with_json_value(arguments: list[str]) -> list[str]:
    """Add the value `-` (terminal) to a `--json` without a file: click has no optional values."""
    completed: list[str] = []
    for number, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[number + 1] if number + 1 < len(arguments) else "-"
        if argument == "--json" and (
            (following.startswith("-") and following != "-") or number + 1 == len(arguments)
        ):
            completed.append("-")
    return completed


if __name__ == "__main__":
    close_files()
    main()
