"""The command line. Every command has `--help` with an example and `--json [FILE]` for machines.

Exit codes: 0 holds; 1 violated; 2 holds, but a contract warns; 3 not judged, or failed; 4 evidence
could not be written; 64 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer._click.exceptions import ClickException  # typer carries its own click

from topicproof.backend.commands import evidence, history, login, runs, topics
from topicproof.backend.commands.check import check
from topicproof.backend.commands.contracts import contract
from topicproof.backend.commands.doctor import doctor
from topicproof.backend.commands.keys import keys
from topicproof.backend.commands.matrix import matrix
from topicproof.backend.commands.rights import rights
from topicproof.backend.commands.terminal import err, out
from topicproof.backend.commands.torture import torture
from topicproof.backend.commands.totals import totals
from topicproof.backend.commands.up import up
from topicproof.backend.errors import TopicproofError

USAGE = 64

app = typer.Typer(
    help="See, and prove, what Kafka transactions did to your topics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
COMMANDS: Mapping[str, Callable[..., None]] = {
    "up": up,
    "fill": topics.fill,
    "floor": topics.floor,
    "run": runs.run,
    "process": runs.process,
    "check": check,
    "contract": contract,
    "inspect": topics.inspect,
    "transactions": topics.transactions,
    "abort": topics.abort,
    "rights": rights,
    "stop": runs.stop,
    "release": runs.release,
    "resume": runs.resume,
    "runs": runs.list_runs,
    "show": runs.show,
    "totals": totals,
    "clean": runs.clean,
    "evidence": evidence.evidence,
    "verify": evidence.verify,
    "signoff": evidence.signoff,
    "keys": keys,
    "login": login.login,
    "logout": login.logout,
    "whoami": login.whoami,
    "audit": login.audit,
    "compare": history.compare,
    "trend": history.trend,
    "matrix": matrix,
    "torture": torture,
    "doctor": doctor,
}
"""Commands by name, in the order of the help."""
for name, command in COMMANDS.items():
    app.command(name)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(version("topicproof"), highlight=False)
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """See, and prove, what Kafka transactions did to your topics."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command. Every error becomes one sentence and an exit code, without a traceback."""
    out.quiet = False
    given = _with_json_value(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given, prog_name="topicproof", standalone_mode=False)
    except ClickException as error:
        error.show()
        code = USAGE
    except TopicproofError as error:
        err.print(f"[red]{type(error).__name__}[/]: {error}", highlight=False)
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
    main()
