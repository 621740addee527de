"""Demos: six stories whose plans are sound, told in the order of events, and reopened by their
address."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.conftest import OpenPage, texts
from tests.backend.trust.people import GRACE, ISSUER, KURT
from tests.runs import Finished
from topicproof.app.run import stories
from topicproof.app.run.stories import STORIES, find_story, steps, ways
from topicproof.app.session import access
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, State
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.settings import Settings, read_settings
from topicproof.validators.finding import Example, Finding, Outcome


@pytest.mark.parametrize("told", STORIES, ids=lambda told: told.name)
def test_what_a_story_starts_is_a_plan(told: object) -> None:
    """Story: each click starts what can be run; no two stories share a name."""
    assert told in STORIES and len({one.name for one in STORIES}) == len(STORIES) == 6
    for part in next(one for one in STORIES if one is told).parts:
        assert make_plan(dict(part.plan)).judged


def test_a_story_is_told_by_the_run_that_is_least_far(finished: Finished) -> None:
    """Story: of two runs side by side one is being judged and the other still processes. The page
    says exactly that. A run that ended without a verdict is no happy end."""
    told = find_story("crash")
    assert told is not None and find_story("no such") is None
    run = finished.run
    at = {state: replace(run, state=state) for state in State}

    def now(*states: State) -> str:
        return steps(told, [at[state] for state in states])[-1].title

    assert now(State.JUDGING, State.PROCESSING) == "Process"
    assert (
        now(State.DONE, State.JUDGING) == "Judge"
        and now(State.FILLING) == "Fill"
        and now(State.CREATED) == "Start"
    )
    ended = steps(told, [at[State.DONE], at[State.DONE]])
    assert [one.title for one in ended] == [
        "Start",
        "Fill",
        "Process",
        "Judge",
        "What there is to see",
    ]
    assert ended[2].text == told.processing and ended[-1].text == told.ended
    failed = replace(at[State.FAILED], verdict=None)
    assert "stopped before it had a verdict" in steps(told, [at[State.DONE], failed])[-1].text
    violated = replace(at[State.DONE], verdict=Outcome.VIOLATED)
    assert "ended differently from the story" in steps(told, [at[State.DONE], violated])[-1].text


def test_a_story_leads_to_what_it_has_shown(finished: Finished) -> None:
    """Story: after the end somebody wants to see it: the harm at its offset, what was aborted, the
    verdict."""
    report, run = finished.report, finished.run
    assert not ways(run, None)
    compare, transactions, verdict = ways(run, report)
    assert (
        compare.view == "compare"
        and compare.params == {"topic": finished.sink}
        and "aborted" in compare.label
    )
    assert transactions.params == {
        "topic": finished.sink,
        "outcome": "aborted",
    } and verdict.params == {"run": run.id}
    twice = Finding(
        "duplicate",
        Outcome.VIOLATED,
        1,
        1,
        None,
        (Example(1, 70, None, None, "twice"),),
        "1 repetition.",
    )
    harm = ways(run, replace(report, findings=(twice,)))[0]
    assert harm.label == f"A record that came twice: {finished.sink}-1@70"
    assert harm.params == {"topic": finished.sink, "partition": "1", "offset": "70"}


def test_the_address_of_a_story_opens_it_again(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: the address is sent to a colleague, who sees the same. An address that leads nowhere
    gets a notice."""
    app = open_page("demos")
    assert not app.exception and len(app.button) == 1 + len(STORIES)
    app = open_page("demos", story="clean", runs=finished.run.id)
    assert not app.exception
    assert app.info[0].value.replace("\\", "") == STORIES[0].ended
    assert "An aborted record, seen at both levels" in [one.value for one in app.page_link]
    assert finished.report.why in texts(app)
    assert app.button[-1].label == f"Next: {STORIES[1].question}"
    (played,) = (
        each.proto
        for each in app.get("bidi_component")
        if each.proto.component_name.endswith("topicproof_picture")
    )
    assert finished.sink in str(played)
    check = History(at_home).create("check", "check", {})
    for params in (
        {"story": "clean", "runs": "gone-1"},
        {"story": "clean", "runs": check.id},
        {"story": "crash", "runs": finished.run.id},
        {"story": "x"},
    ):
        app = open_page("demos", **params)
        assert not app.exception and app.warning and len(app.button) == 1 + len(STORIES), params


@pytest.mark.usefixtures("empty_home")
def test_a_strike_is_answered_at_once(open_page: OpenPage) -> None:
    """Story: somebody kills a worker of the live run, and would wait three seconds for its picture.
    The page says at once that the kill was asked for."""
    history = History(read_settings())
    story = next(story for story in STORIES if story.name == "by-hand")
    plan = make_plan(dict(story.parts[0].plan)).model_dump(mode="json", by_alias=True)
    run = history.create("run", "squares", plan)
    history.remember(
        run.id, Facts(source="n", sink="s", initial_offsets={"squares": {"n": {"0": 0}}})
    )
    history.enter(run.id, State.PROCESSING)
    app = open_page("demos", story=story.name, runs=run.id)
    kill = next(button for button in app.button if button.label == "Kill this worker now")
    assert not kill.disabled
    kill.click().run()
    assert not app.exception
    assert [toast.value for toast in app.toast] == [
        "The kill is asked for. It takes effect in a moment."
    ]
    (request,) = (history.settings.runs / run.id / "strikes").glob("*.json")
    assert json.loads(request.read_text(encoding="utf-8"))["topic"] == "n"
    history.end(run.id, State.STOPPED, None, None)


@pytest.mark.usefixtures("empty_home")
def test_an_address_stops_nobodys_run(
    open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody sends Grace a link to Demos that names an endless run of theirs, or a story's
    run that Kurt started. Her next click stops neither, but it stops her own."""
    login = tmp_path / "login.yaml"
    login.write_text(f"openid: {{issuer: '{ISSUER}', client_id: t}}\n")
    monkeypatch.setenv("TOPICPROOF_LOGIN", str(login))
    monkeypatch.setattr(access, "current_identity", lambda _login: GRACE)
    monkeypatch.setattr(stories, "start_story", lambda *_of: {})
    history = History(read_settings())
    endless = next(story for story in STORIES if story.parts[0].plan.get("until_stopped"))
    of_story = make_plan(dict(endless.parts[0].plan)).model_dump(mode="json", by_alias=True)
    for plan, launcher, is_stopped in (
        (of_story | {"rate": 50}, GRACE, False),
        (of_story, KURT, False),
        (of_story, GRACE, True),
    ):
        run = history.create("run", "squares", plan)
        history.remember(run.id, Facts(source="n", sink="s", launched_by=(launcher,)))
        history.enter(run.id, State.PROCESSING)
        app = open_page("demos", story=endless.name, runs=run.id)
        next(button for button in app.button if button.label == "A clean run").click().run()
        assert not app.exception
        assert history.get(run.id).stop_requested is is_stopped
        history.end(run.id, State.STOPPED, None, None)
