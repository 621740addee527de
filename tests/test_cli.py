"""The command line without a cluster: usage, errors as one sentence, exit codes, JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from topicproof.backend import cli
from topicproof.backend.commands import run_commands, terminal
from topicproof.backend.history.store import History, State
from topicproof.backend.settings import read_settings

COMMANDS = (
    "up",
    "fill",
    "floor",
    "run",
    "process",
    "check",
    "contract",
    "status",
    "inspect",
    "transactions",
    "records",
    "watch",
    "mcp",
    "abort",
    "commit",
    "rights",
    "stop",
    "release",
    "strike",
    "resume",
    "runs",
    "show",
    "totals",
    "clean",
    "evidence",
    "verify",
    "signoff",
    "keys",
    "login",
    "logout",
    "whoami",
    "audit",
    "compare",
    "trend",
    "matrix",
    "torture",
    "doctor",
)


def call(*arguments: str) -> int:
    """The exit code of `topicproof <arguments>`."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: somebody asks for help. Every command has a description, an example of itself, and
    --json."""
    assert call(command, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example: topicproof {command}" in re.sub(r"\s+", " ", text) and "--json" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_a_command_work_outside_of_a_clone(command: str) -> None:
    """Story: somebody has the wheel alone, and copies an example. Its options are the command's,
    and it names no file of this repository."""
    group = get_command(cli.command_line([command]))
    assert isinstance(group, TyperGroup)
    help_text = " ".join((group.commands[command].help or "").split())
    examples = re.findall(rf"`topicproof {command}( [^`]+)?`", help_text)
    assert examples
    for example in examples:
        words = shlex.split(example)
        assert not [word for word in words if "/" in word]
        group.commands[command].make_context(command, words)


def test_all_commands_are_tested(capsys: pytest.CaptureFixture[str]) -> None:
    """Story: a command is added. It must appear in the list above, and so be held to the same
    rules."""
    assert call("--help") == 0
    listed = re.findall(r"^│ ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "--records", "-1"], 64, "records: Input should be greater than or equal to 1"),
        (["run", "--fault", "flood@noon"], 64, "Unknown fault 'flood@noon'"),
        (["run", "--source-option", "minPartitions=8"], 64, "minPartitions is refused"),
        (
            ["run", "--source-option", "maxRecordsPerPartition=8"],
            64,
            "maxRecordsPerPartition is refused",
        ),
        (["run", "--source-option", "words"], 64, "expected NAME=VALUE"),
        (["run", "--set", "words"], 64, "--set words: expected NAME=VALUE"),
        (["run", "--set", "colour=red"], 64, "--set colour: unknown option. Known: idempotence"),
        (["process", "--set", "acks=0"], 64, "acks: exactly_once needs acks=all"),
        (["run", "no-such-plan.yaml"], 64, "no-such-plan.yaml cannot be read"),
        (
            ["run", "table", "--guarantee", "at_most_once"],
            64,
            "a table is written exactly_once or at_least_once",
        ),
        (["run", "table", "--url", "kassandra://here"], 64, "not a database address"),
        (
            ["run", "totals", "--duplicates", "restart", "--rate", "5"],
            64,
            "always runs to its end. Remove rate.",
        ),
        (["run", "--brokers", "2"], 64, "the embedded Kafka has 1 or 3"),
        (["show", "squares-none"], 64, "There is no run squares-none. The history is empty."),
        (["totals", "squares-none"], 64, "There is no run squares-none"),
        (["trend", "orders.yaml"], 64, "No run or check with a verdict is about orders.yaml"),
        (["stop", "squares-none"], 64, "There is no run squares-none"),
        (["resume", "squares-none"], 64, "There is no run squares-none"),
        (["matrix", "--only", "fault=flood"], 64, "there is no fault 'flood'. Known: none, abort"),
        (["watch", "--every", "0.1"], 64, "--every is at least 1 second"),
        (["contract", "lint"], 64, "Name the contract"),
        (["contract", "lint", "none.yaml"], 64, "The contract none.yaml cannot be read"),
        (["contract", "init", "--source", "numbers"], 64, "Name both topics"),
        (
            ["contract", "export", "none"],
            64,
            "There is no contract none. No contract has",
        ),
        (["check", "--contract", "none@2"], 64, "There is no contract none@2"),
        (["check", "--contract", "contracts/squares.yaml", "--sink", "other"], 64, "Remove --sink"),
        (["rights", "--for", "inspect", "--principal", "User:j"], 64, "name each with --topic"),
        (["rights", "--for", "run", "--principal", "j"], 64, "Kafka's form is User:j"),
        (
            ["rights", "--for", "run", "--principal", "User:j", "--group", "g"],
            64,
            "--group has no effect",
        ),
        (
            ["rights", "--for", "run", "--principal", "User:j", "--mirror", "east"],
            64,
            "--mirror has no effect",
        ),
        (["fly"], 64, "No such command"),
        (["show", os.fsdecode(b"squares-\xff")], 64, r"'squares-\udcff' is not valid UTF-8"),
        (["inspect", "squares", "--bootstrap", "127.0.0.1:1"], 3, "127.0.0.1:1"),
        (["records", "squares", "--where", "$.id ~ 5"], 64, "--where: '$.id' needs an operator"),
        (["fill", "--bootstrap", "127.0.0.1:1"], 3, "127.0.0.1:1: Connection refused"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: something is wrong with the request or the cluster. One sentence says what, never a
    traceback."""
    assert call(*arguments) == code
    told = capsys.readouterr().err
    assert says in re.sub(r"\s+", " ", told) and "Traceback" not in told


def test_an_empty_history_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    """Story: a newcomer lists the runs. There are none, and the answer is the next command to
    type."""
    assert call("runs") == 0
    assert "topicproof run" in capsys.readouterr().out


def test_json_goes_to_the_terminal_or_to_a_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a machine reads the answer. Without a file it is all that is on standard output; with
    one, it is there."""
    assert call("runs", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert call("runs", "--json", str(home / "runs.json")) == 0
    assert json.loads((home / "runs.json").read_text()) == []


def test_json_that_cannot_be_written_is_exit_code_4(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: the file for the answer lies in a folder that does not exist. The evidence is missing:
    exit code 4."""
    assert call("runs", "--json", str(home / "no" / "runs.json")) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_a_home_that_cannot_be_written_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: the home lies where a file is. The sentence names it and the variable that moves
    it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "file" / "home"))
    assert call("runs") == 3
    assert "TOPICPROOF_HOME" in capsys.readouterr().err


@pytest.mark.parametrize("state", [State.JUDGING, State.PROCESSING])
def test_stop_waits_for_the_judgement_but_not_for_a_run_that_hangs(
    state: State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a run is asked to stop, and a minute later it is still in the same state. If that is
    the judgement of what it has processed, `stop` says so and waits for its end. If it still
    processes, `stop` gives up with a sentence."""
    history = History(read_settings())
    run = history.create("run", "squares", {})
    history.enter(run.id, state)
    said: list[str] = []

    def end(text: str) -> None:
        said.append(text)
        history.end(run.id, State.STOPPED, "HOLDS", None)

    monkeypatch.setattr(run_commands, "STOP_WAIT_S", 0.0)
    monkeypatch.setattr(run_commands, "say", end)
    code = call("stop", run.id)
    told = capsys.readouterr()
    assert history.get(run.id).stop_requested is (state is not State.JUDGING)
    if state is State.JUDGING:
        assert (code, said) == (0, [f"{run.id} has stopped and is still being judged."])
        assert f"{run.id} is stopped." in told.out
    else:
        assert (code, said) == (3, [])
        assert f"Run {run.id} has been asked to stop but is still processing." in told.err


def test_square_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Story: a topic, a pattern or an error has square brackets, which Rich takes for markup. They
    are printed, and end no command in a traceback."""
    text = "([a-z]+)[/dim] of [bold]"
    assert call("show", text) == 64 and f"There is no run {text}." in capsys.readouterr().err
    history = History(read_settings())
    history.end(history.create("run", "squares", {}).id, State.FAILED, None, None, text)
    assert call("runs") == 0
    assert text in " ".join(capsys.readouterr().out.split())
    run_id = history.list()[0].id
    assert call("show", run_id) == 0 and text in capsys.readouterr().out
    terminal.say(text)
    assert text in capsys.readouterr().err
