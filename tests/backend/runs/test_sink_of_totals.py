"""What a run of totals reads from its sink: anybody who may write to it can put records there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from topicproof.backend.commands.show import balances
from topicproof.backend.errors import ClusterError
from topicproof.backend.history.run_state import Facts, RunResults
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.look import LookBudget, LookLimits
from topicproof.backend.runs import execute, totals, windows
from topicproof.backend.runs.totals import (
    WRONG_MAX,
    Balance,
    SinkTotals,
    Total,
    _first_offsets,
    current_totals,
    figures,
    read_total,
    total_text,
)
from topicproof.backend.settings import read_settings
from topicproof.validators.finding import Bounds, PartitionBounds

FIELDS: dict[str, Any] = {"account": "a", "id": "p1", "cents": 2, "total": 3}
WRONG: list[tuple[str, Any]] = [
    *(("account", value) for value in (7, None, ["a"], "x" * 2_000, "\ud800")),
    *(("id", value) for value in (7, ["p1"], "x" * 2_000)),
    *(("cents", value) for value in ("2", 2.5, True, None, 10**13)),
    *(("total", value) for value in ("3", float("inf"), False, 10**19, 10**400)),
]
FOREIGN: dict[str, bytes | None] = {
    "nothing": None,
    "no JSON": b"hello",
    "no text": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "deep and short": b"[" * 9_000,
    "a list": b"[1]",
    "a text": b'"account"',
    "missing": b'{"account": "a"}',
    "long": json.dumps({**FIELDS, "more": "x" * 20_000}).encode(),
    **{
        f"{name} {value!r:.20}": json.dumps({**FIELDS, name: value}).encode()
        for name, value in WRONG
    },
}


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_total_is_counted(value: bytes | None) -> None:
    """Story: another program writes into the sink. Its record is no total, and raises nothing."""
    assert read_total(value) is None
    assert read_total(total_text("p1", "a", 2, 3)) == Total("a", "p1", 2, 3)


class _Record:
    def __init__(self, value: bytes | None) -> None:
        self.value = lambda: value


class _Kafka:
    """A cluster whose only sink has these records."""

    address = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch, values: Sequence[bytes | None]) -> None:
        self.end = len(values)

        def read(_address: object, _sink: str, _isolation: str, spans: Any) -> Iterator[_Record]:
            ((begin, end),) = spans.values()
            yield from map(_Record, values[begin:end])

        monkeypatch.setattr(totals, "read_records", read)

    def bounds(self, topic: str) -> Bounds:
        return Bounds(topic, (PartitionBounds(0, 0, self.end, self.end),))


GENUINE = [total_text("1", "a", 250, 250), total_text("2", "b", 100, 100)]
TWICE = total_text("1", "a", 250, 500)


def test_strangers_records_change_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: between the totals lie records of others. The totals are those of the run, and the
    others are counted."""
    kafka: Any = _Kafka(monkeypatch, [*GENUINE, *FOREIGN.values(), TWICE])
    read = current_totals(kafka, "sink", budget=LookBudget())
    assert read == SinkTotals([Balance("a", 500, 2, 250), Balance("b", 100, 1, 100)], len(FOREIGN))


def test_a_page_reads_a_sink_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: somebody writes a million made-up totals into the sink. A page reads the first ones,
    and says so; the history keeps no figures of a part."""
    values = [total_text(f"p{number}", f"a{number}", 1, 1) for number in range(1_000)]
    kafka: Any = _Kafka(monkeypatch, values)
    for limits in (LookLimits(records=100), LookLimits(size=100 * 300)):
        read = current_totals(kafka, "sink", budget=LookBudget(limits))
        assert 80 < len(read.balances) < 120
        assert f" after the first {len(read.balances)} records " in read.note
        assert figures(read) == {}
    whole = current_totals(kafka, "sink", budget=LookBudget())
    assert len(whole.balances) == 1_000 and whole.note == ""


def test_a_large_partition_takes_what_small_ones_leave() -> None:
    ends = {0: (10, 1_000), 1: (0, 5), 2: (7, 7)}
    assert _first_offsets(ends, 100) == {0: (10, 105), 1: (0, 5), 2: (7, 7)}
    assert _first_offsets(ends, 10**6) == ends


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(read_settings(home=tmp_path))
    yield history
    history.engine.dispose()


def _run(history: History) -> Run:
    run = history.create("run", "totals", {"scenario": "totals"})
    history.remember(run.id, Facts(source="payments", sink="sink"))
    return history.get(run.id)


def test_made_up_accounts_damage_no_row(history: History) -> None:
    """Story: 120,000 made-up accounts are wrong, by all that a long holds together. The run's row
    names a hundred of them, and can be read."""
    made_up = [Balance(f"account-{n:045}", 10**18, 1, 0) for n in range(120_000)]
    run = _run(history)
    kept = RunResults(**figures(SinkTotals(made_up)))
    history.remember(run.id, Facts(source="payments", sink="sink", results=kept))
    run = history.get(run.id)
    assert run.damaged == () and len(run.facts.results.wrong_by or {}) == WRONG_MAX
    assert run.facts.every_topic == ("payments", "sink")
    assert "120,000 of 120,000 accounts are wrong" in balances(run.facts)
    one = figures(SinkTotals([Balance("a", 500, 2, 250), Balance("b", 100, 1, 100)], 3))
    assert balances(Facts(results=RunResults(**one))).startswith(
        "totals: 1 of 2 accounts are wrong, by +2.50 in all, "
    )
    assert balances(Facts(results=RunResults(**one))).endswith(". 3 records are not totals")


def _fails(error: Exception) -> Callable[..., SinkTotals]:
    def current(*_given: object, **_options: object) -> SinkTotals:
        raise error

    return current


@pytest.mark.parametrize("error", [RecursionError(), MemoryError(), ClusterError("It is gone.")])
def test_a_verdict_is_in_the_history_before_the_sink_is_read(
    error: Exception, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a stranger's record makes the run VIOLATED, and the sink cannot be read for figures.
    The verdict stays, without figures."""
    run = _run(history)
    report: Any = object()
    judged = SimpleNamespace(
        verdict="VIOLATED", why="1 record is a stranger's.", stages={}, values={}, report=report
    )
    monkeypatch.setattr(execute, "judge_run", lambda *_: judged)
    monkeypatch.setattr(execute, "attest_all", lambda *_: None)
    monkeypatch.setattr(execute, "evidence_in", lambda _folder: [])
    monkeypatch.setattr(execute, "current_totals", _fails(error))
    context: Any = SimpleNamespace(
        stop=threading.Event(),
        plan=SimpleNamespace(until_stopped=False, judged=True, scenario="totals"),
        finished=True,
        enter=lambda _state: None,
        settings=history.settings,
        folder=history.settings.home / "nothing",
        run=run,
        services=SimpleNamespace(storage=None),
        remember=lambda **_facts: None,
        stages=(),
        cluster=None,
        names=SimpleNamespace(sink="sink"),
        history=history,
    )
    spark: Any = None
    assert execute._conclude(context, spark, None) is report
    ended = history.get(run.id)
    assert (ended.state, ended.verdict, ended.why) == (
        State.DONE,
        "VIOLATED",
        "1 record is a stranger's.",
    )
    assert ended.facts.results.wrong_by is None


@pytest.mark.parametrize("value", [*FOREIGN.values(), b'{"account": "a", "at": "9999"}'])
def test_what_is_no_payment_takes_no_verdict_on_windows_away(value: bytes | None) -> None:
    """Story: another program writes into the source of a run that counts in windows."""
    assert windows._account_and_window(value) is None
    genuine = totals.payment(7)
    assert windows._account_and_window(genuine) == ("account-7", "2026-01-01T00:00:00Z")
