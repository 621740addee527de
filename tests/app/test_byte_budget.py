"""What pages keep stays within a budget of bytes, whatever is read."""

from __future__ import annotations

import ast
from functools import partial

from hypothesis import given
from hypothesis import strategies as some

from topicproof.app.session.byte_budget import ByteBudget
from topicproof.backend.settings import ROOT


@given(some.lists(some.tuples(some.integers(0, 9), some.integers(0, 150)), max_size=40))
def test_no_more_is_kept_than_the_budget(reads: list[tuple[int, int]]) -> None:
    """Story: somebody pages through windows of records of any size. The answer is always what was
    read, and what is kept never exceeds the budget."""
    budget = ByteBudget(bytes_max=100)
    size_of_key: dict[int, int] = {}
    for key, size in reads:
        size = size_of_key.setdefault(key, size)
        assert len(budget.get(key, partial(bytes, size), len)) == size
        assert 0 <= budget.bytes <= 100


def test_a_kept_value_is_read_once_and_the_oldest_goes_first() -> None:
    budget, reads = ByteBudget(bytes_max=10), []

    def get(key: str, size: int) -> bytes:
        def read() -> bytes:
            reads.append(key)
            return b"x" * size

        return budget.get(key, read, len)

    for key in "aabacb":  # `b` makes room for `c`: `a` was used after it.
        get(key, 4)
    assert reads == ["a", "b", "c", "b"]
    assert get("large", 11) and get("large", 11) and reads[-2:] == ["large", "large"]
    expired = ByteBudget(bytes_max=10, ttl_s=-1.0)
    assert [expired.get("a", lambda: b"x", len) for _ in "ab"] == [b"x", b"x"]
    assert expired.bytes == 0


def test_a_value_that_changes_takes_its_size_once() -> None:
    """Story: a live tail keeps its newest rows over those of before, for hours."""
    budget = ByteBudget(bytes_max=10)
    for rows in (b"aaaa", b"bbbbbb", b"cc"):
        budget.keep("tail", rows, len(rows))
    assert (budget.kept_value("tail"), budget.bytes) == (b"cc", 2)
    budget.keep("another", b"d" * 9, 9)
    assert budget.kept_value("tail") is None and budget.kept_value("another") == b"d" * 9
    budget.keep("another", b"e" * 11, 11)
    assert budget.kept_value("another") is None and budget.bytes == 0


def test_what_pages_cache_by_number_is_small() -> None:
    """Story: somebody adds a cache of records. Streamlit's caches count entries of any size, so
    records, reports and findings belong to the budget."""
    caches = {
        node.name: {keyword.arg for keyword in call.keywords}
        for path in (ROOT / "app").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("st.cache_")
    }
    small = {
        # Clients, connections and themselves.
        *("_history", "_running", "_formats", "_follower", "byte_budget", "freeze"),
        # What clusters say of themselves, and batch headers.
        *("cluster_view", "cluster_overview", "_newest", "topic_view", "_topics", "_watch"),
        *(
            "_coordination",
            "_read_coordinator_log",
            "topic_lags",
            "topic_share_groups",
            "mirrored_offsets",
        ),
        # Figures, a picture of limited size, cut samples, mistakes.
        *("_read", "_ended", "_drafted", "_spark_mistakes"),
    }
    assert caches.keys() - small == set()
    assert {name for name, options in caches.items() if "max_entries" not in options} == {"freeze"}
