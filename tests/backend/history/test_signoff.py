"""Sign-offs: what nobody can answer for is refused, what is entered stays, what is changed later
shows."""

from __future__ import annotations

import ast
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from tests.app.test_history_page import HELD, PART, TWICE, UNKNOWN
from tests.backend.history.conftest import removals
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.history import anchor
from topicproof.backend.history.signoff import (
    Decision,
    RunSignoffs,
    Signoff,
    Standing,
    broken,
    read_chain,
    sign,
    signoffs,
    standing,
    standing_text,
)
from topicproof.backend.history.store import History
from topicproof.backend.settings import ROOT
from topicproof.backend.trust.dsse import Envelope, parse_envelope
from topicproof.backend.trust.keyring import OWN, revoke
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

TODAY = datetime.now(UTC).date()
LATER = TODAY + timedelta(days=30)
Open = Callable[[], History]


def of(history: History, run: str, verdict: str | None = None) -> RunSignoffs:
    return read_chain(history).of(run, verdict)


def test_a_decision_is_kept_with_all_that_it_says(open_history: Open) -> None:
    """Story: two people decide on two runs. Each entry comes back as it was entered, chained to the
    one before."""
    history = open_history()
    first = sign(
        history, "squares-a", [HELD], "e1", Decision.ACCEPT, " Grace Hopper ", "as expected: ✓ <b>"
    )
    second = sign(history, "squares-b", [TWICE], "e2", Decision.REJECT, "Kurt Gödel")
    assert signoffs(history) == [first, second] and signoffs(history, "squares-b") == [second]
    assert (first.number, first.name, first.verdict) == (1, "Grace Hopper", HELD.verdict)
    assert second.previous == first.hash and broken(signoffs(history)) is None
    assert first.said.endswith(
        "UTC Grace Hopper (unauthenticated) accepted HOLDS: as expected: ✓ <b>"
    )


@pytest.mark.parametrize(
    ("report", "decision", "given", "says"),
    [
        (HELD, Decision.ACCEPT, {"name": "  "}, "needs a name"),
        (UNKNOWN, Decision.ACCEPT, {}, "needs a reason in words"),
        (PART, Decision.ACCEPT, {}, "covers 30% of the input"),
        (TWICE, Decision.ACCEPT, {"comment": "fine"}, "VIOLATED by duplicate"),
        (HELD, Decision.ACCEPT, {"kind": "duplicate"}, "belong to a waiver only"),
        (HELD, Decision.REJECT, {"comment": "x" * 10_001}, "10,000 are the most"),
        (
            TWICE,
            Decision.WAIVE,
            {"kind": "gap", "until": LATER, "comment": "why"},
            "gap does not break this verdict, so it cannot be waived",
        ),
        (
            HELD,
            Decision.WAIVE,
            {"kind": "duplicate", "until": LATER, "comment": "why"},
            "No finding breaks",
        ),
        (TWICE, Decision.WAIVE, {"kind": "duplicate", "comment": "why"}, "last valid day"),
        (
            TWICE,
            Decision.WAIVE,
            {"kind": "duplicate", "until": TODAY - timedelta(days=1), "comment": "why"},
            "today",
        ),
        (TWICE, Decision.WAIVE, {"kind": "duplicate", "until": LATER}, "needs its reason"),
    ],
)
def test_what_nobody_can_answer_for_is_refused(
    report: Report, decision: Decision, given: dict[str, object], says: str, open_history: Open
) -> None:
    """Story: a decision without a name, without a reason, on a finding that is not there. One
    sentence, no entry."""
    history = open_history()
    with pytest.raises(UsageError, match=says):
        sign(history, "squares-a", [report], "e1", decision, **{"name": "Grace Hopper", **given})  # type: ignore[arg-type]
    assert signoffs(history) == []


def test_a_violated_verdict_is_accepted_for_as_long_as_it_is_waived(open_history: Open) -> None:
    """Story: QA knows of the duplicates until the next release. Waived first, the verdict is
    accepted; when the day is over the acceptance is, too; on other evidence the waiver is worth
    nothing."""
    history = open_history()
    sign(
        history,
        "squares-a",
        [TWICE],
        "e1",
        Decision.WAIVE,
        "Grace Hopper",
        "known",
        "duplicate",
        LATER,
    )
    assert standing(of(history, "squares-a"), "e1", TODAY) is Standing.NONE
    with pytest.raises(UsageError, match="VIOLATED by duplicate"):
        sign(history, "squares-a", [TWICE], "e2", Decision.ACCEPT, "Grace Hopper")
    sign(history, "squares-a", [TWICE], "e1", Decision.ACCEPT, "Grace Hopper")
    entries = of(history, "squares-a")
    assert standing(entries, "e1", LATER) is Standing.ACCEPTED
    assert standing(entries, "e1", LATER + timedelta(days=1)) is Standing.EXPIRED
    assert standing(entries, "e2", TODAY) is standing(entries, None, TODAY) is Standing.CHANGED
    sign(history, "squares-a", [TWICE], "e1", Decision.REJECT, "Kurt Gödel")
    assert standing(of(history, "squares-a"), "e1", TODAY) is Standing.REJECTED
    sign(history, "squares-b", [UNKNOWN], "e3", Decision.ACCEPT, "Kurt Gödel", "a node was down")
    assert standing(of(history, "squares-b"), "e3", TODAY) is Standing.ACCEPTED


def test_the_worst_of_several_stages_is_signed(open_history: Open) -> None:
    """Story: a chain holds end to end, yet one of its stages wrote duplicates. Accepting it takes
    their waiver."""
    history = open_history()
    with pytest.raises(UsageError, match="VIOLATED by duplicate"):
        sign(history, "chain-a", [HELD, TWICE, HELD], "e1", Decision.ACCEPT, "Grace Hopper")
    made = sign(history, "chain-a", [HELD, TWICE], "e1", Decision.REJECT, "Grace Hopper")
    assert made.verdict is Outcome.VIOLATED


def test_the_database_refuses_to_change_an_entry(open_history: Open) -> None:
    """Story: a slip of a hand at the database's prompt. It is refused."""
    history = open_history()
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Grace Hopper")
    change = "update signoffs set decision = 'accept'"
    for statement in (change, *removals(history, "signoffs")):
        with (
            pytest.raises(sa.exc.DBAPIError, match="append-only"),
            history.engine.begin() as connection,
        ):
            connection.execute(sa.text(statement))


def _changed(entries: list[Signoff], at: int, **fields: object) -> list[Signoff]:
    return [replace(one, **fields) if number == at else one for number, one in enumerate(entries)]  # type: ignore[arg-type]


def test_what_is_changed_exchanged_or_taken_out_breaks_the_chain(open_history: Open) -> None:
    """Story: somebody who may do everything with the database changes history. The first wrong
    entry is named, even where its own hash was computed again."""
    history = open_history()
    for number in range(4):
        sign(history, f"squares-{number}", [HELD], f"e{number}", Decision.REJECT, "Grace Hopper")
    entries = signoffs(history)
    assert broken(entries) is None
    forged = _changed(entries, 1, decision=Decision.ACCEPT)
    assert broken(forged) == 2
    assert broken(_changed(forged, 1, hash=forged[1].hashed())) == 3
    assert broken([entries[0], *entries[2:]]) == 2
    assert broken([entries[0], entries[2], entries[1], entries[3]]) == 2


def test_people_may_sign_at_the_same_moment(open_history: Open) -> None:
    """Story: a team signs at once. Each entry gets a number of its own, and the chain holds."""
    histories = [open_history() for _ in range(4)]

    def signed(number: int) -> None:
        sign(
            histories[number], f"squares-{number}", [HELD], "e", Decision.ACCEPT, f"person {number}"
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(signed, range(4)))
    entries = signoffs(histories[0])
    assert {one.name for one in entries} == {f"person {number}" for number in range(4)} and broken(
        entries
    ) is None


def test_a_database_that_is_gone_is_said(open_history: Open, database: str) -> None:
    """Story: the table was dropped under the program. One sentence, exit code 4."""
    history = open_history()
    with history.engine.begin() as connection:
        connection.execute(sa.text("drop table signoffs"))
    assert database
    with pytest.raises(EvidenceError, match="history database cannot be used"):
        signoffs(history)


def test_a_rewritten_chain_is_not_vouched_for(open_history: Open) -> None:
    """Story: somebody with the database's password drops the triggers, changes a decision and
    computes all hashes again. The hashes agree; the signatures do not. Then he removes the newest
    entry, which no later one would miss."""
    history = open_history()
    for number in range(3):
        sign(history, f"squares-{number}", [HELD], f"e{number}", Decision.REJECT, "Grace Hopper")
    assert read_chain(history).unanchored == ()
    _rewrite(history, 2, decision="accept")
    assert broken(signoffs(history)) is None, "the hashes were computed again"
    assert [one.number for one in read_chain(history).unanchored] == [2, 3, 2, 3]
    with history.session() as session:
        session.execute(sa.text("delete from signoffs where number = 3"))
    assert broken(signoffs(history)) is None
    assert {one.number: one.says for one in read_chain(history).unanchored}[3] == (
        "This installation signed it, and it is not in the history."
    )


def test_an_entry_without_a_signature_never_counts(open_history: Open) -> None:
    """Story: a row that nobody signed lies before the first signed one, as an administrator of the
    database writes it into a new history, or a version that did not sign. The next person signs,
    whose hash covers it, and it counts as little as before."""
    history = open_history()
    sign(history, "squares-a", [HELD], "e1", Decision.ACCEPT, "Grace Hopper")
    _drop_triggers(history)
    with history.session() as session:
        session.execute(sa.text("update signoffs set envelope = null"))
    sign(history, "squares-b", [HELD], "e2", Decision.REJECT, "Kurt")
    unsigned = {1: "Nobody vouches for it: it has no signature."}
    assert {entry.number: entry.says for entry in read_chain(history).unanchored} == unsigned
    assert standing(of(history, "squares-a"), "e1", TODAY) is Standing.NOT_VOUCHED
    assert standing(of(history, "squares-b"), "e2", TODAY) is Standing.REJECTED


def test_what_a_revoked_key_signed_covers_nothing_that_is_appended(open_history: Open) -> None:
    """Story: the key of all entries is revoked, and somebody appends a row to them. The first
    sign-off with the next key covers it, and it does not count."""
    history = open_history()
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Kurt")
    sign(history, "squares-b", [HELD], "e2", Decision.ACCEPT, "Grace Hopper")
    _drop_triggers(history)
    with history.session() as session:
        session.execute(sa.text("update signoffs set envelope = null where number = 2"))
    revoke(history.settings, OWN, "copied")
    sign(history, "squares-c", [HELD], "e3", Decision.REJECT, "Kurt")
    unanchored = read_chain(history).unanchored
    assert [entry.number for entry in unanchored] == [1, 2]
    assert "was revoked on" in unanchored[0].says
    assert standing(of(history, "squares-b"), "e2", TODAY) is Standing.NOT_VOUCHED


def _drop_triggers(history: History) -> None:
    names = ["signoffs_refuse_update", "signoffs_refuse_delete"]
    if history.engine.dialect.name != "sqlite":
        names = ["signoffs_refuse on signoffs"]
    with history.session() as session:
        for name in names:
            session.execute(sa.text(f"drop trigger {name}"))


def _rewrite(history: History, number: int, **changes: str) -> None:
    """Change an entry, and compute its hash and all later ones again."""
    _drop_triggers(history)
    previous = ""
    for one in signoffs(history)[number - 1 :]:
        changed = replace(
            one,
            decision=Decision(changes.get("decision", one.decision))
            if one.number == number
            else one.decision,
            previous=previous or one.previous,
        )
        previous = changed.hashed()
        with history.session() as session:
            session.execute(
                sa.text(
                    "update signoffs set decision = :decision, previous = :previous, hash = :hash"
                    " where number = :number"
                ),
                {
                    "decision": str(changed.decision),
                    "previous": changed.previous,
                    "hash": previous,
                    "number": one.number,
                },
            )


def test_an_acceptance_names_its_waivers(open_history: Open) -> None:
    """Story: somebody waives a finding and accepts. Whoever reads the decision sees that it rests
    on a waiver."""
    history = open_history()
    reason = {"kind": "duplicate", "until": LATER, "comment": "known"}
    sign(history, "a", [TWICE], "e1", Decision.WAIVE, "Grace Hopper", **reason)  # type: ignore[arg-type]
    assert standing_text(of(history, "a"), "e1", TODAY) == "not signed"
    sign(history, "a", [TWICE], "e1", Decision.ACCEPT, "Grace Hopper")
    assert standing_text(of(history, "a"), "e1", TODAY) == "accepted with 1 waiver"
    sign(history, "b", [HELD], "e2", Decision.ACCEPT, "Grace Hopper")
    assert standing_text(of(history, "b"), "e2", TODAY) == "accepted"


def enter_row(history: History, **fields: object) -> Signoff:
    """Append a row after the last one, as somebody with the database's password does: its hash is
    right, and nobody signed it."""
    last = signoffs(history)[-1]
    forged = replace(last, number=last.number + 1, previous=last.hash, envelope=None, **fields)  # type: ignore[arg-type]
    forged = replace(forged, identity=None)
    forged = replace(forged, hash=forged.hashed())
    row = asdict(forged)
    names = ", ".join(row)
    values = ", ".join(f":{name}" for name in row)
    with history.session() as session:
        session.execute(
            sa.text(f"insert into signoffs({names}) values({values})"),
            {
                **row,
                "made_at": forged.made_at.isoformat(" "),
                "until": forged.until and forged.until.isoformat(),
            },
        )
    return forged


def test_an_appended_acceptance_is_not_vouched_for(open_history: Open) -> None:
    """Story: Kurt rejects a run. Somebody with the database's password appends an acceptance in
    Grace's name, and another one for a run that nobody signed. Neither counts, nor hides behind
    the next genuine sign-off of another run. Once Kurt decides again, his word counts."""
    history = open_history()
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Kurt Gödel")
    sign(history, "squares-c", [HELD], "e3", Decision.ACCEPT, "Kurt Gödel")
    enter_row(history, run="squares-a", name="Grace Hopper", decision=Decision.ACCEPT)
    enter_row(history, run="squares-b", evidence="e2", decision=Decision.ACCEPT)
    for _ in range(2):
        assert standing_text(of(history, "squares-a"), "e1", TODAY) == "not vouched for"
        assert standing_text(of(history, "squares-b"), "e2", TODAY) == "not vouched for"
        assert standing(of(history, "squares-c"), "e3", TODAY) is Standing.ACCEPTED
        sign(history, "squares-c", [HELD], "e3", Decision.ACCEPT, "Kurt Gödel")
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Kurt Gödel")
    assert standing(of(history, "squares-a"), "e1", TODAY) is Standing.REJECTED
    assert set(of(history, "squares-a").doubts) == {3}


def test_an_appended_waiver_waives_nothing(open_history: Open) -> None:
    """Story: a waiver in Grace's name is appended, which nobody signed. The verdict is not
    accepted on it; and when it joins a genuine acceptance, that is not vouched for."""
    history = open_history()
    waived = {"kind": "duplicate", "until": LATER, "comment": "known"}
    sign(history, "squares-a", [TWICE], "e1", Decision.REJECT, "Kurt Gödel")
    enter_row(history, decision=Decision.WAIVE, **waived)
    with pytest.raises(UsageError, match=r"waiver of entry 2 does not count\. Nobody vouches"):
        sign(history, "squares-a", [TWICE], "e1", Decision.ACCEPT, "Kurt Gödel")
    sign(history, "squares-a", [TWICE], "e1", Decision.WAIVE, "Kurt Gödel", **waived)  # type: ignore[arg-type]
    sign(history, "squares-a", [TWICE], "e1", Decision.ACCEPT, "Kurt Gödel")
    assert standing_text(of(history, "squares-a"), "e1", TODAY) == "accepted with 1 waiver"
    enter_row(history, decision=Decision.WAIVE, kind="gap", until=LATER)
    assert standing(of(history, "squares-a"), "e1", TODAY) is Standing.NOT_VOUCHED


def test_an_acceptance_is_of_the_verdict_that_is_shown(open_history: Open) -> None:
    """Story: the history says VIOLATED of a run whose acceptance says HOLDS, or the other way
    round. Neither is shown as accepted. A rejection stays one."""
    history = open_history()
    sign(history, "squares-a", [HELD], "e1", Decision.ACCEPT, "Grace Hopper")
    standings = [standing(of(history, "squares-a", word), "e1", TODAY) for word in Outcome]
    assert standings.count(Standing.OTHER) == 2
    assert standing(of(history, "squares-a", "HOLDS"), "e1", TODAY) is Standing.ACCEPTED
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Kurt Gödel")
    assert standing(of(history, "squares-a", "VIOLATED"), "e1", TODAY) is Standing.REJECTED


@pytest.mark.parametrize("how", ["changed", "removed", "newest removed"])
def test_no_sign_off_counts_in_a_damaged_chain(how: str, open_history: Open) -> None:
    """Story: an entry is changed or removed. It may have been the rejection of any run, so none is
    shown as accepted. A run without sign-offs stays unsigned."""
    history = open_history()
    for decision in (Decision.ACCEPT, Decision.REJECT, Decision.REJECT):
        sign(history, "squares-a", [HELD], "e1", decision, "Kurt Gödel")
    sign(history, "squares-b", [HELD], "e2", Decision.ACCEPT, "Kurt Gödel")
    assert standing(of(history, "squares-b"), "e2", TODAY) is Standing.ACCEPTED
    statement = {
        "changed": "update signoffs set decision = 'accept' where number = 3",
        "removed": "delete from signoffs where number = 3",
        "newest removed": "delete from signoffs where number > 1",
    }[how]
    _drop_triggers(history)
    with history.session() as session:
        session.execute(sa.text(statement))
    assert standing(of(history, "squares-a"), "e1", TODAY) is Standing.NOT_VOUCHED
    expected = Standing.NONE if how == "newest removed" else Standing.NOT_VOUCHED
    assert standing(of(history, "squares-b"), "e2", TODAY) is expected
    assert standing(of(history, "squares-c"), None, TODAY) is Standing.NONE


def test_a_run_is_signed_again_after_a_key_was_revoked(open_history: Open) -> None:
    """Story: the key was copied, so it is revoked. What it accepted is not vouched for, until
    somebody signs again with the next key; a waiver by the old key needs another one."""
    history = open_history()
    waived = {"kind": "duplicate", "until": LATER, "comment": "known"}
    sign(history, "squares-a", [TWICE], "e1", Decision.WAIVE, "Grace Hopper", **waived)  # type: ignore[arg-type]
    sign(history, "squares-a", [TWICE], "e1", Decision.ACCEPT, "Grace Hopper")
    revoke(history.settings, OWN, "copied")
    assert standing(of(history, "squares-a"), "e1", TODAY) is Standing.NOT_VOUCHED
    with pytest.raises(UsageError, match=r"waiver of entry 1 does not count.*revoked"):
        sign(history, "squares-a", [TWICE], "e1", Decision.ACCEPT, "Grace Hopper")
    sign(history, "squares-a", [TWICE], "e1", Decision.WAIVE, "Grace Hopper", **waived)  # type: ignore[arg-type]
    sign(history, "squares-a", [TWICE], "e1", Decision.ACCEPT, "Grace Hopper")
    assert standing_text(of(history, "squares-a"), "e1", TODAY) == "accepted with 1 waiver"


def test_a_signature_is_verified_once(open_history: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a page lists many runs and is drawn often. Each signature is verified at the first
    look alone, and what is remembered is bounded."""
    history = open_history()
    for number in range(4):
        sign(history, f"squares-{number}", [HELD], "e1", Decision.REJECT, "Grace Hopper")
    parsed: list[bytes] = []

    def counted(text: bytes) -> Envelope:
        parsed.append(text)
        return parse_envelope(text)

    monkeypatch.setattr(anchor, "parse_envelope", counted)
    chains = [read_chain(history) for _ in range(3)]
    assert len(parsed) == 4 and [chain.unanchored for chain in chains] == [(), (), ()]
    monkeypatch.setattr(anchor, "ENVELOPES_REMEMBERED", 2)
    sign(history, "squares-4", [HELD], "e1", Decision.REJECT, "Grace Hopper")
    assert read_chain(history).doubts == {} and len(anchor._proofs) == 2


def test_only_the_chain_reads_the_rows() -> None:
    """Story: somebody writes another page about sign-offs. It cannot take them as the database has
    them: nothing but signoff.py does."""
    readers = [
        str(path.relative_to(ROOT))
        for package in ("app", "backend")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").endswith("history.signoff"))
        for alias in node.names
        if alias.name in ("signoffs", "Signoff", "_SignoffRow")
    ]
    # Both take entries from the chain, and name their type.
    assert set(readers) <= {"app/verdict/signoff_form.py", "backend/watch/waivers.py"}
