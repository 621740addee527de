"""Contracts kept by name, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from topicproof.backend.errors import ContractError, UsageError
from topicproof.backend.history.kept_contracts import contracts, find, keep, versions
from topicproof.backend.history.store import History

TEXT = "source: {topic: orders}\nsink: {topic: lines}\nidentity: key # reviewed\n"


def test_each_change_is_a_version_and_stays(open_history: Callable[[], History]) -> None:
    """Story: a contract is kept, kept again unchanged, changed, and found by name and by version.
    What is no contract is not kept."""
    history = open_history()
    assert keep(history, "orders", TEXT).label == "orders@1"
    assert keep(history, "orders", TEXT).label == "orders@1"
    changed = TEXT.replace("key", "value")
    assert keep(history, "orders", changed).version == 2
    keep(history, "a.other", TEXT)
    assert [one.label for one in contracts(history)] == ["a.other@1", "orders@2"]
    assert [one.text for one in versions(history, "orders")] == [changed, TEXT]
    assert find(history, "orders").text == changed and find(history, "orders@1").text == TEXT
    for label in ("orders@3", "orders@x", "nobody"):
        with pytest.raises(UsageError, match=r"Kept are a\.other, orders"):
            find(history, label)
    with pytest.raises(ContractError, match="there is no such field"):
        keep(history, "orders", TEXT + "sourse: 1\n")
    with pytest.raises(UsageError, match="cannot be named"):
        keep(history, "a b", TEXT)


def test_two_people_keep_versions_at_once(open_history: Callable[[], History]) -> None:
    """Story: four browsers keep four changes of one contract at the same moment. None is lost."""
    histories = [open_history() for _ in range(4)]

    def kept(number: int) -> int:
        text = TEXT + f"group: g{number}\n"
        return keep(histories[number], "orders", text).version

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(kept, range(4))) == [1, 2, 3, 4]
