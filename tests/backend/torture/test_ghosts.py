"""The plans of the torture: each seed makes one that can run, with the defence on or off."""

from __future__ import annotations

import pytest

from tests.backend.torture.ghosts import REQUESTS, plan_of
from topicproof.backend.faults.injecting import Faults
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.sink.hooks import NoHooks
from topicproof.backend.sink.options import SinkOptions

OPTIONS = {
    "kafka.bootstrap.servers": "localhost:9092",
    "topic": "sink",
    "group": "group",
    "transactionalIdPrefix": "run",
    "journal": "journal",
}


@pytest.mark.parametrize("request_", [None, *REQUESTS])
def test_every_seed_makes_a_plan_that_can_run(request_: str | None) -> None:
    """Story: any seed is tried. Its ghost and the failure after it lie within the run, and the same
    seed makes the same plan."""
    for seed in range(100):
        plan = plan_of(seed, request_, True)
        assert plan == plan_of(seed, request_, True)
        last = plan["records"] // plan["partitions"] // plan["per_transaction"]
        assert len(make_plan(plan).faults) == len(plan["faults"])
        numbers = [int(fault.split("transaction=")[1].split(",")[0]) for fault in plan["faults"]]
        assert all(1 <= number <= last for number in numbers)


@pytest.mark.parametrize("defence", [True, False])
def test_a_fault_switches_the_defence_off(defence: bool) -> None:
    """Story: the sink asks its hooks whether to defend itself. Only the fault's word says no."""
    faults = " ".join(plan_of(1, "end", defence)["faults"])
    sink = SinkOptions.parse(OPTIONS)
    hooks = Faults.parse({**OPTIONS, "faults": faults})(sink, ("source", 0), "run-source-0", "t")
    assert hooks.defended() is defence
    assert NoHooks(sink, ("source", 0), "run-source-0", "t").defended()
