"""Schedules are drawn, written, read and made smaller without any service."""

from __future__ import annotations

import pytest

from topicproof.backend.errors import UsageError
from topicproof.backend.matrix.promises import Damage
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.torture.schedule import REAL_TIME, draw, parse, smaller

SEEDS = range(300)


def test_every_schedule_is_a_plan_and_its_text_gives_it_back() -> None:
    """Story: three hundred schedules are drawn. Each makes a plan that a run accepts, and each is
    the same when it is read from its text."""
    for seed in SEEDS:
        schedule = draw(seed, brokers=3)
        assert parse(str(schedule)) == schedule
        plan = make_plan(schedule.plan())
        assert plan.guarantee == schedule.promise.guarantee
        faults = {
            fault for trouble in schedule.troubles for fault in trouble.plan.get("faults", ())
        }
        assert len(plan.faults) == len(faults)


def test_a_seed_gives_the_same_schedule_again() -> None:
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    assert len({str(draw(seed)) for seed in SEEDS}) > 290


def test_a_schedule_in_real_time_differs_in_its_trigger_only() -> None:
    """Story: the same seeds are drawn in real time. Each text says so, gives the schedule back, and
    makes a plan that is the same otherwise."""
    for seed in SEEDS:
        usual, schedule = draw(seed), draw(seed, trigger=REAL_TIME)
        assert parse(str(schedule)) == schedule
        assert str(schedule).replace(" trigger=real_time", "") == str(usual)
        assert make_plan(schedule.plan()).trigger == REAL_TIME
        assert {**schedule.plan(), "trigger": "micro_batch"} == usual.plan()
        assert all(one.trigger == REAL_TIME for one in smaller(schedule))


def test_one_broker_is_never_struck() -> None:
    assert all(draw(seed, brokers=1).brokers == 1 for seed in SEEDS)
    assert any(draw(seed, brokers=3).brokers == 3 for seed in SEEDS)


def test_exactly_once_may_only_hide_what_was_aborted() -> None:
    """Story: whatever strikes an exactly-once run, no damage is allowed, unless Kafka itself loses
    what it acknowledged. An at-least-once run may repeat what a crash interrupts, and nothing
    else."""
    for seed in SEEDS:
        schedule = draw(seed, brokers=3)
        lossy = any(trouble.name == "unclean" for trouble in schedule.troubles)
        if schedule.name == "exactly_once" and not lossy:
            assert schedule.may <= {Damage.HIDDEN, Damage.ABORTED_INPUTS}
            attempted = any(trouble.attempts for trouble in schedule.troubles)
            assert (Damage.ABORTED_INPUTS in schedule.may) == attempted
    crash = parse("at_least_once records=100 partitions=1 per_transaction=10: crash-produced@2")
    assert crash.may == {Damage.DUPLICATES}
    assert crash.plan()["faults"] == ["crash@transaction=2,step=produced"]


def test_only_a_moved_offset_may_be_refused() -> None:
    text = "exactly_once records=100 partitions=1 per_transaction=10: "
    assert parse(f"{text}offsets-rewound@2").may_refuse
    assert not parse(f"{text}crash-produced@2 zombie@3").may_refuse
    # A late commit of an offset moves a group only outside transactions, and only a start of the
    # query looks for it.
    assert not parse(f"{text}ghost-offset@1 restart-kept@2").may_refuse
    plain = text.replace("exactly_once", "at_least_once")
    assert not parse(f"{plain}ghost-offset@1").may_refuse
    assert parse(f"{plain}ghost-offset@1 restart-kept@2").may_refuse
    assert parse(f"{plain}trigger=real_time: ghost-offset@1".replace("10: ", "10 ")).may_refuse


def test_smaller_schedules_end() -> None:
    """Story: a failure is made smaller, always by the first step offered. It ends with one
    partition and no trouble, after a few steps."""
    for seed in SEEDS:
        schedule, steps = draw(seed), 0
        while left := list(smaller(schedule)):
            assert schedule not in left
            schedule, steps = left[0], steps + 1
            make_plan(schedule.plan())
        assert (schedule.partitions, schedule.strikes) == (1, ())
        assert steps < 10


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected GUARANTEE"),
        ("exactly_once records=1", "expected GUARANTEE"),
        ("twice records=1 partitions=1 per_transaction=1:", "unknown 'twice'. Known: exactly_once"),
        ("exactly_once records=1 partitions=1 per_transaction=1: storm@1", "unknown 'storm'"),
        ("exactly_once records=1 partitions=1 per_transaction=1: zombie", "expected GUARANTEE"),
        (
            "exactly_once records=1 partitions=1 per_transaction=1 lineage=packed:",
            "lineage: packed was removed",
        ),
        (
            "exactly_once records=1 partitions=1 per_transaction=1 trigger=often:",
            "unknown trigger 'often'. Known: micro_batch, real_time",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match="Schedule") as refused:
        parse(text)
    assert why in str(refused.value)
