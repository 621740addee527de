"""Alarms: what begins, what lasts and what ends between two looks, and what people are told of
it.

Whoever may commit offsets can make up any number of conditions. So each kind has room of its own:
none displaces another kind. What is beyond the room is told as one alarm, which counts it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from topicproof.backend.kafka.cluster import INTERNAL_TOPICS
from topicproof.backend.watch.conditions import (
    EVENTS,
    NAMES_MAX,
    OF_CONTRACTS,
    OF_GROUPS,
    OF_TRANSACTIONS,
    Condition,
    Kind,
)
from topicproof.validators.sentences import counted, first_of

NOTICES_MAX = 1_000
"""Notices that wait for a webhook that does not answer. The least important go first."""
OF_KIND_MAX = 1_000
"""Conditions of one kind at one time that are alarms of their own."""
OF_GROUPS_MAX = 100
"""The same for a kind of `OF_GROUPS`."""
OF_TOPIC_MAX = 20
"""The same for such a kind on one topic."""
EXAMPLES = 3
"""Groups, topics or sentences that an alarm for several conditions names."""


class Change(StrEnum):
    """What a notice tells. The value is its name in JSON."""

    BEGAN = "began"
    ENDED = "ended"
    """The all-clear."""
    HAPPENED = "happened"


@dataclass(frozen=True)
class Alarm:
    """A condition that lasts."""

    condition: Condition
    """As it was at the last look that saw it."""
    since: datetime
    """UTC, of the first look that saw it."""

    @property
    def number(self) -> str:
        """Its identity: both notices of an alarm have it, and a repeated one has it again."""
        text = f"{self.condition.key} {self.since.isoformat()}"
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Notice:
    """What is sent once."""

    change: Change
    alarm: Alarm
    at: datetime
    """UTC."""

    def to_json(self, cluster: str) -> dict[str, Any]:
        """Return the document that a webhook gets. `cluster`: its id."""
        condition = self.alarm.condition
        return {
            "alarm": self.alarm.number,
            "change": self.change.value,
            "kind": condition.kind.value,
            "cluster": cluster,
            "contract": condition.contract or None,
            "finding": condition.finding or None,
            "count": condition.count,
            "what": condition.sentence,
            "next_step": condition.next_step,
            "topics": list(condition.topics),
            "groups": list(condition.groups),
            "offsets": [
                {"topic": topic, "partition": partition, "offset": offset}
                for topic, partition, offset in condition.offsets
            ],
            "since": self.alarm.since.isoformat(timespec="milliseconds"),
            "at": self.at.isoformat(timespec="milliseconds"),
        }


@dataclass(frozen=True)
class AlarmState:
    """The alarms that last, and the notices that are not delivered yet."""

    alarms: Mapping[str, Alarm]
    """By the key of their condition."""
    waiting: tuple[Notice, ...] = ()
    """In the order in which they are to be sent: the most important first, then the oldest."""
    dropped: int = 0
    """Notices that were never sent: too many were waiting, or the webhook refused them."""
    outbox: tuple[Notice, ...] = ()
    """Notices that `on_notice` has not got yet, oldest first. A kill leaves them behind."""


NO_ALARMS = AlarmState({})


def after_look(
    state: AlarmState,
    conditions: Iterable[Condition],
    at: datetime,
    *,
    clear_kinds: Collection[Kind],
    left_out: Set[str] = frozenset(),
    contracts: Set[str] = frozenset(),
    unknown: Set[tuple[str, str]] = frozenset(),
    replaced: Set[str] = frozenset(),
) -> tuple[AlarmState, tuple[Notice, ...]]:
    """Return the state after a look, and the new notices: one when a condition begins, one when it
    ends, one for each event.

    `clear_kinds`: kinds that were looked at in full. `left_out`: topics that were not looked at. Of
    other kinds and of these topics nothing ends: what was not looked at is no all-clear.
    `contracts`: those that were judged; only what is about them ends. `unknown`: contracts with
    each kind of finding of which this look leaves nothing known: what is not known is no all-clear,
    either. `replaced`: keys of alarms of contracts whose name another one has now. They end, and
    the same kind of the other one begins.
    """
    current = {condition.key: condition for condition in conditions}
    over = {
        key
        for key, alarm in state.alarms.items()
        if _is_over(alarm.condition, clear_kinds, left_out, contracts, unknown)
    }
    going_on = [
        alarm.condition for key, alarm in state.alarms.items() if key in current or key not in over
    ]
    current = {each.key: each for each in _folded(current.values(), state.alarms, going_on)}
    alarms: dict[str, Alarm] = {}
    notices: list[Notice] = []
    for key, alarm in state.alarms.items():
        if key in current and key not in replaced:
            alarms[key] = replace(alarm, condition=current[key])
        elif key in over or key in replaced:
            notices.append(Notice(Change.ENDED, alarm, at))
        else:
            alarms[key] = alarm
    for key, condition in current.items():
        if condition.kind not in EVENTS and key not in alarms:
            alarms[key] = Alarm(condition, at)
            notices.append(Notice(Change.BEGAN, alarms[key], at))
    notices += [
        Notice(Change.HAPPENED, Alarm(current[key], at), at)
        for key in sorted(current)
        if current[key].kind in EVENTS
    ]
    waiting, dropped = _limited([*state.waiting, *notices], at)
    state = AlarmState(
        alarms=alarms,
        waiting=waiting,
        dropped=state.dropped + dropped,
        outbox=(*state.outbox, *notices),
    )
    return state, tuple(notices)


def importance(record: Notice | Alarm) -> int:
    """Return a rank: 0 is the most important."""
    alarm = record.alarm if isinstance(record, Notice) else record
    kind = alarm.condition.kind
    if kind in OF_TRANSACTIONS | OF_CONTRACTS:
        return 0
    if kind not in OF_GROUPS:
        return 1
    return 3 if kind in EVENTS else 2


def _is_over(
    condition: Condition,
    clear_kinds: Collection[Kind],
    left_out: Set[str],
    contracts: Set[str],
    unknown: Set[tuple[str, str]],
) -> bool:
    """Whether an alarm whose condition is not seen any more is over."""
    if condition.contract:
        place = condition.contract, condition.finding
        return condition.contract in contracts and place not in unknown
    # One of the whole kind does not name all its topics.
    missing = left_out - INTERNAL_TOPICS if not condition.holder else left_out & {*condition.topics}
    return condition.kind in clear_kinds and not missing


def _folded(
    conditions: Iterable[Condition],
    alarms: Container[str],
    going_on: Sequence[Condition],
) -> Iterator[Condition]:
    """Yield the conditions, with one for all that are beyond the room of their topic or kind.

    `alarms`: keys of those that are alarms. They remain, so that nothing ends that lasts.
    `going_on`: conditions of alarms that take room, also of those that this look did not see.
    """
    of_kinds = Counter(condition.kind for condition in going_on)
    of_topics = Counter(
        (condition.kind, condition.topics[0])
        for condition in going_on
        if condition.kind in OF_GROUPS and condition.groups
    )
    kinds: dict[Kind, list[Condition]] = {}
    for condition in conditions:
        kinds.setdefault(condition.kind, []).append(condition)
    for kind, of_kind in kinds.items():
        if kind in OF_CONTRACTS:
            # The command names the contracts.
            yield from of_kind
            continue
        room = OF_KIND_MAX
        if kind in OF_GROUPS:
            room = OF_GROUPS_MAX
            topics: dict[str, list[Condition]] = {}
            for condition in of_kind:
                topics.setdefault(condition.topics[0], []).append(condition)
            of_kind = [
                condition
                for topic, of_topic in topics.items()
                # The holder of a group has a space, and no topic has.
                for condition in _within(
                    of_topic, OF_TOPIC_MAX - of_topics[kind, topic], topic, alarms
                )
            ]
        yield from _within(of_kind, room - of_kinds[kind], "", alarms)


def _within(
    conditions: Sequence[Condition], room: int, holder: str, alarms: Container[str]
) -> list[Condition]:
    """Return those that are alarms already, as many new ones as have room, and one for the
    others."""
    lasting = [condition for condition in conditions if condition.key in alarms]
    begun = [condition for condition in conditions if condition.key not in alarms]
    room = max(0, room)
    surplus = begun[room:]
    return [*lasting, *begun[:room], *([_together(surplus, holder)] if surplus else [])]


def _together(conditions: Sequence[Condition], holder: str) -> Condition:
    """Return one condition that stands for several of a kind."""
    first = conditions[0]
    count = sum(condition.count for condition in conditions)
    groups = tuple(dict.fromkeys(group for each in conditions for group in each.groups))
    topics = tuple(dict.fromkeys(topic for each in conditions for topic in each.topics))
    where = f"{counted(len(topics), 'topic')} such as {first_of(topics[:EXAMPLES], EXAMPLES)}"
    who = f", group {first_of(groups[:EXAMPLES], EXAMPLES)} among them" if groups else ""
    return Condition(
        kind=first.kind,
        holder=holder,
        sentence=f"{count:,} more of the kind {first.kind} on {where}{who}. They are too many to"
        " be told one by one.",
        topics=topics[:NAMES_MAX],
        groups=groups[:NAMES_MAX],
        next_step="Look at the groups and transactions of the cluster, and who makes them.",
        offsets=tuple(offset for each in conditions for offset in each.offsets)[:NAMES_MAX],
        count=count,
    )


def _limited(waiting: Sequence[Notice], at: datetime) -> tuple[tuple[Notice, ...], int]:
    """Return the notices that go on waiting, the most important ones first, and how many were
    dropped: of the least important the oldest. One notice says how many were dropped since it was
    sent last."""
    unsent = [each for each in waiting if each.alarm.condition.kind is Kind.UNSENT]
    others = [each for each in waiting if each.alarm.condition.kind is not Kind.UNSENT]
    surplus = max(0, len(others) - NOTICES_MAX)
    if not surplus:
        return tuple(sorted(waiting, key=importance)), 0
    dropped = {
        *sorted(range(len(others)), key=lambda place: (-importance(others[place]), place))[:surplus]
    }
    count = surplus + sum(notice.alarm.condition.count for notice in unsent)
    condition = Condition(
        kind=Kind.UNSENT,
        holder="",
        sentence=f"{counted(count, 'notice')} of the watch were never sent: too many waited.",
        topics=(),
        next_step="`topicproof watch` lists at its start what lasts.",
        count=count,
    )
    notice = Notice(Change.HAPPENED, Alarm(condition, at), at)
    remaining = [each for place, each in enumerate(others) if place not in dropped]
    return tuple(sorted([*remaining, notice], key=importance)), surplus


def after_sending(
    state: AlarmState, sent: Collection[int], refused: Collection[int] = ()
) -> AlarmState:
    """Return the state without the notices at these places, which were sent, or refused for
    good."""
    done = {*sent, *refused}
    waiting = tuple(notice for at, notice in enumerate(state.waiting) if at not in done)
    return replace(state, waiting=waiting, dropped=state.dropped + len(refused))


def without_contracts(
    alarms: AlarmState, names: Set[str], replaced: Set[str] = frozenset()
) -> AlarmState:
    """Return the alarms with another sentence for those of contracts that are not watched any more:
    their end is no all-clear. `replaced`: see `after_look`."""
    lasting = dict(alarms.alarms)
    for key, alarm in alarms.alarms.items():
        condition = alarm.condition
        if condition.contract in names or key in replaced:
            why = f"Contract {condition.contract} is not watched any more. It may still be wrong."
            lasting[key] = replace(alarm, condition=replace(condition, sentence=why))
    return replace(alarms, alarms=lasting)


def replaced_alarms(alarms: AlarmState, topics: Mapping[str, tuple[str, str]]) -> Set[str]:
    """Return the keys of the alarms about other topics than their contract has now. `topics`:
    source and sink of each contract that is watched, by its name."""
    conditions = {key: alarm.condition for key, alarm in alarms.alarms.items()}
    return {
        key
        for key, condition in conditions.items()
        if condition.topics and condition.topics != topics.get(condition.contract, condition.topics)
    }


def notice_from_json(fields: Mapping[str, Any]) -> Notice:
    """Read a notice as `stored` writes it. Raises ValueError, KeyError, TypeError."""
    return Notice(
        Change(fields["change"]),
        alarm_from_json(fields["alarm"]),
        datetime.fromisoformat(fields["at"]),
    )


def alarm_from_json(fields: Mapping[str, Any]) -> Alarm:
    """Read an alarm as `stored` writes it. Raises ValueError, KeyError, TypeError."""
    condition = fields["condition"]
    return Alarm(
        Condition(
            kind=Kind(condition["kind"]),
            holder=str(condition["holder"]),
            sentence=str(condition["sentence"]),
            topics=tuple(map(str, condition["topics"])),
            groups=tuple(map(str, condition["groups"])),
            next_step=str(condition["next_step"]),
            offsets=tuple((str(t), int(p), int(o)) for t, p, o in condition["offsets"]),
            contract=str(condition.get("contract", "")),
            finding=str(condition.get("finding", "")),
            count=int(condition["count"]),
        ),
        datetime.fromisoformat(fields["since"]),
    )


def stored(record: Alarm | Notice) -> dict[str, Any]:
    """Return the fields that lie on disk."""
    if isinstance(record, Notice):
        return {
            "change": record.change.value,
            "alarm": stored(record.alarm),
            "at": record.at.isoformat(),
        }
    return {"condition": asdict(record.condition), "since": record.since.isoformat()}
