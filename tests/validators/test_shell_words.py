"""Commands to copy: a shell reads the words that were meant, and nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from topicproof.backend.characters import has_control, visible
from topicproof.backend.kafka.acls import Resource, Right
from topicproof.backend.kafka.browse.causes import abort_command
from topicproof.backend.settings import read_settings
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.incidents.group_offsets import incident_of_ahead
from topicproof.validators.shell_words import command_line, shell_word

HOSTILE = (
    "squares; touch hacked",
    "$(touch hacked)",
    "`touch hacked`",
    'it\'s \\ "quoted"',
    "a\x1b[2Jb\nc\t\r",
    "\u202egpj.exe\u2066'\\x1b",
    "caf\u00e9 \U000e0041\x7f\u2028",
    "--help",
    "=ls",
    "",
)


def _words(command: str) -> list[str]:
    """What bash makes of a command's words."""
    script = f"set -- {command}; printf '%s\\0' \"$@\""
    process = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    return process.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_a_shell_reads_the_word_that_was_meant(word: str) -> None:
    """Story: a name was made by somebody who waits for a person to copy a command. On the screen
    nothing in it is hidden or reordered, and bash reads one word."""
    quoted = shell_word(word)
    assert not quoted.startswith("=")  # zsh takes it for the path of a program.
    assert visible(quoted) == quoted and not has_control(quoted)
    assert _words(quoted) == [word]


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_every_command_to_copy_is_quoted(word: str, tmp_path: Path) -> None:
    """Story: a broker, a file of clusters or a variable of the environment has such a name. The
    commands that pages and the terminal print name it as one word, never as an option."""
    transaction: Any = SimpleNamespace(partition=3, start_offset=7)
    abort = abort_command(transaction, word, " --cluster west")
    source = Bounds("orders", (PartitionBounds(0, 0, 9, 9),))
    agreed = SimpleNamespace(group=word, offsets={0: 7})
    ledger: Any = SimpleNamespace(question=SimpleNamespace(source=source, agreed=agreed))
    groups = incident_of_ahead(ledger, {0: 2})
    assert groups is not None
    (reset,) = re.findall("`(.*?)`", groups.next_step)
    assert visible(reset) == reset and (not word or word in _words(reset)), reset
    right = Right(Resource.TOPIC, word, False, ("Read",), "why").command(
        "User:me", "here:9092", None
    )
    commands = [abort, right]
    of_cluster = {"cluster": word}, {"cluster": None, "bootstrap": word, "config": None}
    for update in of_cluster:
        settings = read_settings(home=tmp_path).model_copy(update=update)
        commands.append(f"topicproof inspect{settings.cluster_options}")
    for command in commands:
        assert visible(command) == command and word in _words(command), command
    if word.startswith("-"):
        assert _words(abort)[-4:] == ["--", word, "3", "7"]
    assert _words(command_line("topicproof inspect", "squares"))[1:] == ["inspect", "squares"]
