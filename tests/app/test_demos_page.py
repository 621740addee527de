"""Demos: five stories whose plans are sound, told in the order of what happens, opened again by their address."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.stories import STORIES, narration, story
from backend.history.store import State
from backend.pipeline.plan import make_plan
from backend.settings import Settings
from tests.app.conftest import OpenPage, texts
from tests.runs import Finished


@pytest.mark.parametrize("told", STORIES, ids=lambda told: told.name)
def test_what_a_story_starts_is_a_plan(told: object) -> None:
    """Story: each click starts what can be run; no two stories share a name."""
    assert told in STORIES and len({one.name for one in STORIES}) == len(STORIES) == 5
    for part in next(one for one in STORIES if one is told).parts:
        assert make_plan(dict(part.plan)).judged


def test_a_story_is_told_by_the_run_that_is_least_far(finished: Finished) -> None:
    """Story: of two runs side by side one is being judged, the other still processes: that is what is told."""
    told = story("crash")
    assert told is not None and story("no such") is None
    run = finished.run
    at = {state: replace(run, state=state) for state in State}
    assert narration(told, [at[State.JUDGING], at[State.PROCESSING]]) == told.processing
    assert narration(told, [at[State.DONE], at[State.FAILED]]) == told.ended
    assert "read twice" in narration(told, [at[State.DONE], at[State.JUDGING]])
    assert "Integers are written" in narration(told, [at[State.FILLING]])


def test_the_address_of_a_story_opens_it_again(open_page: OpenPage, at_home: Settings, finished: Finished) -> None:
    """Story: the address is sent to a colleague, who sees the same; an address that leads nowhere is said."""
    assert at_home.home
    app = open_page("demos")
    assert not app.exception and len(app.button) == len(STORIES)
    app = open_page("demos", story="clean", runs=finished.run.id)
    assert not app.exception
    assert app.info[0].value == STORIES[0].ended
    assert finished.report.why in texts(app)
    for params in ({"story": "clean", "runs": "gone-1"}, {"story": "crash", "runs": finished.run.id}, {"story": "x"}):
        app = open_page("demos", **params)
        assert not app.exception and app.warning and len(app.button) == len(STORIES), params
