"""The pipelines on the page Check, and what changed since the last verdict on the page Verdict."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from streamlit.testing.v1 import AppTest

from tests.app.conftest import OpenPage, texts
from tests.app.test_history_page import HELD, TWICE, UNKNOWN, Stored, stored
from tests.backend.trust.people import ADA, GRACE
from tests.conftest import wait_until
from topicproof.app.check import check_all, inbox
from topicproof.app.check.check_all import CheckQueue, Job, jobs_of
from topicproof.app.session import access
from topicproof.app.session.reports import kept_report
from topicproof.backend.errors import UsageError
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.kept_contracts import KeptContract, keep
from topicproof.backend.history.pipelines import Pipeline
from topicproof.backend.history.run_state import Facts, RanOn
from topicproof.backend.history.signoff import Decision, sign, signable
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.settings import read_settings
from topicproof.backend.trust.identity import Action
from topicproof.validators.report import Report

__all__ = ["stored"]  # a fixture

TERMS = "guarantee: exactly_once\nsource: {topic: orders}\nsink: {topic: lines}\nidentity: key\n"
WAIT_S = 30
ONE = RanOn(bootstrap="127.0.0.1:1")


def check(home: Stored, report: Report, sink: str = "lines", **plan: Any) -> Run:
    """A check of orders and this sink, on the page's cluster."""
    return home.add(report, plan=plan, facts=Facts(source="orders", sink=sink, cluster=ONE))


def decide(home: Stored, run: Run, decision: Decision) -> None:
    reports, digest = signable(home.settings, run)
    sign(home.history, run.id, reports, digest, decision, "Grace Hopper", comment="seen")


def names(app: AppTest) -> list[str]:
    """The pipelines that the page lists, in order."""
    links = [link.proto for link in app.get("page_link")]
    labels = [link.label for link in links if link.icon != ":material/theater_comedy:"]
    return [label for label in labels if not label.startswith("check of")]


def test_what_waits_for_a_signature_comes_first(open_page: OpenPage, stored: Stored) -> None:
    """Story: QA opens Checks in the morning, while the cluster does not answer. Each pipeline is
    one row with its newest verdict: what nobody has signed first, and of that the worst."""
    for report in (HELD, TWICE):
        rejected = check(stored, report, "rejected")
    decide(stored, rejected, Decision.REJECT)
    check(stored, HELD, "fine")
    check(stored, UNKNOWN, "dark")
    for report in (HELD, HELD):
        check(stored, report, "same")
    check(stored, TWICE, "broken")
    failed = stored.history.create("check", "check", {})
    stored.history.remember(failed.id, Facts(source="orders", sink="broken", cluster=ONE))
    stored.history.end(failed.id, State.FAILED, None, None, "The broker <b>went</b> away.")
    stored.add(HELD)  # A run of the Lab is no pipeline of QA.
    keep(stored.history, "new", TERMS)
    app = open_page("check")
    assert not app.exception
    assert names(app) == ["broken", "dark", "same", "fine", "rejected", "new"]
    text = texts(app)
    assert "rejected] by Grace Hopper (unauthenticated)" in text
    assert "as last time" in text and "New: Duplicates (3)" in text and "first verdict" in text
    assert "The broker <b>went</b> away." in text and "not checked yet" in text
    assert "No pipeline has been checked yet" not in str(app.info)

    app.toggle(key="unsigned").set_value(True).run()
    assert names(app) == ["broken", "dark", "same", "fine"]
    assert names(open_page("check", unsigned="true")) == names(app), "by its address"
    app.text_input(key="pipeline").set_value("ar").run()
    assert names(app) == ["dark"]
    # A contract that is open needs the page for itself.
    assert names(open_page("check", source="orders", sink="lines")) == ["All pipelines"]


def test_a_newer_verdict_does_not_settle_a_violation(open_page: OpenPage, stored: Stored) -> None:
    """Story: nobody decides on a violation. The next check, of weaker terms, holds and is accepted.
    The pipeline waits until somebody decides on the violation, too. One row of the history is
    damaged: its year has no number of seconds."""
    for report in (TWICE, HELD, TWICE, TWICE):
        violated = check(stored, report, "lines")
        if report is HELD:
            decide(stored, violated, Decision.ACCEPT)
    for report in (HELD, HELD):
        held = check(stored, report, "lines")
    decide(stored, held, Decision.ACCEPT)
    damaged = check(stored, HELD, "damaged")
    decide(stored, damaged, Decision.ACCEPT)
    with stored.history.engine.begin() as connection:
        moment = sa.text("update runs set created_at = '0001-01-01 00:00:00' where id = :run")
        connection.execute(moment, {"run": damaged.id})
    app = open_page("check", unsigned="true")
    assert not app.exception and not app.success
    assert names(app) == ["lines", "3 earlier violations that nobody decided on"]
    decide(stored, violated, Decision.REJECT)
    app = open_page("check", unsigned="true")
    assert names(app) == [] and "no violation before it was passed over" in app.success[0].value
    assert names(open_page("check")) == ["lines", "damaged"]


def test_three_hundred_verdicts_cost_what_is_drawn(
    open_page: OpenPage, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a year of nightly checks. The page asks for the reports of the rows that it draws, and
    for two of each."""
    reads: list[str] = []

    def reading(settings: Any, run: Run) -> Report | None:
        reads.append(run.id)
        return kept_report(settings, run)

    monkeypatch.setattr(inbox, "kept_report", reading)
    monkeypatch.setattr(inbox, "ROWS", 2)
    runs = [check(stored, HELD, f"sink-{n % 3}") for n in range(3)]
    plans = [run.plan for run in runs]
    for n in range(297):
        run = stored.history.create("check", "check", plans[n % 3])
        stored.history.remember(run.id, runs[n % 3].facts)
        stored.history.end(run.id, State.DONE, "HOLDS", "All are there.")
    app = open_page("check")
    assert not app.exception and len(names(app)) == 2
    assert "a report is gone: not compared" in texts(app)
    assert 0 < len(reads) <= 2 * 2 * 2, "of two rows, by the first run and by this one"
    assert app.selectbox(key="inbox_rows").options == ["1 to 2 of 3", "3 to 3 of 3"]


def test_the_verdict_says_what_changed(open_page: OpenPage, stored: Stored) -> None:
    """Story: a pipeline is checked by a contract, again, and by its next version. The first verdict
    says that it is the first, the second that nothing changed, and the third what is new and which
    term is another."""
    for text in (TERMS, TERMS.replace("key", "{json: $.id}")):
        keep(stored.history, "lines", text)
    first, same, other = (
        check(stored, report, contract="lines", contract_version=version)
        for report, version in ((HELD, 1), (HELD, 1), (TWICE, 2))
    )
    assert "The first verdict of this pipeline." in texts(open_page("verdict", run=first.id))
    app = open_page("verdict", run=same.id)
    assert "As last time: no finding, no new input." in texts(app)
    assert "What changed" not in [each.label for each in app.expander]
    app = open_page("verdict", run=other.id)
    text = texts(app)
    assert not app.exception and "New: Duplicates (3)" in text and "was HOLDS" in text
    assert "The contract changed (lines@1 → lines@2): **identity**." in text
    changed = {"finding", "term"}
    tables = [each.value for each in app.dataframe if changed & {*each.value.columns}]
    rows = [table.iloc[0].tolist() for table in tables if "now" in table.columns]
    assert rows == [
        ["Duplicates", "0 HOLDS", "3 VIOLATED", "new"],
        ["identity", "key", '{"json": "$.id"}'],
    ]
    links = [link.proto.query_string for link in app.get("page_link")]
    assert f"run={same.id}" in links and f"before={same.id}&after={other.id}" in links
    (same.folder(stored.settings) / "report.json").unlink()
    assert "The report of the last verdict" in texts(open_page("verdict", run=other.id))


def test_only_who_may_check_checks_all(
    open_page: OpenPage, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a viewer's button is grey. Pressed all the same, it begins nothing, and the audit log
    has the attempt."""
    check(stored, HELD)
    started: list[str] = []

    def start(_history: History, run: Run) -> str:
        started.append(run.id)
        return run.id

    monkeypatch.setattr(check_all, "start_again", start)
    monkeypatch.setattr(access, "machine_user", lambda _settings: ADA)
    app = open_page("check")
    assert app.button(key="check_all").disabled
    monkeypatch.setattr(inbox, "may", lambda _action: True)
    open_page("check").button(key="check_all").click().run()
    noted = [(entry.by, entry.action, entry.allowed) for entry in audit_entries(stored.history)]
    assert noted == [(ADA, Action.CHECK, False)] and started == []


def test_all_are_checked_one_after_the_other(
    open_page: OpenPage, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an operator checks all again. One of them does not start, and its row says why; the
    others come to their verdicts. A second click meanwhile begins nothing."""
    monkeypatch.setattr(access, "machine_user", lambda _settings: GRACE)
    for sink in ("lines", "bad", "bills"):
        check(stored, TWICE, sink)
    begun: list[str] = []
    go_on = threading.Event()

    def start(_history: History, run: Run) -> str:
        begun.append(run.facts.sink)
        assert go_on.wait(WAIT_S)
        if run.facts.sink == "bad":
            raise UsageError("There is no topic <b>bad</b>.")
        return check(stored, HELD, run.facts.sink).id

    monkeypatch.setattr(check_all, "start_again", start)
    app = open_page("check").button(key="check_all").click().run()
    assert not app.exception and app.button(key="check_all").disabled
    queue = check_all.check_queue(str(stored.settings.home))
    assert not queue.begin(jobs_of(stored.settings, stored.history.list()[:1]))
    go_on.set()
    wait_until(lambda: not queue.progress.is_active, WAIT_S, "the checks")
    assert sorted(begun) == ["bad", "bills", "lines"] and queue.progress.done == 3
    text = texts(open_page("check"))
    assert "Not checked again.] There is no topic <b>bad</b>." in text
    assert text.count("Gone: Duplicates (3)") == 2


def test_a_stop_ends_the_check_that_runs_and_begins_none(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody stops them all. The check that runs is asked to stop and ends without a
    verdict, and no further one begins."""
    monkeypatch.setattr(check_all, "POLL_S", 0.01)
    running = stored.history.create("check", "check", {})
    begun: list[str] = []

    def start() -> str:
        begun.append(running.id)
        return running.id

    queue = CheckQueue()
    pipeline = Pipeline("lines", "orders", "lines", "embedded")
    assert queue.begin([Job((pipeline,), stored.history, start)] * 3)
    wait_until(lambda: begun != [], WAIT_S, "the first check")
    queue.stop(stored.history)
    wait_until(lambda: stored.history.get(running.id).stop_requested, WAIT_S, "the stop")
    assert queue.progress.is_active, "it has not ended"
    stored.history.end(running.id, State.STOPPED, None, None)
    wait_until(lambda: not queue.progress.is_active, WAIT_S, "the end")
    assert begun == [running.id] and queue.progress.not_begun == 2


@pytest.mark.parametrize(
    ("plan", "facts", "says"),
    [
        ({}, Facts(source="orders", sink="lines"), "It was checked on the embedded Kafka"),
        (
            {},
            Facts(source="orders", sink="lines", cluster=RanOn(name="east")),
            "on the cluster east, which has no address",
        ),
        (
            {"clusters": {"source": "a", "sink": "b"}},
            Facts(source="orders", sink="lines", cluster=ONE),
            "named on the command line",
        ),
        (
            {"source": "orders", "sink": "lines", "identity": "value"},
            Facts(source="orders", sink="lines", cluster=ONE),
            "lines@2 has other terms",
        ),
    ],
)
def test_what_cannot_be_checked_again_says_why(
    stored: Stored,
    monkeypatch: pytest.MonkeyPatch,
    plan: dict[str, Any],
    facts: Facts,
    says: str,
) -> None:
    """Story: pipelines of other clusters, and one whose terms nobody keeps. None is checked by
    others than its terms, or on another cluster than its own."""
    monkeypatch.setattr(access, "machine_user", lambda _settings: GRACE)
    for text in (TERMS, TERMS.replace("key", "{json: $.id}")):
        keep(stored.history, "lines", text)
    (job,) = jobs_of(stored.settings, [stored.add(HELD, plan=plan, facts=facts)])
    with pytest.raises(UsageError, match=says):
        job.start()


def test_each_pipeline_is_checked_on_its_own_cluster(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: two named clusters share one history, and pages of both are open. What a page starts
    runs on the cluster that it shows, and each pipeline of the list on that of its verdict."""
    clusters = tmp_path / "clusters.yaml"
    clusters.write_text("east: {bootstrap: 127.0.0.1:1}\nwest: {bootstrap: 127.0.0.1:2}\n")
    monkeypatch.setattr(access, "machine_user", lambda _settings: GRACE)
    monkeypatch.setenv("TOPICPROOF_CLUSTERS", str(clusters))
    monkeypatch.setenv("TOPICPROOF_HOME", str(stored.settings.home))
    pages = {name: read_settings(cluster=name) for name in ("east", "west")}
    opened = {name: access.open_history(settings) for name, settings in pages.items()}
    assert {name: history.settings.cluster for name, history in opened.items()} == {
        "east": "east",
        "west": "west",
    }
    runs = [
        stored.add(HELD, facts=Facts(source="orders", sink=name, cluster=RanOn(name=name)))
        for name in ("east", "west")
    ]
    jobs = jobs_of(pages["east"], runs)
    assert [job.history.settings.bootstrap for job in jobs] == ["127.0.0.1:1", "127.0.0.1:2"]


def test_it_is_checked_by_the_newest_terms_of_its_topics(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a contract got a new version about the same topics, another one about other topics.
    The first is checked by the new version, the second by that of its verdict, and so is one
    that has moved to another cluster. Several sinks of one
    contract are one check."""
    labels: list[str] = []

    def start(_history: History, contract: KeptContract) -> str:
        labels.append(contract.label)
        return "check-x"

    monkeypatch.setattr(check_all, "start_kept_check", start)
    east = "{topic: lines}", "{topic: lines, cluster: east}"
    for name, old, new in (
        ("lines", "key", "value"),
        ("bills", "orders", "others"),
        ("moved", *east),
    ):
        for text in (TERMS, TERMS.replace(old, new)):
            keep(stored.history, name, text)
    runs = [
        check(stored, HELD, sink, contract=name, contract_version=1)
        for name, sink in (
            ("lines", "lines"),
            ("lines", "lines-2"),
            ("bills", "lines"),
            ("moved", "lines"),
        )
    ]
    runs.append(check(stored, HELD, "lines-3", contract="bills", contract_version=2))
    jobs = jobs_of(stored.settings, runs)
    assert [len(job.pipelines) for job in jobs] == [2, 1, 1, 1]
    assert [job.start() for job in jobs] == ["check-x"] * 4
    assert labels == ["lines@2", "bills@1", "moved@1", "bills@2"]
