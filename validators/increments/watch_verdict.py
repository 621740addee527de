"""From what a watch has folded to findings and a verdict, in the words of a check.

A watch judges the kinds of `WATCHED`. A kind that a contract requires and that is not among them is
unknown, never held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from topicproof.validators.expectation import (
    FORGOTTEN,
    PENDING,
    PREMISES,
    PROMISES,
    RANGE,
    UNREADABLE,
    judge_rows,
    merge,
)
from topicproof.validators.finding import Example, Finding, Guarantee, Outcome
from topicproof.validators.increments.watched_pair import UnreadableRange, WatchedPair
from topicproof.validators.kinds import (
    aborted_read,
    duplicate,
    gap,
    identity_disjoint,
    identity_missing,
    identity_repeated,
    order,
    phantom,
    reading_mismatch,
    recreated,
    sink_removed,
    source_removed,
)
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.sentences import counted
from topicproof.validators.verdict_sentence import finding_sentence

WATCHED = (duplicate.NAME, gap.NAME, order.NAME, phantom.NAME, aborted_read.NAME)
"""Kinds that can be judged increment by increment."""
PLACES_MAX = 3
"""A sentence names so many ranges that nobody reads."""
_VALIDATORS = {validator.NAME: validator for validator in VALIDATORS}


@dataclass(frozen=True)
class WatchTerms:
    """What a contract says that decides a watch's verdict."""

    guarantee: Guarantee
    kinds: tuple[str, ...]
    """Those that make the verdict."""
    retained: bool = False
    """Whether only what the topics still hold is judged."""


@dataclass(frozen=True)
class WatchVerdict:
    """What a watch says of a contract at one moment."""

    verdict: Outcome
    why: str
    """One sentence."""
    findings: tuple[Finding, ...]
    doubts: tuple[str, ...] = ()
    """Reasons, as sentences, why nothing more can be judged."""
    violating: tuple[str, ...] = ()
    """Kinds that violate the contract. What another one of them explains is none of its own."""
    unknown: tuple[str, ...] = ()
    """Kinds that the contract requires, and of which nothing is known now: neither wrong nor all
    clear."""
    unexplained: Mapping[str, int] = field(default_factory=dict)
    """Of some of the unknown kinds, the rows that violate the contract all the same: more than the
    inputs without an identity, and the removed ones, can explain."""

    @property
    def by_kind(self) -> Mapping[str, Finding]:
        return {finding.kind: finding for finding in self.findings}


def verdict_of(
    pair: WatchedPair, terms: WatchTerms, *, pending: int = 0, doubts: Sequence[str] = ()
) -> WatchVerdict:
    """Judge what was folded so far. `pending`: late outputs that may be in open transactions of the
    sink, or among the outputs that are held. `doubts`: reasons, as sentences, why nothing more can
    be judged."""
    doubts = (*doubts, *_unreadable_sentences(pair))
    findings = [
        _finding(kind, _causes(kind, pair, terms, pending), pair, terms) for kind in WATCHED
    ]
    findings += _premises(pair, terms)
    findings += [
        Finding(
            kind, Outcome.UNKNOWN, 0, 0, None, (), f"A watch does not judge {kind}: a check does."
        )
        for kind in terms.kinds
        if kind not in WATCHED
    ]
    counting = [f for f in findings if f.kind in terms.kinds or f.kind in PREMISES]
    verdict = merge([f.outcome for f in counting] + [Outcome.UNKNOWN] * bool(doubts))
    why = _sentence(verdict, counting, pair, terms, doubts)
    violated = {
        finding.kind: finding
        for finding in findings
        if finding.kind in terms.kinds and finding.outcome is Outcome.VIOLATED
    }
    violating = [
        finding.kind
        for finding in violated.values()
        if finding.primary or finding.explained_by not in violated
    ]
    unknown = [
        finding.kind
        for finding in findings
        if finding.kind in terms.kinds and finding.outcome is Outcome.UNKNOWN
    ]
    return WatchVerdict(
        verdict=verdict,
        why=why,
        findings=tuple(findings),
        doubts=tuple(doubts),
        violating=tuple(violating),
        unknown=tuple(unknown),
        unexplained={
            kind: rows for kind in unknown if (rows := _unexplained(kind, pair, terms.guarantee))
        },
    )


def _unreadable_sentences(pair: WatchedPair) -> list[str]:
    """Return a sentence for each topic with records that nobody reads."""
    sentences = []
    for is_source, topic, count in (
        (True, pair.source_topic, pair.counts.unread_inputs),
        (False, pair.sink_topic, pair.counts.unread_outputs),
    ):
        ranges = [each for each in pair.unreadable if each.is_source is is_source]
        if not count:
            continue
        places = [_range_of(each) for each in ranges[:PLACES_MAX]]
        if sum(each.records for each in ranges[:PLACES_MAX]) < count:
            places.append("and more")
        text = f"{counted(count, 'record')} of {topic} cannot be read: {', '.join(places)}."
        sentences.append(" ".join((text, *(each.why for each in ranges[:1]))))
    return sentences


def _range_of(records: UnreadableRange) -> str:
    first, last = records.first, records.last
    offsets = f"offset {first:,}" if first == last else f"offsets {first:,} to {last:,}"
    return f"{offsets} of partition {records.partition}"


def _unexplained(kind: str, pair: WatchedPair, guarantee: Guarantee) -> int:
    """Count the rows of an unknown kind that are wrong whatever the inputs are that nobody can
    name. Each of these has so many outputs, and none of them explains more rows."""
    of_outputs = kind in (duplicate.NAME, phantom.NAME)
    if kind == order.NAME:
        # The first copy may be among what the sink has lost or nobody reads, or a record without
        # an identity.
        unclear = pair.counts.nameless_outputs + pair.counts.unread_outputs
        of_outputs = not pair.sink_lost.total() and not unclear
    if not pair.by_key or not of_outputs or _is_disjoint(pair):
        return 0
    counts = pair.counts
    inputs = counts.nameless_inputs + counts.unread_inputs + pair.source_lost.total()
    rows = Counter(pair.causes.get(kind))[None] - inputs * pair.outputs
    is_wrong = rows > 0 and judge_rows(kind, {None: rows}, guarantee) is Outcome.VIOLATED
    return rows if is_wrong else 0


def _causes(
    kind: str, pair: WatchedPair, terms: WatchTerms, pending: int
) -> Mapping[str | None, int]:
    """Return the rows of a kind by what explains them."""
    causes = Counter(pair.causes.get(kind, {}))
    primary = causes.pop(None, 0)
    reason: str | None = None
    if kind == gap.NAME:
        causes[PENDING] = pending
        primary = pair.missing_count() - pending
        reason = sink_removed.NAME if pair.sink_lost.total() else None
        if reason is None:
            # Each may be among the committed records that were not delivered, or not read, or are
            # without an identity.
            causes_before: list[str] = []
            for cause in (reading_mismatch.NAME, UNREADABLE, identity_missing.NAME):
                excused = pair.excusable(causes_before)
                causes_before.append(cause)
                unclear = min(primary, pair.excusable(causes_before) - excused)
                causes[cause] += unclear
                primary -= unclear
    elif kind == phantom.NAME:
        causes[PENDING] += pair.waiting()
        if terms.retained:
            causes[RANGE] += causes.pop(source_removed.NAME, 0)
    elif kind == order.NAME and terms.guarantee is Guarantee.AT_LEAST_ONCE:
        # The first copy may be among what the sink has lost or nobody reads, or a record without
        # an identity.
        if pair.sink_lost.total():
            reason = sink_removed.NAME
        elif pair.counts.unread_outputs:
            reason = UNREADABLE
        elif pair.by_key and pair.counts.nameless_outputs:
            reason = identity_missing.NAME
    if kind == order.NAME and not Counter(pair.causes.get(duplicate.NAME, {})).total():
        # What was taken for a copy was the output of a later input with the same identity.
        del causes[duplicate.NAME]
    if reason is None and kind in (gap.NAME, phantom.NAME) and _is_disjoint(pair):
        reason = identity_disjoint.NAME
    if pair.by_key:
        if kind == gap.NAME and reason is None:
            # Each of them may be one whose input is forgotten.
            of_forgotten = Counter(pair.causes.get(phantom.NAME))[FORGOTTEN]
            unclear = min(primary, of_forgotten, pair.counts.forgotten_open)
            causes[FORGOTTEN] += unclear
            primary -= unclear
        elif kind == phantom.NAME:
            causes[identity_missing.NAME] += pair.counts.nameless_outputs
        if kind in (duplicate.NAME, order.NAME, phantom.NAME):
            # The true input may be one that is gone, or that has no identity.
            another = None
            if pair.source_lost.total():
                another = source_removed.NAME
            elif pair.counts.nameless_inputs:
                another = identity_missing.NAME
            elif pair.counts.unread_inputs:
                another = UNREADABLE
            if another is not None:
                reason = another
                # So may that of what was taken for a copy.
                causes[another] += causes.pop(duplicate.NAME, 0)
    causes[reason] += primary
    return {cause: count for cause, count in causes.items() if count}


def _is_disjoint(pair: WatchedPair) -> bool:
    has_inputs = pair.counts.inputs > 0 or pair.source_lost.total() > 0
    return pair.counts.committed > 0 and has_inputs and not pair.counts.named


def _finding(
    kind: str, causes: Mapping[str | None, int], pair: WatchedPair, terms: WatchTerms
) -> Finding:
    validator = _VALIDATORS[kind]
    covered = _covered(kind, pair)
    count, primary = sum(causes.values()), causes.get(None, 0)
    others = {cause: number for cause, number in causes.items() if cause is not None}
    outcome = judge_rows(kind, causes, terms.guarantee)
    why = finding_sentence(kind, validator.WORDS, causes, covered)
    if (
        outcome is Outcome.HOLDS
        and not covered
        and not (kind == order.NAME and pair.counts.matched)
    ):
        outcome, why = Outcome.UNKNOWN, f"Nothing to look at yet: there are no {validator.UNIT}."
    examples = tuple(pair.examples.get(kind, ()))
    if kind == gap.NAME:
        examples = _missing(pair) if count else ()
        if pair.counts.forgotten_open:
            inputs = counted(pair.counts.forgotten_open, "input")
            why += f" {inputs} without an output are older than `remember`: the watch does not"
            why += " recognize their outputs any more."
    return Finding(
        kind=kind,
        outcome=outcome,
        count=count,
        primary=primary,
        explained_by=max(others, key=lambda cause: others[cause]) if others else None,
        examples=examples,
        why=why,
    )


def _missing(pair: WatchedPair) -> tuple[Example, ...]:
    why = "This input has no committed output in its time."
    return tuple(
        Example(None, None, "/".join((pair.source_topic, *map(str, place))), None, why)
        for place in pair.missing_places(20)
    )


def _covered(kind: str, pair: WatchedPair) -> int:
    """Return how much a kind looked at."""
    match kind:
        case gap.NAME:
            return pair.counts.due_total * pair.outputs
        case duplicate.NAME:
            return pair.counts.matched
        case order.NAME:
            return pair.counts.matched - len(pair.lines) - pair.counts.uncertain
        case _:
            return pair.counts.committed


def _premises(pair: WatchedPair, terms: WatchTerms) -> list[Finding]:
    findings = []
    for validator, lost in ((source_removed, pair.source_lost), (sink_removed, pair.sink_lost)):
        if lost.total():
            outcome = Outcome.HOLDS if terms.retained else Outcome.UNKNOWN
            partitions = sum(count > 0 for count in lost.values())
            why = (
                f"{counted(lost.total(), 'offset')} in {counted(partitions, 'partition')} were"
                " removed by retention or compaction before they were read."
            )
            examples = tuple(pair.examples.get(validator.NAME, ()))
            why = " ".join((why, *(_place(example) for example in examples[:1])))
            findings.append(
                Finding(validator.NAME, outcome, partitions, partitions, None, examples, why)
            )
    nameless = pair.counts.nameless_inputs + pair.counts.nameless_outputs
    shared = pair.counts.shared_identities
    for kind, count, what in (
        (identity_missing.NAME, nameless, f"{counted(nameless, 'record')} held no identity."),
        (
            identity_repeated.NAME,
            shared,
            f"{counted(shared, 'input')} had the identity of an earlier one.",
        ),
        (
            recreated.NAME,
            pair.counts.of_namesake,
            f"{counted(pair.counts.of_namesake, 'record')} named another topic called"
            f" {pair.source_topic}.",
        ),
    ):
        if count:
            why = f"{what} {PREMISES[kind].remedy}"
            findings.append(Finding(kind, Outcome.UNKNOWN, count, count, None, (), why))
    if _is_disjoint(pair):
        why = PREMISES[identity_disjoint.NAME].remedy
        findings.append(
            Finding(
                identity_disjoint.NAME,
                Outcome.UNKNOWN,
                pair.counts.committed,
                pair.counts.committed,
                None,
                (),
                f"No committed record names an input of {pair.source_topic}. {why}",
            )
        )
    return findings


def _place(example: Example) -> str:
    return f"Partition {example.partition}: {example.why}"


def _sentence(
    verdict: Outcome,
    counting: Sequence[Finding],
    pair: WatchedPair,
    terms: WatchTerms,
    doubts: Sequence[str],
) -> str:
    if verdict is Outcome.HOLDS:
        due = f"; {counted(pair.due, 'input')} not due yet" if pair.due else ""
        inputs = counted(pair.counts.due_total, "input")
        return f"{inputs} committed {PROMISES[terms.guarantee]} so far{due}."
    bad = [finding for finding in counting if finding.outcome is verdict]
    reasons = [*doubts, *(f"{finding.kind}: {finding.why}" for finding in bad)]
    head = "Violated" if verdict is Outcome.VIOLATED else "Not known"
    return f"{head}: {' '.join(reasons if verdict is Outcome.UNKNOWN else reasons[len(doubts) :])}"
