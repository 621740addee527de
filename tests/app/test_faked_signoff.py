"""Sign-offs that somebody wrote into the database, as pages and commands show them."""

from __future__ import annotations

import json

import pytest

from tests.app.conftest import OpenPage, texts
from tests.app.test_history_page import HELD, TWICE, Stored, stored
from tests.backend.history.test_signoff import enter_row
from tests.test_cli import call
from topicproof.backend.evidence.folder import evidence_hash
from topicproof.backend.history.signoff import Decision, sign
from topicproof.validators.finding import Outcome

__all__ = ["stored"]  # a fixture


def test_nothing_shows_a_faked_acceptance_as_given(
    open_page: OpenPage, stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: Kurt rejects a run. Somebody with the database's password writes two acceptances in
    Grace's name: of that run, as if it held, and of another one. Each page and command says that
    nobody vouches for them, and none that she accepted."""
    other, run = stored.add(HELD), stored.add(TWICE)
    digests = [evidence_hash(each.folder(stored.settings)) or "" for each in (other, run)]
    sign(stored.history, run.id, [TWICE], digests[1], Decision.REJECT, "Kurt Gödel")
    faked = {"name": "Grace Hopper", "decision": Decision.ACCEPT, "verdict": Outcome.HOLDS}
    enter_row(stored.history, run=other.id, evidence=digests[0], **faked)
    enter_row(stored.history, run=run.id, evidence=digests[1], **faked)

    home = open_page("home")
    assert not home.exception and texts(home).count("not vouched for") == 2
    assert "Grace Hopper" not in texts(home) and "accepted" not in texts(home)
    history = open_page("history")
    assert list(history.dataframe[0].value["sign-off"]) == ["not vouched for"] * 2
    assert "vouches for the sign-offs of 2 of them" in history.error[0].value
    verdict = texts(open_page("verdict", run=run.id))
    assert "not vouched for" in verdict and "has no signature" in verdict

    assert call("trend", "--json") == 0
    rows = [row for of in json.loads(capsys.readouterr().out) for row in of["reports"]]
    assert call("runs", "--json") == 0
    rows += json.loads(capsys.readouterr().out)
    assert call("show", run.id, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["sign_off"] for row in (*rows, document)} == {"not vouched for"}
    doubts = [entry["not_vouched"] for entry in document["signoffs"]]
    assert doubts == [None, "Nobody vouches for it: it has no signature."]
    assert call("show", run.id) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("signed: ") for line in lines if " Kurt " in line] == [True]
    assert [line.startswith("not vouched for: ") for line in lines if " Grace " in line] == [True]


def test_a_typed_name_is_never_shown_as_a_person(open_page: OpenPage, stored: Stored) -> None:
    """Story: without a login anybody types Grace's name. Each page says that nobody checked it."""
    run = stored.add(HELD)
    digest = evidence_hash(run.folder(stored.settings)) or ""
    sign(stored.history, run.id, [HELD], digest, Decision.ACCEPT, "Grace Hopper")
    for shown in (texts(open_page("home")), texts(open_page("verdict", run=run.id))):
        assert shown.count("Grace Hopper") == shown.count("Grace Hopper (unauthenticated)") > 0
