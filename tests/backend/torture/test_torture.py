"""Random plans under several random faults at once, always the same ones: each is judged from its
sink, and shows no more damage than its guarantee allows."""

from __future__ import annotations

import threading

from topicproof.backend.commands.show_torture import line, markdown
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.torture.run import Torture, Tried, drawn

SEED, RUNS, MINUTES = 1, 70, 3
"""A slow machine tries fewer schedules, but the same."""


def test_no_schedule_of_a_seed_is_a_surprise(settings: Settings, cluster: Services) -> None:
    """Story: the same random schedules as every time. Half of them are exactly-once, and stay
    exact. Every fault is proven to have fired, and the page names every run."""
    tried: list[Tried] = []
    stop = threading.Event()
    torture = Torture(settings, cluster, stop)
    torture.try_all(drawn(SEED, 1, RUNS, MINUTES, stop), tried.append)
    assert [line(one) for one in tried if one.surprises] == []
    assert sorted(one.schedule.seed for one in tried) == list(range(SEED, SEED + len(tried)))
    assert sum(one.schedule.name == "exactly_once" for one in tried) >= len(tried) / 3 > 0
    lines = [line(one) for one in tried]
    page = markdown("it", [one.schedule for one in tried], lines, 0)
    assert all(one in page for one in lines)
    assert f"{len(tried)} runs" in page and "0 surprises" in page
