"""Contracts that are judged as their topics grow, on a real broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.backend.judging.test_record_sizes import write_bomb
from tests.backend.kafka.topics import write_headers
from tests.backend.watch.test_watch import make_again, new_topic as make_topic
from tests.conftest import wait_until
from tests.foreign.moving import judged, moving_pair, terms
from tests.ports import free_ports
from topicproof.backend.address import Address
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.errors import ClusterError, ContractError
from topicproof.backend.interpreter import python_environment
from topicproof.backend.kafka.client_configs import (
    admin_config,
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import INTERNAL_TOPICS, Cluster
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.kafka.raw_records import RawRecord
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import read_settings
from topicproof.backend.watch import watcher as watcher_module
from topicproof.backend.watch.alarms import Notice
from topicproof.backend.watch.conditions import Kind
from topicproof.backend.watch.pair_store import pair_store
from topicproof.backend.watch.record_reader import MatchTerms, PlaceReader, WithheldRows
from topicproof.backend.watch.state_file import state_file
from topicproof.backend.watch.watchable import watched_contracts
from topicproof.backend.watch.watcher import Watcher, WatchOptions
from topicproof.validators.finding import Outcome
from topicproof.validators.increments.watch_verdict import WATCHED
from topicproof.validators.increments.watched_pair import SinkRows
from topicproof.validators.lineage.compact import COMPACT_HEADER, format_compact
from topicproof.validators.lineage.headers import Lineage


@contextmanager
def watching(
    bootstrap: str, home: Path, fields: dict[str, object], options: WatchOptions | None = None
) -> Iterator[tuple[Watcher, list[Notice]]]:
    """A watch of one contract, or with other options."""
    notices: list[Notice] = []
    if options is None:
        options = WatchOptions(contracts=watched_contracts("pair", make_contract(fields)))
    with (
        state_file(read_settings(home=home), "cluster") as file,
        pair_store(file.pairs) as store,
    ):
        yield (
            Watcher(
                Address(bootstrap),
                file,
                options,
                on_notice=lambda notice, _cluster: notices.append(notice),
                on_trouble=pytest.fail,
                store=store,
            ),
            notices,
        )


def refuse(_address: Address) -> None:
    raise ClusterError("no answer")


@pytest.mark.parametrize(
    ("term", "value"),
    [
        ("group", "squares"),
        ("dead_letters", {"topic": "numbers.dlq", "origin": "connect"}),
        ("aggregate", {"group_by": "key", "value": "count(*)"}),
    ],
)
def test_a_term_that_a_watch_cannot_judge_is_refused(term: str, value: object) -> None:
    """Story: without a look at the dead letters, each input that was put aside would be a gap.
    An aggregate needs all inputs since the beginning."""
    topics = {"source": {"topic": "numbers"}, "sink": {"topic": "squares"}}
    with pytest.raises(ContractError, match=f"{term}: it cannot be watched"):
        watched_contracts("pair", make_contract({**topics, term: value}))


def test_a_moving_pair_is_judged_as_a_check_judges_it(cluster: Services, tmp_path: Path) -> None:
    """Story: two programs copy one topic into another, and one of them loses an input here and
    there. The watch sees each while they run. Afterwards it and a check find the same."""
    kafka = Cluster(Address(cluster.bootstrap))
    with moving_pair(kafka, 300, drop_every=97) as (source, sink, _group):
        fields = {**terms(source, sink, None), "within": "1s"}
        with watching(cluster.bootstrap, tmp_path / "home", fields) as (watcher, notices):

            def is_alarmed() -> bool:
                watcher.look()
                return any(notice.alarm.condition.contract for notice in notices)

            wait_until(is_alarmed, 30, "an alarm")
            (notice,) = [each for each in notices if each.alarm.condition.contract]
    assert notice.alarm.condition.finding == "gap" and notice.alarm.condition.offsets
    fields["within"] = "1ms"
    with watching(cluster.bootstrap, tmp_path / "home", fields) as (watcher, notices):
        watcher.look()
        watcher.look()
        figures = watcher.figures.contracts["pair"]
        assert figures.verdict is not None and watcher.is_caught_up
        found = {finding.kind: finding.count for finding in figures.verdict.findings}
    report = judged(kafka, cluster.spark_remote, terms(source, sink, None), tmp_path / "check")
    expected = {
        finding.kind: finding.count for finding in report.findings if finding.kind in WATCHED
    }
    assert (figures.verdict.verdict, {kind: found[kind] for kind in WATCHED}) == (
        report.verdict,
        expected,
    )


class Pipeline:
    """Writes inputs, and their outputs with lineage in transactions."""

    def __init__(self, bootstrap: str, source: str, sink: str) -> None:
        self.source, self.sink = source, sink
        address = Address(bootstrap)
        self._inputs = Producer(idempotent_producer_config(address))
        self._outputs = Producer(transactional_producer_config(address, sink))
        self._outputs.init_transactions()

    def write_inputs(self, count: int) -> None:
        for _ in range(count):
            self._inputs.produce(self.source, b"value", partition=0)
        self._inputs.flush()

    def write_outputs(self, offsets: Sequence[int], *, is_aborted: bool = False) -> None:
        self.begin()
        self.write(offsets)
        self.end(is_aborted=is_aborted)

    def begin(self) -> None:
        self._outputs.begin_transaction()

    def write(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            place = format_compact(Lineage(self.source, 0, offset, 0))
            self._outputs.produce(self.sink, b"value", headers=[(COMPACT_HEADER, place)])
        self._outputs.flush()

    def end(self, *, is_aborted: bool) -> None:
        if is_aborted:
            self._outputs.abort_transaction()
        else:
            self._outputs.commit_transaction()


def test_withheld_records_are_received_once(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: a transaction of the sink stays open, with more and more records. Each look asks
    whether a late output is among them, and receives only those that are new."""

    class CountingReader(PlaceReader):
        received = 0

        def rows(self, messages: Iterable[Message | RawRecord]) -> SinkRows:
            rows = super().rows(messages)
            self.received += rows.size
            return rows

    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    places = CountingReader(pipeline.source, MatchTerms(by_key=False))
    withheld = WithheldRows()

    def inputs_named() -> list[int]:
        with connect(Address(bootstrap)) as kafka:
            rows = withheld.read(kafka, places, [], kafka.bounds(pipeline.sink))
        assert rows is not None
        return sorted(rows.source_offset.tolist())

    pipeline.begin()
    pipeline.write([0, 1])
    assert inputs_named() == inputs_named() == [0, 1] and places.received == 2
    pipeline.write([2])
    assert inputs_named() == [0, 1, 2] and places.received == 3
    pipeline.end(is_aborted=False)
    wait_until(lambda: inputs_named() == [], 30, "the marker")
    assert places.received == 3


def test_an_output_of_an_input_that_is_still_open_waits_for_it(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: a pipeline reads its source at read_uncommitted. The watch has read all that is
    committed, and then an output comes of an input whose transaction is open. It is no output
    without an input, and with the commit it holds."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields: dict[str, object] = {
        "source": {"topic": pipeline.source},
        "sink": {"topic": pipeline.sink},
        "within": "1ms",
    }
    pipeline.write_inputs(2)
    pipeline.write_outputs([0, 1])
    opened = Producer(transactional_producer_config(Address(bootstrap), pipeline.source))
    opened.init_transactions(30)
    with watching(bootstrap, tmp_path / "home", fields) as (watcher, notices):
        watcher.look()
        opened.begin_transaction()
        opened.produce(pipeline.source, b"value", partition=0)
        assert opened.flush(30) == 0
        pipeline.write_outputs([2])
        watcher.look()
        opened.commit_transaction(30)
        watcher.look()
        watcher.look()
        figures = watcher.figures.contracts["pair"]
        assert (figures.outcome, figures.inputs_due) == (Outcome.HOLDS, 3)
        assert not [each for each in notices if each.alarm.condition.contract]


def test_an_input_that_is_too_large_to_read_does_not_end_a_watch_by_lineage(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: a record of the source becomes 128 MB. By lineage nobody decompresses it, so what
    comes behind it is judged."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields: dict[str, object] = {
        "source": {"topic": pipeline.source},
        "sink": {"topic": pipeline.sink},
    }
    write_bomb(bootstrap, pipeline.source)
    pipeline.write_inputs(1)
    pipeline.write_outputs([0, 1])
    with watching(bootstrap, tmp_path / "home", fields) as (watcher, _notices):
        watcher.look()
        figures = watcher.figures.contracts["pair"]
        assert figures.judged == 2 and figures.is_caught_up


def test_a_flood_of_one_contract_blinds_no_other(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: a watch may read few offsets in a second, and somebody floods the sink of the first
    contract. An output of the second is repeated, and that is told all the same."""
    pipelines = [Pipeline(bootstrap, new_topic(), new_topic()) for _ in range(2)]
    contracts = tuple(
        contract
        for name, pipeline in zip(("first", "second"), pipelines, strict=True)
        for contract in watched_contracts(
            name,
            make_contract({"source": {"topic": pipeline.source}, "sink": {"topic": pipeline.sink}}),
        )
    )
    for pipeline in pipelines:
        pipeline.write_inputs(1)
    for _ in range(30):
        pipelines[0].write_outputs([0] * 100)
    pipelines[1].write_outputs([0, 0])
    options = WatchOptions(every_s=1.0, contracts=contracts, offsets_per_second=100)
    with watching(bootstrap, tmp_path / "home", {}, options) as (watcher, notices):
        watcher.look()
        watcher.look()
        assert watcher.figures.contracts["first"].behind > 2_000
        assert not watcher.figures.contracts["second"].behind
        alarmed = {each.alarm.condition.contract for each in notices}
        assert "second" in alarmed


def test_the_command_tells_each_violation_once_and_survives_a_kill(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: a team watches a pipeline that writes lineage. It is healthy, with an aborted
    transaction; then an output is repeated and one is lost. The watch is killed amid a burst, and a
    restart goes on where it was. The cluster has no group and no topic more."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    admin = AdminClient(admin_config(Address(bootstrap)))
    contract, notices = tmp_path / "pair.yaml", tmp_path / "notices"
    contract.write_text(
        f"source: {{topic: {pipeline.source}}}\nsink: {{topic: {pipeline.sink}}}\nwithin: 1s\n"
    )
    (port,) = free_ports(1)
    command = [sys.executable, "-P", "-m", "topicproof", "watch", str(contract)]
    command += ["--bootstrap", bootstrap, "--every", "1", "--json", str(notices)]

    def metrics() -> dict[str, float]:
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        except httpx.TransportError:
            return {}
        found = re.findall(r'watch_(\w+){contract="pair"} (\S+)', text)
        return {name: float(value) for name, value in found}

    def judges(verdict: int, records: int) -> bool:
        now = metrics()
        whole = now.get("contract_behind_offsets") == 0
        judged = now.get("records_judged_total") == records
        return whole and judged and now["contract_verdict"] == verdict

    @contextmanager
    def running() -> Iterator[subprocess.Popen[bytes]]:
        environment = {**python_environment(), "TOPICPROOF_HOME": str(tmp_path / "home")}
        with subprocess.Popen(
            [*command, "--metrics", str(port)], env=environment, start_new_session=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def alarms() -> list[tuple[str, str, list[dict[str, object]]]]:
        lines = notices.read_text().splitlines() if notices.exists() else []
        read = [line for line in map(json.loads, lines) if line["contract"]]
        return sorted((line["change"], line["finding"], line["offsets"]) for line in read)

    def holdings() -> tuple[set[str], set[str]]:
        groups = admin.list_consumer_groups().result().valid
        # A broker makes its own topics when the first client asks for a group's coordinator.
        topics = set(admin.list_topics(timeout=10).topics) - INTERNAL_TOPICS
        return topics, {group.group_id for group in groups}

    pipeline.write_inputs(5)
    pipeline.write_outputs([0, 1, 2])
    pipeline.write_outputs([3, 4], is_aborted=True)
    pipeline.write_outputs([3, 4])
    before = holdings()
    with running() as process:
        wait_until(lambda: judges(1, 7), 60, "a verdict that holds")
        pipeline.write_inputs(1)
        pipeline.write_outputs([1])
        wait_until(lambda: judges(0, 8) and len(alarms()) > 1, 30, "both alarms")
        pipeline.write_inputs(3_000)
        pipeline.write_outputs(range(6, 3_006))
        process.kill()
    duplicate = {"topic": pipeline.sink, "partition": 0, "offset": 10}
    gap = {"topic": pipeline.source, "partition": 0, "offset": 5}
    expected = [("began", "duplicate", [duplicate]), ("began", "gap", [gap])]
    assert alarms() == expected
    with running() as process:
        wait_until(lambda: judges(0, 3_008), 60, "the verdict after the kill")
        assert metrics()["inputs_due_total"] >= 6
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert alarms() == expected
    assert holdings() == before


def test_contracts_are_judged_when_the_cluster_cannot_be_looked_at(
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: looks at the whole cluster fail from the first one on. An output that is repeated
    meanwhile is told all the same, and nothing of the cluster begins or ends."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields: dict[str, object] = {
        "source": {"topic": pipeline.source},
        "sink": {"topic": pipeline.sink},
    }
    pipeline.write_inputs(2)
    pipeline.write_outputs([0, 1])
    troubles: list[str] = []
    monkeypatch.setattr(watcher_module, "look_at", refuse)
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        watcher.on_trouble = troubles.append
        watcher.look()
        pipeline.write_outputs([1])
        watcher.look()
    assert [notice.alarm.condition.finding for notice in notices] == ["duplicate"]
    assert troubles == ["The cluster cannot be looked at: no answer"]
    assert watcher.figures.failed == 2 and not watcher.is_caught_up
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        watcher.on_trouble = troubles.append
        watcher.look()
    assert notices == [] and watcher.figures.look is None and not watcher.figures.is_up


def test_removed_records_and_a_new_topic_are_no_verdict(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: retention removes inputs that the watch had no time to read, and later the sink is
    deleted and made again. The first makes the contract unknown, with the range; the second begins
    a new watch."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    admin = AdminClient(admin_config(Address(bootstrap)))
    fields: dict[str, object] = {
        "source": {"topic": pipeline.source},
        "sink": {"topic": pipeline.sink},
    }
    with watching(bootstrap, tmp_path / "home", fields) as (watcher, notices):
        pipeline.write_inputs(5)
        pipeline.write_outputs(range(5))
        watcher.look()
        assert watcher.is_caught_up and watcher.figures.contracts["pair"].judged == 5
        pipeline.write_inputs(4)
        cut = TopicPartition(pipeline.source, 0, 7)
        admin.delete_records([cut])[cut].result(30)
        watcher.look()
        assert watcher.figures.contracts["pair"].outcome is Outcome.UNKNOWN
        (removed,) = [each for each in notices if each.alarm.condition.contract]
        assert "Partition 0: Offsets 5 to 6 were removed" in removed.alarm.condition.sentence
        assert removed.alarm.condition.offsets == ((pipeline.source, 0, 5),)
        notices.clear()
        # Nor can a record be told whose headers no client gets. It does not stop the watch.
        write_headers(bootstrap, pipeline.sink, [b"\xff"])
        pipeline.write_outputs([7, 8])
        watcher.look()
        figures = watcher.figures.contracts["pair"]
        assert figures.verdict is not None and not figures.behind and figures.judged == 7
        assert "1 record cannot be told: the name of a header" in figures.verdict.why
        make_again(bootstrap, pipeline.sink)
        watcher.look()
        replaced = [each for each in notices if each.alarm.condition.kind is Kind.REPLACED]
        assert [each.alarm.condition.topics for each in replaced] == [(pipeline.sink,)]
        assert watcher.figures.contracts["pair"].judged == 0
        assert watcher.figures.contracts["pair"].outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("terms_too", "why"),
    [
        ({"value": "value"}, "value: it cannot be watched: Spark computes"),
        ({"group": "app"}, "group: it cannot be watched: `within:` says what is due"),
        ({"order": "per_key"}, "order: it cannot be watched: the last output of every key"),
        ({"expect": "zero_or_one"}, "expect: it cannot be watched: nothing tells in time"),
        ({"identity": {"json": "$.id"}}, "identity: it cannot be watched: a watch decodes no"),
        ({"within": "60"}, "within: expected a duration with its unit"),
    ],
)
def test_what_cannot_be_watched_is_refused_with_the_reason(
    terms_too: dict[str, object], why: str
) -> None:
    """Story: somebody watches a contract that only a check can judge. Nothing starts."""
    fields = {"source": {"topic": "a"}, "sink": {"topic": "b"}, **terms_too}
    with pytest.raises(ContractError) as refused:
        watched_contracts("pair", make_contract(fields))
    assert why in str(refused.value)


def test_a_contract_that_cannot_be_read_any_more_is_an_alarm(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: the sink is deleted, and its watch fails at each look. Whoever waits for alarms hears
    of it, once, and of its end."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields: dict[str, object] = {
        "source": {"topic": pipeline.source},
        "sink": {"topic": pipeline.sink},
    }
    troubles: list[str] = []
    with watching(bootstrap, tmp_path / "home", fields) as (watcher, notices):
        watcher.on_trouble = troubles.append
        pipeline.write_inputs(1)
        pipeline.write_outputs([0])
        watcher.look()
        admin = AdminClient(admin_config(Address(bootstrap)))
        admin.delete_topics([pipeline.sink])[pipeline.sink].result(30)

        def notices_of_contract() -> list[tuple[str, str]]:
            watcher.look()
            return [
                (each.change.value, each.alarm.condition.finding)
                for each in notices
                if each.alarm.condition.contract
            ]

        wait_until(lambda: ("began", "unread") in notices_of_contract(), 30, "the alarm")
        make_topic(bootstrap, pipeline.sink)
        wait_until(lambda: ("ended", "unread") in notices_of_contract(), 30, "its end")
        assert notices_of_contract().count(("began", "unread")) == 1
    assert any("is behind" in trouble for trouble in troubles)
