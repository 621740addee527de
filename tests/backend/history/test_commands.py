"""The commands about evidence on real topics: check leaves it, verify needs no Kafka, signoff binds
to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.app.test_history_page import HELD
from tests.backend.evidence.evidence import mend
from tests.backend.evidence.test_open_lineage import listening
from tests.backend.kafka.topics import Writer
from tests.backend.trust.people import ADA
from tests.runs import Finished, run_to_end
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import EvidenceError, NotPermitted
from topicproof.backend.history.signoff import Decision, sign, signoffs
from topicproof.backend.history.store import History
from topicproof.backend.judging.selftest import KEPT
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs import check as check_module
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.trust.acting import ACTING, environment_for


@pytest.fixture(scope="module")
def smaller(settings: Settings, cluster: Services) -> Finished:
    """A run of this file's own: its tests sign it."""
    return run_to_end(settings, cluster, records=300, seed=1)


@pytest.fixture
def at_home(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    return settings


def _json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_check_is_proven_anywhere(
    at_home: Settings,
    smaller: Finished,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: CI checks two topics and keeps the folder. Later, with no Kafka to be reached, the
    same verdict comes out of it; a file that was touched since is named."""
    proof = tmp_path / "proof"
    topics = ["--source", smaller.source, "--sink", smaller.sink]
    assert call("check", *topics, "--out", str(proof), "--payloads", "masked", "--json") == 0
    said = _json(capsys)
    assert json.loads((proof / "report.json").read_text()) == said
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", "127.0.0.1:1")
    assert call("verify", str(proof), "--json") == 0
    found = _json(capsys)
    assert (found["verdict"], found["judged_again"], found["payloads"]) == (
        "HOLDS",
        "HOLDS",
        "masked",
    )
    assert found["contradictions"] == [] and found["differences"] == []
    (proof / "plan.json").write_text("{}")
    assert call("verify", str(proof)) == call("verify", str(proof), "--hashes-only") == 4
    assert "changed  plan.json" in capsys.readouterr().out
    # Whoever is told to write where something else lies says so before anything is judged.
    assert call("check", *topics, "--out", str(tmp_path)) == 64
    assert "is not empty" in capsys.readouterr().err
    assert History(at_home).get(said["run"]).verdict == "HOLDS"


@pytest.mark.usefixtures("at_home")
def test_a_self_test_that_cannot_run_is_no_pass(
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: CI asks for the self-test on two records, which are too few to inject into. It must
    not turn green. A warning of the contract is exit code 2, of `verify` too; it gives way to the
    self-test, and this to a violation."""
    source, sink = new_topic(), new_topic()
    Writer(bootstrap, source).write("A2 A+")
    writer = Writer(bootstrap, sink)
    writer.write("A2 A- A2 A+")
    contract = tmp_path / "contract.yaml"
    contract.write_text(
        f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nidentity: key\nwarn:"
        " {aborted_share: 0.2}\n"
    )
    judged, proof = ("check", "--contract", str(contract)), tmp_path / "proof"
    with listening() as endpoint:
        assert call(*judged, "--out", str(proof), "--openlineage", endpoint.url) == 2
        ((_, _, event),) = endpoint.taken
    assert event["inputs"][0]["namespace"] == f"kafka://{bootstrap}"
    assert call("verify", str(proof)) == 2
    assert "Judged again, with the same result" in capsys.readouterr().out
    # Nobody listens there any more.
    assert call(*judged, "--self-test", "--openlineage", endpoint.url) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert "self-test: not run: it needs four committed outputs of one source partition" in told
    assert "did not take the verdict" in told
    writer.write("A1 A+")
    assert (
        call("check", "--source", source, "--sink", sink, "--identity", "key", "--self-test") == 1
    )
    assert "self-test: not run" in capsys.readouterr().err


@pytest.mark.usefixtures("at_home")
def test_evidence_of_another_topic_is_found_with_the_cluster(
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a sink is broken. Somebody renames the evidence of a healthy one, everywhere and with
    the ids. The folder alone cannot show it; the cluster holds other batches, and other ids where
    these were left unchanged."""
    source, healthy, broken = (new_topic() for _ in range(3))
    for topic, line in ((source, "A4 A+"), (healthy, "A4 A+"), (broken, "A2 A+ A2 A+")):
        Writer(bootstrap, topic).write(line)
    topics = ("--source", source, "--identity", "key", "--sink")
    assert call("check", *topics, healthy, "--out", str(tmp_path / "healthy")) == 0
    assert call("check", *topics, broken, "--out", str(tmp_path / "broken")) == 1
    proof = tmp_path / "healthy"
    assert call("verify", str(proof), "--bootstrap", bootstrap) == 0
    said = [
        json.loads((tmp_path / name / "report.json").read_text()) for name in ("healthy", "broken")
    ]
    ids = [one["origin"]["topics"][sink] for one, sink in zip(said, (healthy, broken), strict=True)]
    assert said[0]["origin"]["cluster"] and len(set(ids)) == 2
    capsys.readouterr()

    def rename(was: str, now: str) -> None:
        for path in proof.iterdir():
            if path.suffix in (".json", ".xml", ".html", ".csv") and path.name != "manifest.json":
                path.write_text(
                    path.read_text(encoding="utf-8").replace(was, now), encoding="utf-8"
                )
        mend(proof)

    rename(healthy, broken)
    assert call("verify", str(proof)) == 0, "the bytes of the readings name no topic"
    assert call("verify", str(proof), "--bootstrap", bootstrap) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert (
        f"taken.json: the id of topic {broken} is {ids[0]}; at {bootstrap} it is {ids[1]}." in told
    )
    rename(*ids)
    assert call("verify", str(proof), "--bootstrap", bootstrap) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "taken.json: the id" not in told
    assert (
        f"sink-raw_log.parquet: the batch of {broken}-0@0 at {bootstrap} is not in the evidence."
        in told
    )
    assert call("verify", str(proof), "--bootstrap", bootstrap, "--hashes-only") == 64


def test_a_check_without_payloads_that_fails_leaves_no_readings(
    at_home: Settings,
    smaller: Finished,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: by key the records have to be looked at, and then their payloads cannot be taken out
    of the evidence."""
    kept: list[Path] = []

    def full(evidence: Path) -> None:
        kept.extend(evidence.rglob("sink-read_committed/*.parquet"))
        raise EvidenceError("The evidence cannot be replaced: no space left on device.")

    monkeypatch.setattr(check_module, "without_payloads", full)
    topics = ["--source", smaller.source, "--sink", smaller.sink, "--identity", "key"]
    assert call("check", *topics, "--payloads", "none") == 4
    assert "no space left" in capsys.readouterr().err
    assert kept and not any(path.exists() for path in kept)
    assert History(at_home).list()[0].state == "failed"


def test_a_check_without_payloads_leaves_no_identity(
    at_home: Settings, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: records are keyed by numbers of cards, and one is lost. Who checks without payloads
    hears where it was, and no file of the check has the number."""
    source, sink, card = "cards-due", "cards-booked", "4711-0815-1234"
    for topic, keys in ((source, ("1", card, "3")), (sink, ("1", "3"))):
        Cluster(Address(bootstrap)).create_topic(topic, 1)
        producer = Producer(transactional_producer_config(Address(bootstrap), topic))
        producer.init_transactions(30)
        producer.begin_transaction()
        for key in keys:
            producer.produce(topic, b"paid", key, partition=0)
        producer.commit_transaction(30)
    topics = ["--source", source, "--sink", sink, "--identity", "key", "--payloads", "none"]
    assert call("check", *topics, "--json") == 1
    report = _json(capsys)
    (missing,) = (row for row in report["findings"] if row["kind"] == "gap")
    assert missing["count"] == 1
    folder = at_home.runs / report["run"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert folder / "report.json" in files
    assert not [path for path in files if card.encode() in path.read_bytes()]


def test_a_run_is_taken_along_and_signed(
    at_home: Settings, smaller: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: QA copies a run's evidence, verifies the copy, and signs the run. The entry names the
    very manifest, and before it was made the chain caught what was injected into copies of the
    readings."""
    run = smaller.run.id
    assert call("evidence", run, "--out", str(tmp_path / "proof"), "--json") == 0
    taken = _json(capsys)
    assert call("verify", str(tmp_path / "proof")) == 0
    assert "Judged again, with the same result" in capsys.readouterr().out
    assert call("signoff", run, "--decision", "accept", "--by", "Grace Hopper", "--json") == 0
    signed = _json(capsys)
    assert signed["evidence"] == taken["manifest"] and signed["verdict"] == "HOLDS"
    tested = json.loads((smaller.run.folder(at_home) / KEPT).read_text())
    assert tested == {
        "evidence": taken["manifest"],
        "caught": ["duplicate", "gap", "order", "torn"],
    }
    (entry,) = signoffs(History(at_home), run)
    assert entry.hash == signed["hash"]
    assert (
        call(
            "signoff",
            run,
            "--decision",
            "waive",
            "--kind",
            "gap",
            "--until",
            "soon",
            "--by",
            "G. H.",
        )
        == 64
    )
    assert "expected a day such as" in capsys.readouterr().err
    assert call("signoff", run, "--decision", "accept", "--by", " ") == 64


def test_evidence_that_was_changed_is_not_signed(
    at_home: Settings, smaller: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: somebody edits a report in the home, then wants it signed. Refused with 4, and nothing
    is entered."""
    run, entries = smaller.run, signoffs(History(at_home), smaller.run.id)
    report = run.folder(at_home) / "evidence" / "report.json"
    text = report.read_text()
    report.write_text(text.replace("300", "301"))
    try:
        assert call("signoff", run.id, "--decision", "accept", "--by", "Grace Hopper") == 4
        assert "report.json (changed)" in " ".join(capsys.readouterr().err.split())
        assert call("evidence", run.id, "--out", str(tmp_path / "proof")) == 4
        assert signoffs(History(at_home), run.id) == entries
    finally:
        report.write_text(text)


def test_two_runs_are_compared(
    at_home: Settings, smaller: Finished, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: yesterday's run and a smaller one. The figures stand side by side."""
    assert at_home
    runs = (finished.run.id, smaller.run.id)
    assert call("compare", *runs, "--json") == 0
    said = _json(capsys)
    figures = {one["name"]: one for one in said["figures"]}
    assert (figures["inputs judged"]["before"], figures["inputs judged"]["after"]) == (6_000, 300)
    assert figures["inputs judged"]["change"] == -5_700 and said["verdicts"] == ["HOLDS", "HOLDS"]
    assert call("compare", *runs) == 0
    assert "inputs judged" in capsys.readouterr().out
    assert call("compare", finished.run.id, "squares-none") == 64


def test_a_signed_run_is_not_cleaned_by_mistake(
    at_home: Settings, cluster: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: somebody tidies up, and the name is that of a run that was signed. It is refused, with
    what to do first. Repeated with `--signed-too`, it deletes the run and keeps its sign-off."""
    history = History(at_home)
    run = history.create("run", "squares", {}).id
    sign(history, run, [HELD], "e", Decision.ACCEPT, "Grace Hopper")
    assert call("clean", run) == 64
    said = " ".join(capsys.readouterr().err.split())
    assert (
        f"Run {run} was signed by Grace Hopper (unauthenticated)" in said and "--signed-too" in said
    )
    assert history.get(run).id == run
    assert call("clean", run, "--signed-too", "--bootstrap", cluster.bootstrap) == 0
    assert run not in {one.id for one in history.list()}
    assert [one.name for one in signoffs(history, run)] == ["Grace Hopper"]


def test_a_viewer_changes_no_topic_and_no_offset(
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: somebody who may only look tries the two commands that write to Kafka themselves. Both
    are refused before anything is written, and noted."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv(ACTING, environment_for(ADA)[ACTING])
    topic = new_topic()
    for command in (["fill"], ["floor", "--group", topic]):
        code = call(*command, "--topic", topic, "--bootstrap", bootstrap)
        told = " ".join(capsys.readouterr().err.split())
        assert code == NotPermitted.exit_code and "Ada Lovelace has the role viewer" in told
    cluster = Cluster(Address(bootstrap))
    assert cluster.bounds(topic).offsets == 0 and not cluster.committed(topic, topic)
    assert call("audit") == 0
    assert capsys.readouterr().out.count("refused: ") == 2
