"""Annotations, summaries and files for CI: what strangers wrote is no command, link or tag."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st
from junitparser import JUnitXml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.app.test_history_page import TWICE
from topicproof.backend.characters import visible, visible_json, without_commands
from topicproof.backend.evidence.annotations import markdown, workflow_commands
from topicproof.backend.evidence.copy import without_values
from topicproof.backend.evidence.ctrf import as_ctrf
from topicproof.backend.evidence.junit import write_junit
from topicproof.validators.finding import Example, Outcome
from topicproof.validators.kinds.wrong_value import WRONG
from topicproof.validators.report import Report

pytestmark = pytest.mark.quick

LINK = "[Approve the release](https://evil.example) <img src=https://evil.example/x.png> | a | b"
COMMANDS = "##[stop-commands]x\n::set-output name=exit-code::0\n  ::error::no\r::error::\x1b[2J"
TEXTS = st.text(
    st.one_of(st.characters(), st.sampled_from("[]()<>!|`*_#:~\\\n\r\t &$@%,\x1b\u202e"))
)
PLAIN = {"text", "paragraph_open", "paragraph_close", "inline", "heading_open", "heading_close"}
PLAIN |= {
    f"{part}_{end}"
    for part in ("table", "thead", "tbody", "tr", "th", "td")
    for end in ("open", "close")
}


def hostile(text: str) -> Report:
    """A report whose every name and sentence is this text."""
    finding = replace(
        TWICE.findings[0],
        why=text,
        outcome=Outcome.VIOLATED,
        examples=(
            Example(0, 7, f"{text}/0/3/0", text, text),
            Example(None, None, text, None, text),
        ),
    )
    return replace(
        TWICE,
        why=text,
        source=replace(TWICE.source, topic=text),
        sink=replace(TWICE.sink, topic=text),
        findings=(finding,),
        not_checked=(),
        warnings=(text,),
    )


def every(tokens: list[Token]) -> list[Token]:
    return [one for token in tokens for one in (token, *every(token.children or []))]


def test_a_document_of_blank_lines_holds_up_no_terminal() -> None:
    """Story: a contract of somebody else is 200,000 blank lines. Each is looked at once."""
    blank = "\n" * 200_000
    assert without_commands(f"{blank}::error::x") == f"{blank}\\x3a:error::x"


@given(TEXTS)
@example(LINK)
@example(COMMANDS)
@example("\ud8ce")
@example("- a")
@example("    1. a")
@example("---")
@example("www.evil.example https://evil.example a@b.example @grace #12")
def test_a_summary_is_text(text: str) -> None:
    """Story: a topic is called like a link that says *Approve the release*. The summary shows the
    characters: no link, picture, tag, list, or cell that we did not make."""
    source = markdown(hostile(text))
    tokens = every(MarkdownIt("commonmark").enable("table").parse(source))
    others = [one for one in tokens if one.type not in PLAIN]
    assert [one.content for one in others if one.type == "code_inline"] == ["duplicate"]
    assert {one.content for one in others if one.type == "html_inline"} <= {"<!-- -->"}
    assert {one.type for one in others} <= {"code_inline", "html_inline"}
    assert sum(one.type == "td_open" for one in tokens) == 3
    shown = "".join(one.content for one in tokens if one.type == "text")
    assert "".join(visible(text).split()) in "".join(shown.split())
    assert re.search(r"://|www\.|@\w", source, re.IGNORECASE) is None


@given(TEXTS)
@example(LINK)
@example(COMMANDS)
@example("\ud8ce")
def test_an_annotation_is_one_command(text: str) -> None:
    """Story: a value holds a command of GitHub, in its new form or in the older one, which a runner
    reads anywhere in a line. Each line is the one command that we wrote."""
    lines = list(workflow_commands(hostile(text)))
    assert len(lines) == 3
    for line in lines:
        assert re.fullmatch(r"::(error|warning) title=[^:,]*::.*", line)
        assert visible(line) == line and "##[" not in line


BLANKS = [chr(number) for number in range(sys.maxunicode) if chr(number).isspace()]


@pytest.mark.parametrize(
    "text",
    ["##[error]x", "##vso[task.setvariable]x", "::add-mask::x", "  ::x::"]
    + [f"{blank} ::add-mask::x" for blank in BLANKS],
)
def test_a_line_of_ours_is_no_command(text: str) -> None:
    """Story: the same is in any line that we print, or in JSON."""
    assert re.search(r"##\w*\[|^\s*::", without_commands(text)) is None
    assert json.loads(visible_json(json.dumps(text))) == text
    assert "##" not in visible_json(json.dumps(text))


@given(TEXTS)
@example(COMMANDS)
@example("\ud8ce")
def test_files_for_ci_hold_characters_that_are_seen(text: str) -> None:
    """Story: the same names are in a CTRF document, as a CI server shows it."""
    document = as_ctrf([hostile(text)], 0)
    for test in document["results"]["tests"]:
        for shown in (test["message"], *test["suite"], *test.get("trace", "").split("\n")):
            assert visible(shown) == shown


def test_junit_spells_out_what_is_not_seen(tmp_path: Path) -> None:
    """Story: XML may hold U+202E and U+009B, and a console obeys them."""
    path = tmp_path / "junit.xml"
    write_junit(path, hostile("a\u202eb\x9bc\x1bd"), {}, "2026-01-01T10:00:00")
    assert JUnitXml.fromfile(str(path)).failures == 1
    text = path.read_text(encoding="utf-8")
    assert r"a\u202eb\x9bc\x1bd" in text and "\u202e" not in text


def test_no_value_leaves_with_masked_payloads() -> None:
    """Story: `check --payloads masked --annotate` finds a wrong value. Neither log, annotation,
    summary nor CTRF quotes it."""
    finding = replace(
        TWICE.findings[0],
        kind="wrong_value",
        outcome=Outcome.VIOLATED,
        examples=(Example(0, 7, "numbers/0/3/0", None, f'{WRONG}: it is "4111", and "4112"'),),
    )
    report = replace(TWICE, findings=(finding,), not_checked=())
    assert "4111" in markdown(report)
    bare = without_values(report)
    shown = [markdown(bare), *workflow_commands(bare), json.dumps(as_ctrf([bare], 0))]
    assert WRONG in "".join(shown).replace("\\", "") and "4111" not in "".join(shown)
