"""Hands pairs of topics to the validators: many pairs as one ledger, each in partitions of its own.

`TOLD` names the facts that `report_of` and `rows_of` can tell the validators. Pairs with other
facts are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession, functions as F

from tests.validators.history import BEGAN, SINK, SOURCE, History
from tests.validators.pair_oracle import (
    AT_LEAST,
    BY_PLACE,
    COMMITTED,
    COUNTED,
    FILTERED,
    HEADER,
    KEY,
    LETTERS,
    LINEAGE,
    MANY,
    NAMELESS_LETTERS,
    NO_LETTERS,
    NO_ORDER,
    ONE_TO_ONE,
    PER_KEY,
    PER_PARTITION,
    PREMISES,
    VALUE,
    Pair,
    Policy,
    Record,
    judge as judge_slowly,
)
from topicproof.validators.circumstances import Circumstances, Growth, Removed
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.evidence import together
from topicproof.validators.expectation import (
    CONTRADICTIONS,
    EXEMPT,
    REQUIRED,
    counts,
    judge_rows,
    merge,
)
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Bounds, Guarantee, Order, Outcome, Part, PartitionBounds
from topicproof.validators.judge import judge
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.lineage.dead_letters import DeadLetters
from topicproof.validators.lineage.headers import LINEAGE_HEADER, Lineage, format_lineage
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.report import Report

APART = 4
"""How far the first partitions of two pairs are apart."""
NAME_HEADER = "id"
LETTER_TOPIC, LETTER_HEADER = "aside", "of"
TOLD = PREMISES | {
    "letters_removed",
    NAMELESS_LETTERS,
    "moving",
    "source_pending",
    "not due",
    "offset beyond the end",
}
"""Facts that are told, of those that `facts_of` names."""

EXPECTS = {
    ONE_TO_ONE: Expect.ONE_TO_ONE,
    FILTERED: Expect.ZERO_OR_ONE,
    COUNTED: Expect.ZERO_OR_ONE,
    MANY: Expect.ONE_TO_MANY,
}
ORDERS = {PER_PARTITION: Order.PER_SOURCE_PARTITION, PER_KEY: Order.PER_KEY, NO_ORDER: Order.NONE}
MATCHES = {
    LINEAGE: Match(),
    KEY: Match(),
    VALUE: Match(VALUE, VALUE),
    HEADER: Match(*[f"header:{NAME_HEADER}"] * 2),
}
Row = tuple[str, str | None]


@dataclass
class Facts:
    """What else is known of topics, besides their records and bounds: everything by the numbered
    partitions."""

    removed: dict[str, Counter[int]] = field(
        default_factory=lambda: {"source": Counter(), "sink": Counter()}
    )
    """How many records the raw log of each topic shows to be gone, by partition."""
    markers: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of the source's markers."""
    due: dict[int, int] = field(default_factory=dict)
    """Where what is due ends, by source partition; where topics move without a group, the
    validators find it."""
    moving: bool = False
    offsets: dict[int, int] | None = None
    """The group's offsets."""


def facts_of(pair: Pair) -> frozenset[str]:
    """What of a pair `build_ledger` must be told beyond readings, bounds, raw log and the group's
    offsets."""
    found = set(judge_slowly(pair).premises)
    if pair.policy.moving:
        found.add("moving")
    if pair.lost(pair.letters, (pair.letter_range,)):
        found.add("letters_removed")
    if any(pair.unsettled(one) for one in pair.source):
        found.add("source_pending")
    offsets = pair.offsets or {}
    if pair.policy.group and any(
        one.offset >= offsets.get(one.partition, 0) for one in pair.source
    ):
        found.add("not due")
    for partition, bounds in enumerate(pair.source_ranges):
        if (
            pair.policy.group
            and not bounds.start <= offsets.get(partition, bounds.start) <= bounds.hw
        ):
            found.add("offset beyond the end")
    return frozenset(found)


def is_told(pair: Pair) -> bool:
    return facts_of(pair) <= TOLD


def batch_of(pair: Pair) -> tuple[object, ...] | None:
    """Pairs with the same answer can share a ledger; None: the pair must be judged alone.

    The validators count some facts over the whole topic. They must be the same for all pairs of a
    ledger."""
    facts = facts_of(pair)
    unnamed = pair.policy.match != LINEAGE and any(one.identity is None for one in pair.source)
    if unnamed or facts & {"identity_missing", "identity_disjoint", NAMELESS_LETTERS}:
        return None
    return pair.policy, tuple(sorted(facts))


def history_of(pairs: Sequence[Pair]) -> tuple[History, Facts, list[tuple[int, int, int]]]:
    """All pairs as one, numbered through; what else is known; and each input's count of outputs."""
    made = History(Bounds(SINK, ()), Bounds(SOURCE, ()))
    facts, counts = Facts(moving=any(pair.policy.moving for pair in pairs)), []
    bounds: dict[str, list[PartitionBounds]] = {SINK: [], SOURCE: []}
    letters_from = APART * len(pairs)
    for number, pair in enumerate(pairs):
        first = APART * number
        for topic, ranges in ((SINK, pair.sink_ranges), (SOURCE, pair.source_ranges)):
            bounds[topic] += [PartitionBounds(first + at, *one) for at, one in enumerate(ranges)]
        _add_source(made, facts, number, pair)
        counts += [
            (first + one.partition, one.offset, one.expected)
            for one in pair.source
            if not one.removed
        ]
        _add_sink(made, number, pair, letters_from + number)
        for record in (*pair.sink, *pair.letters):
            if record.removed and record.offset >= pair.range_of(record.partition).start:
                is_letter = record.partition == LETTERS
                at = letters_from + number if is_letter else first + record.partition
                facts.removed["sink"][at] += 1
        if pair.policy.group:
            own = {first + partition: offset for partition, offset in (pair.offsets or {}).items()}
            facts.offsets = {**(facts.offsets or {}), **own}
            for at in range(len(pair.source_ranges)):
                facts.due[first + at] = own.get(first + at, 0)
    made.source_markers = facts.markers if facts.removed["source"] else None
    made.sink_bounds = Bounds(SINK, tuple(bounds[SINK]))
    if pairs[0].policy.letters != NO_LETTERS:
        of_letters = tuple(
            PartitionBounds(letters_from + number, *pair.letter_range)
            for number, pair in enumerate(pairs)
        )
        made.sink_bounds = Bounds(
            f"{SINK} + {LETTER_TOPIC}",
            (*bounds[SINK], *of_letters),
            (Part(SINK, 0), Part(LETTER_TOPIC, letters_from)),
        )
    made.source_bounds = Bounds(SOURCE, tuple(bounds[SOURCE]))
    return made, facts, counts


def ledger_of(spark: SparkSession, folder: Path, pairs: Sequence[Pair]) -> Ledger:
    """The one place that knows how `build_ledger` is told what a pair holds."""
    policy: Policy = pairs[0].policy
    made, facts, counts = history_of(pairs)
    count = spark.createDataFrame(counts, "partition int, offset long, count int")
    whole = made.source_bounds

    def ledger(due: Mapping[int, int] | None) -> Ledger:
        ends = {
            p.partition: p.lso if due is None else due.get(p.partition, p.start)
            for p in whole.partitions
        }
        cut = tuple(
            replace(p, lso=max(p.start, min(p.lso, ends[p.partition]))) for p in whole.partitions
        )
        made.source_bounds = replace(whole, partitions=cut)
        return made.ledger(
            spark,
            folder,
            identity=Identity.LINEAGE if policy.match == LINEAGE else Identity.KEY,
            expected=Expected(
                EXPECTS[policy.expect], count if policy.expect in (COUNTED, MANY) else None
            ),
            agreed=ContractTerms(
                match=MATCHES[policy.match],
                value="value" if policy.values else None,
                offsets=facts.offsets,
                repeats=policy.guarantee == AT_LEAST,
                retained=policy.retained,
                letters=None
                if policy.letters == NO_LETTERS
                else DeadLetters(
                    LETTER_TOPIC,
                    "connect" if policy.letters == BY_PLACE else f"header:{LETTER_HEADER}",
                ),
            ),
            order=ORDERS[policy.order],
            circumstances=_circumstances(made, facts, whole, policy),
        )

    if policy.group:
        return ledger(facts.due)
    first = ledger(None)
    return (
        ledger({p.partition: first.after(p.partition) for p in whole.partitions})
        if policy.moving
        else first
    )


def _circumstances(made: History, facts: Facts, source: Bounds, policy: Policy) -> Circumstances:
    lost = [
        {
            p.partition: Removed(p.start, facts.removed[side][p.partition])
            for p in bounds.partitions
            if p.start or facts.removed[side][p.partition]
        }
        for side, bounds in (("source", source), ("sink", made.sink_bounds))
    ]
    first = made.sink_bounds.partitions[0]
    return Circumstances(
        looked=True,
        source_removed=lost[0],
        sink_removed=lost[1],
        growth=(Growth("sink", first.partition, first.hw, first.hw + 1),) if policy.moving else (),
        watched=True,
        source_lso={p.partition: p.lso for p in source.partitions},
        due_told=policy.group,
    )


def report_of(spark: SparkSession, folder: Path, pair: Pair) -> Report:
    """The whole way: what a user would read of a pair."""
    return judge(ledger_of(spark, folder, [pair]), guarantee_of(pair.policy))


def rows_of(spark: SparkSession, folder: Path, pairs: Sequence[Pair]) -> list[Counter[Row]]:
    """For each pair of one ledger, how many rows of evidence there are by kind and cause."""
    ledger = ledger_of(spark, folder, pairs)
    if ledger.doubts:
        raise AssertionError(f"The readings of a pair are odd: {ledger.doubts}")
    # Advisory kinds never count, and each costs a part of the plan.
    asked = [one for one in VALIDATORS if counts(one.NAME)]
    frames = [(one.NAME, rows) for one in asked if (rows := one.find(ledger)) is not None]
    place = F.coalesce("partition", "source_partition").alias("place")
    every = together(
        [rows.select(F.lit(name).alias("kind"), "explained_by", place) for name, rows in frames]
    )
    found: list[Counter[Row]] = [Counter() for _ in pairs]
    if every is not None:
        for row in every.groupBy("kind", "explained_by", "place").count().collect():
            # Those of the dead letters come after all others.
            at = row["place"]
            number = at // APART if at < APART * len(pairs) else at - APART * len(pairs)
            found[number][row["kind"], row["explained_by"]] += row["count"]
    return found


def verdict_of(rows: Mapping[Row, int], pair: Pair) -> Outcome:
    """The verdict on a pair from its rows alone. That a kind has nothing to look at is not among
    them."""
    policy, guarantee = pair.policy, guarantee_of(pair.policy)
    group = ("offset_ahead", "offset_behind") if policy.group else ()
    asked = (*REQUIRED[guarantee], *(("wrong_value",) if policy.values else ()), *group)
    asked = (*asked, *(("both_outcomes",) if policy.letters != NO_LETTERS else ()))
    asked = tuple(one for one in asked if one not in EXEMPT[guarantee])
    required = {kind for kind in asked if kind != "order" or policy.order != NO_ORDER}
    outcomes = [Outcome.HOLDS]
    for kind in {kind for kind, _ in rows}:
        causes = {cause: count for (name, cause), count in rows.items() if name == kind}
        outcome = judge_rows(kind, causes, guarantee)
        contradicts = kind in CONTRADICTIONS[guarantee] and outcome is Outcome.VIOLATED
        if kind in required or kind in PREMISES or contradicts:
            outcomes.append(outcome)
    if not policy.moving and pair.is_open:
        outcomes.append(Outcome.UNKNOWN)
    return merge(outcomes)


def guarantee_of(policy: Policy) -> Guarantee:
    return Guarantee.AT_LEAST_ONCE if policy.guarantee == AT_LEAST else Guarantee.EXACTLY_ONCE


def _add_source(made: History, facts: Facts, number: int, pair: Pair) -> None:
    first = APART * number
    known = {(given.partition, given.offset) for given in pair.source}
    for at, one in enumerate(pair.source_ranges):
        facts.markers += [
            (first + at, offset)
            for offset in range(one.start, one.lso)
            if (at, offset) not in known
        ]
    for given in pair.source:
        place = first + given.partition, given.offset
        if given.removed:
            if given.offset >= pair.source_ranges[given.partition].start:
                facts.removed["source"][place[0]] += 1
            continue
        headers = None
        if pair.policy.match == HEADER and given.identity is not None:
            headers = [(NAME_HEADER, f"{number}:{given.identity}".encode())]
        row = (
            *place,
            BEGAN,
            *_bytes(number, pair.policy, given.key, given.value, given.identity),
            headers,
        )
        if pair.unsettled(given):
            made.pending.append(row)
        else:
            (made.source if given.fate == COMMITTED else made.aborted).append(row)


def _add_sink(made: History, number: int, pair: Pair, letters_at: int) -> None:
    """`letters_at`: the partition of the dead letters."""

    def at(partition: int) -> int:
        return letters_at if partition == LETTERS else APART * number + partition

    every = (*pair.sink, *pair.letters)
    kept = [one for one in every if not one.removed]
    for one in kept:
        row = (at(one.partition), *_row(number, pair, one))
        made.uncommitted.append(row)
        if one.fate == COMMITTED and not pair.pending(one):
            made.committed.append(row)
    sequences: Counter[tuple[int, int]] = Counter()
    for one in sorted(every, key=lambda each: each.offset):
        transactional = one.transaction is not None
        producer, sequence = -1, -1
        if one.transaction is not None:
            producer = _producer(number, one.transaction)
            sequence = sequences[one.partition, producer]
            sequences[one.partition, producer] += 1
        if not one.removed:
            batch = (
                at(one.partition),
                one.offset,
                one.offset,
                1,
                producer,
                0 if transactional else -1,
                sequence,
            )
            made.batches.append((*batch, transactional, None, 0, 0, 100, "none", 0))
    for marker in pair.markers:
        if marker.offset >= pair.range_of(marker.partition).start:
            control = "COMMIT" if marker.commits else "ABORT"
            place = at(marker.partition), marker.offset
            producer = _producer(number, marker.transaction)
            made.batches.append(
                (*place, marker.offset, 1, producer, 0, -1, True, control, 0, 0, 100, "none", 0)
            )
    made.batches.sort(key=lambda each: (each[0], each[1]))


def _row(number: int, pair: Pair, one: Record) -> tuple[object, ...]:
    """Its time, key, value and headers, behind its offset."""
    headers = None
    if one.lineage is not None:
        partition, offset, index = one.lineage
        topic = SOURCE if one.topic else "letters"
        headers = [
            (
                LINEAGE_HEADER,
                format_lineage(Lineage(topic, APART * number + partition, offset, index)),
            )
        ]
    elif one.partition == LETTERS and one.identity is not None:
        headers = [(LETTER_HEADER, f"{number}:{one.identity}".encode())]
    elif pair.policy.match == HEADER and one.identity is not None:
        headers = [(NAME_HEADER, f"{number}:{one.identity}".encode())]
    written = BEGAN + timedelta(seconds=one.written)
    content = _bytes(number, pair.policy, one.key, one.value, one.identity)
    if one.partition == LETTERS:
        content = None, one.value.encode()
    return (one.offset, written, *content, headers)


def _bytes(
    number: int, policy: Policy, key: str | None, value: str, identity: str | None
) -> tuple[bytes | None, bytes | None]:
    """Key and value. The one that is the identity carries the pair's number, so that no two pairs
    match."""
    if policy.match == KEY:
        return _named(number, identity), value.encode()
    held = None if key is None else key.encode()
    return (held, _named(number, identity)) if policy.match == VALUE else (held, value.encode())


def _named(number: int, identity: str | None) -> bytes | None:
    return None if identity is None else f"{number}:{identity}".encode()


def _producer(number: int, transaction: int | None) -> int:
    return 1_000 * (number + 1) + (transaction or 0)
