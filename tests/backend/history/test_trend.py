"""One contract, one scenario over time: what belongs together, and which figures are drawn and
listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_history_page import HELD, TWICE
from tests.test_cli import call
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.history.trend import MEASURES, frame, subject
from topicproof.backend.settings import Settings, read_settings
from topicproof.validators.report import Report

TOPICS = {"source": "orders", "sink": "lines"}
CHECKED = {**TOPICS, "identity": "key", "guarantee": "exactly_once"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, History]]:
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    settings = read_settings()
    history = History(settings)
    yield settings, history
    history.engine.dispose()


def judged(home: tuple[Settings, History], kind: str, plan: dict[str, Any], report: Report) -> Run:
    settings, history = home
    run = history.create(kind, kind, plan)
    history.remember(run.id, Facts(source=TOPICS["source"], sink=TOPICS["sink"]))
    folder = run.folder(settings)
    folder.mkdir(parents=True)
    (folder / REPORT).write_text(replace(report, run=run.id).to_json())
    history.end(run.id, State.DONE, report.verdict, report.why)
    return history.get(run.id)


def test_checks_of_one_contract_are_one_trend(
    home: tuple[Settings, History], capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: CI checks two topics by one contract every night, and somebody checks them once
    without. A run is about the same topics. Each of the three is a line of its own; the contract's
    has the night that broke it."""
    nightly = {**CHECKED, "contract": "orders.yaml"}
    nights = [judged(home, "check", nightly, report) for report in (HELD, TWICE, HELD)]
    once = judged(home, "check", CHECKED, HELD)
    run = judged(home, "run", {"scenario": "yours", "guarantee": "exactly_once"}, HELD)
    assert len({subject(one) for one in (*nights, once, run)}) == 3
    assert subject(nights[0]) == "orders.yaml: orders → lines · exactly_once"

    assert call("trend", "orders.yaml", "--json") == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert said["of"] == subject(nights[0]) and [one["run"] for one in said["reports"]] == [
        one.id for one in nights
    ]
    assert [one["verdict"] for one in said["reports"]] == ["HOLDS", "VIOLATED", "HOLDS"]
    assert {one["sign_off"] for one in said["reports"]} == {"not signed"}
    broke = [one["figures"]["findings that break the verdict"] for one in said["reports"]]
    assert broke == [0, 3, 0] and said["reports"][0]["figures"].keys() == MEASURES.keys()
    reports = {
        one.id: replace(report, run=one.id)
        for one, report in zip(nights, (HELD, TWICE, HELD), strict=True)
    }
    drawn = frame(nights, reports, "findings that break the verdict")
    assert list(drawn["figure"]) == broke and list(drawn["run"]) == [one.id for one in nights]

    assert call("trend", "orders", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3, "all that is about the topic"
    assert call("trend") == 0
    assert "orders.yaml: orders → lines" in capsys.readouterr().out


def test_show_says_what_changed_since_the_last_verdict(
    home: tuple[Settings, History], capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: the nightly check is violated. `show` names in one line what is new, and against which
    check; the first one has nothing to be compared with."""
    first, second = (judged(home, "check", CHECKED, report) for report in (HELD, TWICE))
    assert call("show", first.id, "--json") == 0
    assert json.loads(capsys.readouterr().out)["since_last"] is None
    assert call("show", second.id) == 0
    assert (
        f"since {first.id}: VIOLATED after HOLDS. New: duplicate (3).\n" in capsys.readouterr().out
    )
    assert call("show", second.id, "--json") == 0
    since = json.loads(capsys.readouterr().out)["since_last"]
    assert since["run"] == first.id and since["terms"] == [] and since["same"] == []
    assert since["findings"] == [{"kind": "duplicate", "change": "new", "counts": [0, 3]}]


def test_a_report_that_is_gone_leaves_its_place_in_the_trend(
    home: tuple[Settings, History], capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: somebody deleted the folder of an old check. Its verdict is still known; its figures
    are not."""
    gone = judged(home, "check", CHECKED, HELD)
    (gone.folder(home[0]) / REPORT).unlink()
    assert call("trend", "lines", "--json") == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert said["reports"][0]["verdict"] == "HOLDS" and set(
        said["reports"][0]["figures"].values()
    ) == {None}
    assert call("trend", "lines") == 0
    assert "–" in capsys.readouterr().out
