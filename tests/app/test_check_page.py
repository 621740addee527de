"""The page Check without a browser: nothing there, damaged addresses, a kept contract with
mistakes in its terms, a stopped and a failed check."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from streamlit.testing.v1 import AppTest

from tests import postgresql
from tests.app.conftest import OpenPage, boxes, texts
from tests.backend.kafka.topics import Writer
from tests.backend.trust.people import ADA, GRACE, ISSUER
from topicproof.app.check import check_reads, table_reads
from topicproof.app.check.table_form import A_TABLE
from topicproof.app.session import access, connection
from topicproof.app.topic import payload, topic_header
from topicproof.backend.address import Address
from topicproof.backend.characters import visible
from topicproof.backend.errors import ClusterError, NotPermitted
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.kept_contracts import keep
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.sides import SideSettings
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT, Settings, read_settings
from topicproof.backend.trust.identity import Action


@pytest.mark.usefixtures("empty_home")
def test_without_kafka_the_page_says_so(open_page: OpenPage) -> None:
    """Story: the cluster does not answer. The page says that, and shows nothing else as if it
    knew."""
    app = open_page("check", source="orders", sink="lines")
    assert not app.exception and app.error
    assert [button.key for button in app.button] == ["jump"]


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
    assert "choose what identifies an input" in said and app.button[1].disabled

    text = f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nidentity: key\n"
    kept = keep(history, f"kept-{sink}", text)
    app = open_page("check", contract=kept.label)
    assert app.text_input(key="check_name").value == kept.name
    assert app.selectbox(key="term_identity_sink").value == "key"
    assert not app.exception and not app.button[1].disabled

    app.text_input(key="term_value").set_value("upper(value").run()
    assert "value: the expression 'upper(value' does not parse" in texts(app).replace("**", "")
    assert app.button[1].disabled and "terms" in app.query_params

    # A group may be named by a number.
    app = open_page("check", contract=kept.label)
    app.text_input(key="term_group").set_value("42").run()
    assert not app.exception and not app.button[1].disabled, texts(app)

    # A contract about the sink alone, as it was imported.
    alone = keep(history, f"alone-{sink}", f"sink: {{topic: {sink}}}\nunique: {{json: $.id}}\n")
    app = open_page("check", contract=alone.label)
    assert app.selectbox(key="term_unique").value == "json $.id"
    assert not app.exception and not app.button[1].disabled, texts(app)

    # One about aggregates, which has no outputs of single inputs to preview.
    text = f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\n"
    text += "aggregate: {group_by: key, value: {n: count(*), total: sum(value)}}\n"
    app = open_page("check", contract=keep(history, f"totals-{sink}", text).label)
    assert app.text_area(key="term_aggregate_value").value == "n: count(*)\ntotal: sum(value)"
    assert not app.exception and "No preview" in texts(app)
    assert not app.button[1].disabled, texts(app)

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
        assert app.button[1].label == "Check again"
        assert [link.value for link in app.page_link] == ["All pipelines"]
        history.forget(run.id)
    history.engine.dispose()


def test_the_draft_has_the_dead_letters_beside_the_topics(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a connector puts two of six orders aside. The draft names its dead letters, the form
    takes them over, and the preview counts them. Somebody removes them, and names them again."""
    assert at_home.home
    source, sink = new_topic(), new_topic()
    letters = f"{source}.dlq"
    Cluster(Address(bootstrap)).create_topic(letters, 1, exists_ok=False)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(6):
        producer.produce(source, f"v{number}".encode(), f"k{number}".encode(), partition=0)
        if number < 4:
            producer.produce(sink, f"v{number}".encode(), f"k{number}".encode(), partition=0)
    for number in (4, 5):
        values = zip(("topic", "partition", "offset"), (source, "0", str(number)), strict=True)
        headers: dict[str, str | bytes | None] = {
            f"__connect.errors.{name}": value for name, value in values
        }
        producer.produce(letters, b"?", headers=headers)
    assert producer.flush(30) == 0

    app = open_page("check", source=source, sink=sink)
    assert app.selectbox(key="term_letters_topic").value == letters, texts(app)
    assert app.selectbox(key="term_letters_origin").value == "connect"
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Dead letters with an input"] == "2" and not app.button[1].disabled
    (text,) = [box for box in boxes(app) if "dead_letters" in box]
    assert yaml.safe_load(text)["dead_letters"] == {"topic": letters, "origin": "connect"}
    app.selectbox(key="term_letters_topic").set_value(None).run()
    assert "Dead letters" not in " ".join(metric.label for metric in app.metric)
    # Its headers show again what names the inputs.
    app.selectbox(key="term_letters_topic").set_value(letters).run()
    assert app.selectbox(key="term_letters_origin").value == "connect"
    assert not app.exception and not app.button[1].disabled, texts(app)


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
    assert found["identity"] == "key" and not app.button[1].disabled


@pytest.fixture
def two_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster whose two topics have no record to look at."""

    def no_sample(*_of: object) -> None:
        raise ClusterError("nothing to sample")

    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", "127.0.0.1:1")
    cluster = SimpleNamespace(bootstrap="127.0.0.1:1", address=Address("127.0.0.1:1"))
    monkeypatch.setattr(topic_header, "connected", lambda _settings: cluster)
    monkeypatch.setattr(connection, "topic_names", lambda *_of: ["orders", "invoices"])
    monkeypatch.setattr(check_reads, "drafted", no_sample)


@pytest.mark.usefixtures("two_topics")
def test_a_contract_is_read_as_it_is(open_page: OpenPage) -> None:
    """Story: somebody sends a contract whose comment hides, by characters that reorder text and
    have no width, that torn transactions alone decide. The page spells them and says so."""
    text = (
        "guarantee: exactly_once\nsource: {topic: orders}\nsink: {topic: invoices}\n"
        "identity: key\n# all kinds decide \u202e\u2066\u200b\nrequire: [torn] # \u202cetacilpud\n"
    )
    for hidden in (text, text.translate(dict.fromkeys(map(ord, "\u202e\u2066\u200b\u202c")))):
        kept = keep(access.open_history(read_settings()), "orders", hidden)
        app = open_page("check", contract=kept.label)
        (box,) = [each for each in boxes(app) if "identity" in each]
        assert not app.exception and visible(box.replace("\n", " ")) == box.replace("\n", " ")
        assert ("\\u202e\\u2066\\u200b" in box) is (hidden == text)
        assert any("otherwise" in str(each.proto) for each in app.warning) is (hidden == text)


@pytest.mark.usefixtures("two_topics")
def test_a_stopped_check_is_repeated_by_its_own_terms(open_page: OpenPage) -> None:
    """Story: somebody changes a kept contract, checks, and stops the check. The change is no
    version of the contract, and checking again begins with the changed terms."""
    history = access.open_history(read_settings())
    text = "source: {topic: orders}\nsink: {topic: invoices}\nidentity: key\n"
    keep(history, "invoices", text)
    run = history.create("check", "check", {"source": "orders", "contract": "invoices"})
    history.end(run.id, State.STOPPED, None, None)
    folder = run.folder(history.settings)
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(f"{text}expect: zero_or_one # as agreed\n\n")
    app = open_page("check", run=run.id)
    (box,) = [each for each in boxes(app) if "identity" in each]
    assert not app.exception and "expect: zero_or_one # as agreed" in box
    assert app.text_input(key="check_name").value == "invoices"
    assert app.button[1].label == "Check again" and not app.button[1].disabled


@pytest.mark.usefixtures("two_topics")
def test_a_viewer_starts_no_spark(
    open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a viewer opens a contract with an expression, and sends what the button sends. Spark
    is asked nothing for her, and the attempt is noted. For an operator it is asked."""
    asked: list[str] = []

    def ask_spark(text: str, _settings: Settings) -> tuple[()]:
        asked.append(text)
        return ()

    login = tmp_path / "login.yaml"
    login.write_text(f"openid: {{issuer: '{ISSUER}', client_id: t}}\n")
    monkeypatch.setenv("TOPICPROOF_LOGIN", str(login))
    monkeypatch.setattr(check_reads, "_spark_mistakes", ask_spark)
    terms = {"guarantee": "exactly_once", "identity": "key", "value": "upper(value)"}
    sides = {"source": {"topic": "orders"}, "sink": {"topic": "invoices"}}
    for person, may_ask in ((ADA, False), (GRACE, True)):
        monkeypatch.setattr(access, "current_identity", lambda _login, by=person: by)
        app = open_page("check", terms=json.dumps(sides | terms))
        (button,) = [one for one in app.button if one.label == "Check now"]
        assert not app.exception and bool(asked) is may_ask
        assert button.disabled is not may_ask
        if not may_ask:
            with monkeypatch.context() as patch:
                patch.setattr(access, "may", lambda action: action is Action.CHECK)
                app = open_page("check", terms=json.dumps(sides | terms))
                next(one for one in app.button if one.label == "Check now").click().run()
            assert not app.exception and not asked
            assert "may not check" in texts(app), texts(app)
            with pytest.raises(NotPermitted):
                check_reads.spark_mistakes(read_settings(), sides | terms)
    history = access.open_history(read_settings())
    assert [entry.allowed for entry in audit_entries(history)][:1] == [False]


@pytest.mark.usefixtures("two_topics")
def test_a_table_is_a_sink_beside_the_topics(
    open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody who looks at two topics chooses a table as the sink. The source and what
    identifies an input stay. Another source is chosen, then a topic again, which gets its own
    draft. An imported contract fills the form, and its text stays as it is."""
    monkeypatch.setattr(check_reads, "source_labels", lambda *_of: ("key", "json $.id"))
    terms = {
        "source": {"topic": "orders"},
        "sink": {"topic": "invoices"},
        "identity": {"source": {"json": "$.id"}, "sink": "key"},
    }
    app = open_page("check", source="orders", sink="invoices", terms=json.dumps(terms))
    app.selectbox(key="check_sink").set_value(A_TABLE).run()
    assert app.selectbox(key="check_source").value == "orders"
    assert app.selectbox(key="term_identity_source").value == "json $.id"
    assert "say where it is" in texts(app) and app.button[1].disabled
    app.text_input(key="term_table_url").set_value("jdbc:postgresql://db/ledger").run()
    app.text_input(key="term_table_name").set_value("sales.invoices").run()
    app.multiselect(key="term_table_key").set_value(["order_id"]).run()
    app.selectbox(key="check_source").set_value("invoices").run()
    assert not app.exception and not app.button[1].disabled, texts(app)
    assert app.selectbox(key="check_sink").value == A_TABLE
    assert app.text_input(key="check_name").value == "sales.invoices"
    (box,) = [each for each in boxes(app) if "identity" in each]
    table = {"url": "jdbc:postgresql://db/ledger", "name": "sales.invoices", "key": ["order_id"]}
    assert yaml.safe_load(box) == {
        "guarantee": "exactly_once",
        "source": {"topic": "invoices"},
        "sink": {"table": table},
        "identity": {"source": {"json": "$.id"}, "sink": "key"},
    }
    app.selectbox(key="check_sink").set_value("orders").run()
    assert "terms" not in app.query_params and not app.exception

    text = "# As agreed.\n" + (ROOT / "contracts" / "ledger-table.yaml").read_text()
    kept = keep(access.open_history(read_settings()), "ledger", text)
    app = open_page("check", contract=kept.label)
    assert app.selectbox(key="check_sink").value == A_TABLE
    assert app.text_input(key="term_table_name").value == "sales.invoices"
    assert app.multiselect(key="term_table_key").value == ["order_id"]
    (box,) = [each for each in boxes(app) if "identity" in each]
    assert box == text


@pytest.mark.usefixtures("two_topics")
def test_only_listed_tables_are_checked_and_looked_at(
    open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: behind a login, a contract names a table of a real database. Without the setting no
    table is read, and the page says how to allow one. With it the columns are read once somebody
    asks, which is noted. A viewer does not see the places, and reads nothing."""
    login = tmp_path / "login.yaml"
    login.write_text(f"openid: {{issuer: '{ISSUER}', client_id: t}}\n")
    monkeypatch.setenv("TOPICPROOF_LOGIN", str(login))
    monkeypatch.setattr(check_reads, "source_labels", lambda *_of: ("key",))
    monkeypatch.setattr(access, "current_identity", lambda _login: GRACE)
    with postgresql.server() as url:
        address = url.partition("@")[2]
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("create table ledger (order_id int, amount numeric, note text)")
        place = f"jdbc:postgresql://{address}?user=tests"

        def terms(name: str) -> dict[str, object]:
            sink = {"table": {"url": place, "name": name, "key": ["order_id"]}}
            identity = {"source": "key", "sink": "key"}
            return {"source": {"topic": "orders"}, "sink": sink, "identity": identity}

        def opened(name: str = "ledger") -> AppTest:
            return open_page("check", terms=json.dumps(terms(name)))

        app = opened()
        assert "lists no place" in texts(app) and "lies below no place" in texts(app)
        assert app.button(key="table_columns").disabled
        assert next(one for one in app.button if one.label == "Check now").disabled

        monkeypatch.setenv("TOPICPROOF_TABLES", f"/data, {place}")
        app = opened()
        assert not next(one for one in app.button if one.label == "Check now").disabled, texts(app)
        assert app.selectbox(key="term_table_url").options == [place]
        assert app.multiselect(key="term_table_key").options == ["order_id"]
        app.button(key="table_columns").click().run()
        assert app.multiselect(key="term_table_key").options == ["order_id", "amount", "note"]
        assert "column note" in app.selectbox(key="term_identity_sink").options
        assert not app.exception
        (*_, noted) = audit_entries(access.open_history(read_settings()))
        assert (noted.by, noted.action, noted.allowed) == (GRACE, Action.CHECK, True)
        assert noted.what == "the columns of ledger"
        app = opened("leger").button(key="table_columns").click().run()
        assert "has no table leger. The nearest name is ledger" in texts(app)

        monkeypatch.setattr(access, "current_identity", lambda _login: ADA)
        app = opened()
        assert app.button(key="table_columns").disabled and "/data" not in texts(app)
        assert app.text_input(key="term_table_url").value == place
        with pytest.raises(NotPermitted):
            table_reads.read_columns(read_settings(), terms("ledger"))
        (*_, noted) = audit_entries(access.open_history(read_settings()))
        assert (noted.by, noted.allowed) == (ADA, False)


def test_pages_start_spark_in_one_place() -> None:
    """Story: somebody adds a page that needs Spark. It goes through the function that asks for the
    role."""
    calls: dict[str, set[str]] = {}
    for path in (ROOT / "app").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call):
                        calls.setdefault(ast.unparse(call), set()).add(function.name)
    starts = {text: functions for text, functions in calls.items() if text.startswith("services(")}
    assert starts.pop("services(_settings, spark=False)")
    assert list(starts.values()) == [{"_spark_mistakes", "spark"}]
    asks = [names for text, names in calls.items() if text.startswith("_spark_mistakes(")]
    assert asks == [{"spark_mistakes"}]


def test_a_decoded_value_is_read_as_it_is() -> None:
    """Story: a record's JSON has names and texts that reorder or hide text, and one more name that
    is spelled like the first."""
    value = {"a\u202eb": ["x\u200b\ny", 2**60], "a\\u202eb": 1, 7: {"c": "d"}}
    assert payload._exact(value) == {
        "a\\u202eb": ["x\\u200b\ny", str(2**60)],
        "a\\u202eb′": 1,
        "7": {"c": "d"},
    }


def test_a_draft_is_a_look_at_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: behind a login Ada opens the page Check for two topics. The newest records of both are
    read for a draft, and the audit log says so."""
    login = tmp_path / "login.yaml"
    login.write_text(f"openid: {{issuer: '{ISSUER}', client_id: t}}\n")
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOPICPROOF_LOGIN", str(login))
    monkeypatch.setattr(access, "current_identity", lambda _login: ADA)
    monkeypatch.setattr(check_reads, "_drafted", lambda *_of: None)
    settings = read_settings()
    check_reads.drafted(SideSettings(settings), Services("127.0.0.1:1", ""), "orders", "invoices")
    (entry,) = audit_entries(access.open_history(settings))
    assert (entry.by, entry.action) == (ADA, Action.LOOK)
    assert entry.what.startswith("orders and invoices, the newest records")


def test_who_reads_records_for_pages_notes_it() -> None:
    """Story: somebody adds another way to look at records."""
    readers = {"read_window", "search_all", "samples", "current_totals", "latest"}
    silent = []
    for path in (ROOT / "app").rglob("*.py"):
        calls = {
            ast.unparse(node.func).split(".")[-1]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        }
        if calls & readers and "note_look" not in calls:
            silent.append((path.name, calls & readers))
    assert silent == []
