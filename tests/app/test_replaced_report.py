"""The genuine report of one run in the place of another one's, as pages and commands show and sign
it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.app.conftest import OpenPage, texts
from tests.app.test_history_page import HELD, TWICE, Stored, stored
from tests.test_cli import call
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.attestation import attest
from topicproof.backend.evidence.folder import EVIDENCE, REPORT, complete
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history import run_reports, signoff
from topicproof.backend.history.evidence_export import export_zip
from topicproof.backend.history.run_reports import require_report_of
from topicproof.backend.history.run_state import Facts, Names
from topicproof.backend.history.signoff import signable, signoffs
from topicproof.backend.history.store import Run

__all__ = ["stored"]  # a fixture

Replace = Callable[[Stored, Run, Run], None]


def _in_history(stored: Stored, bad: Run, good: Run) -> None:
    folder = str(good.folder(stored.settings))
    stored.history.remember(bad.id, replace(bad.facts, folder=folder))


def _renamed(stored: Stored, bad: Run, good: Run) -> None:
    bad_folder, good_folder = (run.folder(stored.settings) for run in (bad, good))
    shutil.rmtree(bad_folder)
    good_folder.rename(bad_folder)


def _evidence_alone(stored: Stored, bad: Run, good: Run) -> None:
    bad_folder, good_folder = (run.folder(stored.settings) for run in (bad, good))
    shutil.rmtree(bad_folder / EVIDENCE)
    (good_folder / EVIDENCE).rename(bad_folder / EVIDENCE)


def _manifest_above(stored: Stored, bad: Run, good: Run) -> None:
    bad_folder, good_folder = (run.folder(stored.settings) for run in (bad, good))
    shutil.copytree(good_folder / EVIDENCE, bad_folder, dirs_exist_ok=True)


@pytest.mark.parametrize("put_in_place", [_in_history, _renamed, _evidence_alone, _manifest_above])
def test_the_report_of_another_run_is_neither_shown_nor_signed(
    put_in_place: Replace, open_page: OpenPage, stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a run is violated. Somebody puts the genuine, signed folder of a run that holds in its
    place. No page and no command shows that verdict as the run's, and nobody can sign or export
    it."""
    bad, good = stored.add(TWICE), stored.add(HELD)
    for run in (bad, good):
        attest(stored.settings, run.folder(stored.settings) / EVIDENCE)
    put_in_place(stored, bad, good)
    bad = stored.history.get(bad.id)

    page = open_page("verdict", run=bad.id)
    assert not page.exception and HELD.why not in texts(page)
    assert good.id in texts(page) and "Sign" not in [button.label for button in page.button]
    assert HELD.why not in texts(open_page("history", before=bad.id, after=bad.id))
    with pytest.raises(EvidenceError, match=good.id):
        signable(stored.settings, bad)
    with pytest.raises(EvidenceError, match=good.id):
        export_zip(stored.history, bad, stored.settings.home / "x.zip", Payloads.ALL)
    for command in (
        ("show", bad.id),
        ("compare", bad.id, bad.id),
        ("evidence", bad.id),
        ("signoff", bad.id, "--decision", "accept", "--by", "Grace Hopper"),
    ):
        assert call(*command) == 4, command
        printed = capsys.readouterr()
        assert good.id in printed.err and HELD.why not in printed.out, command
    assert signoffs(stored.history) == []


def test_a_report_that_its_evidence_does_not_prove_is_doubted(
    open_page: OpenPage, stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: somebody changes `report.json` beside the evidence, which stays as it was signed. The
    page says so, and no command and no list shows the changed report."""
    run = stored.add(TWICE)
    better = replace(HELD, run=run.id).to_json()
    (run.folder(stored.settings) / REPORT).write_text(better)
    page = open_page("verdict", run=run.id)
    assert not page.exception and "is not the one of its evidence" in texts(page)
    assert "Sign" not in [button.label for button in page.button]
    assert "None of these has a report that can be read" in texts(open_page("history"))
    for command in (("show", run.id), ("compare", run.id, run.id)):
        assert call(*command) == 4
        printed = capsys.readouterr()
        assert "not the one of its evidence" in " ".join(printed.err.split())
        assert HELD.why not in printed.out


def test_evidence_that_was_changed_after_it_was_signed_is_not_signed_off(stored: Stored) -> None:
    """Story: somebody edits a report and computes the manifest again. The evidence's signature is
    of another manifest, so no person's decision is bound to it; where a signature is required, nor
    is one bound to evidence without any."""
    run = stored.add(TWICE)
    evidence = run.folder(stored.settings) / EVIDENCE
    strict = stored.settings.model_copy(update={"require_signature": True})
    with pytest.raises(EvidenceError, match="Nobody vouches for it"):
        signable(strict, run)
    attest(stored.settings, evidence)
    assert signable(strict, run)[1]
    complete(evidence, replace(HELD, run=run.id), {})
    with pytest.raises(EvidenceError, match="changed after it was signed"):
        signable(stored.settings, run)


@pytest.mark.parametrize("stage", [None, "keep", "square"])
def test_each_stage_has_its_own_report(stored: Stored, stage: str | None) -> None:
    """Story: somebody swaps the reports of two stages of one run, and that end to end. Each is on
    other topics than the stage's own."""
    topics = {"keep": ("numbers", "kept"), "square": ("kept", "squares")}
    stages = tuple(
        Names(name, (source,), (sink,), "journal", "group", name)
        for name, (source, sink) in topics.items()
    )
    run = stored.history.create("run", "chain", {})
    stored.history.remember(run.id, Facts(stages=stages))
    run = stored.history.get(run.id)
    for name, (source, sink) in [(None, ("numbers", "squares")), *topics.items()]:
        report = replace(
            HELD,
            run=run.id,
            source=replace(HELD.source, topic=source),
            sink=replace(HELD.sink, topic=sink),
        )
        if name == stage:
            require_report_of(run, report, stage)
        else:
            with pytest.raises(EvidenceError, match="other topics than its own"):
                require_report_of(run, report, stage)


@pytest.mark.parametrize("what", ["a pipe", "too long"])
def test_a_report_that_cannot_be_one_is_not_waited_for(
    what: str, open_page: OpenPage, stored: Stored
) -> None:
    """Story: in the place of a run's report lies a pipe that nobody writes, or a file of a
    gigabyte. The page says so, and History lists the run without it."""
    run = stored.add(HELD)
    path = run.folder(stored.settings) / REPORT
    path.unlink()
    if what == "a pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(10**9)
    page = open_page("verdict", run=run.id)
    assert not page.exception and HELD.why not in texts(page)
    assert ("not a plain file" if what == "a pipe" else "are allowed") in texts(page)
    assert not open_page("history").exception


def test_what_is_signed_is_what_was_compared(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a run is violated. Hashes and signature of its evidence are compared, and then
    somebody lays a report there that holds. It is not signed beside the hash of the other one."""
    run = stored.add(TWICE)
    evidence = run.folder(stored.settings) / EVIDENCE
    holds = replace(HELD, run=run.id, source=TWICE.source, sink=TWICE.sink)
    read = run_reports.run_evidence_reports

    def swapped(*arguments: Any) -> Any:
        (evidence / REPORT).write_text(holds.to_json() + "\n")
        return read(*arguments)

    monkeypatch.setattr(signoff, "run_evidence_reports", swapped)
    with pytest.raises(EvidenceError, match="is not what was written"):
        signable(stored.settings, run)
