"""What pages keep stays within a budget of bytes, whatever is read."""

from __future__ import annotations

import ast
from functools import partial

import pandas as pd
import pyarrow as pa
from hypothesis import given, strategies as some
from pandas.io.formats.style import Styler

from topicproof.app.session.byte_budget import ByteBudget
from topicproof.app.topic.tables import (
    TEXT_MAX,
    formatted,
    group_partition_table,
    group_table,
    member_table,
    mirrored_table,
    share_table,
)
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.coordination.groups import Member
from topicproof.backend.kafka.coordination.lag import GroupLag, PartitionLag
from topicproof.backend.kafka.coordination.share import ShareGroup, SharePartition
from topicproof.backend.kafka.mirror_offsets import Checkpoint
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
        # Clients, connections, names of what is to be checked, and themselves.
        *("_history", "_running", "_formats", "_follower", "byte_budget", "freeze"),
        "check_queue",
        # What clusters say of themselves, and batch headers.
        *("cluster_view", "cluster_overview", "cluster_groups", "cluster_group_names"),
        *("_cluster_id", "ended_in_cluster"),
        *("_newest", "topic_view", "_topics", "_watches"),
        *(
            "_coordination",
            "_read_coordinator_log",
            "topic_lags",
            "topic_share_groups",
            "mirrored_offsets",
        ),
        # Figures, a picture of limited size, cut samples, mistakes, names of a limited length.
        *("_read", "_ended", "_drafted", "_letters", "_spark_mistakes", "_source_labels"),
    }
    assert caches.keys() - small == set()
    assert {name for name, options in caches.items() if "max_entries" not in options} == {"freeze"}


def test_a_large_table_is_drawn_without_formats() -> None:
    """Story: somebody commits offsets of 33 groups on a topic of 1,000 partitions. Streamlit
    refuses a formatted table of more than 262,144 cells, which would end the page for everybody."""
    small, large = (pd.DataFrame({"a": range(rows), "b": 1_234}) for rows in (10_000, 10_001))
    assert isinstance(formatted(small, "{:,}"), Styler) and formatted(large, "{:,}") is large


def test_a_long_name_takes_little_room_in_a_table() -> None:
    """Story: one group with a name of 32 kB commits offsets on 1,000 partitions. The page's message
    was of 66 MB."""
    table = mirrored_table([Checkpoint("g" * 32_000, "orders", p, 5, 7) for p in range(1_000)])
    assert list(table.iloc[-1]) == ["g" * TEXT_MAX + "…", 999, 5, 7]
    assert dict(table.dtypes) == dict(mirrored_table([Checkpoint("g", "orders", 0, 5, 7)]).dtypes)


def test_tables_of_a_group_take_little_room_whatever_it_is_called() -> None:
    """Story: one group, of one client, has names of 32 kB and 1,000 partitions, and a transaction
    of such a name withholds all of them. Each row of a page's message has these names."""
    long_name, places = "n" * 32_000, tuple(("orders", p) for p in range(1_000))
    member = Member(long_name, long_name, long_name, places)
    lag = GroupLag(
        group=long_name,
        kind="consumer",
        state="Stable",
        members=(member,),
        partitions=tuple(
            PartitionLag(p, 5, member, 0, 7, 7, 7, True, True, long_name, long_name)
            for _topic, p in places
        ),
    )
    share = ShareGroup(
        group=long_name,
        state="Stable",
        isolation=READ_COMMITTED,
        members=(member,),
        partitions=tuple(SharePartition(p, 5, 0, 7, 7, True, long_name) for _topic, p in places),
    )
    tables = (
        group_table([lag]),
        group_partition_table([lag]),
        member_table([lag, share], "orders"),
        share_table([share]),
    )
    assert [len(table) for table in tables] == [1, 1_000, 2, 1_000]
    for table in tables:
        assert pa.Table.from_pandas(table).nbytes < 2_000 * len(table)


def test_only_a_bounded_table_is_formatted() -> None:
    places = {
        path.relative_to(ROOT / "app").as_posix()
        for path in (ROOT / "app").rglob("*.py")
        if ".style" in path.read_text()
    }
    # All show a page of records or of transactions.
    assert places == {
        "topic/tables.py",
        "topic/transaction_list.py",
        "topic/transaction_rows.py",
    }
