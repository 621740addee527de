"""Waivers and alarms of watched contracts, what ends no alarm, and what the dashboard reads of a
watch."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from tests.app.test_history_page import TWICE
from tests.backend.watch.monitoring import RULES
from tests.backend.watch.test_alarms import look
from topicproof.backend.address import Address
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.errors import ClusterError, SetupError, TopicError
from topicproof.backend.evidence.folder import EVIDENCE, evidence_hash
from topicproof.backend.evidence.manifest import MANIFEST
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.signoff import Decision, sign
from topicproof.backend.history.store import History, State as RunState
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.watch import contract_watch, standings, watcher as watcher_module
from topicproof.backend.watch.alarms import NO_ALARMS, Notice, after_look
from topicproof.backend.watch.conditions import Kind
from topicproof.backend.watch.contract_watch import ContractWatch
from topicproof.backend.watch.group_offsets import Place
from topicproof.backend.watch.identities import digest, numbers_of
from topicproof.backend.watch.metrics import WatchCollector
from topicproof.backend.watch.pair_store import PairStore, pair_store
from topicproof.backend.watch.standings import SLOT_S, SLOTS, State, read_standings
from topicproof.backend.watch.state_file import FOLDER, state_file
from topicproof.backend.watch.waivers import WaivedKind, Waivers, waived_of
from topicproof.backend.watch.watchable import (
    ContractsToWatch,
    RefusedContract,
    WatchedContract,
    watched_contracts,
)
from topicproof.backend.watch.watcher import Watcher, WatchOptions
from topicproof.validators.finding import Bounds, Outcome, PartitionBounds
from topicproof.validators.increments.watched_pair import SinkRows, SourceSpan

CONTRACTS = watched_contracts(
    "orders", make_contract({"source": {"topic": "numbers"}, "sink": {"topic": "squares"}})
)


@dataclass
class Watch:
    """A watch of `CONTRACTS` whose topics are folded by hand."""

    watcher: Watcher
    contract: ContractWatch
    store: PairStore
    notices: list[Notice]
    troubles: list[str]

    def write(self, inputs: int, *outputs: int, pending: int = 0, is_read: bool = True) -> None:
        """Fold further inputs, and outputs of the inputs at these offsets. `pending`: how many more
        inputs are in an open transaction. `is_read`: all the others of the source were read."""
        pair = self.contract.pair
        end = pair.sources[0].end if pair.sources else 0
        none = np.zeros(0, np.int64)
        added = np.arange(end, end + inputs)
        source = SourceSpan(0, end, end + inputs, end + inputs + pending, added, none, none)
        pair.add_source(source, 0)
        sink_end = pair.counts.committed + pair.held.size
        rows = [(0, sink_end + at, at, 0, offset, 0, 0, 0, 1) for at, offset in enumerate(outputs)]
        pair.add_sink(SinkRows(*np.array(rows, np.int64).reshape(-1, 9).T))
        self.contract._is_source_read = is_read
        held = self.contract._held_rows()
        pair.settle(10**13, is_sink_read=True, held=held)
        self.contract._judge(None if held is None else pair.with_held(held))

    def look(self) -> list[str]:
        """Take in a look. Returns what was told of the contract."""
        self.notices.clear()
        self.watcher._waivers_at = None
        self.watcher._take_in(look())
        self.watcher._note_standings()
        return [f"{each.change} {each.alarm.condition.sentence}" for each in self.notices]

    def metric(self, name: str) -> list[float]:
        metrics = WatchCollector(self.watcher.figures).collect()
        return [sample.value for each in metrics for sample in each.samples if sample.name == name]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings(home=tmp_path / "home")


@pytest.fixture
def history(settings: Settings) -> Iterator[History]:
    opened = History(settings)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PairStore]:
    with pair_store(tmp_path / "pairs") as opened:
        yield opened


@pytest.fixture
def watch(settings: Settings, history: History) -> Iterator[Watch]:
    with state_file(settings, "cluster") as file, pair_store(file.pairs) as store:
        notices: list[Notice] = []
        troubles: list[str] = []
        watcher = Watcher(
            Address("unused:9092"),
            file,
            WatchOptions(contracts=CONTRACTS, every_s=600),
            on_notice=lambda notice, _cluster: notices.append(notice),
            on_trouble=troubles.append,
            store=store,
            read_waivers=partial(waived_of, history),
        )
        (contract,) = CONTRACTS
        watched = ContractWatch.begin(contract, store, {})
        watcher.contracts[contract.name] = watched
        watcher.figures.contracts[contract.name] = watched.figures
        watched.figures.is_read = True
        yield Watch(watcher, watched, store, notices, troubles)


def ended_check(history: History, contract: WatchedContract) -> str:
    """Enter a check of the contract that found a duplicate. Returns the hash of its evidence."""
    run = history.create("check", "check", {"guarantee": contract.contract.guarantee})
    history.remember(run.id, Facts(source=contract.source, sink=contract.sink))
    evidence = run.folder(history.settings) / EVIDENCE
    evidence.mkdir(parents=True)
    (evidence / MANIFEST).write_text(run.id)
    history.end(run.id, RunState.DONE, TWICE.verdict, TWICE.why)
    return evidence_hash(run.folder(history.settings)) or ""


@pytest.mark.parametrize("end", ["a-newer-check", "a-changed-row"])
def test_a_waiver_silences_one_kind_until_its_day(end: str, watch: Watch, history: History) -> None:
    """Story: a contract has a known duplicate. Its alarm begins, QA waives the kind in a check of
    the same topics, and the alarm ends with the waiver's sentence. The verdict stays. A gap is told
    all the same. A newer check without a waiver brings the alarm back, and so does somebody who
    gives the waiver more time in the database."""
    (contract,) = CONTRACTS
    watch.write(3, 0, 1, 1)
    (began, gap) = watch.look()
    assert "began Contract orders, duplicate: 1 of 3" in began and "gap" in gap
    watch.write(0, 2)
    assert [each.startswith("ended Contract orders, gap") for each in watch.look()] == [True]
    assert watch.metric("topicproof_watch_contract_silenced") == [0]
    digest = ended_check(history, contract)
    until = datetime.now(UTC).date() + timedelta(days=30)
    (run,) = history.list()
    waiver = {"kind": "duplicate", "until": until, "comment": "known until 2.0"}
    sign(history, run.id, [TWICE], digest, Decision.WAIVE, "Grace Hopper", **waiver)  # type: ignore[arg-type]
    (ended,) = watch.look()
    sentence = (
        f"Contract orders, duplicate: waived until {until} by Grace Hopper (unauthenticated) (known"
        " until 2.0). No alarm tells it until then; the verdict stays."
    )
    assert ended == f"ended {sentence}" and watch.troubles == [sentence]
    assert watch.look() == []
    assert watch.metric("topicproof_watch_contract_silenced") == [1]
    assert watch.metric("topicproof_watch_contract_verdict") == [0]
    watch.write(1)
    assert ["gap" in each for each in watch.look()] == [True]
    assert watch.metric("topicproof_watch_contract_silenced") == [0]
    if end == "a-newer-check":
        ended_check(history, contract)
    else:
        with history.session() as session:
            session.execute(sa.text("drop trigger signoffs_refuse_update"))
            session.execute(sa.text("update signoffs set until = '2099-01-01'"))
    assert ["duplicate" in each for each in watch.look()] == [True]
    assert watch.troubles[-1] == "Contract orders, duplicate: no waiver counts any more."


def test_the_dashboard_reads_the_last_day_and_changes_nothing(
    watch: Watch, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a contract holds, is violated for one look and holds again. The strip has the worst of
    each five minutes, and forgets what is older than a day. A damaged file is named, and the others
    are read."""
    now = 2_000_000_000 // SLOT_S * SLOT_S
    folder = settings.home / FOLDER

    def at(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: now + seconds)
        watch.look()

    at(-SLOT_S * (SLOTS + 3))
    watch.write(3, 0, 1)
    at(-SLOT_S)
    watch.write(0, 2)
    at(-SLOT_S + 10)
    at(0)
    (watched,), unreadable = read_standings(folder, now)
    assert unreadable == [] and len(watched.slots) == SLOTS
    assert watched.slots[-3:] == (None, State.VIOLATED, State.HOLDS)
    assert set(watched.slots[:-2]) == {None}
    standing = watched.standing
    assert (standing.name, standing.state, standing.due, standing.late) == (
        "orders",
        State.HOLDS,
        3,
        1,
    )
    assert standing.at_s == now and not standing.is_stale(now)
    (folder / "broken.pairs").write_bytes(b"no database")
    with closing(sqlite3.connect(folder / "other.pairs")) as other:
        other.executescript(standings.SCHEMA)
        other.execute("insert into standing values ('x', 1, '{\"name\": 1}')")
        other.commit()
    (again,), unreadable = read_standings(folder, now)
    assert again == watched and unreadable == ["broken.pairs", "other.pairs"]


def test_rules_and_dashboard_name_metrics_that_there_are(watch: Watch) -> None:
    """Story: a metric is renamed, and forgotten in the rules or in the dashboard for Grafana."""
    watch.write(3, 0, 1, 1)
    watch.look()
    names = {
        name
        for metric in WatchCollector(watch.watcher.figures).collect()
        for name in (metric.name, *(sample.name for sample in metric.samples))
    }
    for file in ("topicproof.rules.yml", "topicproof.dashboard.json"):
        metrics = {*re.findall(r"topicproof_watch_\w+", (RULES / file).read_text())}
        assert metrics and metrics <= names, metrics - names


def test_a_quiet_contract_is_passed_over(watch: Watch) -> None:
    """Story: nothing was written to a contract's topics since the last look at them. The look at
    the cluster has their bounds, so nothing is asked or written for the contract, and it is caught
    up. What is new, waits or is missing behind an open transaction is looked at."""

    def is_passed_over(source_end: int, lso: int, hw: int) -> bool:
        bounds = {
            "numbers": Bounds("numbers", (PartitionBounds(0, 0, source_end, source_end),)),
            "squares": Bounds("squares", (PartitionBounds(0, 0, lso, hw),)),
        }
        return watch.contract.pass_over(bounds, time.monotonic())

    watch.write(3, 0, 1)
    watch.contract.pair.sink_ends[0] = 2
    assert not is_passed_over(3, 2, 2), "it was never read in full"
    watch.contract._looked_at = time.monotonic()
    watch.contract.figures.read_at -= 900
    assert is_passed_over(3, 2, 2) and watch.contract.figures.delay_s < 900
    assert not is_passed_over(4, 2, 2) and not is_passed_over(3, 3, 3)
    assert not is_passed_over(3, 2, 4), "an open transaction may have the missing output"
    watch.write(0, 2)
    watch.contract.pair.sink_ends[0] = 3
    assert is_passed_over(3, 3, 5) and watch.contract.figures.withheld == 2
    pair = watch.contract.pair
    watch.write(1)
    pair.sources[0].late_end, pair.sources[0].seen = 3, [(0, 4)]
    pair.through_ms = 0
    assert not is_passed_over(4, 3, 5), "its output may be withheld"
    late_before = pair.counts.late_total
    assert is_passed_over(4, 3, 3) and pair.sources[0].late_end == 4
    assert pair.counts.late_total == late_before + 1 and pair.missing_count() == 1
    assert watch.store.read(watch.contract.name) is not None, "it is on disk"
    watch.contract.figures.trouble = "It cannot be read."
    assert not is_passed_over(4, 3, 3)
    assert not watch.contract.pass_over({}, 0.0)


def test_what_is_not_known_is_no_all_clear(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: an output is lost, and its alarm began. A stranger opens a transaction that names the
    lost input, and aborts it: neither is told. If such transactions follow one another, that is an
    alarm in time. The true output ends both. A duplicate is proven, and then nothing can be judged
    in full: its alarm lasts, and the doubt is one."""
    watch.write(3, 0, 1)
    assert ["began Contract orders, gap" in each for each in watch.look()] == [True]
    for pending, outcome in ((1, Outcome.UNKNOWN), (0, Outcome.VIOLATED)):
        watch.contract.pair.counts.pending = pending
        watch.write(0)
        assert watch.contract.figures.outcome is outcome
        assert watch.look() == []
    watch.contract.pair.counts.pending = 1
    watch.write(0)
    monkeypatch.setattr(contract_watch, "PATIENCE_S", 0)
    (withheld,) = watch.look()
    assert withheld.startswith("began Contract orders, gap") and "open transaction" in withheld
    watch.contract.pair.counts.pending = 0
    watch.write(0, 2)
    assert ["ended Contract orders, gap" in each for each in watch.look()] == [True, True]
    watch.write(0, 1)
    assert ["began Contract orders, duplicate" in each for each in watch.look()] == [True]
    watch.contract.pair.counts.unreadable = 20
    watch.contract.pair.counts.hidden = 3
    watch.write(0)
    (doubt,) = watch.look()
    assert doubt.startswith("began Contract orders cannot be judged in full: 3 records that")
    assert "20 records cannot be told" in doubt


def test_what_a_pipeline_read_of_an_open_transaction_is_told(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a pipeline reads a record of a transaction that hangs. Behind its output lie that of
    an earlier input and its copy, and one is lost: all are alarms, and the first output is one in
    time. The source then grows faster than it is read: nothing is over. The transaction is
    committed, and the lost output comes: two alarms end."""
    watch.write(3, 0, 3, 1, 1, pending=2)
    assert [each.partition(":")[0] for each in watch.look()] == [
        f"began Contract orders, {kind}" for kind in ("duplicate", "gap", "order")
    ]
    assert watch.contract.pair.counts.late_total == 1
    monkeypatch.setattr(contract_watch, "PATIENCE_S", 0)
    (phantom,) = watch.look()
    assert phantom.startswith("began Contract orders, phantom") and "open transaction" in phantom
    condition = watch.notices[0].alarm.condition
    assert condition.offsets == (("squares", 0, 1),)
    assert "Check again when the open transaction has ended" in condition.next_step
    watch.write(0, pending=2, is_read=False)
    assert watch.contract.figures.verdict and watch.contract.figures.violating == ()
    assert watch.look() == []
    watch.write(2, 2, 4)
    assert sorted(each.split(":")[0] for each in watch.look()) == [
        "ended Contract orders, gap",
        "ended Contract orders, phantom",
    ]


def test_alarms_of_a_contract_that_was_taken_off_meanwhile_end(watch: Watch) -> None:
    """Story: a contract is violated. Its watch ends, and somebody takes it off the list while none
    runs. The next watch ends its alarm, which is no all-clear, and forgets how it stood. Listed
    again and still violated, it is told again."""
    watch.write(3, 0, 1)
    assert ["began Contract orders, gap" in each for each in watch.look()] == [True]
    listed = ContractsToWatch(())
    notices: list[Notice] = []
    again = Watcher(
        Address("unused:9092"),
        watch.watcher.file,
        WatchOptions(),
        on_notice=lambda notice, _cluster: notices.append(notice),
        on_trouble=watch.troubles.append,
        store=watch.store,
        read_contracts=lambda: listed,
    )
    again._take_contracts()
    again._take_in(look())
    again._note_standings()
    (ended,) = notices
    assert ended.change == "ended" and "not watched any more" in ended.alarm.condition.sentence
    assert watch.troubles == ["Contract orders is not watched any more."]
    assert watch.store.standing_names() == set() and not again.state.alarms.alarms
    again._unlisted, listed = frozenset(), ContractsToWatch(CONTRACTS)
    again._take_contracts()
    again.contracts["orders"] = watch.contract
    again._take_in(look())
    assert [each.change for each in notices[1:]] == ["began"] and len(watch.troubles) == 1


def test_a_watch_is_not_ready_while_a_contract_is_not_judged(watch: Watch) -> None:
    """Story: a contract is judged. Another one is put on the list, and was not looked at yet; then
    no watch can judge it any more. Nobody is told that all is judged, and what it violated before
    lasts. At last its terms are mended."""
    watch.write(3, 0, 1, 1, 2)
    assert ["duplicate" in each for each in watch.look()] == [True]
    refused = RefusedContract("orders", "It is torn.", "orders")
    contracts, watcher = ContractsToWatch(CONTRACTS), watch.watcher
    watcher.read_contracts = lambda: contracts
    watcher._looked_at = time.monotonic()
    watch.contract.pair.sink_ends[0] = 4
    assert watcher.is_caught_up
    other = watched_contracts(
        "other", make_contract({"source": {"topic": "a"}, "sink": {"topic": "b"}})
    )
    contracts = ContractsToWatch((*CONTRACTS, *other))
    watcher._take_contracts()
    assert watcher.unready == "1 contract behind"
    contracts = ContractsToWatch((), (refused,))
    for _ in range(2):
        watcher._take_contracts()
        sentences = watch.look()
    assert sentences == [] and watcher.unready == "1 contract refused"
    assert watch.troubles[1:] == ["Contract orders is refused, and not judged: It is torn."]
    assert sorted(alarm.condition.finding for alarm in watcher.state.alarms.alarms.values()) == [
        "duplicate",
        "refused",
    ]
    assert watch.metric("topicproof_watch_contract_verdict") == [-1]
    (watched,), _ = read_standings(watcher.file.path.parent, int(time.time()))
    assert watched.standing.state is State.REFUSED and "It is torn." in watched.standing.why
    contracts = ContractsToWatch(CONTRACTS)
    watcher._take_contracts()
    assert not watcher.is_caught_up
    watcher.contracts["orders"] = watch.contract
    watcher.figures.contracts["orders"] = watch.contract.figures
    (ended,) = watch.look()
    assert ended == "ended Contract orders is refused, and not judged: It is torn."
    assert watcher.is_caught_up


def test_another_contract_of_the_same_name_ends_no_alarm_in_silence(watch: Watch) -> None:
    """Story: a contract is violated. Somebody starts the watch again, with a file of the same name
    about other topics, which has a copy, too. Both alarms of the first one end, which is no
    all-clear, and the copy of the second one is told."""
    watch.write(3, 0, 1, 1)
    assert [each.split(":")[0] for each in watch.look()] == [
        "began Contract orders, duplicate",
        "began Contract orders, gap",
    ]
    (other,) = watched_contracts(
        "orders", make_contract({"source": {"topic": "a"}, "sink": {"topic": "b"}})
    )
    watch.watcher.watched = (other,)
    judged = ContractWatch.begin(other, watch.store, {})
    judged.figures.is_read = True
    watch.watcher.contracts["orders"] = watch.contract = judged
    watch.watcher.figures.contracts["orders"] = judged.figures
    watch.write(3, 0, 1, 2, 2)
    again = watch.look()
    assert again[:2] == 2 * [
        "ended Contract orders is not watched any more. It may still be wrong."
    ]
    assert [each.split(":")[0] for each in again[2:]] == ["began Contract orders, duplicate"]
    assert watch.notices[2].alarm.condition.topics == ("a", "b")
    assert watch.look() == []


def test_a_restart_compares_the_cluster_once(watch: Watch) -> None:
    """Story: a watch with contracts starts again. While it looks, retention passes the offset of a
    group, which reads on. That is no alarm before the next look finds it there still."""
    ids = {"numbers": "1", "squares": "2"}
    watch.contract.topic_ids = ids
    watch.write(3, 0, 1, 1)
    watch.store.write(watch.contract.name, watch.contract.pair)
    watch.watcher.contracts.clear()
    passed = look(bounds=(6, 10, 15), offsets={Place("billing", "orders", 0): 5})
    passed = replace(passed, topic_ids={**passed.topic_ids, **ids})
    watch.watcher._go_on(passed)
    assert {each.alarm.condition.kind for each in watch.notices} == {Kind.VIOLATED}
    watch.watcher._take_in(passed)
    assert {each.alarm.condition.kind for each in watch.notices} == {Kind.VIOLATED}
    watch.watcher._take_in(passed)
    assert watch.notices[-1].alarm.condition.kind is Kind.BELOW_START


def test_a_waiver_that_cannot_be_read_again_counts_until_its_day(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a copy is waived, and copies are unknown now, because outputs wait in an open
    transaction. The alarm of that ends by the waiver, and is no all-clear. Then the history
    cannot be read any more. What was waived stays silent, also in the metrics of a watch that
    begins again, and is told once its day is over."""
    today = datetime.now(UTC).date()
    place = "orders", "gap"
    watch.contract.pair.counts.pending = 1
    watch.write(3, 0, 1)
    monkeypatch.setattr(contract_watch, "PATIENCE_S", 0)
    (withheld,) = watch.look()
    assert withheld.startswith("began Contract orders, gap") and "open transaction" in withheld
    waiver = WaivedKind(*place, today, "Grace Hopper", "known")
    watch.watcher.read_waivers = lambda _contracts: {place: waiver}
    assert watch.look() == [f"ended {waiver.sentence}"]

    def fail(_contracts: Sequence[WatchedContract]) -> Waivers:
        raise SetupError("No history.")

    watch.watcher.read_waivers = fail
    watch.contract.pair.counts.pending = 0
    watch.write(0)
    watch.contract.figures.waived = ()
    assert watch.look() == [] and watch.metric("topicproof_watch_contract_silenced") == [1]
    watch.watcher._waivers = {place: replace(waiver, until=today - timedelta(days=1))}
    assert ["began Contract orders, gap" in each for each in watch.look()] == [True]
    assert watch.metric("topicproof_watch_contract_silenced") == [0]
    assert watch.troubles == [
        waiver.sentence,
        "Waivers cannot be read: No history.",
        "Contract orders, gap: no waiver counts any more.",
    ]


def test_one_input_without_a_key_explains_one_row(store: PairStore) -> None:
    """Story: by key, an output is written twice and another one has no input. Then somebody writes
    one record without a key to the source. A check cannot say any more which rows are wrong, but no
    alarm is over. Of a hundred copies, at most one is the output of that record."""
    (contract,) = watched_contracts(
        "pair",
        make_contract({"source": {"topic": "s"}, "sink": {"topic": "k"}, "identity": "key"}),
    )
    watch = ContractWatch.begin(contract, store, {"s": "1", "k": "2"})
    pair, none, state = watch.pair, np.zeros(0, np.int64), NO_ALARMS

    def fold(inputs: Sequence[bytes | None], outputs: Sequence[bytes]) -> list[tuple[str, str]]:
        nonlocal state
        begin = pair.sources[0].end if pair.sources else 0
        end, at = begin + len(inputs), pair.counts.committed
        named, taken = watch._identities.add_inputs(
            pair, 0, np.arange(begin, end), b"".join(map(digest, inputs)), now_s=1
        )
        pair.add_source(SourceSpan(0, begin, end, end, named, none, none), 0)
        pair.take_back(0, taken)
        high, low = numbers_of(b"".join(map(digest, outputs)))
        zeros = np.zeros(len(outputs), np.int64)
        offsets = np.arange(at, at + len(outputs))
        rows = SinkRows(zeros, offsets, zeros, zeros - 1, zeros, zeros, high, low, zeros + 1)
        pair.add_sink(watch._identities.resolve_outputs(pair, rows, is_source_read=True))
        pair.settle(10**13, is_sink_read=True)
        watch._judge()
        state, notices = after_look(
            state,
            watch.conditions(),
            datetime.now(UTC),
            clear_kinds=frozenset(Kind),
            contracts={"pair"},
            unknown=watch.unknown,
        )
        return [(each.change.value, each.alarm.condition.finding) for each in notices]

    began = fold([b"a", b"b"], [b"a", b"a", b"b", b"stray"])
    assert began == [("began", "duplicate"), ("began", "phantom")]
    assert fold([None], []) == [("began", "identity_missing")]
    assert watch.figures.outcome is Outcome.UNKNOWN and watch.figures.violating == ()
    assert [each.finding for each in watch.conditions()] == ["identity_missing"]
    assert fold([], [b"b"] * 100) == []
    wrong, _ = watch.conditions()
    assert (wrong.kind, wrong.finding) == (Kind.VIOLATED, "duplicate")
    assert "cannot explain 100 of them" in wrong.sentence
    state = NO_ALARMS
    assert fold([], []) == [("began", "duplicate"), ("began", "identity_missing")]


def test_a_topic_that_is_not_listed_ends_no_alarm(watch: Watch) -> None:
    """Story: the source of a violated contract is deleted, or the watch may no longer describe it.
    That is a look that fails, and no new watch. A restart meanwhile begins none either. Made again,
    the topic has another id, and its watch begins."""
    (contract,) = CONTRACTS
    watcher, ids = watch.watcher, {"numbers": "1", "squares": "2"}
    watch.contract.topic_ids = ids
    watch.write(3, 0, 1, 1, 2)
    assert ["duplicate" in each for each in watch.look()] == [True]
    kafka: Connection = None  # type: ignore[assignment]
    for topic_ids in ({"squares": "2"}, {}):
        assert watcher._judge(kafka, contract, topic_ids, 10) == 0
        assert watcher.contracts["orders"] is watch.contract
        assert "does not list the topic numbers" in watch.contract.figures.trouble
        assert watch.look() == []
    watcher.contracts.clear()
    watcher._go_on(replace(look(), topic_ids={"squares": "2"}))
    assert not watcher.contracts
    # This look fails too: nobody is there to be asked.
    assert watcher._judge(kafka, contract, {**ids, "numbers": "3"}, 10) == 0
    assert watcher.contracts["orders"].topic_ids == {**ids, "numbers": "3"}


def test_a_fault_in_one_contract_does_not_end_the_watch(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: judging a contract raises an error that nobody foresaw, at each look. The contract has
    failed, which is an alarm in time. The traceback is in the log, once."""
    (contract,) = CONTRACTS
    watch.contract.topic_ids = ids = {"numbers": "1", "squares": "2"}
    watch.write(3, 0, 1, 1, 2)
    assert ["duplicate" in each for each in watch.look()] == [True]

    def fail(*_arguments: object) -> int:
        raise KeyError("a record")

    monkeypatch.setattr(ContractWatch, "_look", fail)
    kafka: Connection = None  # type: ignore[assignment]
    for _ in range(3):
        assert watch.look() == []
        assert watch.watcher._judge(kafka, contract, ids, 10) == 0
    (unread,) = watch.look()
    assert "began Contract orders is not judged any more: KeyError: this is a fault" in unread
    assert len(watch.troubles) == 1 and "a record" not in watch.troubles[0]
    (entry,) = caplog.records
    assert entry.exc_info is not None and "orders" in entry.getMessage()


def test_a_trouble_that_lasts_is_told_once(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: each look fails for the same reason, and names another topic or count each time. One
    line tells it, another one tells of another reason, and one after a while of what it is now."""
    (contract,) = CONTRACTS
    for number in range(4):
        watch.watcher._fail(contract, TopicError(f"{number} offsets are left."))
    watch.watcher._fail(contract, ClusterError("No broker answers."))
    assert [each.rpartition(": ")[2] for each in watch.troubles] == [
        "0 offsets are left.",
        "No broker answers.",
    ]
    monkeypatch.setattr(watcher_module, "TROUBLE_EVERY_S", 0)
    watch.watcher._fail(contract, ClusterError("No broker answers."))
    assert len(watch.troubles) == 2
    watch.watcher._fail(contract, ClusterError("Broker 2 does not answer."))
    assert len(watch.troubles) == 3
    watch.watcher._trouble("contract orders", "")
    assert watch.troubles[3] == "Contract orders is judged again."
