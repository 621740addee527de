"""Sign-offs: what nobody can answer for is refused, what is entered stays, what is changed later
shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from tests.app.test_history_page import HELD, PART, TWICE, UNKNOWN
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.history.signoff import (
    Decision,
    Signoff,
    Standing,
    broken,
    sign,
    signoffs,
    standing,
    standing_text,
    unanchored,
)
from topicproof.backend.history.store import History
from topicproof.backend.trust.keyring import OWN, read_keyring, revoke
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

TODAY = datetime.now(UTC).date()
LATER = TODAY + timedelta(days=30)
Open = Callable[[], History]


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
    assert standing(signoffs(history), "e1", TODAY) is Standing.NONE
    with pytest.raises(UsageError, match="VIOLATED by duplicate"):
        sign(history, "squares-a", [TWICE], "e2", Decision.ACCEPT, "Grace Hopper")
    sign(history, "squares-a", [TWICE], "e1", Decision.ACCEPT, "Grace Hopper")
    entries = signoffs(history)
    assert standing(entries, "e1", LATER) is Standing.ACCEPTED
    assert standing(entries, "e1", LATER + timedelta(days=1)) is Standing.EXPIRED
    assert standing(entries, "e2", TODAY) is standing(entries, None, TODAY) is Standing.CHANGED
    sign(history, "squares-a", [TWICE], "e1", Decision.REJECT, "Kurt Gödel")
    assert standing(signoffs(history), "e1", TODAY) is Standing.REJECTED
    sign(history, "squares-b", [UNKNOWN], "e3", Decision.ACCEPT, "Kurt Gödel", "a node was down")
    assert standing(signoffs(history, "squares-b"), "e3", TODAY) is Standing.ACCEPTED


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
    for statement in ("update signoffs set decision = 'accept'", "delete from signoffs"):
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
    keyring = read_keyring(history.settings)
    assert unanchored(history, keyring) == []
    _rewrite(history, 2, decision="accept")
    assert broken(signoffs(history)) is None, "the hashes were computed again"
    assert [one.number for one in unanchored(history, keyring)] == [2, 3, 2, 3]
    with history.session() as session:
        session.execute(sa.text("delete from signoffs where number = 3"))
    assert broken(signoffs(history)) is None
    assert {one.number: one.says for one in unanchored(history, keyring)}[3] == (
        "This installation signed it, and it is not in the history."
    )


def test_entries_of_before_there_were_signatures_are_covered_by_later_ones(
    open_history: Open,
) -> None:
    """Story: a history of an earlier version has unsigned entries. Nobody vouches for them until
    somebody signs the next one, whose hash covers them."""
    history = open_history()
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Grace Hopper")
    _drop_triggers(history)
    with history.session() as session:
        session.execute(sa.text("update signoffs set envelope = null"))
    keyring = read_keyring(history.settings)
    assert [one.says for one in unanchored(history, keyring)] == [
        "Nobody vouches for it: it has no signature."
    ]
    sign(history, "squares-a", [HELD], "e1", Decision.REJECT, "Grace Hopper")
    assert unanchored(history, keyring) == []
    revoke(history.settings, OWN, "copied")
    told = unanchored(history, read_keyring(history.settings))
    assert [one.number for one in told] == [1, 2] and "was revoked on" in told[1].says


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
    assert standing_text(signoffs(history, "a"), "e1", TODAY) == "not signed"
    sign(history, "a", [TWICE], "e1", Decision.ACCEPT, "Grace Hopper")
    assert standing_text(signoffs(history, "a"), "e1", TODAY) == "accepted with 1 waiver"
    sign(history, "b", [HELD], "e2", Decision.ACCEPT, "Grace Hopper")
    assert standing_text(signoffs(history, "b"), "e2", TODAY) == "accepted"
