"""The audit log, and sign-offs of people who have signed in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.app.test_history_page import HELD, TWICE
from tests.backend.history.conftest import removals
from tests.backend.trust.people import ADA, EMMY, GRACE, KURT, person
from topicproof.backend.errors import EvidenceError, NotPermitted, UsageError
from topicproof.backend.evidence.signed import entry_hash, signoff_contradictions, signoff_rows
from topicproof.backend.history.audit import allow, audit_entries, broken_audit, note
from topicproof.backend.history.kept_contracts import NAMELESS, keep
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.signoff import Decision, broken, sign, signoffs
from topicproof.backend.history.store import History
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import (
    Action,
    How,
    Identity,
    Role,
    read_identity,
    unauthenticated,
)

Open = Callable[[], History]
LATER = datetime.now(UTC).date() + timedelta(days=30)


def test_who_does_something_is_noted_and_who_may_not_too(open_history: Open) -> None:
    """Story: Grace launches, Ada wants to, somebody without a login stops. The log has all three in
    their order, and nobody can change it."""
    history = open_history()
    allow(history.acted_on_by(GRACE), Action.LAUNCH, "squares-a")
    with pytest.raises(NotPermitted, match="Ada Lovelace has the role viewer and may not launch"):
        allow(history.acted_on_by(ADA), Action.LAUNCH, "squares-b")
    allow(history.acted_on_by(unauthenticated("me@here")), Action.STOP, "squares-a")
    entries = audit_entries(history)
    assert [(one.by, one.allowed) for one in entries[:2]] == [(GRACE, True), (ADA, False)]
    assert entries[1].said.endswith(
        "UTC Ada Lovelace (OpenID Connect, ada at https://sso.example/realms/team): refused: launch"
        " a run squares-b"
    )
    assert entries[2].said.endswith("UTC me@here (unauthenticated): stop a run squares-a")
    for statement in ("update audit set allowed = true", *removals(history, "audit")):
        with (
            pytest.raises(sa.exc.DBAPIError, match="append-only"),
            history.engine.begin() as connection,
        ):
            connection.execute(sa.text(statement))
    assert audit_entries(history) == entries and broken_audit(entries) is None
    assert broken_audit([entries[0], entries[2]]) == 2
    assert broken_audit([replace(entries[0], correct="f" * 64), *entries[1:]]) == 1


def test_people_may_act_at_the_same_moment(open_history: Open) -> None:
    histories = [open_history() for _ in range(4)]

    def act(number: int) -> None:
        for _ in range(5):
            allow(histories[number].acted_on_by(GRACE), Action.STOP, f"squares-{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(4)))
    entries = audit_entries(histories[0])
    assert len(entries) == 20 and broken_audit(entries) is None


def signed(history: History, by: Identity, run: str, name: str | None = None) -> None:
    sign(history.acted_on_by(by), run, [HELD], "e1", Decision.ACCEPT, name)


def test_a_signature_has_the_identity_of_the_login(open_history: Open) -> None:
    """Story: Kurt has signed in and signs under his own name alone. An operator does not sign, nor
    does a process that the dashboard started, for whom it says it acts."""
    history = open_history()
    signed(history, KURT, "squares-a")
    signed(history, unauthenticated("me@here"), "squares-a", "Kurt Gödel")
    first, second = entries = signoffs(history)
    assert (first.name, first.identity, broken(entries)) == ("Kurt Gödel", KURT, None)
    assert first.who == "Kurt Gödel (OpenID Connect, kurt at https://sso.example/realms/team)"
    assert second.who == "Kurt Gödel (unauthenticated)"
    with pytest.raises(UsageError, match="You have signed in as Kurt Gödel"):
        signed(history, KURT, "squares-a", "Grace Hopper")
    for by in (GRACE, ADA, replace(EMMY, how=How.PASSED_ON)):
        with pytest.raises(NotPermitted):
            signed(history, by, "squares-a")
    assert signoffs(history) == entries
    refused = [one.by.name for one in audit_entries(history) if not one.allowed]
    assert refused == ["Grace Hopper", "Ada Lovelace", "Emmy Noether"]


def test_a_copy_tells_who_signed_and_older_copies_stay_valid(open_history: Open) -> None:
    """Story: sign-offs lie beside evidence. An identity that is changed or taken out there is
    found; an entry of a version without logins keeps its hash and its page."""
    history = open_history()
    signed(history, KURT, "squares-a")
    signed(history, unauthenticated("me@here"), "squares-a", "Grace Hopper")
    kept = [one.as_json() for one in signoffs(history)]
    assert signoff_contradictions(kept) == []
    assert [row[1] for row in signoff_rows(kept)] == [
        "Kurt Gödel (OpenID Connect, kurt at https://sso.example/realms/team)",
        "Grace Hopper (unauthenticated)",
    ]
    forged = {**kept[1], "identity": kept[0]["identity"]}
    without = {name: value for name, value in kept[0].items() if name != "identity"}
    assert len(signoff_contradictions([forged, without])) == 2
    old = replace(signoffs(history)[1], identity=None, envelope=None)
    older = {**old.as_json(), "hash": old.hashed()}
    assert "identity" not in older and entry_hash(older) == older["hash"]
    assert (
        signoff_rows([older])[0][1] == "Grace Hopper"
        and old.who == "Grace Hopper (unauthenticated)"
    )


def test_four_eyes(open_history: Open) -> None:
    """Story: four eyes are required. Who launched, resumed or waived does not accept, an
    unknown launcher could be anybody, and somebody without a login could too. They may reject."""
    history = open_history()
    history.settings = history.settings.model_copy(update={"four_eyes": True})
    both = person("Grace Hopper", Role.OPERATOR, Role.SIGNER)
    run = history.create("run", "squares", {}).id
    with pytest.raises(NotPermitted, match="nobody knows who launched it"):
        signed(history, KURT, run)
    history.remember(run, Facts(launched_by=(EMMY, replace(GRACE, how=How.PASSED_ON))))
    for by in (EMMY, both):
        with pytest.raises(NotPermitted, match=f"{by.name} launched it. Somebody else must"):
            signed(history, by, run)
    with pytest.raises(NotPermitted, match="accepting needs a login"):
        signed(history, unauthenticated("me@here"), run, "Kurt Gödel")
    sign(history.acted_on_by(EMMY), run, [HELD], "e1", Decision.REJECT)
    signed(history, KURT, run)
    waiver = [TWICE], "e2", Decision.WAIVE, None, "known", "duplicate", LATER
    sign(history.acted_on_by(KURT), run, *waiver)
    with pytest.raises(NotPermitted, match="Kurt Gödel waived its findings"):
        sign(history.acted_on_by(KURT), run, [TWICE], "e2", Decision.ACCEPT)
    sign(history.acted_on_by(person("Rosa", Role.SIGNER)), run, [TWICE], "e2", Decision.ACCEPT)
    history.remember(run, Facts(launched_by=(unauthenticated("me@here"),)))
    with pytest.raises(NotPermitted, match="nobody knows who launched it"):
        signed(history, KURT, run)


def test_four_eyes_where_one_person_has_two_names(open_history: Open, tmp_path: Path) -> None:
    """Story: Entra ID calls Ada by one subject on the command line, and by another one on the
    dashboard. She launches here and accepts there."""
    history, file = open_history(), tmp_path / "login.yaml"
    clients = f"issuer: {KURT.issuer}, client_id: dashboard, device_client_id: terminal"
    for number, (person_claim, refusal) in enumerate(
        [("", "may call one person two names"), (", person: oid", "Ada launched it")]
    ):
        file = tmp_path / f"login-{number}.yaml"
        file.write_text(f"openid: {{{clients}{person_claim}}}")
        settings = history.settings.model_copy(update={"four_eyes": True, "login": file})
        history.settings = settings
        roles = frozenset({Role.OPERATOR, Role.SIGNER})
        here, there = (
            Identity("Ada", KURT.issuer, subject, roles, How.OPENID, "a-1" if number else "")
            for subject in ("x-1", "y-2")
        )
        assert not number or read_identity(here.as_json()) == here
        run = history.create("run", "squares", {}).id
        history.remember(run, Facts(launched_by=(here,)))
        with pytest.raises(NotPermitted, match=refusal):
            signed(history, there, run)
    history.remember(run, Facts(launched_by=(replace(here, person=""),)))
    with pytest.raises(NotPermitted, match=r"before openid\.person was set"):
        signed(history, there, run)


HOSTILE = "x\n2026-11-27 21:00:00 UTC Grace Hopper: abort\x1b[8m\u202e\u200b\x9b1A" + "z" * 9_999


def test_a_name_writes_no_line_of_the_log(open_history: Open) -> None:
    """Story: a viewer uploads a file whose name is a line of the log with terminal codes. The
    refusal is noted without it; and whatever else is noted is one short line that hides nothing."""
    history = open_history().acted_on_by(ADA)
    with pytest.raises(NotPermitted):
        keep(history, HOSTILE, "")
    note(history, Action.LOOK, HOSTILE)
    refusal, look = audit_entries(history)
    assert (refusal.what, refusal.allowed) == (NAMELESS, False)
    assert look.what.startswith("x\\n2026") and len(look.what) < 1_100
    assert "\\x1b[8m\\u202e\\u200b\\x9b1A" in look.what
    assert look.said.isprintable() and broken_audit([refusal, look]) is None


DAMAGED: dict[str, dict[str, object]] = {
    "no time": {"made_at": "yesterday"},
    "a time that is a number": {"made_at": 7},
    "bytes for a text": {"hash": b"\xff"},
    "an identity of brackets": {"identity": "[" * 200_000},
    "an identity with a name twice": {"identity": '{"how": "nobody", "how": "nobody"}'},
}


@pytest.mark.parametrize("what", DAMAGED)
@pytest.mark.parametrize(("table", "read"), [("signoffs", signoffs), ("audit", audit_entries)])
def test_a_damaged_row_is_a_sentence(
    what: str, table: str, read: Callable[[History], object], tmp_path: Path
) -> None:
    """Story: who can write the database of SQLite puts in a row of other types, or with a document
    without an end. Whoever reads the table is told, and no page ends."""
    history = History(Settings(home=tmp_path))
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Kurt Gödel")
    with history.engine.begin() as connection:
        (row,) = connection.execute(sa.text(f"select * from {table} limit 1")).mappings()
        values = {**row, "number": 99, **DAMAGED[what]}
        marks = ", ".join(f":{name}" for name in values)
        statement = sa.text(f"insert into {table} ({', '.join(values)}) values ({marks})")
        connection.execute(statement, values)
    with pytest.raises(EvidenceError, match="cannot be read"):
        read(history)
