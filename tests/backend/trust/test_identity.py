"""What each role may do, and who somebody is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.trust.people import ADA, EMMY, GRACE, KURT
from topicproof.backend.errors import NotPermitted, UsageError
from topicproof.backend.settings import Settings
from topicproof.backend.trust.acting import ACTING, acting, environment_for
from topicproof.backend.trust.identity import (
    PROXY_ISSUER,
    Action,
    How,
    Identity,
    read_identity,
    require,
    unauthenticated,
)

CHANGES = frozenset(Action) - {Action.LOOK}
SIGNS = frozenset({Action.SIGN, Action.WAIVE})


def may(by: Identity) -> frozenset[Action]:
    return frozenset(action for action in Action if not refusal(by, action))


def refusal(by: Identity, action: Action) -> str:
    try:
        require(by, action)
    except NotPermitted as error:
        return str(error)
    return ""


def test_each_role_may_do_its_own() -> None:
    """Story: a viewer changes nothing, an operator does not sign, a signer does not operate.
    Without a login everything is as it was."""
    assert may(ADA) & CHANGES == frozenset()
    assert may(GRACE) == frozenset(Action) - SIGNS - {Action.CLEAN}
    assert may(KURT) & CHANGES == SIGNS | {Action.EXPORT}
    assert may(EMMY) == may(unauthenticated("me@here")) == frozenset(Action)
    assert may(replace(ADA, roles=frozenset())) == frozenset()
    assert refusal(GRACE, Action.SIGN) == (
        "Grace Hopper has the role operator and may not sign. That needs the role signer or admin."
    )


def test_an_identity_is_kept_as_it_is() -> None:
    """Story: it goes into the history and comes back. Letters that do not print are left out."""
    for one in (ADA, replace(GRACE, roles=ADA.roles | KURT.roles), unauthenticated("me@here")):
        assert read_identity(one.as_json()) == one
    assert unauthenticated("Grace\n\x1b[31m" + "x" * 300).name.isprintable()
    for wrong in ({}, {"how": "magic", "name": "x"}, {**ADA.as_json(), "roles": ["king"]}):
        with pytest.raises(ValueError):  # noqa: PT011
            read_identity(wrong)


def test_one_person_is_known_by_issuer_and_subject() -> None:
    """Story: Grace signs in by device code under a new name: it is her. Another issuer's grace is
    somebody else, and of the unauthenticated nobody knows."""
    again = replace(GRACE, name="G. Hopper", how=How.DEVICE)
    assert GRACE.is_same_person(again)
    assert not GRACE.is_same_person(replace(GRACE, issuer="https://other.example"))
    me = unauthenticated("Grace Hopper")
    assert not me.is_same_person(me) and me.shown == "Grace Hopper (unauthenticated)"


def test_a_name_that_a_proxy_passes_on_is_one_person_in_any_case() -> None:
    """Story: Grace launched a run behind a proxy whose login takes her name in any case and width,
    and then accepts it as somebody else. Subjects of OpenID differ by case, and stay apart."""
    typed = replace(GRACE, issuer=f"{PROXY_ISSUER}X-User", subject="grace", how=How.PROXY)
    for spelling in ("Grace", "GRACE", "\uff47race", "grace"):
        assert typed.is_same_person(replace(typed, subject=spelling))
    assert not typed.is_same_person(replace(typed, subject="grac"))
    assert not GRACE.is_same_person(replace(GRACE, subject=GRACE.subject.swapcase()))


def test_a_started_process_knows_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the dashboard starts a run for Grace. Its process acts for her, in the records
    alone."""
    monkeypatch.setenv(ACTING, environment_for(GRACE)[ACTING])
    assert acting(Settings(home=tmp_path)) == replace(GRACE, how=How.PASSED_ON)
    monkeypatch.setenv(ACTING, "Grace")
    with pytest.raises(UsageError, match="for the dashboard alone"):
        acting(Settings(home=tmp_path))
    monkeypatch.delenv(ACTING)
    me = acting(Settings(home=tmp_path, signer="QA"))
    assert not me.authenticated and me.name == "QA" and ACTING not in environment_for(me)
