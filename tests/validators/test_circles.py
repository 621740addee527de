"""Circles of transactions are found among names that anybody may have made up."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import history
from topicproof.validators.finding import Outcome
from topicproof.validators.kinds import circular_flow
from topicproof.validators.kinds.circular_flow import Name, _circles


def test_circles_are_those_of_all_paths() -> None:
    """Small flows at random: the circles are those that a search of each path finds. A transaction
    that reads its own output is a circle of one."""
    draws = random.Random(5)
    for _ in range(300):
        names: list[Name] = [(number,) for number in range(draws.randint(1, 9))]
        edges = {(draws.choice(names), draws.choice(names)) for _ in range(draws.randint(0, 16))}
        reached = {name: _reach(name, edges) for name in names}
        expected = {
            frozenset(other for other in reached[name] if name in reached[other])
            for name in names
            if name in reached[name]
        }
        circles = _circles(edges)
        assert {frozenset(circle) for circle in circles} == expected
        assert len(circles) == len(expected)


def _reach(name: Name, edges: set[tuple[Name, Name]]) -> set[Name]:
    reached: set[Name] = set()
    waiting = [name]
    while waiting:
        writer = waiting.pop()
        new = {reader for source, reader in edges if source == writer} - reached
        reached |= new
        waiting += new
    return reached


def test_a_chain_may_be_as_long_as_a_topic() -> None:
    """Story: somebody makes up 50,000 names, each of which reads the one before it. None is in a
    circle until the last one closes it."""
    chain: list[Name] = [(f"x{number}",) for number in range(50_000)]
    edges = list(pairwise(chain))
    assert _circles(edges) == []
    (circle,) = _circles([*edges, (chain[-1], chain[0])])
    assert len(circle) == 50_000


def test_more_flows_than_are_examined_are_unknown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions read from each other, and only one pair is examined: nothing is said of
    circles, neither that there are some nor that there are none."""
    monkeypatch.setattr(circular_flow, "FLOWS_MAX", 1)
    log = history(
        "0 C b:1 b:C c:2 c:C", inputs=3, writers={(0, 0): "b1", (0, 1): "a1", (0, 2): "a1"}
    )
    report = log.report(spark, tmp_path)
    finding = next(each for each in report.findings if each.kind == "circular_flow")
    assert finding.outcome is Outcome.UNKNOWN
    assert "there are more of them than are examined" in f"{finding.why} {report.why}"
