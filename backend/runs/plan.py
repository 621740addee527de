"""A plan: everything needed to repeat a run, including the seed. It comes from YAML, options or
forms. Fields that are valid alone and wrong together are refused here."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from topicproof.backend.errors import UsageError
from topicproof.backend.faults.kinds import CRASH, ERROR, ZOMBIE, parse_fault
from topicproof.backend.runs.duplicates import Cause
from topicproof.backend.runs.plan_fields import PlanFields
from topicproof.backend.runs.scenarios import Scenario, scenario
from topicproof.backend.sink.delivery_options import OPTIONS
from topicproof.backend.sink.hooks import Step
from topicproof.backend.yaml_fields import Place, YamlFields, where, why_refused


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
        raise UsageError(_sentence(where(fields, place), place, why_refused(first))) from error
    plan._file = fields if isinstance(fields, YamlFields) else None
    return plan


def refused(plan: RunPlan, field: str, why: str) -> UsageError:
    """Return the error for a field that only Spark or Kafka can show to be wrong."""
    return UsageError(_sentence(where(plan._file, (field,)), (field,), why))


def _sentence(source: str, place: Place, why: str) -> str:
    return f"{source}: {'.'.join(map(str, place)) or 'plan'}: {why}"


TABLE_FAULTS = (CRASH, ERROR, ZOMBIE)
"""Fault kinds for a worker whose sink is a table. The others affect what is in Kafka."""


def require_agreement(plan: PlanFields) -> None:
    """Check that fields agree. Raises PydanticCustomError for the first that does not."""
    if plan.source.topic is not None and plan.source.topic == plan.sink.topic:
        raise _disagree(
            f"source and sink are the same topic, {plan.sink.topic}. Choose another sink.",
            "sink",
            "topic",
        )
    _agree_on_guarantee(plan)
    chosen = scenario(plan.scenario)
    for expression, field in ((plan.key, "key"), (plan.value, "value")):
        if expression is not None and not chosen.expressions:
            raise _disagree(
                f"{chosen.name} takes no expression. Choose the scenario yours, or remove it.",
                field,
            )
    if chosen.expressions and plan.value is None:
        raise _disagree(
            "yours needs a value: a Spark SQL expression, such as `value: upper(value)`.",
            "scenario",
        )
    if chosen.value is None and plan.source.topic is None:
        raise _disagree(
            f"{chosen.name} fills no topic: name an existing one in source.topic.", "scenario"
        )
    if plan.deduplicate_s is not None and chosen.name != "totals":
        raise _disagree(
            f"{chosen.name} has no deduplication. Choose the scenario totals, or remove it.",
            "deduplicate_s",
        )
    _agree_on_duplicates(plan, chosen)
    if len(chosen.sources) > 1 and plan.source.topic is not None:
        raise _disagree(
            f"{chosen.name} reads several topics of its own. Remove source.topic.",
            "source",
            "topic",
        )
    _agree_on_tables(plan, chosen)
    _agree_on_lineage(plan, chosen)
    _agree_on_real_time(plan, chosen)
    _agree_on_strikes(plan, chosen)
    for number, fault in enumerate(map(parse_fault, plan.faults)):
        if fault.needs_transactions and plan.guarantee != "exactly_once":
            raise _disagree(
                f"{fault} strikes transactions, but {plan.guarantee} has none. Choose"
                " exactly_once.",
                "faults",
                number,
            )


def _agree_on_guarantee(plan: PlanFields) -> None:
    """Check that each option of delivery that is set is one of the guarantee."""
    for name, option in OPTIONS.items():
        if getattr(plan, name) != option.default and plan.guarantee not in option.guarantees:
            default = name if option.default is True else f"{name}={option.default}"
            raise _disagree(
                f"{plan.guarantee} needs {default}. Choose {option.guarantees[0]} to do without"
                " it.",
                option.plan_name,
            )


def _agree_on_real_time(plan: PlanFields, chosen: Scenario) -> None:
    if plan.trigger != "real_time":
        if plan.real_time_batch_s is not None:
            raise _disagree(
                "only real time has such batches. Say trigger: real_time, or remove it.",
                "real_time_batch_s",
            )
        return
    if chosen.tables or any(stage.stateful for stage in chosen.stages):
        obstacle = "writes a table" if chosen.tables else "has a stateful stage"
        raise _disagree(
            f"{chosen.name} {obstacle}, which real time does not support yet: only stages that"
            " treat each record on its own, and write topics. Choose micro_batch, or another"
            " scenario.",
            "trigger",
        )


def _agree_on_strikes(plan: PlanFields, chosen: Scenario) -> None:
    if plan.by_hand and not chosen.is_simple:
        raise _disagree(
            f"{chosen.name} cannot be struck by hand: only a run of one stage that treats each"
            " record on its own, and writes topics. Remove it, or choose another scenario.",
            "by_hand",
        )


def _agree_on_duplicates(plan: PlanFields, chosen: Scenario) -> None:
    if plan.source.url is not None and plan.duplicates is not Cause.TRANSFER:
        raise _disagree(
            "only a transfer reads a database. Say duplicates: transfer, or remove it.",
            "source",
            "url",
        )
    if plan.duplicates is None:
        return
    if chosen.name != "totals":
        raise _disagree(
            f"{chosen.name} has no payments. Choose the scenario totals, or remove it.",
            "duplicates",
        )
    if not plan.fills or plan.until_stopped or plan.rate is not None:
        field = (
            "source.topic" if not plan.fills else "until_stopped" if plan.until_stopped else "rate"
        )
        raise _disagree(
            f"a fill that repeats payments always runs to its end. Remove {field}.",
            "duplicates",
        )


def _agree_on_lineage(plan: PlanFields, chosen: Scenario) -> None:
    """Check what needs lineage headers, or a judge that has them."""
    if plan.lineage == "record":
        return
    needy = {
        "faults": plan.faults,
        "by_hand": plan.by_hand,
        "sink.dead_letters": plan.sink.dead_letters,
        "table": chosen.tables,
    }
    for field in (name for name, value in needy.items() if value):
        raise _disagree(
            f"{field} needs lineage, which shows what became of its records. Remove one.",
            "lineage",
        )
    if plan.judged and not (chosen.keyed and plan.fills):
        raise _disagree(
            "without lineage a run is judged by key, which needs one output for each input, and"
            " keys that differ. Choose the scenario squares and let the run fill its source, or"
            " say judged: false.",
            "lineage",
        )


def _agree_on_tables(plan: PlanFields, chosen: Scenario) -> None:
    """Check what a table can do, and what only topics can."""
    if not chosen.tables:
        if plan.sink.url is not None:
            raise _disagree(
                f"{chosen.name} writes topics. Choose the scenario table, or remove sink.url.",
                "sink",
                "url",
            )
        return
    if plan.guarantee == "at_most_once":
        raise _disagree(
            "a table is written exactly_once or at_least_once. Choose one of these.",
            "guarantee",
        )
    if plan.sink.dead_letters or plan.sink.partitions is not None:
        field = "dead_letters" if plan.sink.dead_letters else "partitions"
        raise _disagree(f"a table has no {field.replace('_', ' ')}. Remove it.", "sink", field)
    for name in (name for name, option in OPTIONS.items() if option.is_client_setting):
        if getattr(plan, name) != OPTIONS[name].default:
            raise _disagree("a table is written without Kafka's producer. Remove it.", name)
    if plan.reader:
        raise _disagree("a table is not polled. Remove it.", "reader")
    for number, fault in enumerate(map(parse_fault, plan.faults)):
        if fault.kind not in TABLE_FAULTS or fault.step is Step.COMMITTING:
            raise _disagree(
                f"{fault} strikes Kafka transactions, but a table is written in database"
                f" transactions. Choose {', '.join(kind.name for kind in TABLE_FAULTS)}, at any"
                f" step but {Step.COMMITTING}.",
                "faults",
                number,
            )


def _disagree(why: str, *place: str | int) -> PydanticCustomError:
    """Return an error for fields that are valid alone and wrong together. The one at `place` has to
    change."""
    return PydanticCustomError("plan", "{why}", {"why": why, "place": place})
