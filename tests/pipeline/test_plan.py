"""Plans: what is refused, and with which words, before anything is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.errors import UsageError
from backend.pipeline.plan import RunPlan, make_plan, read_plan


def test_a_plan_round_trips_through_json() -> None:
    """Story: a plan is stored with its run. Read back, it is the same plan."""
    plan = make_plan({"records": 5, "faults": ["crash@transaction=3"], "source": {"isolation": "read_uncommitted"}})
    assert RunPlan.model_validate(plan.model_dump(mode="json")) == plan


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"scenario": "cubes"}, "Unknown scenario 'cubes'. Known: squares"),
        ({"abort_probability": 2}, "abort_probability: Input should be less than or equal to 1"),
        ({"records": -1}, "records: Input should be greater than or equal to 1"),
        ({"faults": ["flood@noon"]}, "Unknown fault 'flood@noon'. Known: crash@transaction=N"),
        ({"faults": ["crash@transaction=0"]}, "Unknown fault"),
        ({"faults": ["crash@transaction=1,step=lunch"]}, "Unknown step 'lunch'"),
        ({"guarantee": "twice"}, "guarantee: Input should be 'exactly_once', 'at_least_once' or 'at_most_once'"),
        ({"idempotence": False}, "exactly_once needs idempotence. Choose at_least_once"),
        ({"guarantee": "at_least_once", "acks": "0"}, "at_least_once needs acks=all. Choose at_most_once"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"source": {"topic": "a"}, "sink": {"topic": "a"}}, "source and sink are the same topic, a"),
        ({"source": {"topic": "a/b"}}, "a topic's name has"),
        ({"source": {"options": {"minPartitions": "8"}}}, "minPartitions is refused: it splits a source partition"),
        ({"source": {"options": {"maxRecordsPerPartition": "8"}}}, "maxRecordsPerPartition is refused"),
        ({"source": {"options": {"failOnDataLoss": "false"}}}, "failOnDataLoss=false is refused"),
        ({"source": {"options": {"kafka.isolation.level": "x"}}}, "say it as source.isolation"),
    ],
)
def test_a_bad_plan_is_refused_with_the_field_and_the_reason(fields: dict[str, Any], says: str) -> None:
    """Story: somebody writes a plan that cannot be run soundly. One sentence names the field and why."""
    with pytest.raises(UsageError) as refused:
        make_plan(fields)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("records: [1", "line 1: not YAML"), ("- squares", "expected a mapping"), ("just words", "expected a mapping")],
)
def test_a_plan_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Story: the plan file is broken. The error names the file, and the line where there is one."""
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_plan(path)


def test_a_missing_plan_file_is_named(tmp_path: Path) -> None:
    """Story: the plan file is not there. The error says which."""
    with pytest.raises(UsageError, match=r"plan\.yaml cannot be read"):
        read_plan(tmp_path / "plan.yaml")
