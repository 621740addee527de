"""Nothing that is data reaches a terminal as a control code, as markup or as a line of its own."""

from __future__ import annotations

import ctypes
import io
import json
import logging
import os
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import typer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from hypothesis import given, strategies as st

from tests.app.test_history_page import TWICE
from topicproof.backend import characters, cli, log_file
from topicproof.backend.address import Address
from topicproof.backend.commands import terminal
from topicproof.backend.commands.outcome import conclude_check
from topicproof.backend.commands.show import judged_line, report_lines
from topicproof.backend.commands.show_topic import print_transactions
from topicproof.backend.commands.terminal import (
    Styled,
    Table,
    Terminal,
    as_json,
    emit,
    plain_text,
    write_file,
)
from topicproof.backend.errors import ContractError, EvidenceError, TopicproofError
from topicproof.backend.evidence.copy import without_values
from topicproof.backend.evidence.page import write_page
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    admin_config,
    consumer_config,
    journal_producer_config,
)
from topicproof.backend.kafka.coordination.transactions import (
    TransactionalId,
    TransactionsOfCluster,
)
from topicproof.validators.expectation import NORMAL, PREMISES
from topicproof.validators.finding import (
    Bounds,
    Example,
    Finding,
    JudgedInputs,
    NotChecked,
    Outcome,
    Part,
    PartitionBounds,
)
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.next_steps import OF_ABORTED_OUTPUTS, OF_VIOLATIONS, next_step
from topicproof.validators.report import Report

pytestmark = pytest.mark.quick

HOSTILE = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\x1b\x07\x08\r\n\t\x7f\x9b\x85\u202e\u2066\u2028\u200b\U000e0041\ufeff"),
        st.sampled_from("[]/\\:bold red"),
    )
)
OURS = re.compile(r"\x1b\[[0-9;]*m")
"""What we write to colour a word."""


def moves(text: str) -> list[str]:
    """The characters of an output that a terminal obeys or hides, but line breaks."""
    return [
        letter
        for letter in OURS.sub("", text)
        if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]


def coloured(width: int = 80) -> tuple[Terminal, io.StringIO]:
    """A terminal with colours, and what is written to it."""
    file = io.StringIO()
    return Terminal(file=file, width=width, is_terminal=True), file


def test_every_character_that_is_not_seen_is_spelled_out() -> None:
    """Story: Unicode has 170 characters without a shape, and terminals obey 65 more. Each is
    spelled out, in a line, in a text and in JSON."""
    for letter in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert characters.visible(letter).isascii(), hex(ord(letter))
            assert characters.visible_lines(letter).isascii()
            assert characters.visible_json(letter).isascii()
    blanks = "\u2800\U0001d159\U00016fe4"  # Symbols and a letter that fonts draw as nothing.
    assert characters.visible(blanks) == r"\u2800\U0001d159\U00016fe4"
    assert characters.visible("naïve 東京 é🙂 [x]\\") == "naïve 東京 é🙂 [x]\\"
    assert characters.visible("a\x1b[2Jb\nc\u202e\U000e0041") == r"a\x1b[2Jb\nc\u202e\U000e0041"


@given(HOSTILE, HOSTILE, st.sampled_from((20, 40, 80)))
def test_a_line_is_a_line_whatever_is_in_it(first: str, second: str, width: int) -> None:
    """Story: somebody controls every text of a line. It moves no cursor, and on a narrow terminal
    no row but the first begins at the left."""
    screen, file = coloured(width)
    screen.line(f"x{first}", Styled(second, "red"), second)
    text = file.getvalue()
    assert moves(text) == []
    first_row, *rows = text.removesuffix("\n").split("\n")
    assert first_row.startswith("x")
    assert all(OURS.sub("", row).startswith(" ") for row in rows)
    piped = io.StringIO()
    Terminal(file=piped).line(first, Styled(second, "red"))
    inert = characters.without_commands(characters.visible(first + second))
    assert piped.getvalue() == inert + "\n"


def test_a_row_is_as_wide_as_any_terminal_draws_it() -> None:
    """Story: a name is full of vowel signs of Hindi, of modifiers of emoji, or of marks of Hangul.
    Rich counts no columns for them, and a terminal wraps the row by itself: its rest would begin at
    the left. The C library knows how wide a terminal draws each."""
    columns_of = ctypes.CDLL(None).wcwidth
    letters = [chr(number) for number in range(0x20, sys.maxunicode + 1)]
    seen = [letter for letter in letters if characters.visible(letter) == letter]
    drawn = {letter: columns_of(ctypes.c_wchar(letter)) for letter in seen}
    assert drawn["\u0940"] == 1 and drawn["\U0001f3fb"] == 2
    assert [letter for letter in seen if terminal.columns_of(letter) < max(1, drawn[letter])] == []


@pytest.mark.parametrize(
    "letter", ["\u0940", "\U0001f3fb", "\u302e", "\u0301", "\u1160\u11a8", "é"]
)
@pytest.mark.parametrize("is_table", [False, True])
def test_no_mark_makes_a_row_longer_than_the_terminal(letter: str, is_table: bool) -> None:
    """Story: such a name is in a line and in a table's cell."""
    screen, file = coloured(width=40)
    name = f"{letter * 50} signed by somebody"
    if is_table:
        table = Table(("topic", "n"), {"topic"})
        table.add(name, "1")
        screen.table(table)
    else:
        screen.line("group ", Styled(name, "red"))
    rows = OURS.sub("", file.getvalue()).removesuffix("\n").split("\n")
    assert all(sum(map(terminal.columns_of, row)) <= 40 for row in rows)
    assert all(row.startswith(" ") for row in rows[1:])


@given(st.integers(0, 120), st.sampled_from(["::add-mask::x", "##[error]x", "\u00a0::x::"]))
def test_no_row_of_a_table_is_a_command(length: int, command: str) -> None:
    """Story: a record's value wraps in a table's cell of `show topic`, in a pipe too, so that a row
    of it begins with a command of GitHub."""
    for blank in ("", " "):
        piped = io.StringIO()
        table = Table(("value", "n"), {"value"})
        table.add("z" * length + blank + command, "1")
        Terminal(file=piped).table(table)
        for row in piped.getvalue().split("\n"):
            assert characters.without_commands(row) == row and not row.lstrip().startswith("::")


@given(HOSTILE)
def test_errors_documents_tables_and_json_obey_nobody(text: str) -> None:
    """Story: an error quotes a name, a contract has odd characters, a table's cell is hostile. An
    error's further lines are indented, and JSON still says what it said."""
    screen, file = coloured()
    screen.error(TopicproofError(text))
    screen.error(ContractError(text, text))
    assert all(
        row.startswith(("  ", "TopicproofError: ", "ContractError: "))
        for row in OURS.sub("", file.getvalue()).removesuffix("\n").split("\n")
    )
    screen.document(text)
    table = Table(("a", "b"), {"a", "b"})
    table.add(text, Styled(text * 20, "red"))
    before = file.tell()
    screen.table(table)
    rows = OURS.sub("", file.getvalue()[before:]).removesuffix("\n").split("\n")
    assert all(row.startswith(" ") for row in rows)
    assert [letter for letter in moves(file.getvalue()) if letter != "\t"] == []
    escaped = as_json({text: [text]})
    assert moves(escaped) == [] and json.loads(escaped) == {text: [text]}


@given(HOSTILE)
def test_a_report_and_a_cluster_show_names_as_they_are_spelled(text: str) -> None:
    """Story: topics, findings, notes, doubts and transactional ids of a stranger carry codes. Each
    line of a report and each row of `transactions` stays where it is."""
    finding = replace(
        TWICE.findings[0], why=text, examples=(Example(0, 7, text, text, text),), kind=text
    )
    report = replace(
        TWICE,
        why=text,
        source=replace(TWICE.source, topic=text),
        sink=replace(TWICE.sink, topic=text),
        findings=(finding,),
        doubts=(text,),
        notes=(text,),
        warnings=(text,),
    )
    screen, file = coloured(width=10_000)
    lines = list(report_lines(report))
    screen.lines(lines)
    assert moves(file.getvalue()) == []
    assert file.getvalue().count("\n") == len(lines)
    cluster = TransactionsOfCluster({}, (TransactionalId(text, text, 1, 1, None, None, ()),))
    print_transactions(screen, cluster, "")
    assert moves(file.getvalue()) == []


def test_each_row_of_a_finding_names_its_place_and_its_writer() -> None:
    """Story: a record was committed twice, an input was lost, and a group has no place. What names
    a place on either side is shown with it, and with its writer unless the sentence has it."""
    rows = (
        Example(0, 7, "numbers/1/3/0", "a-1/2/1", "It is there twice."),
        Example(None, None, "numbers/0/5", "b, producer id 2", "b, producer id 2 lost it."),
        Example(None, None, None, None, "Nothing is known."),
    )
    finding = replace(TWICE.findings[0], examples=rows)
    report = replace(TWICE, findings=(finding,))
    sink = TWICE.sink.topic
    shown = [plain_text(line).strip() for line in report_lines(report)]
    writer = "Transaction: transactional id a-1, transaction 2 of it, attempt 1."
    assert f"{sink}-0@7 (input numbers-1@3): It is there twice. {writer}" in shown
    assert "input numbers-0@5: b, producer id 2 lost it." in shown
    assert "Nothing is known." in shown


def test_a_report_lists_what_does_not_hold_and_what_to_do() -> None:
    """Story: an output was committed twice, and everything else holds or was not looked for. The
    finding has its rows and one next step; the rest has a line each, or all with `--all`."""
    gap = Finding("gap", Outcome.HOLDS, 0, 0, None, (), "All 100 expected outputs are committed.")
    behind = replace(TWICE.findings[0], kind="order", primary=0, explained_by="duplicate")
    report = replace(TWICE, findings=(*TWICE.findings, behind, gap))
    lines = list(map(plain_text, report_lines(report)))
    assert sum(line.strip() == f"Next: {OF_VIOLATIONS['duplicate']}" for line in lines) == 1
    assert sum(line.strip().startswith("Next: ") for line in lines) == 1
    assert lines[-2:] == [
        "  1 kind holds: gap",
        "  1 kind was not looked for (--all tells why): intruder",
    ]
    lines = list(map(plain_text, report_lines(report, all_kinds=True)))
    assert "  HOLDS    gap: All 100 expected outputs are committed." in lines
    assert lines[-1] == "  not checked intruder: Not counted: for its owner to say."


def test_a_report_tells_what_happened_and_only_that_next_step() -> None:
    """Story: the logs prove how a copy came about. The story and its own step are printed; what
    the kind suggests is not. Rows that another finding has shown are not printed again, and what is
    normal is shown with its first row."""
    copy = Example(0, 7, "numbers/1/3/0", None, "It is there twice.", '""')
    duplicate = replace(
        TWICE.findings[0], examples=(copy,), story="Two were at work.", next_step="Fence one."
    )
    order = replace(duplicate, kind="order", primary=0, story="", next_step="")
    change = Example(0, 0, None, None, "Producer id 7 went from epoch 0 to 1.")
    normal = Finding("identity_change", Outcome.HOLDS, 2, 2, None, (change,), "2 of 2 changed.")
    uncounted = (*TWICE.not_checked, NotChecked("identity_change", "Not counted: normal."))
    report = replace(TWICE, findings=(duplicate, order, normal), not_checked=uncounted)
    lines = [plain_text(line).strip() for line in report_lines(report)]
    assert "What happened: Two were at work." in lines
    assert [line for line in lines if line.startswith("Next: ")] == ["Next: Fence one."]
    assert "The same records as above." in lines
    assert sum('identity "" (an empty text): It is there twice.' in line for line in lines) == 1
    assert "info     identity_change: Producer id 7 went from epoch 0 to 1. And 1 more." in lines
    assert Report.from_json(report.to_json()) == report


def test_a_row_calls_an_order_by_its_number(tmp_path: Path) -> None:
    """Story: somebody lists the orders that are wrong. Terminal and page name them where they said
    "this input"; a copy without values does not."""
    why = "The output of this input is committed 2 times; the first is at squares-0@3."
    row = Example(0, 7, "numbers/1/3/0", None, why, '"O-01002"')
    lost = Example(None, None, "numbers/1/4", None, "This input has no committed output.", '"O-7"')
    duplicate = replace(TWICE.findings[0], examples=(row, lost), count=4, primary=1)
    duplicate = replace(duplicate, explained_by="aborted_read")
    report = replace(TWICE, findings=(duplicate,), identity="json $.id")
    sentences = ('"O-01002" is committed 2 times;', '"O-7" has no committed output.')
    for whole, is_named in ((report, True), (without_values(report), False)):
        write_page(tmp_path / "report.html", whole, "2026-01-31 12:00:00 UTC")
        page = unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
        terminal = "\n".join(map(plain_text, report_lines(whole)))
        for sentence in sentences:
            assert (sentence in page, sentence in terminal) == (is_named, is_named)
        assert ("this input" in terminal) is not is_named
    assert "3 more explained by aborted read" in page


def test_a_check_of_several_sinks_says_what_they_prove_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: one sink holds, and another one does not. Its line is not the last word."""
    refunds = replace(TWICE, sink=replace(TWICE.sink, topic="refunds"), verdict=Outcome.HOLDS)
    with pytest.raises(typer.Exit) as ended:
        conclude_check([TWICE, refunds], None, 1)
    assert ended.value.exit_code == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"As a whole: VIOLATED ({TWICE.sink.topic} VIOLATED, refunds HOLDS)"


def test_the_judged_range_is_named_by_places() -> None:
    """Story: two topics are read, one of them from offset 5 on; three offsets are markers."""
    partitions = (PartitionBounds(0, 0, 15, 15), PartitionBounds(1, 5, 6, 6))
    source = Bounds("a + b", partitions, (Part("a", 0), Part("b", 1)))
    report = replace(TWICE, source=source, inputs=JudgedInputs(13))
    expected = "judged: 13 inputs: a-0@0-14, b-0@5 (3 of these offsets hold no input)"
    assert judged_line(report) == expected


def test_each_kind_that_can_be_violated_has_a_next_step() -> None:
    """Story: a person reads a verdict that is violated and asks what to do. Premises are never
    violated, and what is normal asks for nothing."""
    kinds = {validator.NAME for validator in VALIDATORS} - PREMISES.keys() - NORMAL
    assert OF_VIOLATIONS.keys() == kinds


def test_a_lost_output_that_was_aborted_has_its_own_next_step() -> None:
    """Story: the program aborted a transaction and went on behind it. It has reached these inputs,
    so nobody is asked for a consumer group."""
    aborted = Example(None, None, "orders/0/7/0", "sink-2, producer id 7, epoch 2", "Lost.")
    untraced = replace(aborted, transaction=None)
    for examples, step in (
        ((aborted, aborted), OF_ABORTED_OUTPUTS),
        ((aborted, untraced), OF_VIOLATIONS["gap"]),
    ):
        finding = Finding("gap", Outcome.VIOLATED, 2, 2, None, examples, "Lost.")
        assert next_step(finding) == step


def test_markup_of_a_name_ends_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Story: a transactional id ends in what Rich reads as the end of a style."""
    terminal.out.quiet = False  # A command with --json has left it so.
    for name in ("bad\\[/]", "[/]", "[link=https://evil.example]x", "[bold]"):
        terminal.out.line(name)
        terminal.out.table(Table(("id",), rows=[(name,)]))
        assert capsys.readouterr().out.count(name) == 2


@pytest.mark.parametrize("argument", ["\x1b[2J", "--\u202e", "\x9b2J", "a\nsigned Grace"])
def test_an_echoed_argument_is_spelled_out(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: click quotes an argument that it does not know."""
    for arguments in ([argument], ["check", "--guarantee", argument], ["show", "a", argument]):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 64
        text = capsys.readouterr().err
        assert moves(text) == [] and "\nsigned" not in text


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_an_unforeseen_error_is_a_sentence_and_no_verdict(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: any command meets a fault of ours, or a library that ends the process. It ends with 3,
    since 1 means violated, and names the log with the traceback."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    log = tmp_path / "logs" / "topicproof.log"
    for error in (ZeroDivisionError("\x1b[2J4111-1111"), SystemExit(1), RecursionError("deep")):

        def fail() -> None:
            raise error  # noqa: B023 (called before the next round)

        app = cli.command_line([command])
        (info,) = app.registered_commands
        info.callback = fail
        with monkeypatch.context() as patch:
            patch.setattr(cli, "command_line", lambda _names: app)  # noqa: B023
            with pytest.raises(SystemExit) as ended:
                cli.main([command])
        text = capsys.readouterr().err
        assert ended.value.code == 3
        assert text.startswith(type(error).__name__) and text.count("\n") == 1
        assert str(log) in text and "4111" not in text
        assert f"{type(error).__name__}" in log.read_text() and moves(log.read_text()) == []
        assert log.stat().st_mode & 0o077 == 0


def test_a_reader_that_leaves_changes_no_exit_code(tmp_path: Path) -> None:
    """Story: `topicproof doctor | head -1`. Rich ends a process with 1 if nobody reads on."""
    code = (
        "import os, sys; from topicproof.backend import cli\n"
        "from topicproof.backend.commands import terminal\n"
        "def write(names):\n"
        "    for _ in range(9_999): terminal.out.line('x' * 99)\n"
        "    return lambda **options: 2\n"
        "cli.command_line = write; cli.main(['runs'])"
    )
    environment = {**os.environ, "TOPICPROOF_HOME": str(tmp_path)}
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 2
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            command, stdout=full, stderr=pipe, env=environment, text=True, check=False
        )
    assert answer.returncode == 3 and "Traceback" not in answer.stderr


def test_no_output_file_is_written_past_a_link(tmp_path: Path) -> None:
    """Story: `--json` names a file in a folder that others may write, and one of them lays a link
    there."""
    victim, link = tmp_path / ".vimrc", tmp_path / "report.json"
    victim.write_text("set number")
    link.symlink_to(victim)
    with pytest.raises(EvidenceError, match="it is a link"):
        emit(str(link), {})
    with pytest.raises(EvidenceError, match="it is a link"):
        write_file(link, "{}", append=True)
    assert victim.read_text() == "set number"
    emit(str(tmp_path / "own.json"), {})
    emit("/dev/null", {})


def test_a_file_that_somebody_names_never_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: `watch --json` appends for months, until the disk is full."""
    monkeypatch.setattr(log_file, "BYTES_MAX", 1)
    for line in ("first\n", "second\n", "third\n"):
        write_file(tmp_path / "notices.jsonl", line, append=True)
    assert (tmp_path / "notices.jsonl").read_text() == "first\nsecond\nthird\n"
    assert [path.name for path in tmp_path.iterdir()] == ["notices.jsonl"]
    with pytest.raises(EvidenceError, match="No space left"):
        write_file(Path("/dev/full"), "fourth\n", append=True)


def test_the_log_is_a_file_of_ours(tmp_path: Path) -> None:
    """Story: another user has made a pipe where the log is. It neither blocks nor gets a
    traceback."""
    os.mkfifo(tmp_path / log_file.NAME)
    with pytest.raises(OSError, match=r"No such device|no file of this user"):
        log_file.append(tmp_path / log_file.NAME, "a payload")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), (["run", "--help"], 0), ([], 64), (["runs"], 0)]
)
def test_a_closed_pipe_ends_each_command_quietly(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    """Story: `topicproof --help | head`. click ended the process, which was said to be a fault of
    ours."""
    command = [sys.executable, "-P", "-m", "topicproof.backend.cli", *arguments]
    environment = {**os.environ, "TOPICPROOF_HOME": str(tmp_path)}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        answer = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False
        )
    finally:
        os.close(writing)
    assert (answer.returncode, answer.stderr) == (code, b"")


def test_no_kafka_client_writes_to_the_terminal(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Story: somebody's client properties ask librdkafka for its debug log. It goes where Python's
    log goes."""
    address = Address("127.0.0.1:1", {"debug": "broker", "log_level": "7"})
    with caplog.at_level(logging.DEBUG):
        Producer(journal_producer_config(address)).poll(0.2)
        consumer = Consumer(consumer_config(address, "group", READ_COMMITTED))
        consumer.poll(0.2)
        consumer.close()
        AdminClient(admin_config(address)).poll(0.2)
    assert {one.name for one in caplog.records} == {"librdkafka"}
    assert capfd.readouterr().err == ""


def test_what_libraries_log_goes_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: librdkafka reports a transaction's trouble dozens of times, and a thread of a library
    fails. The terminal has the progress alone."""
    code = (
        "import logging, threading, warnings; from topicproof.backend import cli\n"
        "def write(names):\n"
        "    logging.getLogger('topicproof.backend.kafka').error('%s', 'GETPID\\x1b[2J')\n"
        "    thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()\n"
        "    warnings.warn('careful')\n"
        "    return lambda **options: 0\n"
        "cli.command_line = write; cli.main(['runs'])"
    )
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    answer = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, b"", b"")
    text = (tmp_path / "logs" / "topicproof.log").read_text()
    assert r"GETPID\x1b[2J" in text and "ZeroDivisionError" in text and "careful" in text
