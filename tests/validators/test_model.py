"""The validators against a few lines of Python that say the same of random topics."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from pyspark.sql import SparkSession, functions as F

from tests.validators.history import history, side_by_side
from topicproof.validators.kinds import aborted_read, duplicate, gap, order, phantom

INPUTS = 6
TOKENS = [
    *(str(offset) for offset in range(INPUTS + 1)),
    "2!",
    "b:1",
    "b:4",
    "?",
    "_",
    "C",
    "C",
    "A",
    "b:C",
    "b:A",
]
topics = st.lists(
    st.lists(st.sampled_from(TOKENS), max_size=16).map(" ".join), min_size=40, max_size=40
)

Counts = Counter[tuple[int, str]]
"""Primary rows by topic and kind."""


@given(topics)
@settings(
    # Forty topics an example; what differs names its topic, so that shrinking would only cost time.
    max_examples=3,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_the_counts_are_those_of_the_model(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    """Story: forty random topics, each in a partition of its own, judged at once. Spark counts what
    the model counts, and every offset is explained."""
    folder: Path = tmp_path_factory.mktemp("model")
    made = side_by_side(
        history(line, inputs=INPUTS, first=number) for number, line in enumerate(lines)
    )
    ledger = made.ledger(spark, folder)
    assert ledger.doubts == ()
    counts: Counts = Counter()
    topic = F.coalesce("partition", "source_partition").alias("topic")
    for validator in (duplicate, gap, order, aborted_read, phantom):
        found = validator.find(ledger)
        if found is not None:
            rows = found.where(F.col("explained_by").isNull()).groupBy(topic).count()
            counts.update({(row["topic"], validator.NAME): row["count"] for row in rows.collect()})
    expected: Counts = Counter()
    for number, line in enumerate(lines):
        expected.update({(number, kind): count for kind, count in model(line).items()})
    assert counts == expected


def model(line: str) -> Counter[str]:
    """Primary rows by kind of one partition that holds the outputs of one source partition."""
    records, open_since = _settled(line.split())
    committed = [text for offset, text in records if offset < open_since]
    pending = {text for offset, text in records if offset >= open_since}
    real = [int(text) for text in committed if text != "?" and int(text) < INPUTS]
    firsts = list(dict.fromkeys(real))
    lost = [offset for offset in range(INPUTS) if offset not in real and str(offset) not in pending]
    return +Counter(
        duplicate=len(real) - len(firsts),
        gap=len(lost),
        order=sum(later < earlier for earlier, later in itertools.pairwise(firsts)),
        phantom=len(committed) - len(real),
    )


def _settled(tokens: list[str]) -> tuple[list[tuple[int, str]], int]:
    """The records that are not aborted, in offset order, and the offset where the first open
    transaction begins."""
    kept: list[tuple[int, str]] = []
    waiting: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}
    for offset, token in enumerate(tokens):
        producer = "b" if token.startswith("b:") else "a"
        text = token.removeprefix("b:")
        if text == "C":
            kept += waiting[producer]
        if text in ("C", "A"):
            waiting[producer] = []
        elif text.endswith("!"):
            kept.append((offset, text.removesuffix("!")))
        elif text != "_":
            waiting[producer].append((offset, text))
    still_open = waiting["a"] + waiting["b"]
    return sorted(kept + still_open), min((offset for offset, _ in still_open), default=len(tokens))
