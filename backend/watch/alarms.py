"""Alarms: what begins, what lasts and what ends between two looks, and what people are told of
it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from topicproof.backend.watch.conditions import EVENTS, Condition, Kind

NOTICES_MAX = 1_000
"""Notices that wait for a webhook that does not answer. The oldest go first, and are counted."""
ALARMS_MAX = 10_000
"""Conditions at one time. More are counted, not kept: strangers can make up groups."""


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
    """In the order in which they are to be sent."""
    dropped: int = 0
    """Notices that were never sent, because too many were waiting."""
    uncounted: int = 0
    """Conditions at the last look beyond `ALARMS_MAX`."""


NO_ALARMS = AlarmState({})


def after_look(
    state: AlarmState,
    conditions: Iterable[Condition],
    at: datetime,
    *,
    clear_kinds: Collection[Kind],
    left_out: Set[str] = frozenset(),
    contracts: Set[str] = frozenset(),
) -> tuple[AlarmState, tuple[Notice, ...]]:
    """Return the state after a look, and the new notices: one when a condition begins, one when it
    ends, one for each event.

    `clear_kinds`: kinds that were looked at in full. `left_out`: topics that were not looked at. Of
    other kinds and of these topics nothing ends: what was not looked at is no all-clear.
    `contracts`: those that were judged; only what is about them ends.
    """
    current = {condition.key: condition for condition in conditions}
    events = {key for key, condition in current.items() if condition.kind in EVENTS}
    lasting = [key for key in current if key not in events]
    room = max(0, ALARMS_MAX - sum(key in state.alarms for key in lasting))
    begun = [key for key in lasting if key not in state.alarms]
    alarms: dict[str, Alarm] = {}
    notices: list[Notice] = []
    for key, alarm in state.alarms.items():
        if key in current:
            alarms[key] = replace(alarm, condition=current[key])
        elif (
            alarm.condition.contract in contracts
            if alarm.condition.contract
            else alarm.condition.kind in clear_kinds and left_out.isdisjoint(alarm.condition.topics)
        ):
            notices.append(Notice(Change.ENDED, alarm, at))
        else:
            alarms[key] = alarm
    for key in begun[:room]:
        alarms[key] = Alarm(current[key], at)
        notices.append(Notice(Change.BEGAN, alarms[key], at))
    notices += [Notice(Change.HAPPENED, Alarm(current[key], at), at) for key in sorted(events)]
    waiting = (*state.waiting, *notices)
    surplus = max(0, len(waiting) - NOTICES_MAX)
    state = AlarmState(
        alarms=alarms,
        waiting=waiting[surplus:],
        dropped=state.dropped + surplus,
        uncounted=len(begun[room:]),
    )
    return state, tuple(notices)


def after_sending(state: AlarmState, sent: int) -> AlarmState:
    """Return the state without the first notices, which were sent."""
    return replace(state, waiting=state.waiting[sent:])


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
