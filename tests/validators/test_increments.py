"""What a watch finds increment by increment is what a check of the same ranges finds."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from confluent_kafka import Message

from tests.validators.hostile_pairs import draw, simulate, told
from tests.validators.pair_oracle import (
    ABORTED,
    AT_LEAST,
    COMMITTED,
    EXACTLY,
    HOLDS,
    KEY,
    LINEAGE,
    NO_ORDER,
    ONE_TO_ONE,
    PER_PARTITION,
    UNKNOWN,
    UNSURE,
    Judgement,
    Pair,
    Policy,
    Range,
    judge,
)
from topicproof.backend.watch import pair_store as pair_store_module
from topicproof.backend.watch.identities import SLICES, Identities, digest, numbers_of
from topicproof.backend.watch.pair_store import PairStore, StateTooLarge, pair_store
from topicproof.backend.watch.record_reader import MatchTerms, PlaceReader
from topicproof.validators.expectation import REQUIRED
from topicproof.validators.finding import Finding, Guarantee, Outcome
from topicproof.validators.increments import watched_pair
from topicproof.validators.increments.watch_verdict import (
    WATCHED,
    WatchTerms,
    WatchVerdict,
    verdict_of,
)
from topicproof.validators.increments.watched_pair import (
    NO_PARTITION,
    NO_ROWS,
    UNNAMED_MAX,
    SinkRows,
    SourceSpan,
    UnreadableRange,
    WatchedPair,
    rows_together,
)
from topicproof.validators.lineage.compact import COMPACT_HEADER, format_compact
from topicproof.validators.lineage.headers import Lineage

PAIRS, SEED = 120, 7
ALL = watched_pair.KEPT_OFFSETS
FOR_EVER = 10**15


def offsets(values: list[int]) -> npt.NDArray[np.int64]:
    return np.array(sorted(values), np.int64)


def rows_of(records: Sequence[tuple[int, ...]]) -> SinkRows:
    return SinkRows(*np.array(records, np.int64).reshape(-1, 9).T)


def watched(pair: Pair, chance: random.Random, apart: int, store: PairStore) -> WatchVerdict:
    """Fold a pair in slices of random lengths. The source is not always ahead of the sink. At
    random moments the watch is killed, and goes on from the disk. `apart`: how far two neighbours
    of the source are apart."""
    by_key = pair.by_key
    state = WatchedPair(
        "letters", "sink", outputs=1, within_ms=chance.choice((0, 10)), by_key=by_key
    )
    store.forget()
    identities = store.identities("pair")
    pair = replace(
        pair,
        source=tuple(replace(one, offset=one.offset * apart) for one in pair.source),
        sink=tuple(
            one
            if one.lineage is None
            else replace(one, lineage=(one.lineage[0], one.lineage[1] * apart, one.lineage[2]))
            for one in pair.sink
        ),
        source_ranges=tuple(Range(*(end * apart for end in each)) for each in pair.source_ranges),
    )
    for number, bounds in enumerate(pair.source_ranges):
        state.source_lost[number] += bounds.start
    for number, bounds in enumerate(pair.sink_ranges):
        state.sink_lost[number] += bounds.start
    source_at = [bounds.start for bounds in pair.source_ranges]
    sink_at = [bounds.start for bounds in pair.sink_ranges]
    store.write("pair", state)
    everything = False
    while not everything:
        everything = chance.random() < 0.2
        before = source_at.copy(), sink_at.copy()
        for number, bounds in enumerate(pair.source_ranges):
            end = bounds.lso if everything else chance.randint(source_at[number], bounds.lso)
            new = [
                one
                for one in pair.source
                if one.partition == number and source_at[number] <= one.offset < end
            ]
            span = SourceSpan(
                number,
                source_at[number],
                end,
                bounds.hw,
                offsets([one.offset for one in new if one.fate == COMMITTED and not one.removed]),
                offsets([one.offset for one in new if one.fate == ABORTED and not one.removed]),
                offsets([one.offset for one in new if one.removed]),
            )
            if by_key:
                new = [one for one in new if one.fate == COMMITTED and not one.removed]
                named, taken = identities.add_inputs(
                    state, number, span.inputs, b"".join(digested(one.identity) for one in new), 0
                )
                span = span._replace(inputs=named)
            state.add_source(span, now_ms=0)
            if by_key:
                state.take_back(number, taken)
            source_at[number] = end
        records = []
        for number, bounds in enumerate(pair.sink_ranges):
            end = bounds.lso if everything else chance.randint(sink_at[number], bounds.lso)
            for one in pair.sink:
                if one.partition != number or not sink_at[number] <= one.offset < end:
                    continue
                state.sink_lost[number] += one.removed
                if one.fate == COMMITTED and not one.removed:
                    place = one.lineage if one.lineage and one.topic else (NO_PARTITION, 0, 0)
                    record = (number, one.offset, one.written, *place)
                    records.append((*record, *digest_of(one.identity), 1))
            sink_at[number] = end
        rows = rows_of(records)
        if by_key:
            ends = zip(source_at, pair.source_ranges, strict=True)
            is_read = all(at == bounds.hw for at, bounds in ends)
            rows = identities.resolve_outputs(state, rows, is_source_read=is_read)
        state.add_sink(rows)
        state.settle(5, is_sink_read=True, held=held_rows(state, identities))
        if chance.random() < 0.3:
            store.undo()
            (source_at, sink_at), everything = before, False
        else:
            store.write("pair", state)
        kept = store.read("pair")
        assert kept is not None
        state = kept
    held = held_rows(state, identities)
    state.settle(FOR_EVER, is_sink_read=True, held=held)
    judged = state.with_held(held)
    pending = [
        (
            *(one.partition, one.offset, one.written),
            *(one.lineage if one.lineage and one.topic else (NO_PARTITION, 0, 0)),
            *(*digest_of(one.identity), 1),
        )
        for one in pair.sink
        if pair.pending(one) and one.fate != ABORTED
    ]
    rows = rows_of(pending)
    if by_key:
        rows = rows_together((state.held, rows))
        rows = identities.resolve(rows, np.ones(rows.size, bool), is_counted=False)
    nameless = sum(one.identity is None for one in pair.sink if pair.pending(one)) * by_key
    held_back = min(judged.missing_count(), judged.missing_among(rows) + nameless)
    return verdict_of(judged, terms_of(pair), pending=held_back)


def held_rows(state: WatchedPair, identities: Identities) -> SinkRows:
    return identities.resolve_held(state) if state.by_key else state.held


def digested(identity: str | None) -> bytes:
    return digest(None if identity is None else identity.encode())


def digest_of(identity: str | None) -> tuple[int, int]:
    high, low = numbers_of(digested(identity))
    return int(high[0]), int(low[0])


def terms_of(pair: Pair) -> WatchTerms:
    at_least = pair.policy.guarantee == AT_LEAST
    guarantee = Guarantee.AT_LEAST_ONCE if at_least else Guarantee.EXACTLY_ONCE
    kinds = [kind for kind in REQUIRED[guarantee] if kind != "aborted_read"]
    if pair.policy.order == NO_ORDER:
        kinds.remove("order")
    return WatchTerms(guarantee, tuple(kinds), retained=pair.policy.retained)


@pytest.mark.parametrize(
    ("match", "guarantee", "order", "kept"),
    [
        pytest.param(LINEAGE, EXACTLY, PER_PARTITION, ALL, id="exactly-once"),
        pytest.param(LINEAGE, AT_LEAST, PER_PARTITION, 64, id="at-least-once-little-is-kept"),
        pytest.param(LINEAGE, EXACTLY, NO_ORDER, 64, id="no-order-little-is-kept"),
        pytest.param(KEY, EXACTLY, PER_PARTITION, ALL, id="by-key"),
        pytest.param(KEY, AT_LEAST, PER_PARTITION, 64, id="by-key-at-least-once"),
    ],
)
def test_increments_find_what_a_slow_judge_finds(
    match: str,
    guarantee: str,
    order: str,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Story: hostile pairs are folded in slices of random lengths, and the watch is killed between
    them. Each kind that a watch judges has the rows of the slow judge, and so has the verdict, also
    while outputs wait for inputs in open transactions of the source."""
    monkeypatch.setattr(watched_pair, "KEPT_OFFSETS", kept)
    chance, wrong, kinds = random.Random(SEED), [], Counter[str]()
    with pair_store(tmp_path / "pairs") as store:
        store.db.execute("pragma synchronous = off")
        stories = draw(PAIRS, SEED, Policy(match, ONE_TO_ONE, order, guarantee))
        pairs = [(story, simulate(story)) for story in stories]
        verdicts = [
            (story, pair, watched(pair, chance, 1 if kept == ALL else 40, store))
            for story, pair in pairs
            # By key, a check alone sees of which pending inputs there are outputs.
            if not (pair.by_key and any(pair.unsettled(one) for one in pair.source))
        ]
    for story, pair, verdict in verdicts:
        if "identity_disjoint" in verdict.by_kind and any(b.hw > b.lso for b in pair.sink_ranges):
            # A check sees that pending outputs have an input.
            continue
        slow = judge(pair)
        found = primary_rows(verdict, order)
        expected = Counter(
            {kind: n for (kind, cause), n in slow.rows.items() if cause is None and kind in WATCHED}
        )
        if found != expected or verdict.verdict != outcome_of(pair, slow, verdict):
            wrong.append(f"{told(story)}\n{verdict.verdict} {found}\n{slow}")
        kinds.update(expected)
    assert wrong == [], "\n\n".join([str(len(wrong)), *wrong[:4]])
    assert all(kinds[kind] for kind in terms_of(pair).kinds), kinds


def primary_rows(verdict: WatchVerdict, order: str) -> Counter[str]:
    rows = Counter({one.kind: one.primary for one in verdict.findings if one.kind in WATCHED})
    if order == NO_ORDER:
        del rows["order"]
    return +rows


def outcome_of(pair: Pair, slow: Judgement, verdict: WatchVerdict) -> str:
    """The slow judge's outcome. What differs on purpose: a watch judges up to the last stable
    offset, and says that a kind without anything to look at is unknown."""
    is_empty = any(
        one.kind in terms_of(pair).kinds and one.why.startswith("Nothing to look at")
        for one in verdict.findings
    )
    is_open = any(one.hw > one.lso for one in pair.sink_ranges)
    unsure = slow.premises or any(cause in UNSURE for _, cause in slow.rows)
    outcome = HOLDS if slow.outcome == UNKNOWN and is_open and not unsure else slow.outcome
    return UNKNOWN if outcome == HOLDS and is_empty else outcome


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE])
def test_a_copy_of_a_forgotten_input_is_no_violation(guarantee: Guarantee, tmp_path: Path) -> None:
    """Story: an input and its output grow older than `remember`, and the output is written again.
    Nothing tells that copy from an output without an input. A late output still has its input. An
    output without an input that came before is a violation."""
    state = WatchedPair("letters", "sink", outputs=1, within_ms=0, by_key=True)
    terms = WatchTerms(guarantee, REQUIRED[guarantee])
    with pair_store(tmp_path / "pairs") as store:
        identities = store.identities("pair")

        def fold(offset: int, key: str) -> WatchVerdict:
            row = (0, offset, offset, NO_PARTITION, 0, 0, *digest_of(key), 1)
            rows = rows_of([row])
            state.add_sink(identities.resolve_outputs(state, rows, is_source_read=True))
            state.settle(offset, is_sink_read=True)
            return verdict_of(state, terms)

        none = offsets([])
        keys = digested("a") + digested("late")
        inputs, _ = identities.add_inputs(state, 0, offsets([0, 1]), keys, now_s=0)
        state.add_source(SourceSpan(0, 0, 2, 2, inputs, none, none), now_ms=0)
        fold(0, "a")
        for turn in range(SLICES):
            identities.forget(state, turn, before_s=1, open_before_s=-1)
        assert (fold(1, "late").verdict, state.counts.forgotten) == (Outcome.HOLDS, 1)
        copy = fold(2, "a")
        assert (copy.verdict, copy.by_kind["phantom"].count) == (Outcome.UNKNOWN, 1)
        assert "older than `remember`" in copy.why
        state.counts.forgotten = 0
        assert fold(3, "of no input").verdict is Outcome.VIOLATED


def test_an_input_without_an_output_is_forgotten_too(tmp_path: Path) -> None:
    """Story: an input never gets an output, and two share an identity. When they are older than
    `remember`, nothing of them is left on disk. The gap stays, and the verdict says that their
    outputs are not recognized. One that comes so late makes the gap unknown."""
    state = WatchedPair("letters", "sink", outputs=1, within_ms=0, by_key=True)
    terms = WatchTerms(Guarantee.EXACTLY_ONCE, REQUIRED[Guarantee.EXACTLY_ONCE])
    none = offsets([])
    with pair_store(tmp_path / "pairs") as store:
        identities = store.identities("pair")
        keys = [digested(key) for key in ("a", "lost", "shared", "shared", "young")]
        for first, end, now_s in ((0, 4, 10), (4, 5, 99)):
            inputs = offsets(list(range(first, end)))
            digests = b"".join(keys[first:end])
            named, _ = identities.add_inputs(state, 0, inputs, digests, now_s)
            state.add_source(SourceSpan(0, first, end, 5, named, none, none), now_ms=0)

        def fold(offset: int, key: str) -> WatchVerdict:
            row = (0, offset, offset, NO_PARTITION, 0, 0, *digest_of(key), 1)
            state.add_sink(identities.resolve_outputs(state, rows_of([row]), is_source_read=True))
            state.settle(1, is_sink_read=True)
            return verdict_of(state, terms)

        fold(0, "a")
        for turn in range(SLICES):
            identities.forget(state, turn, before_s=50, open_before_s=50)
        left = "select (select count(*) from identity), (select count(*) from shared)"
        assert store.db.execute(left).fetchone() == (1, 0)
        assert (state.counts.forgotten, state.counts.forgotten_open) == (4, 3)
        state.counts.shared_identities = 0
        before = fold(1, "young").by_kind["gap"]
        assert (before.primary, before.outcome) == (3, Outcome.VIOLATED)
        assert "3 inputs without an output are older than `remember`" in before.why
        after = fold(2, "lost").by_kind["gap"]
        assert (after.primary, after.explained_by) == (2, "forgotten")


def test_the_first_copy_may_be_a_record_without_a_key(tmp_path: Path) -> None:
    """Story: a sink at least once by key has a record without a key, then the output of a later
    input before that of an earlier one. The latter may be a copy of the first record, so nothing is
    known of the order. A check says the same."""
    state, none = WatchedPair("letters", "sink", outputs=1, within_ms=0, by_key=True), offsets([])
    guarantee = Guarantee.AT_LEAST_ONCE
    with pair_store(tmp_path / "pairs") as store:
        identities = store.identities("pair")
        keys = digested("a") + digested("b")
        named, _ = identities.add_inputs(state, 0, offsets([0, 1]), keys, now_s=0)
        state.add_source(SourceSpan(0, 0, 2, 2, named, none, none), now_ms=0)
        written = [digest_of(None), digest_of("b"), digest_of("a")]
        rows = rows_of([(0, at, at, NO_PARTITION, 0, 0, *key, 1) for at, key in enumerate(written)])
        state.add_sink(identities.resolve_outputs(state, rows, is_source_read=True))
        state.settle(1, is_sink_read=True)
    order = verdict_of(state, WatchTerms(guarantee, REQUIRED[guarantee])).by_kind["order"]
    assert (order.count, order.primary, order.explained_by) == (1, 0, "identity_missing")
    assert order.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("cause", ["unreadable", "identity_missing"])
def test_records_that_nobody_can_name_excuse_no_later_input(cause: str, tmp_path: Path) -> None:
    """Story: two records of the sink cannot be read, or hold no identity. Each
    may be the output of an input that was there before it. Inputs that come later, and find no
    output, have lost it: also after a restart."""
    state, none = WatchedPair("numbers", "sink", outputs=1, within_ms=0), offsets([])

    def fold(inputs: list[int], outputs: list[int]) -> Finding:
        end = inputs[-1] + 1
        state.add_source(SourceSpan(0, inputs[0], end, end, offsets(inputs), none, none), now_ms=0)
        records = [(0, at, at, 0, at, 0, 0, 0, 1) for at in outputs]
        state.add_sink(rows_of(records) if records else NO_ROWS)
        state.settle(1, is_sink_read=True)
        terms = WatchTerms(Guarantee.EXACTLY_ONCE, REQUIRED[Guarantee.EXACTLY_ONCE])
        return verdict_of(state, terms).by_kind["gap"]

    if cause == "unreadable":
        state.note_unreadable(UnreadableRange(False, 0, 9, 10, 2, "It is broken."))
    else:
        state.counts.nameless_outputs = 2
    first = fold([0, 1, 2, 3], [0, 1, 2])
    assert (first.primary, first.explained_by, first.outcome) == (0, cause, Outcome.UNKNOWN)
    with pair_store(tmp_path / "pairs") as store:
        store.write("pair", state)
        state = store.read("pair") or state
    later = fold([4, 5], [])
    assert (later.count, later.primary, later.outcome) == (3, 2, Outcome.VIOLATED)
    # One of the records was taken for the output of an early input: no later one is excused by it.
    assert fold([6], [3, 4, 5]).primary == 1
    # A record that comes now may be that of any input so far.
    state.counts.unread_outputs += 1
    assert fold([7], []).primary == 1


def test_records_without_an_identity_at_every_look_excuse_no_later_input() -> None:
    """Story: a stray record comes at each of many looks, and all inputs have their outputs. Then
    five outputs are lost, and one stray record comes. It is at most one of them."""
    state, none = WatchedPair("numbers", "sink", outputs=1, within_ms=0), offsets([])
    for look in range(3 * UNNAMED_MAX):
        state.add_source(
            SourceSpan(0, look, look + 1, look + 1, offsets([look]), none, none), now_ms=0
        )
        state.counts.nameless_outputs += 1
        state.add_sink(rows_of([(0, look, look, 0, look, 0, 0, 0, 1)]))
        state.settle(1, is_sink_read=True)
    first = 3 * UNNAMED_MAX
    lost = list(range(first, first + 5))
    state.add_source(SourceSpan(0, first, first + 5, first + 5, offsets(lost), none, none), 0)
    state.counts.nameless_outputs += 1
    state.settle(2, is_sink_read=True)
    assert len(state.unnamed["identity_missing"]) == UNNAMED_MAX
    assert (state.missing_count(), state.excusable(["identity_missing"])) == (5, 1)


def test_a_copy_that_waits_becomes_the_output_of_a_later_twin(tmp_path: Path) -> None:
    """Story: a stray output waits for its input, and behind it wait two outputs of one key. Then
    the source has that key again. The second output is no copy, and the watch goes on. A third
    output is a copy, once it is folded. Neither is a count ever below zero."""
    state = WatchedPair("letters", "sink", outputs=1, within_ms=0, by_key=True)
    none = offsets([])
    with pair_store(tmp_path / "pairs") as store:
        identities = store.identities("pair")

        def read_input(offset: int, key: str) -> None:
            named, taken = identities.add_inputs(state, 0, offsets([offset]), digested(key), 0)
            span = SourceSpan(0, offset, offset + 1, 3, named, none, none)
            state.add_source(span, now_ms=0)
            state.take_back(0, taken)

        def fold(first: int, *keys: str, is_source_read: bool) -> Counter[str | None]:
            rows = rows_of(
                [
                    (0, first + at, 1, NO_PARTITION, 0, 0, *digest_of(key), 1)
                    for at, key in enumerate(keys)
                ]
            )
            rows = identities.resolve_outputs(state, rows, is_source_read=is_source_read)
            state.add_sink(rows)
            state.settle(1, is_sink_read=True)
            return +state.causes.get("duplicate", Counter())

        read_input(0, "twice")
        copies = fold(0, "stray", "twice", "twice", is_source_read=False)
        assert (copies, state.held.size, state.waiting()) == (Counter(), 3, 1)
        read_input(1, "twice")
        assert state.causes.get("duplicate", Counter())[None] == 0
        copies = fold(3, "twice", is_source_read=False)
        assert (copies, state.held.size) == (Counter(), 4)
        read_input(2, "other")
        copies = fold(4, "other", is_source_read=True)
        assert (copies, state.held.size, state.missing_count()) == ({None: 1}, 0, 0)
        state.take_back(0, offsets([0, 1, 2]))
        assert state.causes["duplicate"][None] == 0
    assert state.causes["phantom"] == {None: 1}


@pytest.mark.parametrize("is_behind", [True, False], ids=["behind", "pending"])
@pytest.mark.parametrize("has_twin", [True, False], ids=["a-twin", "no-twin"])
def test_an_output_whose_input_may_not_be_read_yet_is_no_copy(
    has_twin: bool, is_behind: bool, tmp_path: Path
) -> None:
    """Story: an input has two outputs, in two partitions of the sink, and the source is not read to
    its end, or has an open transaction. The second output waits, and with it all behind it, until
    the rest of the source is read. If that has the key again, it is no copy. Another key's copy is
    told meanwhile. The watch is started anew at each step."""
    state = WatchedPair("letters", "sink", outputs=1, within_ms=0, by_key=True)
    none = offsets([])
    with pair_store(tmp_path / "pairs") as store:
        identities = store.identities("pair")

        def read_inputs(first: int, *keys: str) -> None:
            at = offsets(list(range(first, first + len(keys))))
            digests = b"".join(map(digested, keys))
            named, taken = identities.add_inputs(state, 0, at, digests, now_s=0)
            state.add_source(SourceSpan(0, first, first + len(keys), 3, named, none, none), 0)
            state.take_back(0, taken)

        def copies(*records: tuple[int, int, str], is_read: bool = False) -> Counter[str | None]:
            nonlocal state

            def unread() -> set[tuple[int, int]] | None:
                return None if is_behind else {digest_of("twice")}

            rows = rows_of(
                [(p, at, 1, NO_PARTITION, 0, 0, *digest_of(key), 1) for p, at, key in records]
            )
            rows = identities.resolve_outputs(state, rows, is_source_read=is_read, unread=unread)
            state.add_sink(rows)
            held = identities.resolve_held(state, unread)
            state.settle(1, is_sink_read=True, held=held)
            store.write("pair", state)
            state = store.read("pair") or state
            return +state.with_held(held).causes.get("duplicate", Counter())

        read_inputs(0, "twice", "other")
        assert copies((0, 0, "twice"), (0, 1, "other")) == {}
        assert copies((1, 0, "twice"), (1, 1, "other")) == (
            {"pending": 2} if is_behind else {"pending": 1, None: 1}
        )
        assert state.held.size == 2
        read_inputs(2, "twice" if has_twin else "third")
        assert copies(is_read=True) == {None: 1 if has_twin else 2}
        assert (state.held.size, state.missing_count()) == (0, int(not has_twin))


@pytest.mark.parametrize("ranges", [ALL, 4], ids=["all-ranges", "few-ranges"])
def test_a_partition_that_lost_offsets_forgets_all_the_same(
    ranges: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Story: compaction and retention remove inputs of a partition before they are read, and it
    goes on for long. Its state does not grow. An output of an old removed input is no copy, a
    second one is, and a copy of an old input is one. Where too many holes are, nothing is known."""
    monkeypatch.setattr(watched_pair, "KEPT_OFFSETS", 128)
    monkeypatch.setattr(watched_pair, "GONE_RANGES_MAX", ranges)
    state, none = WatchedPair("letters", "sink", outputs=1, within_ms=0), offsets([])
    sink_end = 0

    def write(*places: int) -> None:
        nonlocal sink_end
        at = range(sink_end, sink_end + len(places))
        rows = [
            (0, offset, offset, 0, place, 0, 0, 0, 1)
            for offset, place in zip(at, places, strict=True)
        ]
        state.add_sink(rows_of(rows))
        state.settle(1, is_sink_read=True)
        sink_end += len(places)

    with pair_store(tmp_path / "pairs") as store:
        for first in range(0, 6_400, 64):
            gone = [first + 1, first + 2, first + 40]
            inputs = [offset for offset in range(first, first + 64) if offset not in gone]
            span = SourceSpan(0, first, first + 64, 6_400, offsets(inputs), none, offsets(gone))
            state.add_source(span, now_ms=0)
            write(*(offset for offset in inputs if offset != 131), *([1] * (first == 0)))
            store.write("pair", state)
            state = store.read("pair") or state
        part = state.sources[0]
        assert part.floor == part.gone.floor > 6_000
        assert len(part.gone_below) == (2 * part.floor // 64 if ranges == ALL else 3)
        write(131)
        assert state.missing_count() == 0, "an old gap is filled"
        state.causes.clear()
        # A removed input whose output came before, one whose output did not, a copy, and another.
        write(1, 2, 5, 2)
    expected = {"duplicate": {None: 3}, "phantom": {"source_removed": 3}}
    if ranges != ALL:
        expected = {"phantom": {"forgotten": 4}}
    assert {kind: state.causes[kind] for kind in expected} == expected
    assert ("duplicate" in state.causes) == (ranges == ALL)


def test_a_state_that_is_too_large_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Story: a pair has more to remember than a state may hold. Nothing is written that is not read
    afterwards: the state before remains."""
    state, none = WatchedPair("letters", "sink", outputs=1, within_ms=0), offsets([])
    with pair_store(tmp_path / "pairs") as store:
        store.write("pair", state)
        monkeypatch.setattr(pair_store_module, "BYTES_MAX", 20_000)
        inputs = offsets(list(range(0, 10**6, 64)))
        state.add_source(SourceSpan(0, 0, 10**6, 10**6, inputs, none, none), now_ms=0)
        with pytest.raises(StateTooLarge, match="takes more than 20,000 bytes"):
            store.write("pair", state)
        store.undo()
        before = store.read("pair")
    assert before is not None and not before.sources


def test_a_large_state_is_written_without_a_copy_of_it(tmp_path: Path) -> None:
    """Story: a busy pair is watched for hours, and its state is written every few seconds. The
    process does not need its memory twice for that."""
    state, none = WatchedPair("letters", "sink", outputs=1, within_ms=0), offsets([])
    end = 8 * 10**6
    for partition in range(8):
        span = SourceSpan(partition, 0, end, end, offsets([end - 1]), none, none)
        state.add_source(span, now_ms=0)
    size = sum(part.inputs.words.nbytes for part in state.sources.values())
    with pair_store(tmp_path / "pairs") as store:
        tracemalloc.start()
        store.write("pair", state)
        _now, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        read = store.read("pair")
    assert size > 7 * 10**6 and most < size / 2
    assert read is not None and read.sources[0].inputs.holds(offsets([end - 1])).all()


def test_one_stray_output_does_not_silence_a_watch_whose_source_is_never_read_to_its_end(
    tmp_path: Path,
) -> None:
    """Story: a transaction of the source is open at each look, and a stray record of the sink has a
    key that no input has. It waits until the source was read up to where it ended then. Lost
    outputs, copies and further strays are told look by look."""
    terms = WatchTerms(Guarantee.EXACTLY_ONCE, ("duplicate", "gap", "order", "phantom"))
    state = WatchedPair("letters", "sink", outputs=1, within_ms=10, by_key=True)
    none, sink_end = offsets([]), 0
    with pair_store(tmp_path / "pairs") as store:
        for look in range(30):
            identities = store.identities("pair")
            first, end = look * 10, look * 10 + 10
            digests = b"".join(digested(str(offset)) for offset in range(first, end))
            named, _ = identities.add_inputs(
                state, 0, offsets(list(range(first, end))), digests, now_s=0
            )
            # Five more are in a transaction that is open.
            state.add_source(SourceSpan(0, first, end, end + 5, named, none, none), now_ms=look)
            keys = [str(offset) for offset in range(first, end) if offset % 10 != 7]
            keys += ["stray"] if look in (1, 9) else [str(first)] if look == 20 else []
            rows = rows_of(
                [
                    (0, sink_end + at, look, NO_PARTITION, 0, 0, *digest_of(key), 1)
                    for at, key in enumerate(keys)
                ]
            )
            sink_end += rows.size
            state.sink_ends[0] = sink_end
            state.add_sink(identities.resolve_outputs(state, rows, is_source_read=False))
            state.settle(look, is_sink_read=True)
            store.write("pair", state)
            state = store.read("pair") or state
            if look in (1, 9):
                assert state.held.size
            if look in (4, 12):
                assert not state.held.size and state.awaited is None
        verdict = verdict_of(state, terms)
    counts = {finding.kind: finding.count for finding in verdict.findings}
    assert (counts["phantom"], counts["duplicate"], verdict.verdict) == (2, 1, Outcome.VIOLATED)
    # Those of the last looks are not late yet.
    assert counts["gap"] == state.missing_count() > 15


@pytest.mark.parametrize("by_key", [False, True], ids=["by-lineage", "by-key"])
def test_an_open_transaction_of_the_source_hides_nothing_else(by_key: bool, tmp_path: Path) -> None:
    """Story: a transaction of source partition 0 hangs, and the pipeline has read it all the same.
    Behind that output lie the others of a sink partition: one of them twice, one before an earlier
    one, and two are lost, of either source partition. All of that is told after a restart too, as a
    check tells it, and the first output waits. Then the transaction commits."""
    state = WatchedPair("letters", "sink", outputs=1, within_ms=10, by_key=by_key)
    terms, none = WatchTerms(Guarantee.EXACTLY_ONCE, REQUIRED[Guarantee.EXACTLY_ONCE]), offsets([])
    outputs = [(0, 0), (0, 4), (0, 1), *((1, at) for at in (0, 2, 3, 3, 1)), (0, 3)]
    counts = []
    with pair_store(tmp_path / "pairs") as store:
        identities = store.identities("pair")

        def read_source(partition: int, first: int, end: int, hw: int) -> None:
            added = offsets(list(range(first, end)))
            if by_key:
                keys = b"".join(digested(f"{partition}/{at}") for at in added)
                identities.add_inputs(state, partition, added, keys, now_s=0)
            state.add_source(SourceSpan(partition, first, end, hw, added, none, none), now_ms=0)

        def look(rows: SinkRows, now_ms: int, *, is_source_read: bool) -> WatchVerdict:
            nonlocal state
            if by_key:
                rows = identities.resolve_outputs(state, rows, is_source_read=is_source_read)
            state.add_sink(rows)
            held = held_rows(state, identities)
            state.settle(now_ms, is_sink_read=True, held=held)
            verdict = verdict_of(state.with_held(held), terms)
            store.write("pair", state)
            state = store.read("pair") or state
            counts.append({one.kind: (one.count, one.primary) for one in verdict.findings})
            return verdict

        read_source(0, 0, 4, 6)
        read_source(1, 0, 5, 5)
        places = [(NO_PARTITION, 0) if by_key else place for place in outputs]
        keys = [digest_of(f"{partition}/{at}" if by_key else None) for partition, at in outputs]
        rows = rows_of(
            [
                (0, at, at, *place, 0, *key, 1)
                for at, (place, key) in enumerate(zip(places, keys, strict=True))
            ]
        )
        early = look(rows, 5, is_source_read=False)
        late = look(NO_ROWS, 99, is_source_read=False)
        late_total, held_size = state.counts.late_total, state.held.size
        read_source(0, 4, 6, 6)
        ended = look(NO_ROWS, 100, is_source_read=True)
    assert (held_size, late_total, state.held.size) == (8, 2, 0)
    assert "gap" not in early.violating
    assert {*late.violating} == {"duplicate", "gap", "order"} and late.unknown == ("phantom",)
    assert late.by_kind["phantom"].explained_by == "pending"
    assert "open transaction" in late.by_kind["phantom"].examples[0].why
    assert counts[1] == {**counts[0], "gap": (2, 2)}
    assert ended.by_kind["phantom"].outcome is Outcome.HOLDS
    assert counts[2]["duplicate"] == counts[1]["duplicate"] == (1, 1)


def test_headers_that_a_sink_is_flooded_with_are_not_kept() -> None:
    """Story: somebody writes records to a sink whose `topicproof` header is a megabyte of anything,
    each another one."""
    reader = PlaceReader("letters", MatchTerms(by_key=False))
    place = format_compact(Lineage("letters", 2, 5, 0))
    contents = [bytes([1, number]) * 500_000 for number in range(20)]
    contents += [bytes([1, number]) * 1_000 for number in range(20)]
    messages = [
        Message("sink", 0, offset, b"", b"", [(COMPACT_HEADER, content)], timestamp=(1, 0))
        for offset, content in enumerate([*contents, place])
    ]
    rows = reader.rows(messages)
    assert rows.source_partition.tolist() == [NO_PARTITION] * 40 + [2]
    assert rows.source_offset[-1] == 5
    assert sum(map(len, reader.headers)) < 100
