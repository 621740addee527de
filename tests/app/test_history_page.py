"""The page History, and the sign-off of the page Verdict: on stored reports, on none, and on
damaged ones."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from streamlit.testing.v1 import AppTest

from tests.app.conftest import OpenPage, texts
from tests.backend.trust.people import ADA, GRACE
from topicproof.app.session import access, reports
from topicproof.app.session.run_reads import zipped_evidence
from topicproof.app.verdict import signoff_form
from topicproof.backend.contracts.contract_text import identity_words
from topicproof.backend.errors import NotPermitted
from topicproof.backend.evidence.folder import EVIDENCE, REPORT, complete, evidence_hash
from topicproof.backend.evidence.manifest import Payloads, manifest_hash
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.run_state import Facts, RanOn
from topicproof.backend.history.signoff import Decision, Standing, sign, signoffs
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.judging.selftest import KEPT
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.trust.identity import Action
from topicproof.validators.finding import (
    Balance,
    Bounds,
    Check,
    Example,
    Finding,
    Guarantee,
    JudgedInputs,
    NotChecked,
    Outcome,
    PartitionBounds,
    Transactions,
    Witness,
)
from topicproof.validators.report import Report

HELD = Report(
    verdict=Outcome.HOLDS,
    guarantee=Guarantee.EXACTLY_ONCE,
    why="100 of 100 inputs committed exactly once, in order.",
    source=Bounds("numbers", (PartitionBounds(0, 0, 100, 100),)),
    inputs=JudgedInputs(100),
    sink=Bounds("squares", (PartitionBounds(0, 0, 130, 130),)),
    balance=(Balance(0, 130, 100, 20, 0, 10, 0, None, 0, 0),),
    transactions=Transactions(8, 2, 0, "headers"),
    findings=(
        Finding("duplicate", Outcome.HOLDS, 0, 0, None, (), "None of 100 records is a repetition."),
    ),
    checked=(Check("duplicate", 100, "records", (Witness.READ_COMMITTED,)),),
    not_checked=(NotChecked("intruder", "Not counted: for its owner to say."),),
    doubts=(),
    not_processed=0,
    run=None,
    took_s=1.5,
    versions={"topicproof": "0.1.0"},
)
TWICE = replace(
    HELD,
    verdict=Outcome.VIOLATED,
    why="Not exactly once: 3 of 103 records repeat one.",
    findings=(
        Finding(
            *("duplicate", Outcome.VIOLATED, 3, 3, None),
            (Example(0, 7, "numbers/0/3/0", "id/1/1", "input 3 again"),),
            "3 of 103 records repeat one.",
        ),
    ),
)
UNKNOWN = replace(
    HELD, verdict=Outcome.UNKNOWN, why="Could not be judged: 5 offsets are pending.", findings=()
)

PART = replace(
    HELD,
    why="6,000 of 6,000 inputs committed exactly once, in order; 14,000 inputs not processed.",
    inputs=JudgedInputs(6_000),
    not_processed=14_000,
)
MOVING = replace(
    PART, checked=(*PART.checked, Check("movement", 2, "partitions", (Witness.RAW_LOG,)))
)


@dataclass(frozen=True)
class Stored:
    """A home with judged runs, newest last."""

    settings: Settings
    history: History

    def add(
        self,
        report: Report,
        scenario: str = "squares",
        state: State = State.DONE,
        plan: dict[str, Any] | None = None,
        facts: Facts | None = None,
    ) -> Run:
        """With a `plan` it is a check."""
        # Only what is a name of a folder is an id; the plan may say anything.
        name = "".join(filter(str.isalnum, scenario))
        kind = "run" if plan is None else "check"
        run_plan = {"scenario": scenario} if plan is None else plan
        run = self.history.create(kind, name, {"guarantee": report.guarantee, **run_plan})
        facts = facts or Facts(source=f"{run.id}-numbers", sink=f"{run.id}-squares")
        self.history.remember(run.id, facts)
        folder = run.folder(self.settings)
        (folder / EVIDENCE / "ledger").mkdir(parents=True)
        mine = replace(report, run=run.id)
        complete(folder / EVIDENCE, mine, {"plan.json": run.plan})
        (folder / REPORT).write_text(mine.to_json())
        # There is nothing to test the chain on.
        (folder / KEPT).write_text(
            json.dumps({"evidence": evidence_hash(folder), "caught": ["duplicate"]})
        )
        self.history.end(run.id, state, report.verdict, report.why)
        return self.history.get(run.id)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", "127.0.0.1:1")
    settings = read_settings()
    history = History(settings)
    yield Stored(settings, history)
    history.engine.dispose()


def _alive() -> str:
    """An owner that is another process of this machine."""
    parent = psutil.Process(os.getppid())
    return f"{socket.gethostname()}:{parent.pid}:{parent.create_time():.2f}"


@pytest.mark.parametrize("page", ["home", "run", "history", "verdict", "check"])
def test_a_damaged_row_ends_no_page(open_page: OpenPage, stored: Stored, page: str) -> None:
    """Story: another hand has written into one row of the history. Each page shows the others."""
    held, damaged, other, worse, plan = (stored.add(HELD) for _ in range(5))
    fields = ("faults", "scenario", "contract", "identity", "guarantee", "clusters", "source")
    numbers = {"progress": '{"stage": "x", "seconds_left": NaN}', "plan": '{"records": 1e999}'}
    harms: dict[str, dict[str, str | bytes]] = {
        damaged.id: {"progress": "{", "facts": '{"stages": 7}', "plan": "[]", "state": "asleep"},
        other.id: {"created_at": "soon", "ended_at": b"\xff", "kind": "walk", "verdict": "MAYBE"},
        plan.id: {"plan": json.dumps(dict.fromkeys(fields, 7)), "owner": _alive()},
        worse.id: {"owner": "me", "why": b"\xff", "error": b"\xff", "renewed_at": "x", **numbers},
    }
    with stored.history.engine.begin() as connection:
        for run_id, values in harms.items():
            for column, value in values.items():
                connection.execute(
                    sa.text(f"update runs set {column} = :value where id = :run"),
                    {"value": value, "run": run_id},
                )
    app = open_page(page)
    assert not app.exception
    if page == "history":
        ids = [name.rpartition("=")[2] for name in app.dataframe[0].value["run"]]
        assert held.id in ids
    if page in ("run", "verdict"):
        for run_id in harms:
            app = open_page(page, run=run_id)
            assert not app.exception and ("is damaged" in texts(app) or page == "verdict"), run_id


def test_an_address_shows_no_verdict_on_another_topic(stored: Stored) -> None:
    """Story: a link to Compare names a topic, and a run of other topics, which holds."""
    run = stored.add(HELD)

    def script() -> None:
        import streamlit as st

        from topicproof.app.session.connection import page_settings
        from topicproof.app.topic.topic_header import _run_of_address

        judged = _run_of_address(page_settings(), st.query_params["topic"])
        st.text("none" if judged is None else judged.id)

    for topic, shown in (("payments", "none"), (run.facts.sink, run.id)):
        app = AppTest.from_function(script)
        app.query_params["topic"], app.query_params["run"] = topic, run.id
        assert [text.value for text in app.run().text] == [shown]


def test_it_lists_what_the_filters_leave(open_page: OpenPage, stored: Stored) -> None:
    """Story: QA looks for what went wrong. The list shows the state of each run, and the URL holds
    the filters."""
    held, twice = stored.add(HELD), stored.add(TWICE)
    other = stored.add(HELD, "other")
    app = open_page("history")
    assert not app.exception
    table = app.dataframe[0].value
    assert [name.rpartition("=")[2] for name in table["run"]] == [other.id, twice.id, held.id]
    assert set(table["sign-off"]) == {"not signed"} and list(table["verdict"]) == [
        "✓ HOLDS",
        "✕ VIOLATED",
        "✓ HOLDS",
    ]
    app = open_page("history", verdict="VIOLATED")
    assert [name.rpartition("=")[2] for name in app.dataframe[0].value["run"]] == [twice.id]
    app = open_page("history", scenario="squares", topic=held.id)
    assert [name.rpartition("=")[2] for name in app.dataframe[0].value["run"]] == [held.id]
    app = open_page("history", scenario="squares", topic="nothing")
    assert not app.exception and "None of them matches" in texts(app)
    app = open_page("history", verdict="MAYBE")
    assert (
        not app.exception
        and "There is no verdict MAYBE" in texts(app)
        and len(app.dataframe[0].value) == 3
    )


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED])
def test_a_run_that_ended_early_holds_for_a_part_only(
    open_page: OpenPage, stored: Stored, state: State
) -> None:
    """Story: a run ended after 30 % of its input, and what it wrote is right. No page shows it in
    green. Accepting it takes a reason, and the sign-off names the part."""
    part = stored.add(PART, state=state)
    assert list(open_page("history").dataframe[0].value["verdict"]) == ["◑ HOLDS in part"]
    app = open_page("verdict", run=part.id)
    assert not app.exception and not app.success
    assert "HOLDS for 30% of the input" in app.warning[0].proto.title
    assert "To accept its verdict for the part that it covers" in texts(app)
    _field(app.text_input, "Your name").set_value("Grace Hopper")
    _field(app.button, "Sign").click()
    app.run()
    assert "covers 30% of the input" in texts(app) and signoffs(stored.history) == []
    _field(app.text_area, "Comment").set_value("the rest is next week's")
    _field(app.button, "Sign").click()
    app.run()
    (entry,) = signoffs(stored.history)
    assert entry.said.endswith(
        "accepted HOLDS: covers 30% of the input: 14,000 inputs were not processed. the rest is"
        " next week's"
    )


def test_a_check_of_topics_that_move_holds_in_full(open_page: OpenPage, stored: Stored) -> None:
    """Story: topics move while they are checked, so some inputs are not due yet. That is no part of
    a verdict."""
    assert MOVING.covered_share is None and PART.covered_share == 0.3
    app = open_page("verdict", run=stored.add(MOVING).id)
    assert not app.exception and app.success and "their outputs were not due yet" in texts(app)
    assert "numbers → squares" in texts(app).replace("*", "")


@pytest.mark.parametrize(
    "plan",
    [
        {"identity": {"source": {"json": "$.id"}, "sink": {"header": "order"}}},
        {"identity": "key", "contract": "orders.yaml"},
    ],
    ids=["of today", "of an earlier version"],
)
def test_a_verdict_says_what_records_were_matched_by(
    open_page: OpenPage, stored: Stored, plan: dict[str, Any]
) -> None:
    """Story: orders are matched by their ids, not by their keys. Nobody signs that they were
    matched by key."""
    text = "{source: {topic: a}, sink: {topic: b}, identity: {source: {json: $.id}, sink:"
    run = stored.add(TWICE, plan=plan, facts=Facts(source="a", sink="b"))
    contract = {"contract.yaml": text + " {header: order}}}"}
    complete(run.folder(stored.settings) / EVIDENCE, replace(TWICE, run=run.id), contract)
    app = open_page("verdict", run=run.id)
    assert not app.exception
    assert "records matched by json $.id = header order ·" in texts(app)


def test_two_reports_side_by_side(open_page: OpenPage, stored: Stored) -> None:
    """Story: yesterday's run held and today's does not. The page says which finding appeared, and
    by how much."""
    before, after = stored.add(HELD), stored.add(TWICE)
    app = open_page("history", before=before.id, after=after.id)
    assert not app.exception
    said = texts(app)
    assert "HOLDS and VIOLATED; Duplicates appeared." in said
    kinds = app.dataframe[-1].value
    assert kinds.iloc[0].tolist() == ["Duplicates", "0 HOLDS", "3 VIOLATED", "appeared"]


def test_two_versions_of_a_contract_are_not_compared_as_one(
    open_page: OpenPage, stored: Stored
) -> None:
    """Story: topics are checked by two versions of a contract, and again by the first one. The page
    sets the two checks of one version beside each other, and says so if the versions differ."""
    facts = Facts(source="orders", sink="invoices")
    first, other, again = (
        stored.add(
            replace(report, identity=identity_words(identity)),
            plan={"contract": "orders", "contract_version": version, "identity": identity},
            facts=facts,
        )
        for report, version, identity in (
            (HELD, 1, {"json": "$.id"}),
            (TWICE, 2, "key"),
            (TWICE, 1, {"json": "$.id"}),
        )
    )
    app = open_page("history")
    assert not app.exception
    assert [app.selectbox(key=f"history_{side}").value for side in ("before", "after")] == [
        first.id,
        again.id,
    ]
    assert "not comparable" not in texts(app)
    across = texts(open_page("history", before=other.id, after=again.id))
    assert "By different contracts (orders@2, orders@1): not comparable one to one." in across
    assert "Records were matched by key before, and by json $.id after." in across


def test_a_pipeline_over_time_has_its_figures_in_a_table(
    open_page: OpenPage, stored: Stored
) -> None:
    """Story: how many findings did the runs of this scenario have? A chart shows them, and a table
    has the figures."""
    runs = [stored.add(report) for report in (HELD, TWICE, HELD)]
    app = open_page("history", measure="findings that break the verdict")
    assert not app.exception and len(app.get("plotly_chart")) == 1
    measure = "findings that break the verdict"
    frame = next(one.value for one in app.dataframe if measure in one.value.columns)
    assert list(frame["run"]) == [run.id for run in runs] and list(frame[measure]) == [0, 3, 0]
    assert list(frame["inputs judged"]) == [report.source_records for report in (HELD, TWICE, HELD)]
    assert "Inputs judged" in [one.label for one in app.metric]


def test_one_report_is_no_trend(open_page: OpenPage, stored: Stored) -> None:
    """Story: a pipeline was judged once. No chart shows one dot on an empty axis; its figures are
    there."""
    stored.add(HELD)
    app = open_page("history")
    assert not app.exception and not app.get("plotly_chart")
    assert "needs two reports that have it" in texts(app)
    figures = {one.label: one.value for one in app.metric}
    assert figures["Inputs judged"] == f"{HELD.source_records:,}"


def test_decisions_and_clusters_are_filters(open_page: OpenPage, stored: Stored) -> None:
    """Story: QA looks for what nobody has decided on yet, and for one cluster's verdicts."""
    signed, left = stored.add(HELD), stored.add(HELD)
    digest = evidence_hash(signed.folder(stored.settings))
    assert digest
    sign(stored.history, signed.id, [HELD], digest, Decision.ACCEPT, "Grace Hopper")
    there = RanOn(bootstrap="broker:9092", name="production")
    facts = replace(left.facts, cluster=there)
    stored.history.remember(left.id, facts)
    for wanted, run in (
        ({"decision": "not signed"}, left),
        ({"decision": "accepted"}, signed),
        ({"on": "production"}, left),
    ):
        found = open_page("history", **wanted).dataframe[0].value
        assert [name.rpartition("=")[2] for name in found["run"]] == [run.id], wanted


def test_damaged_and_missing_reports_are_said(open_page: OpenPage, stored: Stored) -> None:
    """Story: one report is cut off, one folder is gone. The list still shows both, and claims
    nothing else about them."""
    damaged, gone = stored.add(HELD), stored.add(HELD)
    (damaged.folder(stored.settings) / REPORT).write_text('{"schema": 1')
    (gone.folder(stored.settings) / REPORT).unlink()
    app = open_page("history")
    assert not app.exception and len(app.dataframe[0].value) == 2
    said = texts(app)
    assert (
        "None of these has a report that can be read" in said
        and f"The report of {gone.id} is gone" in said
    )


@pytest.mark.usefixtures("empty_home")
def test_an_empty_history_leads_to_the_first_run(open_page: OpenPage) -> None:
    """Story: nothing was ever run. The page says so and links to the page Run."""
    app = open_page("history")
    assert not app.exception
    assert "No runs or checks yet" in texts(app) and app.page_link[0].value == "Start a run"


def test_a_verdict_is_signed_on_its_page(open_page: OpenPage, stored: Stored) -> None:
    """Story: QA accepts a run that holds. The decision is kept with the hash of the evidence, and
    the page and the history show it; when a file of the evidence is changed afterwards and hashed
    again, both show that instead."""
    run = stored.add(HELD)
    app = open_page("verdict", run=run.id)
    assert not app.exception and "not signed" in texts(app)
    _field(app.text_input, "Your name").set_value("Grace Hopper")
    _field(app.text_area, "Comment").set_value("as <b>expected</b>")
    _field(app.button, "Sign").click()
    app.run()
    assert not app.exception
    (entry,) = signoffs(stored.history)
    assert (entry.decision, entry.name, entry.run) == (Decision.ACCEPT, "Grace Hopper", run.id)
    assert entry.evidence == manifest_hash(run.folder(stored.settings) / EVIDENCE)
    assert "Grace Hopper (unauthenticated) accepted HOLDS: as <b>expected</b>" in texts(app)
    assert list(open_page("history").dataframe[0].value["sign-off"]) == [Standing.ACCEPTED]
    complete(run.folder(stored.settings) / EVIDENCE, replace(TWICE, run=run.id), {})
    assert "evidence changed" in texts(open_page("verdict", run=run.id))
    assert list(open_page("history").dataframe[0].value["sign-off"]) == [Standing.CHANGED]


def test_evidence_that_is_not_on_the_screen_is_not_signed(
    open_page: OpenPage, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a run is resumed, and its new evidence is complete: once before its new report is in
    place, and once after the page has read the old one. The page asks to be loaded anew; then it is
    signed."""
    run = stored.add(HELD)
    folder = run.folder(stored.settings)
    report = replace(HELD, run=run.id, why="Another part of the input holds.")

    def judged_again(_settings: Settings, _run: Run) -> bool:
        complete(folder / EVIDENCE, report, {})
        return False

    def shows_the_old_one() -> bool:
        app = open_page("verdict", run=run.id)
        assert not app.exception and "judged again while this page was drawn" in texts(app)
        assert not [button for button in app.button if button.label == "Sign"]
        return HELD.why in texts(app)

    with monkeypatch.context() as patched:
        patched.setattr(reports, "hides_parts", judged_again)
        assert shows_the_old_one()
    assert shows_the_old_one()
    (folder / REPORT).write_text(report.to_json())
    (folder / KEPT).write_text(json.dumps({"evidence": evidence_hash(folder), "caught": ["gap"]}))
    app = open_page("verdict", run=run.id)
    _field(app.text_input, "Your name").set_value("Grace Hopper")
    _field(app.text_area, "Comment").set_value("yes")
    _field(app.button, "Sign").click()
    app.run()
    (entry,) = signoffs(stored.history)
    assert entry.evidence == manifest_hash(folder / EVIDENCE)


def test_waived_findings_lead_to_accepting(
    open_page: OpenPage, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody accepts a verdict that is VIOLATED. The page refuses at once, without the
    self-test. The findings are waived, the page says that nothing is accepted yet, and accepting is
    what comes next."""

    def no_self_test(*_arguments: object) -> None:
        raise AssertionError("the self-test takes a while, and the verdict is refused anyway")

    monkeypatch.setattr(signoff_form, "before_signoff", no_self_test)
    run = stored.add(TWICE)
    app = open_page("verdict", run=run.id)
    _field(app.text_input, "Your name").set_value("Grace Hopper")
    _field(app.button, "Sign").click()
    app.run()
    assert not app.exception and "Waive each of these kinds first" in texts(app)
    _field(app.radio, "Decision").set_value(Decision.WAIVE).run()
    _field(app.text_input, "Your name").set_value("Grace Hopper")
    _field(app.text_area, "Comment").set_value("known since May")
    _field(app.button, "Sign").click()
    app.run()
    assert not app.exception and [entry.kind for entry in signoffs(stored.history)] == ["duplicate"]
    assert "1 of 1 finding waived, but nobody has accepted the verdict" in texts(app)
    assert "first waive what breaks it" not in texts(app)
    assert "not accepted yet" in texts(app) and "Nobody has decided on it yet" not in texts(app)
    assert _field(app.radio, "Decision").value == Decision.ACCEPT


def test_a_hidden_form_is_not_what_protects(
    open_page: OpenPage, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an operator's page has no form to sign and no evidence to download. Somebody who gets
    at both all the same presses the buttons, and the backend refuses."""
    run = stored.add(HELD)
    monkeypatch.setattr(access, "machine_user", lambda _settings: GRACE)
    app = open_page("verdict", run=run.id)
    assert "Your role does not allow you to sign." in texts(app)
    assert not [one for one in app.button if one.label == "Sign"]
    monkeypatch.setattr(access, "require", lambda _by, _action: None)
    app = open_page("verdict", run=run.id)
    assert "You sign as Grace Hopper." in texts(app)
    _field(app.button, "Sign").click()
    app.run()
    assert "Grace Hopper has the role operator and may not sign." in texts(app)
    with pytest.raises(NotPermitted, match="Ada Lovelace has the role viewer and may not export"):
        zipped_evidence(stored.history.acted_on_by(ADA), run, Payloads.ALL)
    assert signoffs(stored.history) == []
    noted = [(one.by, one.action, one.allowed) for one in audit_entries(stored.history)]
    assert noted == [(GRACE, Action.SIGN, False), (ADA, Action.EXPORT, False)]


def test_what_nobody_can_answer_for_is_not_signed(open_page: OpenPage, stored: Stored) -> None:
    """Story: somebody presses Sign without a name, then on a verdict that is UNKNOWN without a
    word, then on one that is VIOLATED. Each time the page says what is missing, and nothing is
    kept."""
    for report, says in (
        (HELD, "A sign-off needs a name"),
        (UNKNOWN, "accepting it needs a reason in words"),
        (TWICE, "The verdict is VIOLATED by duplicate"),
    ):
        run = stored.add(report)
        app = open_page("verdict", run=run.id)
        if report is not HELD:
            _field(app.text_input, "Your name").set_value("Grace Hopper")
        _field(app.button, "Sign").click()
        app.run()
        assert not app.exception and says in texts(app)
    assert signoffs(stored.history) == []


def test_a_changed_database_shows(open_page: OpenPage, stored: Stored) -> None:
    """Story: somebody with the database's password turns a rejection into an acceptance. The page
    says that the chain is broken."""
    run = stored.add(HELD)
    app = open_page("verdict", run=run.id)
    _field(app.text_input, "Your name").set_value("Grace Hopper")
    app.radio[0].set_value(Decision.REJECT)
    _field(app.button, "Sign").click()
    app.run()
    with stored.history.engine.begin() as connection:
        connection.execute(sa.text("drop trigger signoffs_refuse_update"))
        connection.execute(sa.text("update signoffs set decision = 'accept'"))
    app = open_page("verdict", run=run.id)
    assert not app.exception and "Entry 1 of the sign-offs was changed" in texts(app)


def test_a_healthy_verdict_is_short_and_a_violated_one_begins_with_what_is_wrong(
    open_page: OpenPage, stored: Stored
) -> None:
    """Story: QA opens both. What holds is one table; what is violated is a section of its own with
    its example, and nothing of it is in the table."""
    app = open_page("verdict", run=stored.add(HELD).id)
    assert not app.exception
    table = app.dataframe[0].value
    assert list(table.columns) == ["", "finding", "found", "witnesses"]
    assert len(table) == len([one for one in HELD.findings if one not in HELD.aside])
    app = open_page("verdict", run=stored.add(TWICE).id)
    assert not app.exception
    assert "input 3 again" in texts(app) and "1 example of 3" in texts(app)
    assert not [one for one in app.dataframe if "witnesses" in one.value.columns]


def test_several_findings_are_waived_at_once(open_page: OpenPage, stored: Stored) -> None:
    """Story: a replay breaks two kinds. QA waives both with one reason and one day, and then
    accepts."""
    gap = replace(TWICE.findings[0], kind="gap")
    run = stored.add(replace(TWICE, findings=(*TWICE.findings, gap)))
    app = open_page("verdict", run=run.id)
    app.radio[0].set_value(Decision.WAIVE).run()
    assert app.multiselect[0].value == ["duplicate", "gap"]
    for decision in (Decision.WAIVE, Decision.ACCEPT):
        app.radio[0].set_value(decision).run()
        _field(app.text_input, "Your name").set_value("Grace Hopper")
        _field(app.text_area, "Comment").set_value("known")
        _field(app.button, "Sign").click()
        app.run()
        assert not app.exception
    assert [(one.decision, one.kind) for one in signoffs(stored.history)] == [
        (Decision.WAIVE, "duplicate"),
        (Decision.WAIVE, "gap"),
        (Decision.ACCEPT, None),
    ]
    assert "accepted with 2 waivers" in texts(app)


def _field(found: Any, label: str) -> Any:
    """The one widget with this label."""
    (field,) = (one for one in found if one.label == label)
    return field
