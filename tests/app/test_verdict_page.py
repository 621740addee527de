"""The page Verdict: a run that holds, a check that does not, one without a report, none at all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.app.conftest import OpenPage, texts
from tests.runs import Finished
from topicproof.app.session import run_reads
from topicproof.app.verdict import signoff_form
from topicproof.app.wording import KIND_TITLES
from topicproof.backend.address import Address
from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.errors import CheckStopped, EvidenceError, TopicError, UsageError
from topicproof.backend.evidence.folder import CONTRACT, REPORT, evidence_in
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.kept_contracts import versions
from topicproof.backend.history.run_state import Facts, RunResults, StageVerdict
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.judging.table_rows import TableSink
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.check import CheckOptions, check
from topicproof.backend.runs.stage_verdicts import stage_folder
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.verifying.derived import PLAN
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Example, Outcome
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question


def test_a_run_that_holds(open_page: OpenPage, at_home: Settings, finished: Finished) -> None:
    """Story: QA opens the verdict of a run. One sentence, and for every kind its count, its
    denominator, its witnesses."""
    assert at_home.home
    app = open_page("verdict", run=finished.run.id)
    assert not app.exception
    assert app.success[0].value.replace("\\", "") == finished.report.why
    said = texts(app)
    found = {finding.kind: finding.count for finding in finished.report.findings}
    table = app.dataframe[0].value
    rows = {row["finding"]: (row["found"], row["witnesses"]) for row in table.to_dict("records")}
    aside = {one.kind: one.why for one in finished.report.aside}
    for check_ in finished.report.checked:
        if check_.kind not in aside:
            counted = f"{found[check_.kind]:,} of {check_.records:,} {check_.unit}"
            assert rows[KIND_TITLES[check_.kind]][0] == counted
    assert rows[KIND_TITLES["reading_mismatch"]][1] == "read_committed, raw log"
    assert set(aside.values()) <= set(app.dataframe[1].value["result"])
    assert not app.get("plotly_chart"), "nothing is violated"
    assert "hearing: raw log" in said and "hearing: journal of the run" in said
    assert "hearing: transaction coordinator" in said
    assert "crash@transaction=2 fired 3 times" in said
    assert app.download_button[0].label == "report.json"


class StoppedAtOnce(History):
    """A history in which somebody stops each check as soon as it is there."""

    def create(self, kind: str, name: str, plan: Mapping[str, Any]) -> Run:
        run = super().create(kind, name, plan)
        self.request_stop(run.id)
        return run


def test_a_check_that_is_violated_leads_to_where_it_shows(
    open_page: OpenPage, at_home: Settings, cluster: Services, finished: Finished
) -> None:
    """Story: somebody checks a topic that the pipeline never wrote: the source itself. Every input
    lacks its second output, and each example is a link to the place that shows it."""
    history = History(at_home)
    bounds = Cluster(Address(cluster.bootstrap)).bounds(finished.source)
    two = Expected(Expect.ONE_TO_MANY, "2")
    question = Question(source=bounds, sink=finished.source, identity=Identity.KEY, expected=two)
    text = f"source: {{topic: {finished.source}}}\nsink: {{topic: others}}\nidentity: key\n"
    kept_after = CheckOptions("two-each", None, {CONTRACT: text}, keeps_contract=True)
    # A check that somebody stops, or that fails, makes no version of its contract.
    stopped = StoppedAtOnce(at_home)
    missing = replace(question, sink=f"{finished.source}-gone")
    for asked, through, error in (
        (question, stopped, CheckStopped),
        (missing, history, TopicError),
    ):
        with pytest.raises(error):
            check(at_home, cluster, through, asked, kept_after)
        assert versions(history, "two-each") == []
    stopped.engine.dispose()
    for unjudged in history.list(2):
        assert (unjudged.folder(at_home) / CONTRACT).read_text() == f"{text}\n"
        history.forget(unjudged.id)
    report = check(at_home, cluster, history, question, kept_after)
    assert report.run is not None
    (kept,) = versions(history, "two-each")
    plan = json.loads((evidence_in(history.get(report.run).folder(at_home))[0] / PLAN).read_text())
    assert kept.text == text and plan["contract_version"] == kept.version
    assert history.get(report.run).plan == plan
    app = open_page("verdict", run=report.run)
    assert not app.exception
    assert history.get(report.run).verdict == "VIOLATED" and app.error[0].value
    said = texts(app)
    assert "6,000 of 12,000 expected outputs" in said and "20 examples of 6,000" in said
    assert len(app.get("plotly_chart")) == 1 and f"Where in {finished.source}" in said
    places = [link.label.replace("\\", "") for link in app.page_link]
    assert any(re.search(rf"{finished.source}-\d+@\d+", place) for place in places), places
    assert "Faults" not in said, "a check injects none"

    # Somebody checks the same topic again, by another contract. A link still leads to its proof.
    (link,) = [link for link in app.page_link if re.search(r"@\d+$", link.label)][:1]
    address = dict(parse_qsl(link.proto.query_string))
    later = history.create("check", "check", {})
    history.remember(later.id, Facts(source=finished.source, sink=finished.source))
    history.end(later.id, State.DONE, "HOLDS", "Nothing was found.")
    proof = open_page("compare", **address)
    assert not proof.exception and [box.proto.title for box in proof.warning] == ["Gaps"]
    assert f"Verdict of {report.run}" in texts(proof)
    newest = open_page("compare", **{**address, "run": "check-of-nobody"})
    assert "check-of-nobody has no verdict on" in texts(newest)
    assert "Gaps" not in [box.proto.title for box in newest.warning]
    history.forget(later.id)


def test_a_verdict_on_a_table_leads_to_no_page_of_a_topic(
    open_page: OpenPage,
    at_home: Settings,
    cluster: Services,
    finished: Finished,
    tmp_path: Path,
) -> None:
    """Story: somebody checks the files that a job wrote. One row is missing and one is there twice.
    The page speaks of rows, and its links lead to the inputs alone: Kafka has no table. Where a
    setting names the places of tables, no other one is read."""
    bounds = Cluster(cluster.address).bounds(finished.source)
    places = [(p.partition, offset) for p in bounds.partitions for offset in range(p.start, p.lso)]
    places[0] = places[1]
    columns = dict(zip(("p", "o"), zip(*places, strict=True), strict=True))
    (tmp_path / "lines").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "lines" / "part.parquet")
    text = (
        f"source: {{topic: {finished.source}}}\nsink: {{table: {{format: parquet,"
        f" path: {tmp_path / 'lines'}, origin: {{partition: p, offset: o}}}}}}\n"
    )
    contract = make_contract(parse_fields(text))
    assert contract.table is not None
    options = CheckOptions(
        "lines.yaml", None, {CONTRACT: text}, table=TableSink(contract.table, contract.yaml_fields)
    )
    history, question = History(at_home), question_of(contract, Cluster(cluster.address))
    closed = at_home.model_copy(update={"tables": "/data, s3a://bucket"})
    with pytest.raises(UsageError, match="lies below no place of the setting TOPICPROOF_TABLES"):
        check(closed, cluster, history, question, options)
    report = check(at_home, cluster, history, question, options)
    assert report.run is not None
    assert {each.kind: each.count for each in report.findings if each.count} == {
        "gap": 1,
        "duplicate": 1,
    }
    app = open_page("verdict", run=report.run)
    assert not app.exception
    said = texts(app)
    assert "rows matched by lineage" in said.replace("*", "")
    assert f"{len(places):,}** rows" in said
    labels = [link.label.replace("\\", "") for link in app.page_link]
    assert "Compare both levels of the sink" not in labels
    assert [label for label in labels if "@" in label] == [f"input {finished.source}-0@0"]


def test_a_row_of_a_table_is_no_place_in_kafka(
    open_page: OpenPage, at_home: Settings, finished: Finished, tmp_path: Path
) -> None:
    """Story: a table holds a row twice. The verdict says which row, and nothing on the page leads
    to a topic of the table's name, which does not exist."""
    history = History(at_home)
    given = finished.report
    twice = Example(0, 41, "numbers/0/7/0", None, "its input has an output already")
    report = replace(
        given,
        balance=tuple(replace(one, markers=None) for one in given.balance),
        findings=tuple(
            replace(one, outcome=Outcome.VIOLATED, count=1, primary=1, examples=(twice,))
            if one.kind == "duplicate"
            else one
            for one in given.findings
        ),
    )
    table = history.create("run", "table", {})
    history.remember(table.id, Facts(folder=str(tmp_path), database="sqlite:///out.db"))
    (tmp_path / REPORT).write_text(replace(report, run=table.id).to_json())
    history.end(table.id, State.DONE, "VIOLATED", "1 duplicate.")
    app = open_page("verdict", run=table.id)
    assert not app.exception
    assert "row 42 of the table" in texts(app)
    assert not [
        link.value for link in app.page_link if "@" in link.value or "Compare" in link.value
    ]
    history.forget(table.id)


def test_no_report_and_a_damaged_one_are_said(
    open_page: OpenPage, at_home: Settings, tmp_path: Path
) -> None:
    """Story: a run failed before it was judged, and another one's report is cut off. Neither looks
    like a pass."""
    history = History(at_home)
    failed = history.create("run", "squares", {})
    history.end(failed.id, State.FAILED, None, None, "The broker went <b>away</b>.")
    app = open_page("verdict", run=failed.id)
    assert not app.exception and not app.success
    assert "The broker went <b>away</b>." in texts(app)

    damaged = history.create("check", "check", {})
    history.remember(damaged.id, Facts(folder=str(tmp_path)))
    (tmp_path / REPORT).write_text('{"schema": 1, "verdict": "HOLDS"')
    history.end(damaged.id, State.DONE, "HOLDS", "said so")
    app = open_page("verdict", run=damaged.id)
    assert not app.exception and not app.success
    assert "cannot be read" in texts(app)
    for run in (failed, damaged):
        history.forget(run.id)


def test_a_run_of_several_stages_shows_each(
    open_page: OpenPage, at_home: Settings, finished: Finished, tmp_path: Path
) -> None:
    """Story: a chain holds end to end, and one of its stages does not. Both can be opened, by their
    address too, and neither looks like the whole."""
    history = History(at_home)
    chain = history.create("run", "chain", {})
    good, bad = (
        finished.report,
        replace(finished.report, verdict=Outcome.VIOLATED, why="1 phantom."),
    )
    verdicts = {
        name: StageVerdict(one.verdict, one.why) for name, one in (("keep", good), ("square", bad))
    }
    history.remember(chain.id, Facts(folder=str(tmp_path), results=RunResults(verdicts)))
    for folder, one in (
        (tmp_path, good),
        (stage_folder(tmp_path, "keep"), good),
        (stage_folder(tmp_path, "square"), bad),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REPORT).write_text(replace(one, run=chain.id).to_json())
    history.end(chain.id, State.DONE, "VIOLATED", "Stage square: 1 phantom.")
    whole = open_page("verdict", run=chain.id)
    assert not whole.exception and whole.success[0].value.replace("\\", "") == good.why
    assert "Stage square: 1 phantom." in texts(whole)
    stage = open_page("verdict", run=chain.id, stage="square")
    assert not stage.exception and not stage.success and stage.error[0].value == "1 phantom."
    assert "has no stage lunch" in texts(open_page("verdict", run=chain.id, stage="lunch"))
    history.forget(chain.id)


def test_a_missing_run_is_said(open_page: OpenPage, at_home: Settings, finished: Finished) -> None:
    """Story: the address names a run that was cleaned. No other verdict is shown under its
    address."""
    assert at_home.home and finished.run
    app = open_page("verdict", run="gone-1")
    assert not app.exception
    assert "There is no run gone-1" in texts(app) and "Choose another one above" in texts(app)
    assert not app.metric and finished.run.id in "".join(app.selectbox[0].options)


@pytest.mark.usefixtures("empty_home")
def test_without_any_run_there_is_no_verdict(open_page: OpenPage) -> None:
    """Story: nothing was ever run. The page says so and links to the page Run."""
    app = open_page("verdict")
    assert not app.exception
    assert "No runs or checks yet" in texts(app) and app.page_link[0].value == "Start a run"


def test_large_evidence_is_copied_by_a_command(
    open_page: OpenPage,
    at_home: Settings,
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the evidence of a check of 30 GB. Packed for a browser, it would take as much of the
    dashboard's memory, for everybody."""
    for module in (run_reads, signoff_form):
        monkeypatch.setattr(module, "DOWNLOAD_BYTES_MAX", 10_000)
    app = open_page("verdict", run=finished.run.id)
    assert "Download evidence" not in [button.label for button in app.download_button]
    assert f"`topicproof evidence {finished.run.id} --out FOLDER` copies it." in texts(app)
    with pytest.raises(EvidenceError, match="too large for a page"):
        run_reads.zipped_evidence(History(at_home), finished.run, Payloads.ALL)
