"""A watch that is killed again and again: no verdict changes, no alarm is lost, none is told
twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.watch.monitoring import Listener, listener
from tests.backend.watch.test_alarms import NOW, Killed, look
from topicproof.backend.address import Address
from topicproof.backend.commands.watch_commands import NoticeLines
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.watch.conditions import ClusterLook
from topicproof.backend.watch.contract_watch import ContractWatch
from topicproof.backend.watch.group_offsets import Place
from topicproof.backend.watch.pair_store import PairStore, pair_store
from topicproof.backend.watch.state_file import StateFile
from topicproof.backend.watch.watchable import watched_contracts
from topicproof.backend.watch.watcher import Watcher, WatchOptions
from topicproof.backend.watch.webhook import Webhook
from topicproof.validators.increments.watched_pair import SinkRows, SourceSpan, WatchedPair

CONTRACTS = watched_contracts(
    "orders", make_contract({"source": {"topic": "numbers"}, "sink": {"topic": "squares"}})
)
SLICES, INPUTS = 40, 10
KILLS, SEED = 50, 3
POINTS = (
    (PairStore, "write"),
    (PairStore, "note"),
    (StateFile, "_replace"),
    (NoticeLines, "write"),
    (Webhook, "send"),
)
"""Steps before and behind each of which a kill may come."""


def rows_of_slice(number: int) -> list[int]:
    """The inputs whose outputs a slice of the sink has. Every seventh slice lacks one, which comes
    two slices later; slice 11 has a copy."""
    first = number * INPUTS
    places = [*range(first, first + INPUTS)]
    if number % 7 == 3:
        places.remove(first + 4)
    if number % 7 == 5:
        places.append((number - 2) * INPUTS + 4)
    return [*places, first] if number == 11 else places


class HandFed(ContractWatch):
    """Folds the next slice of the story at each look, wherever its state ends."""

    def _look(self, *_args: Any) -> int:
        pair = self.pair
        end = pair.sources[0].end if pair.sources else 0
        number, none = end // INPUTS, np.zeros(0, np.int64)
        if number == SLICES:
            return 0
        new = np.arange(end, end + INPUTS)
        pair.add_source(SourceSpan(0, end, end + INPUTS, end + INPUTS, new, none, none), 0)
        at = pair.sink_ends.get(0, 0)
        rows = [(0, at + k, at + k, 0, o, 0, 0, 0, 1) for k, o in enumerate(rows_of_slice(number))]
        pair.add_sink(SinkRows(*np.array(rows, np.int64).T))
        pair.sink_ends[0] = at + len(rows)
        pair.settle(10**13, is_sink_read=True)
        self._judge()
        return INPUTS


def now(number: int) -> ClusterLook:
    """The cluster at a look: a group goes back once, at the twentieth."""
    offset = number if number < 20 else number - 10
    at = look(bounds=(0, 100, 100), offsets={Place("readers", "orders", 0): offset})
    return replace(at, overview=replace(at.overview, taken_at=NOW + timedelta(seconds=number)))


@contextmanager
def watching(folder: Path, hook: Listener) -> Iterator[Callable[[int], WatchedPair]]:
    """One process: yields what looks once."""
    with pair_store(folder / "state.pairs") as store:
        store.db.execute("pragma synchronous = off")
        watcher = Watcher(
            Address("unused:9092"),
            StateFile(folder / "state.json"),
            WatchOptions(every_s=600, contracts=CONTRACTS, webhook=Webhook(hook.address)),
            on_notice=NoticeLines(str(folder / "notices")).write,
            on_trouble=pytest.fail,
            store=store,
        )
        (contract,) = CONTRACTS
        watch = HandFed.begin(contract, store, {})
        watcher.contracts[contract.name] = watch
        watcher.figures.contracts[contract.name] = watch.figures

        def look_once(number: int) -> WatchedPair:
            if not watch.figures.is_read and watch.pair.sources:
                watcher._take_in(now(number))
            watch.look(None, 0, 0)  # type: ignore[arg-type]
            watch.figures.is_read = True
            watcher._take_in(now(number))
            watcher._note_standings()
            watcher._deliver()
            return watch.pair

        yield look_once


def story(folder: Path, kills: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """Watch the story with so many kills. Returns the pair at its end, the lines, and what the
    webhook got."""
    chance, left, numbers = random.Random(SEED), kills, iter(range(10_000))
    folder.mkdir()

    def strike() -> None:
        nonlocal left
        if left and chance.random() < kills / 300:
            left -= 1
            raise Killed

    def struck(method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            strike()
            answer = method(*args, **options)
            strike()
            return answer

        return step

    pair = None
    with monkeypatch.context() as patch, listener() as hook:
        for owner, name in POINTS:
            patch.setattr(owner, name, struck(getattr(owner, name)))
        while pair is None or left or pair.sources[0].end < SLICES * INPUTS:
            with suppress(Killed), watching(folder, hook) as look_once:
                while pair is None or left or pair.sources[0].end < SLICES * INPUTS:
                    pair = look_once(next(numbers))
    lines = [json.loads(line) for line in (folder / "notices").read_text().splitlines()]
    return pair, lines, hook.documents


def test_fifty_kills_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a watch is killed fifty times, before or behind any of its writes. Its verdict is that
    of a watch that nobody killed. Each alarm is one line of `--json`. The webhook gets each, and
    knows the one that it gets again by its number."""
    calm, lines, documents = story(tmp_path / "calm", 0, monkeypatch)
    killed, killed_lines, killed_documents = story(tmp_path / "killed", KILLS, monkeypatch)
    assert (killed.causes, killed.counts, killed.examples) == (
        calm.causes,
        calm.counts,
        calm.examples,
    )

    def told(notices: list[dict[str, Any]]) -> Counter[tuple[str, ...]]:
        return Counter((each["change"], each["finding"] or each["kind"]) for each in notices)

    expected = {
        ("began", "duplicate"): 1,
        ("began", "order"): 1,
        ("began", "gap"): 6,
        ("ended", "gap"): 5,
        ("happened", "offset_moved_backwards"): 1,
    }
    assert told(lines) == told(documents) == told(killed_lines) == expected
    once = {(each["alarm"], each["change"]): each for each in killed_documents}
    assert told([*once.values()]) == expected
    assert len(once) <= len(killed_documents) <= len(once) + KILLS
