"""Nothing that comes from elsewhere ends in a traceback: a short look at each parser, and all that
a long one has found (`python -m tests.fuzz SECONDS`)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.fuzz.corpus import corpus
from tests.fuzz.targets import TARGETS, mutated


@pytest.mark.parametrize("name", TARGETS)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_any_bytes_end_in_a_result_or_a_sentence(name: str, data: st.DataObject) -> None:
    """Story: a topic, a file or a folder from a stranger."""
    seeds, read = TARGETS[name]
    read(data.draw(mutated(*seeds)))


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_ends_in_results_and_sentences(name: str) -> None:
    """Story: what reached all the code of a parser when it was last fuzzed reaches no traceback
    now."""
    inputs = corpus(name)
    assert inputs
    for one in inputs:
        TARGETS[name][1](one)
