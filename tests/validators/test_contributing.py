"""The example of CONTRIBUTING.md is a kind of finding that works."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import history
from topicproof.backend.settings import ROOT
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.kinds.catalogue import VALIDATORS, Validator


@pytest.fixture
def example() -> Validator:
    """The module, as it is written in the document."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"## Add a kind of finding.*?```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    module: Any = ModuleType("topicproof.validators.kinds.outside_transaction")
    exec(compile(found[1], "CONTRIBUTING.md", "exec"), module.__dict__)
    return cast(Validator, module)


@pytest.mark.parametrize(("log", "count"), [("0 1 C 2! 3 C", 1), ("0 1 C 2 3 C", 0)])
def test_the_example_finds_what_it_says_and_nothing_else(
    example: Validator, log: str, count: int, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: somebody follows the document. In a sink with one record outside of transactions the
    kind is found, in a healthy one it is not. It is shown, and does not change the verdict. On the
    healthy sink its counts are enough: it reads no record."""
    ledger = history(log, inputs=4).ledger(spark, tmp_path)
    assert (example.find(ledger) is None) == (count == 0)
    alone = judge(ledger, Guarantee.EXACTLY_ONCE)
    found = judge(ledger, Guarantee.EXACTLY_ONCE, validators=(*VALIDATORS, example))
    (own,) = [one for one in found.findings if one.kind == example.NAME]
    assert own.count == count and found.verdict is alone.verdict
    assert own.outcome is (Outcome.VIOLATED if count else Outcome.HOLDS)
    (reason,) = [one.why for one in found.not_checked if one.kind == example.NAME]
    assert reason == "Not counted: no guarantee promises anything about it."
