"""The page Check without a browser: nothing there, damaged addresses, a kept contract with
mistakes in its terms, a stopped and a failed check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.app.conftest import OpenPage, boxes, texts
from tests.backend.kafka.topics import Writer
from topicproof.backend.history.kept_contracts import keep
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, State
from topicproof.backend.settings import Settings


@pytest.mark.usefixtures("empty_home")
def test_without_kafka_the_page_says_so(open_page: OpenPage) -> None:
    """Story: the cluster does not answer. The page says that, and shows nothing else as if it
    knew."""
    app = open_page("check", source="orders", sink="lines")
    assert not app.exception and app.error and not app.button


def test_what_the_address_names_and_what_is_missing(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: an empty pair of topics, a kept contract of them, its terms changed to wrong ones, an
    address of a deleted topic, and checks that ended without a verdict."""
    assert bootstrap
    history, (source, sink) = History(at_home), (new_topic(), new_topic())
    app = open_page("check", source=source, sink=sink)
    said = texts(app)
    assert not app.exception and "holds no committed record to look at" in said
    assert "Fill it first" not in said, "the page cannot fill it"
    assert "choose what identifies an input" in said and app.button[0].disabled

    text = f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nidentity: key\n"
    kept = keep(history, f"kept-{sink}", text)
    app = open_page("check", contract=kept.label)
    assert app.text_input(key="check_name").value == kept.name
    assert app.selectbox(key="term_identity_sink").value == "key"
    assert not app.exception and not app.button[0].disabled

    app.text_input(key="term_value").set_value("upper(value").run()
    assert "value: the expression 'upper(value' does not parse" in texts(app).replace("**", "")
    assert app.button[0].disabled and "terms" in app.query_params

    # A group may be named by a number.
    app = open_page("check", contract=kept.label)
    app.text_input(key="term_group").set_value("42").run()
    assert not app.exception and not app.button[0].disabled, texts(app)

    # A contract about the sink alone, as it was imported.
    alone = keep(history, f"alone-{sink}", f"sink: {{topic: {sink}}}\nunique: {{json: $.id}}\n")
    app = open_page("check", contract=alone.label)
    assert app.selectbox(key="term_unique").value == "json $.id"
    assert not app.exception and not app.button[0].disabled, texts(app)

    app = open_page("check", source="gone-1", sink=sink, terms="{", run="check-gone")
    said = texts(app)
    assert not app.exception and "has no topic gone-1" in said
    assert "terms in this address are damaged" in said and "no check check-gone" in said

    for state, error, says in (
        (State.STOPPED, None, "so it proves nothing"),
        (State.FAILED, "The broker went <b>away</b>.", "The broker went <b>away</b>."),
    ):
        plan = {"source": source, "sink": sink, "contract": kept.name, "contract_version": 1}
        run = history.create("check", "check", plan)
        history.remember(run.id, Facts(source=source, sink=sink))
        history.end(run.id, state, None, None, error)
        app = open_page("check", run=run.id)
        assert not app.exception and says in texts(app) and not app.success
        assert app.button[0].label == "Check again" and not app.page_link
        history.forget(run.id)
    history.engine.dispose()


def test_the_source_may_be_on_another_cluster(
    open_page: OpenPage,
    at_home: Settings,
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: somebody checks a mirror. The source's cluster is chosen on the page, the topics of
    that cluster are offered, and the drafted contract names both clusters. Without a second one
    nothing is asked. (Two names lead to one cluster here.)"""
    assert at_home.home
    source, sink = new_topic(), new_topic()
    for topic in (source, sink):
        Writer(bootstrap, topic).write("n40")
    assert "check_source_cluster" not in [one.key for one in open_page("check").segmented_control]
    (tmp_path / "clusters.yaml").write_text(
        f'east: {{bootstrap: "{bootstrap}"}}\nwest: {{bootstrap: "{bootstrap}"}}\n'
    )
    monkeypatch.setenv("TOPICPROOF_CLUSTERS", str(tmp_path / "clusters.yaml"))
    app = open_page("check", cluster="east", sink=sink)
    app.segmented_control(key="check_source_cluster").set_value("west").run()
    assert app.query_params["source_cluster"] in ("west", ["west"])
    app.selectbox(key="check_source").set_value(source).run()
    assert not app.exception and "Drafted from the newest 40 inputs" in texts(app)
    (text,) = [one for one in boxes(app) if "identity" in one]
    found = yaml.safe_load(text)
    assert found["source"] == {"topic": source, "cluster": "west"}
    assert found["sink"] == {"topic": sink, "cluster": "east"}
    assert found["identity"] == "key" and not app.button[0].disabled
