"""Nothing that comes from elsewhere ends in a traceback: a short look at each parser. The long one
is `python -m tests.fuzz SECONDS`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS


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
    given_bytes, read = TARGETS[name]
    read(data.draw(given_bytes))
