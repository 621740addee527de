"""The page Run: no runs yet, a finished one, a missing one, and one that is started, killed,
resumed and stopped."""

from __future__ import annotations

import json
from collections.abc import Callable

import psutil
import pytest
from confluent_kafka import Producer

from tests.app.conftest import OpenPage, texts
from tests.conftest import wait_until
from tests.runs import Finished
from topicproof.backend.address import Address
from topicproof.backend.faults.kinds import KINDS
from topicproof.backend.history.run_state import Facts, RunResults
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.runs.launch import start_run
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.totals import total_text
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.delivery_options import OPTIONS

WAIT_S = 300


@pytest.mark.usefixtures("empty_home")
def test_without_any_run_the_page_says_how_to_start_one(open_page: OpenPage) -> None:
    """Story: somebody opens the dashboard for the first time, and Kafka does not even run. The form
    is there."""
    app = open_page("run")
    assert not app.exception
    assert "No runs yet. Start one with the form" in texts(app)
    assert app.form_submit_button[0].label == "Start the run"
    assert {kind.name for kind in KINDS} == {
        one.split()[0] for one in app.selectbox(key="plan_fault").options
    }
    for option in OPTIONS.values():
        if option.label is not None:
            fields = [*app.number_input, *app.selectbox]
            (field,) = (field for field in fields if field.key == f"plan_{option.plan_name}")
            assert (field.label, field.value) == (option.label, option.default)
    assert all(field.help for field in [*app.number_input, *app.selectbox, *app.toggle])


def test_the_url_reopens_a_run(open_page: OpenPage, at_home: Settings, finished: Finished) -> None:
    """Story: the address of a run is sent to a colleague. The page shows that run, its figures and
    its last word."""
    assert at_home.home
    app = open_page("run", run=finished.run.id)
    assert not app.exception
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Inputs"] == "6,000" and figures["Faults fired"] == "3"
    assert app.progress[0].value == 100
    (played,) = (each for each in app.get("bidi_component") if finished.sink in str(each.proto))
    drawn = json.loads(played.proto.json)
    lanes = {lane["name"]: lane for lane in drawn["lanes"]}
    for p in finished.report.sink.partitions:
        lane = lanes[f"p{p.partition}"]
        assert (lane["lso"][-1][1], lane["hw"][-1][1]) == (p.lso, p.hw), "as the broker says"
    fates = finished.report.fates
    assert sum(lane["committed"][-1][1] for lane in lanes.values()) == fates["committed"]
    assert sum(lane["aborted"][-1][1] for lane in lanes.values()) == fates["aborted"]
    workers = [box[1] for box in drawn["boxes"]]
    assert set(workers) == {0, 1, 2}, "the headers name every producer's partition"
    assert app.success[0].value.replace("\\", "") == finished.report.why
    newest = next(run.id for run in History(at_home).list() if run.kind == "run")
    assert app.dataframe[-1].value["run"].tolist()[0] == newest
    assert not [button for button in app.button if button.key in ("stop", "resume")]


def test_totals_are_shown_beside_what_they_should_be(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a payment of a totals run was in the source twice. The page says that an account is
    wrong, and shows by how much when it is asked for the current totals."""
    sink, producer = new_topic(), Producer(idempotent_producer_config(Address(bootstrap)))
    for name, payment, cents, total in (
        ("a", "1", 250, 250),
        ("b", "2", 100, 100),
        ("a", "1", 250, 500),
    ):
        producer.produce(sink, total_text(payment, name, cents, total), name)
    assert producer.flush(20) == 0
    history = History(at_home)
    run = history.create(
        "run", "totals", make_plan({"scenario": "totals"}).model_dump(mode="json", by_alias=True)
    )
    history.remember(run.id, Facts(sink=sink, results=RunResults(accounts=2, wrong_by={"a": 250})))
    history.end(run.id, State.DONE, "HOLDS", "All is well.")
    app = open_page("run", run=run.id)
    assert "1 of 2 accounts are wrong, by +2.50 in all" in texts(app)
    app.toggle(key=f"totals {run.id}").set_value(True).run()
    assert not app.exception
    shown = next(one.value for one in app.dataframe if "account" in one.value)
    assert shown.to_dict("records") == [
        {"account": "a", "total": 5.0, "payments": 2, "should be": 2.5, "difference": 2.5},
        {"account": "b", "total": 1.0, "payments": 1, "should be": 1.0, "difference": 0.0},
    ]


def test_a_missing_run_is_said_and_the_rest_is_there(
    open_page: OpenPage, at_home: Settings
) -> None:
    """Story: the run of an old address was cleaned. The page says so and stays usable."""
    assert at_home.home
    app = open_page("run", run="squares-<b>gone</b>")
    assert not app.exception
    assert "There is no run squares-<b>gone</b>" in texts(app)
    assert app.form_submit_button


def test_a_run_is_watched_killed_resumed_and_stopped(
    open_page: OpenPage, at_home: Settings, cluster: Services
) -> None:
    """Story: a run of the dashboard goes on until stopped. Its process is killed -9; the page says
    so, resumes it in a new process, and stops it: it is judged on what it committed."""
    assert cluster.bootstrap
    plan = {"until_stopped": True, "rate": 2_000.0, "partitions": 2, "per_transaction": 100}
    history = History(at_home)
    run_id = start_run(history, make_plan(plan))

    def now() -> Run:
        return history.get(run_id)

    def process() -> psutil.Process:
        return psutil.Process(int((now().owner or "").split(":")[1]))

    wait_until(lambda: now().progress.processed > 0, WAIT_S, "the first committed input")
    app = open_page("run")
    assert not app.exception and run_id in texts(app), "a live run is shown without being asked for"
    assert app.button(key="stop").label == "Stop"

    victim = process()
    victim.kill()
    wait_until(lambda: not now().alive, WAIT_S, "the end of the killed process")
    app = open_page("run", run=run_id)
    assert "its process is gone" in texts(app)

    app.button(key="resume").click().run()
    assert not app.exception
    assert now().alive and process().pid != victim.pid
    before = int(now().progress.processed)
    wait_until(lambda: now().progress.processed > before, WAIT_S, "progress after the resumption")

    app.run()
    app.button(key="stop").click().run()
    wait_until(lambda: not now().alive, WAIT_S, "the end of the stopped run")
    assert now().state is State.STOPPED and now().verdict == "HOLDS", now()
    app.run()
    assert not app.exception and "stopped" in texts(app)
    assert "Output of its process" in [one.label for one in app.expander]
