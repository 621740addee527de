"""URL state of the Check page: pure."""

from __future__ import annotations

from topicproof.app.check.check_state import (
    CheckState,
    at_cluster,
    cluster_of,
    default_name,
    mistake_line,
    read_check,
    topic_of,
    write_check,
)


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


def test_names_and_topics() -> None:
    assert (
        default_name("lines", "orders.yaml") == "orders" and default_name("lines", None) == "lines"
    )
    assert topic_of({"sink": {"topic": "a"}}, "sink") == "a"
    assert topic_of({"sink": {"topics": ["a", "b"]}}, "sink") is None
    assert topic_of({"sink": "a"}, "sink") is None and topic_of({}, "source") is None
    fields = {"source": {"topic": "a"}, "sink": {"topic": "b"}}
    across = at_cluster(fields, "west")
    assert cluster_of(across, "source") == "west" and cluster_of(across, "sink") is None
    assert at_cluster(fields, None) == fields and cluster_of({"sink": "b"}, "sink") is None
    assert mistake_line("count", "a*b") == r"**count**: a\*b"
