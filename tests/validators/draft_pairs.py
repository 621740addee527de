"""Contracts that `contract init` would draft from hostile pairs, judged without a change.

A pair is drawn and simulated as in hostile_pairs.py, but larger. Its records are given keys,
headers and JSON values as foreign programs write them. The draft sees only the newest of them. The
contract that it drafts is judged by the slow judge of pair_oracle.py, with which the validators
agree, and held to the truth: no draft may hold over a loss or a repetition.

    python -m tests.validators.draft_pairs --pairs 5000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from tests.validators.hostile_pairs import (
    MISSING,
    MISTAKES,
    READINGS,
    REMOVALS,
    Op,
    Story,
    simulate,
    told,
)
from tests.validators.pair_oracle import (
    COMMITTED,
    COUNTED,
    FILTERED,
    HEADER,
    HOLDS,
    KEY,
    LINEAGE,
    MANY,
    NO_ORDER,
    ONE_TO_ONE,
    PER_KEY,
    PER_PARTITION,
    VALUE,
    Input,
    Pair,
    Policy,
    Record,
    Truth,
    judge,
)
from topicproof.backend.contracts.contract import Contract, make_contract
from topicproof.backend.contracts.draft import Draft, draft_from
from topicproof.backend.contracts.identity_candidates import document
from topicproof.backend.contracts.sample import Sample, outputs_of_lineage, texts_at
from topicproof.backend.errors import ContractError
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Fate, Order
from topicproof.validators.lineage.headers import LINEAGE_HEADER, Lineage, format_lineage
from topicproof.validators.lineage.identity import Identity

log = logging.getLogger(__name__)

SOURCE, SINK = "orders", "lines"
WRONG = {"loss", "duplicate"}
BROKEN, STRANGE, COPIES, OTHERS = KINDS = (
    "broken: a loss or a repetition",
    "otherwise wrong",
    "healthy, one output of each input",
    "healthy, filters and several outputs",
)
ASKED, NOTHING = "asks a person", "no identity"
ORDERS = {
    Order.PER_SOURCE_PARTITION: PER_PARTITION,
    Order.PER_KEY: PER_KEY,
    Order.NONE: NO_ORDER,
}


@dataclass(frozen=True)
class DraftStory:
    """A story, and how its records look and are sampled."""

    story: Story
    inputs: int
    """Number of newest inputs in the sample."""
    outputs: int
    looked_up: int
    """Number of newest outputs among which others are looked up."""
    own_keys: bool
    """Whether each output has a key of its own."""
    tries: bool
    """Whether a field of the inputs says how often each was written."""


@dataclass(frozen=True)
class Checked:
    """A drafted contract with its verdict."""

    draft: Draft
    outcome: str
    """The verdict; `ASKED` or `NOTHING` without one."""
    wrong: frozenset[str]
    """What is wrong with the pair for certain, as what its pipeline promises has it."""


def draw(count: int, seed: int) -> list[DraftStory]:
    """Draw stories, the same ones for the same seed."""
    chance = random.Random(seed)
    return [_draw(chance) for _ in range(count)]


def _draw(chance: random.Random) -> DraftStory:
    """Half of the stories have no mistake at all, so that healthy pairs are drafted too."""
    policy = Policy(
        chance.choice((LINEAGE, KEY, VALUE, HEADER, HEADER)),
        chance.choice((ONE_TO_ONE, ONE_TO_ONE, ONE_TO_ONE, FILTERED, COUNTED, MANY)),
        NO_ORDER,
    )

    def ops(likely: float, kinds: Sequence[str], most: int, b: int = 11) -> list[Op]:
        count = chance.randint(1, most) if chance.random() < likely else 0
        return [
            Op(
                chance.choice(kinds),
                chance.randint(0, 59),
                chance.randint(0, b),
                chance.randint(0, 9),
            )
            for _ in range(count)
        ]

    size = chance.choice((3, 12, 40, 60))
    every = [Op("input", chance.randint(0, 2), chance.randint(0, 3), 0) for _ in range(size)]
    every += ops(0.3, ("chunk",), 4, b=5)  # Committed, or retried after an abort.
    every += ops(0.4, ("shuffled", "blocks"), 1)
    if policy.expect != ONE_TO_ONE:
        every += [Op("count", at, chance.randint(0, 3)) for at in range(size)]
    if chance.random() < 0.6:
        every += ops(0.1, ("chunk",), 2, b=7)
        every += ops(0.6, MISTAKES, 4)
        every += ops(0.5, READINGS, 1)
        every += ops(0.2, ("lose",), 30)
        every += ops(0.2, ("duplicate",), 30)
        every += ops(0.1, ("twin",), 3)
        every += ops(0.1, MISSING, 1)
        every += ops(0.15, REMOVALS, 2)
    story = Story(policy, chance.randint(1, 3), chance.randint(1, 3), tuple(every))
    return DraftStory(
        story,
        inputs=chance.choice((size, size, max(2, size // 2))),
        outputs=chance.choice((3 * size, size, max(2, size // 3))),
        looked_up=chance.choice((4 * size, 4 * size, size // 2)),
        own_keys=chance.random() < 0.5,
        tries=chance.random() < 0.3,
    )


def check(drawn: DraftStory) -> Checked:
    """Draft a contract from a pair and judge the pair by it, with nothing filled in."""
    pair = simulate(drawn.story)
    truth = Truth(pair)
    wrong = frozenset(truth.breaks(list(truth.sink)))
    inputs, outputs = _inputs(drawn, pair), _outputs(drawn, pair)
    if not inputs or not outputs:
        return Checked(Draft("", "", found=False), NOTHING, wrong)
    source = _newest(SOURCE, inputs, drawn.inputs, is_kept=_is_kept(pair.source_ranges))
    sink = _newest(SINK, outputs, drawn.outputs, is_kept=_is_kept(pair.sink_ranges))
    draft = draft_from(source, sink, older=_older(drawn, pair, outputs))
    if not draft.found:
        return Checked(draft, NOTHING, wrong)
    try:
        contract = make_contract(yaml.safe_load(draft.text))
    except ContractError:
        return Checked(draft, ASKED, wrong)
    return Checked(draft, judge(_as_drafted(pair, contract, inputs, outputs)).outcome, wrong)


def _inputs(drawn: DraftStory, pair: Pair) -> list[Row]:
    """The committed inputs that Kafka still holds, as a consumer receives them."""
    times = Counter(
        one.origin[:2] for one in pair.sink if one.origin is not None and one.fate == COMMITTED
    )
    rows = []
    for number, one in enumerate(pair.source):
        if one.fate == COMMITTED and not one.removed and not pair.unsettled(one):
            fields: dict[str, Any] = {"v": one.value, "items": ["x"] * one.expected}
            if drawn.tries:
                fields["tries"] = times[one.partition, one.offset]
            rows.append(_row(pair, one, number, one.key, fields))
    return rows


def _outputs(drawn: DraftStory, pair: Pair) -> list[Row]:
    rows = []
    for one in pair.sink:
        if one.fate == COMMITTED and not one.removed and not pair.pending(one):
            key = f"k{one.written}" if drawn.own_keys else one.key
            rows.append(_row(pair, one, one.written, key, {"v": one.value, "at": one.written}))
    return rows


def _row(
    pair: Pair, one: Input | Record, time: int, key: str | None, fields: Mapping[str, Any]
) -> Row:
    match = pair.policy.match
    headers: list[tuple[str, bytes | None]] = []
    value = json.dumps(fields).encode()
    if match == KEY:
        key = one.identity
    elif match == VALUE:
        value = (one.identity or "").encode()
    elif match == HEADER and one.identity is not None:
        headers = [("id", one.identity.encode())]
    elif isinstance(one, Record) and one.lineage is not None:
        topic = SOURCE if one.topic else "others"
        headers = [(LINEAGE_HEADER, format_lineage(Lineage(topic, *one.lineage)))]
    return Row(
        partition=one.partition,
        offset=one.offset,
        timestamp_ms=time,
        key=None if key is None else key.encode(),
        value=value,
        headers=tuple(headers),
        size=len(value),
        fate=Fate.COMMITTED,
        producer_id=None,
    )


def _newest(topic: str, rows: Sequence[Row], count: int, *, is_kept: bool) -> Sample:
    return _sample(topic, _by_age(rows)[:count], whole=is_kept and len(rows) < count)


def _older(drawn: DraftStory, pair: Pair, rows: Sequence[Row]) -> Iterator[Sample]:
    """What `older_outputs` would yield: all but the sample, in two parts."""
    others = _by_age(rows)[drawn.outputs : drawn.looked_up]
    is_all = drawn.looked_up >= len(rows) and _is_kept(pair.sink_ranges)
    yield _sample(SINK, others[::2], whole=False)
    yield _sample(SINK, others[1::2], whole=is_all)


def _by_age(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.timestamp_ms, row.offset), reverse=True)


def _is_kept(ranges: Sequence[Any]) -> bool:
    return not any(one.start for one in ranges)


def _sample(topic: str, rows: Sequence[Row], *, whole: bool) -> Sample:
    return Sample(topic, tuple(rows), whole, [document(row) for row in rows])


def _as_drafted(
    pair: Pair, contract: Contract, inputs: Sequence[Row], outputs: Sequence[Row]
) -> Pair:
    """The same topics as the drafted contract sees them: its identities, counts and order."""
    source, sink = (_sample(SOURCE, inputs, whole=True), _sample(SINK, outputs, whole=True))
    expect = {
        Expect.ONE_TO_ONE: ONE_TO_ONE,
        Expect.ONE_TO_MANY: MANY,
        Expect.ZERO_OR_ONE: FILTERED if contract.count is None else COUNTED,
    }[contract.expect]
    by_lineage = contract.by is Identity.LINEAGE
    match = LINEAGE if by_lineage else HEADER
    policy = Policy(match, expect, ORDERS[contract.order])
    counts = {
        (row.partition, row.offset): _count(contract, content)
        for row, content in zip(inputs, source.documents, strict=True)
    }
    if by_lineage:
        assert outputs_of_lineage(sink, SOURCE)
        texts: list[dict[tuple[int, int], Hashable]] = [{}, {}]
    else:
        match_of = contract.terms(None).match
        texts = [
            {
                (row.partition, row.offset): text
                for row, text in zip(rows, texts_at(sample, part), strict=True)
            }
            for rows, sample, part in (
                (inputs, source, match_of.source),
                (outputs, sink, match_of.sink),
            )
        ]

    def identity(side: int, one: Input | Record) -> str | None:
        text = texts[side].get((one.partition, one.offset))
        return None if text is None else repr(text)

    return replace(
        pair,
        policy=policy,
        source=tuple(
            replace(
                one,
                identity=identity(0, one),
                expected=counts.get((one.partition, one.offset), 1),
            )
            for one in pair.source
        ),
        sink=tuple(
            replace(
                one,
                identity=identity(1, one),
                lineage=one.lineage if by_lineage else None,
                key=_key(one, outputs),
            )
            for one in pair.sink
        ),
    )


def _count(contract: Contract, content: Any) -> int:
    """Compute a drafted count, which is the length of the array `items` if it is a count at all."""
    if contract.count is None:
        return 1
    if contract.count == "json_array_length(get_json_object(value, '$.items'))":
        return len(content["items"])
    raise AssertionError(f"A draft writes a count that nobody has promised: {contract.count}")


def _key(one: Record, outputs: Sequence[Row]) -> str | None:
    """The key that the sink's record really has."""
    for row in outputs:
        if (row.partition, row.offset) == (one.partition, one.offset):
            return None if row.key is None else repr(row.key)
    return one.key


def false_drafts(stories: Sequence[DraftStory]) -> tuple[list[str], dict[str, Counter[str]]]:
    """Return each draft that holds over a loss or a repetition, for a person to read; and how many
    drafts of broken and of healthy pairs had each outcome."""
    false: list[str] = []
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for drawn in stories:
        checked = check(drawn)
        lost = checked.wrong & WRONG
        outcomes[_kind(drawn, checked)][checked.outcome] += 1
        if lost and checked.outcome == HOLDS:
            false.append(f"{sorted(lost)}\n{told(drawn.story)}\n{checked.draft.text}")
    return false, outcomes


def _kind(drawn: DraftStory, checked: Checked) -> str:
    if checked.wrong & WRONG:
        return BROKEN
    if checked.wrong:
        return STRANGE
    return COPIES if drawn.story.policy.expect == ONE_TO_ONE else OTHERS


def main() -> int:
    options = argparse.ArgumentParser(
        description="Draft a contract from each of many hostile pairs, and judge the pair by it."
    )
    options.add_argument("--pairs", type=int, default=5_000)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    false, outcomes = false_drafts(draw(asked.pairs, asked.seed))
    for text in false[:3]:
        log.info("%s", text)
    log.info(
        "%d pairs, seed %d. Drafts that held over a loss or a repetition: %d",
        asked.pairs,
        asked.seed,
        len(false),
    )
    for kind, counts in outcomes.items():
        log.info("%s: %s", kind, dict(counts.most_common()))
    return min(len(false), 1)


if __name__ == "__main__":
    raise SystemExit(main())
