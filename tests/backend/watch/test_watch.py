"""A watch of a real broker: what people, a webhook and a real Prometheus are told."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.topics import Writer
from tests.backend.watch.monitoring import RULES, Listener, listener, program, prometheus
from tests.conftest import wait_until
from tests.ports import free_ports
from topicproof.backend.address import Address
from topicproof.backend.errors import SetupError, UsageError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.abort import abort, plan_abort
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.watch import alarms
from topicproof.backend.watch.alarms import Notice
from topicproof.backend.watch.cluster_look import cluster_id
from topicproof.backend.watch.state_file import FOLDER, StateFile, state_file
from topicproof.backend.watch.watcher import Watcher, WatchOptions, served_metrics
from topicproof.backend.watch.webhook import WebhookStyle, read_webhook


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that no other test uses: a watch tells everything that is wrong with a cluster."""
    own = read_settings(home=tmp_path_factory.mktemp("quiet"))
    with services(own, spark=False) as running:
        yield running.bootstrap


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return read_settings(home=tmp_path / "home")


@pytest.fixture
def file(home: Settings, quiet: str) -> Iterator[StateFile]:
    with state_file(home, cluster_id(Address(quiet))) as opened:
        yield opened


class Notes:
    """What a watch tells."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.troubles: list[str] = []

    def watcher(
        self, bootstrap: str, file: StateFile, options: WatchOptions | None = None
    ) -> Watcher:
        return Watcher(
            Address(bootstrap),
            file,
            options or WatchOptions(),
            on_notice=lambda notice, _cluster: self.notices.append(notice),
            on_trouble=self.troubles.append,
        )

    @property
    def new(self) -> list[str]:
        """Change and kind of each notice since the last time, sorted."""
        notices, self.notices = self.notices, []
        return sorted(f"{each.change} {each.alarm.condition.kind}" for each in notices)


def address_file(folder: Path, hook: Listener) -> Path:
    path = folder / "webhook"
    path.write_text(hook.address)
    path.chmod(0o600)
    return path


def new_topic(bootstrap: str, name: str) -> str:
    Cluster(Address(bootstrap)).create_topic(name, 1, exists_ok=False)
    return name


def make_again(bootstrap: str, topic: str) -> None:
    admin = AdminClient(admin_config(Address(bootstrap)))
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, 20, "the deletion")
    new_topic(bootstrap, topic)


def test_what_happens_is_told_once(quiet: str, file: StateFile, tmp_path: Path) -> None:
    """Story: a transaction hangs, the watch is killed and started again, a group goes back, a topic
    is made again, and the transaction is aborted. A webhook that is away at first gets each of it
    once and in order."""
    hung, reread, replaced = (new_topic(quiet, name) for name in ("hung", "reread", "replaced"))
    Writer(quiet, reread).write("n9")
    Cluster(Address(quiet)).commit_offsets("readers", reread, {0: 7})
    notes = Notes()
    with listener([503]) as hook:
        options = WatchOptions(
            webhook=read_webhook(address_file(tmp_path, hook), WebhookStyle.JSON),
            cluster_options=f" --bootstrap {quiet}",
        )
        watcher = notes.watcher(quiet, file, options)
        watcher.look()
        assert notes.new == []
        producer_id = hang(quiet, hung)
        watcher.look()
        assert notes.new == ["began hanging_transaction"]
        assert notes.troubles == ["The webhook does not take notices: it answered 503."]
        assert hook.documents == []
        Cluster(Address(quiet)).commit_offsets("readers", reread, {0: 3})
        make_again(quiet, replaced)
        # A process that was killed leaves no more than this file.
        watcher = notes.watcher(quiet, StateFile(file.path), options)
        watcher.look()
        assert notes.new == ["happened offset_moved_backwards", "happened topic_replaced"]
        abort(Address(quiet), plan_abort(Address(quiet), hung, 0, 0))
        watcher.look()
        assert notes.new == ["ended hanging_transaction"]
        watcher.look()
        assert notes.new == [] and watcher.state.alarms.waiting == ()
        began, *happened, ended = hook.documents
    assert began["what"].startswith(f"producer {producer_id} holds back 1 record")
    assert began["next_step"].endswith(f"topicproof abort hung 0 0 --bootstrap {quiet}")
    assert (began["change"], ended["change"]) == ("began", "ended")
    assert began["alarm"] == ended["alarm"]
    assert sorted(each["kind"] for each in happened) == ["offset_moved_backwards", "topic_replaced"]
    assert {tuple(each["groups"]) for each in happened} == {("readers",), ()}


def test_prometheus_fires_and_resolves(quiet: str, file: StateFile, tmp_path: Path) -> None:
    """Story: an operator has a Prometheus and an Alertmanager with our rules. A transaction hangs:
    people get the alert, and its end when it was aborted. Prometheus' own tool finds nothing
    wrong with our rules and our metrics."""
    topic = new_topic(quiet, "scraped")
    (port,) = free_ports(1)
    watcher = Notes().watcher(quiet, file)
    with served_metrics(watcher, port), listener() as hook:
        own = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{own}/healthz").status_code == 200
        unready = httpx.get(f"{own}/readyz")
        assert unready.status_code == 503, "it has not looked yet"
        assert unready.text == "the cluster was not looked at lately\n"
        hang(quiet, topic)
        watcher.look()
        assert httpx.get(f"{own}/readyz").status_code == 200
        assert httpx.get(f"{own}/other").status_code == 404
        metrics = httpx.get(f"{own}/metrics").content
        for command, given in (
            (["check", "metrics"], metrics),
            (["check", "rules", str(RULES / "topicproof.rules.yml")], b""),
            (["test", "rules", str(RULES / "topicproof.rules.test.yml")], b""),
        ):
            checked = subprocess.run(
                [program("promtool"), *command], input=given, capture_output=True
            )
            assert checked.returncode == 0, checked.stdout + checked.stderr
        assert b'topicproof_watch_alarms{kind="hanging_transaction"} 1.0' in metrics
        assert topic.encode() not in metrics, "no name is a label"

        def alerts(status: str) -> list[str]:
            return [
                alert["labels"]["alertname"]
                for document in hook.documents
                for alert in document["alerts"]
                if alert["status"] == status
            ]

        with prometheus(tmp_path, port, hook.address):
            wait_until(lambda: bool(alerts("firing")), 30, "an alert")
            abort(Address(quiet), plan_abort(Address(quiet), topic, 0, 0))
            watcher.look()
            wait_until(lambda: bool(alerts("resolved")), 60, "its end")
        assert {*alerts("firing")} == {*alerts("resolved")} == {"TopicproofHangingTransaction"}


def test_a_cluster_that_is_away_is_no_all_clear(
    quiet: str, file: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: nobody answers any more at the cluster's address. Nothing ends, the metrics say so,
    and it is said once. Without a webhook no notice waits, so none is dropped."""
    monkeypatch.setattr(alarms, "NOTICES_MAX", 0)
    notes = Notes()
    topic = new_topic(quiet, "away")
    hang(quiet, topic)
    watcher = notes.watcher(quiet, file)
    watcher.look()
    lasting = len(watcher.state.alarms.alarms)
    assert notes.new.count("began hanging_transaction") == lasting and watcher.figures.is_up
    assert (watcher.state.alarms.waiting, watcher.state.alarms.dropped) == ((), 0)
    watcher.address = Address(f"127.0.0.1:{free_ports(1)[0]}")
    watcher.look()
    watcher.look()
    assert notes.new == [] and len(watcher.state.alarms.alarms) == lasting > 0
    assert not watcher.figures.is_up and watcher.figures.failed == 2
    (trouble,) = notes.troubles
    assert trouble.startswith("The cluster cannot be looked at:")
    abort(Address(quiet), plan_abort(Address(quiet), topic, 0, 0))


def test_a_state_belongs_to_one_watch_and_is_whole(home: Settings) -> None:
    """Story: two watches with one home, and a disk that damaged the state. Each is refused by name,
    and --anew begins without it. A cluster whose id is a path makes no file elsewhere."""
    with state_file(home, "../../id") as file:
        assert file.path.parent == home.home / FOLDER
        with (
            pytest.raises(SetupError, match="Another process already watches"),
            state_file(home, "../../id"),
        ):
            pass
        watcher_state = file.read()
        file.write(watcher_state)
        assert file.read() == watcher_state
        file.path.write_bytes(file.path.read_bytes().replace(b"format", b"fermat"))
        with pytest.raises(SetupError, match=r"is damaged.*--anew"):
            file.read()
        file.forget()
        assert file.read() == watcher_state


def test_a_webhook_is_a_secret_of_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "webhook"
    path.write_text("https://hooks.example/t0ken")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="Other users can read"):
        read_webhook(path, WebhookStyle.JSON)
    path.chmod(0o600)
    assert read_webhook(path, WebhookStyle.SLACK).address == "https://hooks.example/t0ken"
    for text in ("ftp://hooks.example/t0ken", "https:///t0ken", "https://a b/t0ken"):
        path.write_text(text)
        with pytest.raises(UsageError, match="does not hold one http") as refused:
            read_webhook(path, WebhookStyle.JSON)
        assert "t0ken" not in str(refused.value)


def test_the_command_tells_and_ends(quiet: str, home: Settings) -> None:
    """Story: somebody starts `topicproof watch` in a terminal, reads a line, and ends it by
    Ctrl-C."""
    hang(quiet, new_topic(quiet, "by-command"))
    command = [sys.executable, "-P", "-m", "topicproof", "watch", "--bootstrap", quiet]
    with subprocess.Popen(
        [*command, "--every", "1"],
        env={**python_environment(), **home.environment()},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line, next_step = process.stdout.readline(), process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert "began producer" in line and "holds back 1 record" in line
    assert f"topicproof abort by-command 0 0 --bootstrap {quiet}" in next_step
