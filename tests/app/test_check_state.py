"""URL state of the Check page: pure."""

from __future__ import annotations

import json

from topicproof.app.check import check_reads
from topicproof.app.check.check_state import (
    CheckState,
    at_cluster,
    cluster_of,
    mistake_line,
    mistakes_text,
    read_check,
    topic_of,
    write_check,
)

DAMAGED = "The terms in this address are damaged. Showing the contract without them."


def test_an_address_reads_back_as_what_it_was() -> None:
    """Story: terms were changed in the form. A reload, or a colleague, gets the same form."""
    state = CheckState("orders", "lines", "west", run="check-1").with_fields(
        {"value": "a & b=ü", "n": 2}
    )
    assert read_check(write_check(state)) == (state, [])


def test_damaged_terms_are_said_and_ignored() -> None:
    """Story: a chat has cut the address, or somebody has typed into it."""
    nothing = ('{"n": NaN}', '{"value": "\\ud800"}')
    for terms in ('{"value": "a', "[1]", "[" * 100_000, "7", *nothing):
        state, notices = read_check({"source": "orders", "terms": terms})
        assert state == CheckState("orders") and len(notices) == 1


def test_terms_have_few_levels_and_few_mistakes_are_listed() -> None:
    """Story: a link has terms of 900 levels, within their limit of characters, or thousands of
    wrong kinds. The page goes on, and lists the first mistakes."""
    deep = '{"a":' * 900 + "1" + "}" * 900
    for terms in (f'{{"warn": {deep}}}', '{"require": ' + "[" * 900 + "]" * 900 + "}"):
        assert read_check({"terms": terms}) == (CheckState(), [DAMAGED]), terms[:20]
    sides = {"source": {"topic": "a"}, "sink": {"topic": "b"}, "identity": "key"}
    state, notices = read_check(
        {"terms": json.dumps(sides | {"require": ["x"] * 4_000}, separators=(",", ":"))}
    )
    assert state.terms is not None and not notices
    mistakes = check_reads.mistakes(state.terms)
    lines = mistakes_text(mistakes).split("  \n")
    assert len(mistakes) == 4_000 and len(lines) == 21 and lines[-1] == "3,980 more."


def test_names_and_topics() -> None:
    assert topic_of({"sink": {"topic": "a"}}, "sink") == "a"
    assert topic_of({"sink": {"topics": ["a", "b"]}}, "sink") is None
    assert topic_of({"sink": "a"}, "sink") is None and topic_of({}, "source") is None
    fields = {"source": {"topic": "a"}, "sink": {"topic": "b"}}
    across = at_cluster(fields, "west")
    assert cluster_of(across, "source") == "west" and cluster_of(across, "sink") is None
    assert at_cluster(fields, None) == fields and cluster_of({"sink": "b"}, "sink") is None
    assert mistake_line("count", "a*b") == r"**count**: a\*b"
