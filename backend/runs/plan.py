"""A plan: everything needed to repeat a run, including the seed. It comes from YAML, options or
forms."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr, ValidationError, model_validator

from topicproof.backend.errors import UsageError
from topicproof.backend.runs.plan_fields import PlanFields
from topicproof.backend.runs.plan_rules import require_agreement
from topicproof.backend.yaml_fields import Place, YamlFields, where


class RunPlan(PlanFields):
    """Everything needed to repeat a run."""

    _file: YamlFields | None = PrivateAttr(default=None)
    """The file it came from, for later errors about its fields."""

    @model_validator(mode="after")
    def _agree(self) -> RunPlan:
        require_agreement(self)
        return self


def make_plan(fields: dict[str, Any]) -> RunPlan:
    """Make a plan from plain fields or a file's. Raises UsageError naming the line, the field and
    the remedy."""
    try:
        plan = RunPlan.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place: Place = tuple((first.get("ctx") or {}).get("place") or first["loc"])
        raise UsageError(
            _sentence(where(fields, place), place, first["msg"].removeprefix("Value error, "))
        ) from error
    plan._file = fields if isinstance(fields, YamlFields) else None
    return plan


def refused(plan: RunPlan, field: str, why: str) -> UsageError:
    """Return the error for a field that only Spark or Kafka can show to be wrong."""
    return UsageError(_sentence(where(plan._file, (field,)), (field,), why))


def _sentence(source: str, place: Place, why: str) -> str:
    return f"{source}: {'.'.join(map(str, place)) or 'plan'}: {why}"
