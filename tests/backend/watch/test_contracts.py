"""Contracts that are judged as their topics grow, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.foreign.moving import judged, moving_pair, terms
from topicproof.backend.address import Address
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.errors import ContractError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import read_settings
from topicproof.backend.watch.alarms import Notice
from topicproof.backend.watch.pair_store import pair_store
from topicproof.backend.watch.state_file import state_file
from topicproof.backend.watch.watchable import watched_contracts
from topicproof.backend.watch.watcher import Watcher, WatchOptions
from topicproof.validators.increments.watch_verdict import WATCHED


@contextmanager
def watching(
    bootstrap: str, home: Path, fields: dict[str, object]
) -> Iterator[tuple[Watcher, list[Notice]]]:
    notices: list[Notice] = []
    contracts = watched_contracts("pair", make_contract(fields))
    with (
        state_file(read_settings(home=home), "cluster") as file,
        pair_store(file.pairs) as store,
    ):
        yield (
            Watcher(
                Address(bootstrap),
                file,
                WatchOptions(contracts=contracts),
                on_notice=lambda notice, _cluster: notices.append(notice),
                on_trouble=pytest.fail,
                store=store,
            ),
            notices,
        )


@pytest.mark.parametrize(
    ("term", "value"),
    [
        ("group", "squares"),
        ("dead_letters", {"topic": "numbers.dlq", "origin": "connect"}),
    ],
)
def test_a_term_that_a_watch_cannot_judge_is_refused(term: str, value: object) -> None:
    """Story: without a look at the dead letters, each input that was put aside would be a gap."""
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
