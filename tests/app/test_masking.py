"""Masked fields on pages: they never leave for the browser of somebody who may not see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from tests.app.conftest import OpenPage, texts
from tests.app.test_history_page import HELD
from tests.backend.trust.people import ADA, EMMY, GRACE, ISSUER
from topicproof.app.session import access, record_reads
from topicproof.app.session.page_masks import (
    hidden_fields,
    hides_parts,
    mask_records,
    require_unmasked,
    shown_error,
)
from topicproof.app.session.reports import kept_report, shown_report
from topicproof.app.session.run_reads import zipped_evidence
from topicproof.backend.address import Address
from topicproof.backend.commands.outcome import print_report
from topicproof.backend.errors import NotPermitted
from topicproof.backend.evidence.copy import MASKED_SENTENCE, QUOTES_NO_HEADER, without_headers
from topicproof.backend.evidence.folder import EVIDENCE, REPORT
from topicproof.backend.evidence.manifest import MANIFEST, Payloads
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.run_state import Facts, Names
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.browse.records import Record
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.runs.launch import LOG
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.trust.acting import ACTING, environment_for
from topicproof.backend.trust.identity import Action, Identity, Role
from topicproof.backend.trust.masking import Field
from topicproof.validators.finding import Bounds, Example, Fate, Finding, Outcome, PartitionBounds
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.kinds.wrong_value import WRONG
from topicproof.validators.lineage.compact import COMPACT_HEADER, format_compact
from topicproof.validators.lineage.headers import LINEAGE_HEADER, Lineage
from topicproof.validators.merged_topics import join

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
    of_header = replace(said, why="x", transaction=f"{SECRET}/1/1")
    by_header = replace(report, findings=(replace(wrong, examples=(of_header,)),))
    for by, shown in ((operator, False), (EMMY, True)):
        monkeypatch.setattr(access, "current_identity", lambda _login, by=by: by)
        assert (SECRET in shown_report(settings, run, report).to_json()) is shown
        assert (SECRET in shown_report(settings, run, by_header).to_json()) is shown


@pytest.mark.parametrize(
    ("lineage", "is_shown"),
    [
        *(("squares/0/1/0", True), ("squares/0/1", True)),
        *((f"{SECRET}/0/1/0", False), ("squares/0/4929000011112222/0", False)),
        *(("squares/7/1/0", False), ("squares/0/1/4929000011112222", False), (SECRET, False)),
    ],
)
def test_no_lineage_of_a_masked_header_leads_out_of_the_source(
    lineage: str, is_shown: bool
) -> None:
    """Story: another program puts a card number where our header has its input. What the source
    has is shown, also an input without any record in the sink."""
    source = Bounds("squares", (PartitionBounds(0, 0, 5, 5),))
    of_record = Example(0, 7, lineage, None, "It points nowhere.")
    missing = Example(None, None, "squares/0/3/0", None, "It has no output.")
    phantom = Finding(
        "phantom", Outcome.VIOLATED, 1, 1, None, (of_record, missing), "1 points nowhere."
    )
    report = without_headers(replace(HELD, source=source, findings=(phantom,)))
    shown = [example.lineage for example in report.findings[0].examples]
    assert shown == [lineage if is_shown else None, "squares/0/3/0"]


@pytest.mark.parametrize(
    "kind", ["circular_flow", "wrong_attribution", "zombie_write", "of_another_version"]
)
def test_no_sentence_names_a_transaction_of_a_masked_header(kind: str) -> None:
    """Story: another program puts a card number where our header has its transactional id, and a
    finding's sentence names it. Other sentences stay, and each kind's module was looked at."""
    assert {each.NAME for each in VALIDATORS} - QUOTES_NO_HEADER == {
        *("circular_flow", "wrong_attribution", "zombie_write")
    }
    example = Example(0, 7, None, f"{SECRET}/2/1", f"Transaction 2 of {SECRET} (attempt 1) ended.")
    named = Finding(kind, Outcome.VIOLATED, 1, 1, None, (example,), "1 is wrong.")
    torn = replace(named, kind="torn", examples=(replace(example, why="1 of 2 is committed."),))
    report = without_headers(replace(HELD, findings=(named, torn)))
    assert SECRET not in report.to_json()
    assert [finding.examples[0].why for finding in report.findings] == [
        MASKED_SENTENCE,
        "1 of 2 is committed.",
    ]


PAYMENTS = "{openid: {issuer: x, client_id: t}, masks: [{topics: 'payments*', fields: [value]}]}"
STAGED = Names("last", ("orders",), ("invoices", "payments.dead-letters"), "j", "g", "p")


@pytest.mark.parametrize(
    "facts",
    [
        Facts(source="orders + payments", sink="invoices"),
        Facts(source="orders", sink="invoices", also=("refunds", "payments-eu")),
        Facts(source="orders", sink="invoices", topics={"paid": "payments-x1"}),
        Facts(source="orders", sink="invoices", stages=(STAGED,)),
        # Of an earlier version: only the report names all sinks.
        Facts(source="orders", sink="invoices"),
    ],
)
def test_a_rule_for_one_of_several_topics_applies_to_all_that_was_judged_with_it(
    facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: payments are masked, and judged together with topics that are not: as one of several
    sources or sinks, in a stage, by a scenario. No payloads leave, and no report shows a value."""
    path = tmp_path / "login.yaml"
    path.write_text(PAYMENTS.replace("issuer: x", f"issuer: '{ISSUER}'"))
    monkeypatch.setenv("TOPICPROOF_LOGIN", str(path))
    history = History(read_settings(home=tmp_path))
    run = history.create("check", "check", {})
    history.remember(run.id, facts)
    history.end(run.id, State.FAILED, None, None, f"No date: {SECRET}")
    run = history.get(run.id)
    sinks = [Bounds(name, (PartitionBounds(0, 0, 5, 5),)) for name in ("invoices", "payments-eu")]
    told = Example(0, 7, None, None, f'{WRONG}: "{SECRET}".')
    wrong = Finding("wrong_value", Outcome.VIOLATED, 1, 1, None, (told,), "1 is wrong.")
    old = facts == Facts(source="orders", sink="invoices")
    report = replace(HELD, findings=(wrong,), sink=join(sinks) if old else HELD.sink)
    evidence = run.folder(history.settings) / EVIDENCE
    evidence.mkdir(parents=True)
    (evidence / REPORT).write_text(report.to_json())
    (evidence / MANIFEST).write_text("{}")
    by = history.acted_on_by(GRACE)
    with pytest.raises(NotPermitted, match="Export it without payloads"):
        zipped_evidence(by, run, Payloads.ALL)
    monkeypatch.setattr(access, "current_identity", lambda _login: GRACE)
    assert SECRET not in shown_report(history.settings, run, report).to_json()
    assert SECRET not in (shown_error(history.settings, run) or "")
    history.engine.dispose()


def test_the_output_of_a_process_quotes_no_record(
    masking: Settings,
    open_page: OpenPage,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the dashboard keeps what a check prints, and shows it to everybody. So it prints no
    values; and what a process prints nevertheless is kept from people with masked fields."""
    told = Example(0, 7, None, None, f'{WRONG}: "{SECRET}".')
    wrong = Finding("wrong_value", Outcome.VIOLATED, 1, 1, None, (told,), "1 is wrong.")
    report = replace(HELD, findings=(wrong,))
    print_report(report)
    assert SECRET in capsys.readouterr().out
    for name, value in environment_for(GRACE).items():
        monkeypatch.setenv(name, value)
    print_report(report)
    assert SECRET not in capsys.readouterr().out
    monkeypatch.delenv(ACTING)
    history = History(masking)
    run = history.create("check", "check", {})
    history.remember(run.id, Facts(source="orders", sink="invoices"))
    history.end(run.id, State.FAILED, None, None, "It failed.")
    run.folder(masking).mkdir(parents=True)
    (run.folder(masking) / LOG).write_text(f"Traceback: {SECRET}")
    for by, shown in ((EMMY, True), (ADA, False)):
        monkeypatch.setattr(access, "current_identity", lambda _login, by=by: by)
        app = open_page("run", run=run.id)
        assert not app.exception
        assert (SECRET.encode() in b"".join(sent(app._tree))) is shown
    history.engine.dispose()


@pytest.mark.parametrize("document", ["[", "{}", '{"source": 7}'])
def test_a_run_whose_row_names_no_topic_counts_as_masked(
    document: str, masking: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody damages a row of the history, or takes the topics out of it. Nobody can tell
    which rules apply then, so the output and the error of that run are shown to administrators
    alone."""
    history = History(masking)
    run = history.create("check", "check", {})
    history.remember(run.id, Facts(source="orders", sink="invoices"))
    history.end(run.id, State.FAILED, None, None, f"No date: {SECRET}")
    with history.engine.begin() as connection:
        connection.execute(
            sa.text("update runs set facts = :facts where id = :id"),
            {"facts": document, "id": run.id},
        )
    run = history.get(run.id)
    monkeypatch.setattr(access, "current_identity", lambda _login: EMMY)
    assert not hides_parts(masking, run) and not hidden_fields(masking)
    monkeypatch.setattr(access, "current_identity", lambda _login: ADA)
    assert hides_parts(masking, run)
    assert SECRET not in (shown_error(masking, run) or "")
    with pytest.raises(NotPermitted, match="unknown topics are masked"):
        require_unmasked(masking, *run.facts.every_topic)
    with pytest.raises(NotPermitted, match="Export it without payloads"):
        zipped_evidence(history.acted_on_by(GRACE), run, Payloads.ALL)
    history.engine.dispose()


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
    (run.folder(settings) / REPORT).write_text(replace(HELD, run=run.id).to_json())

    def ended(_login: object) -> Identity:
        raise NotPermitted("This login has ended.")

    monkeypatch.setattr(access, "current_identity", ended)
    with pytest.raises(NotPermitted, match="has ended"):
        kept_report(settings, run)


def test_masked_lineage_is_nobodys(at_home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: somebody who does not see headers looks at an aborted record. That its input was
    committed elsewhere cannot be told from lineage that is masked on all records."""
    headers = ((LINEAGE_HEADER, b"orders/0/7/0"),)
    record = Record(0, 5, 0, None, b"v", headers, Fate.ABORTED, False, "t/1, attempt 1", "")
    (masked,) = mask_records((Field("headers"),), (record,))
    assert masked.lineage == "(masked)" and masked.transaction == "(masked)"
    # A rule that names the header of earlier versions hides what the one of now says.
    now = ((COMPACT_HEADER, format_compact(Lineage("orders", 0, 7, 0))),)
    rule = Field("header", (LINEAGE_HEADER,))
    (hidden,) = mask_records((rule,), (replace(record, headers=now),))
    assert replace(record, headers=now).lineage == "orders/0/7/0"
    assert (hidden.lineage, hidden.transaction) == ("(masked)", "(masked)")
    monkeypatch.setattr(record_reads, "hidden_fields", lambda *_: (Field("headers"),))
    snapshot: Any = SimpleNamespace(bounds=SimpleNamespace(topic="payments"))
    kafka: Any = None
    assert record_reads.committed_retry(at_home, kafka, snapshot, masked) is None
