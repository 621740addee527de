"""Masked fields on pages: they never leave for the browser of somebody who may not see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.app.conftest import OpenPage, texts
from tests.app.test_history_page import HELD
from tests.backend.trust.people import ADA, EMMY, ISSUER
from topicproof.app.session import access
from topicproof.app.session.reports import kept_report, shown_report
from topicproof.app.session.runs import zipped_evidence
from topicproof.backend.address import Address
from topicproof.backend.errors import NotPermitted
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.trust.identity import Action, Identity, Role
from topicproof.validators.finding import Example, Finding, Outcome
from topicproof.validators.kinds.wrong_value import WRONG

SECRET, TOKEN, SEEN = "4111-secret", "hush-token", "seen-by-all"
RULES = f"""
openid: {{issuer: '{ISSUER}', client_id: t}}
masks: [{{topics: "*", fields: [value.card.number, header.token], shown_to: [admin]}}]
"""


@pytest.fixture
def masking(at_home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a login that masks."""
    path = tmp_path / "login.yaml"
    path.write_text(RULES)
    monkeypatch.setenv("TOPICPROOF_LOGIN", str(path))
    return at_home.model_copy(update={"login": path})


def sent(block: Any) -> Iterator[bytes]:
    """Everything that a page sends to the browser."""
    for child in block.children.values():
        if hasattr(child, "children"):
            yield from sent(child)
        proto = getattr(child, "proto", None)
        if proto is not None:
            yield proto.SerializeToString()


def test_a_masked_field_stays_here(
    *,
    open_page: OpenPage,
    masking: Settings,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: Ada may see a topic but neither card numbers nor a header. Neither page, nor search,
    nor live tail sends them; a search by content, which would tell, is refused, and so is evidence
    with payloads. Emmy sees all. That both looked is in the audit log."""
    topic = new_topic()
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    value = f'{{"card": {{"number": "{SECRET}"}}, "note": "{SEEN}"}}'
    producer.produce(topic, value=value, headers=[("token", TOKEN.encode())])
    assert producer.flush(30) == 0
    pages: tuple[tuple[str, dict[str, str]], ...] = (
        ("compare", {}),
        ("topics", {}),
        ("topics", {"view": "tail"}),
    )
    for by, shown in ((EMMY, True), (ADA, False)):
        monkeypatch.setattr(access, "current_identity", lambda _login, by=by: by)
        for name, params in pages:
            app = open_page(name, topic=topic, **params)
            assert not app.exception
            told = b"".join(sent(app._tree))
            assert SEEN.encode() in told, (by.name, name, params)
            assert (SECRET.encode() in told) is shown, (by.name, name, params)
            if params == {}:
                assert (TOKEN.encode() in told) is shown, (by.name, name)
    refused = open_page("topics", topic=topic, value=SECRET)
    assert "are masked for your role" in texts(refused)
    assert "are masked for your role" in texts(open_page("check", source=topic, sink=new_topic()))
    history = History(masking)
    looks = [one for one in audit_entries(history) if topic in one.what]
    assert {(one.by, one.action) for one in looks} == {(EMMY, Action.LOOK), (ADA, Action.LOOK)}
    history.engine.dispose()


def test_evidence_with_masked_payloads_is_not_exported(
    masking: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an operator may export, and does not see every field. Digests could be guessed, so the
    evidence leaves without payloads or not at all. A report shows her no values."""
    settings = read_settings(home=tmp_path).model_copy(update={"login": masking.login})
    history = History(settings)
    run = history.create("check", "check", {})
    history.remember(run.id, Facts(source="payments", sink="invoices"))
    run = history.get(run.id)
    operator = Identity("Grace", ISSUER, "grace", frozenset({Role.OPERATOR}), EMMY.how)
    for payloads in (Payloads.ALL, Payloads.MASKED):
        with pytest.raises(NotPermitted, match="Export it without payloads"):
            zipped_evidence(history.acted_on_by(operator), run, payloads)
    assert [one.allowed for one in audit_entries(history)] == [False, False]
    history.engine.dispose()
    said = Example(0, 7, None, None, f'{WRONG}: "{SECRET}".')
    wrong = Finding("wrong_value", Outcome.VIOLATED, 1, 1, None, (said,), "1 is wrong.")
    report = replace(HELD, findings=(wrong,))
    for by, shown in ((operator, False), (EMMY, True)):
        monkeypatch.setattr(access, "current_identity", lambda _login, by=by: by)
        assert (SECRET in shown_report(settings, report).to_json()) is shown


def test_a_login_that_has_ended_is_not_a_missing_report(
    masking: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody's login ends while a page is open. A report that cannot be read is None; one
    that they may not see any more says so."""
    history = History(read_settings(home=tmp_path))
    run = history.create("check", "check", {})
    history.engine.dispose()
    settings = history.settings.model_copy(update={"login": masking.login})
    assert kept_report(settings, run) is None
    run.folder(settings).mkdir(parents=True)
    (run.folder(settings) / REPORT).write_text(HELD.to_json())

    def ended(_login: object) -> Identity:
        raise NotPermitted("This login has ended.")

    monkeypatch.setattr(access, "current_identity", ended)
    with pytest.raises(NotPermitted, match="has ended"):
        kept_report(settings, run)
