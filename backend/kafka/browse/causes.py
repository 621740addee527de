"""What is wrong with a cluster now: a list of causes, worst first.

A pure function of one look at the cluster (`overview`). One transaction is one cause over all its
topics and partitions, and names the groups that wait for it. So does one group over all its topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any

from topicproof.backend.exit_codes import UNJUDGED, WARNED, worst
from topicproof.backend.kafka.browse.overview import NAMED_MAX, Overview
from topicproof.backend.kafka.coordination.worst_lag import READ_OFFSETS_MAX, Lag, StuckGroup
from topicproof.validators.coordinator import PREPARED, OpenTransaction, WholeTransaction
from topicproof.validators.sentences import counted, first_of, in_words, plural
from topicproof.validators.shell_words import command_line

LONG_OPEN_MS = 10_000
"""A transaction in time is a cause from this age on. Programs that commit several times a second
always have a younger one open."""
COMMANDS_MAX = 20
"""Commands of one cause. A transaction may hang on thousands of partitions."""

Place = tuple[str, int]
"""Topic and partition."""


class CauseKind(StrEnum):
    """What holds something back. Within a severity, the first kind is the worst."""

    HANGING_TRANSACTION = "hanging_transaction"
    OPEN_TRANSACTION = "open_transaction"
    STUCK_GROUP = "stuck_group"
    """A group that waits for an open transaction which is not among the others: it could not be
    looked at, or has just ended."""
    GROUP_LAG = "group_lag"


class Severity(StrEnum):
    ERROR = "error"
    """It does not end by itself, or should have ended by now."""
    WARNING = "warning"
    """It may end by itself."""
    NOTE = "note"
    """It is usual, and no trouble: a young transaction, or a group without members."""


@dataclass(frozen=True)
class Cause:
    """One reason why consumers do not get records."""

    kind: CauseKind
    severity: Severity
    condition: str
    """In a word or two: hanging, not known, stuck, overdue, open; of a group stuck or behind."""
    holder: str
    """The transactional id, else the producer; of a group its name. Kafka does not tell the host of
    a producer."""
    producer_id: int | None
    """None for a group."""
    status: str
    """How long it has been so, and how it ends: follows the holder in a sentence."""
    age_ms: int | None
    """Since the transaction began; of a hanging one, since its last write. None for a group."""
    timeout_ms: int | None
    """Its coordinator aborts it after this time; None if nothing does."""
    since: datetime | None
    """UTC; None for a group, and for a time that is no date."""
    places: tuple[Place, ...]
    """The partitions on which it holds records back, sorted. Empty for a group that is behind."""
    topics: tuple[str, ...]
    records: int
    """Records that are held back, or that a group has to read."""
    exact: bool
    """False: at most so many, because they were not counted one by one."""
    groups: tuple[str, ...]
    """Groups that have read all they can, and wait for this."""
    advice: str
    """What to do, in sentences."""
    commands: tuple[str, ...]
    """Commands to copy. None of them changes anything as it stands."""

    @property
    def effect(self) -> str:
        """What it holds back from whom: follows the holder in a sentence."""
        return self.effect_with(str)

    def effect_with(self, emphasis: Callable[[str], str]) -> str:
        """Return the effect, with `emphasis` on each count and name."""
        most = "" if self.exact else "at most "
        records = most + emphasis(counted(self.records, "record"))
        topics = first_of(list(map(emphasis, self.topics)), NAMED_MAX)
        if self.kind is CauseKind.GROUP_LAG:
            return f"has {records} of {topics} to read"
        if self.kind is CauseKind.STUCK_GROUP:
            return f"waits for {records} of {topics}"
        if len(self.places) == 1:
            where = f"partition {self.places[0][1]}"
        else:
            where = counted(len(self.places), "partition")
        noun = plural(len(self.groups), "group")
        names = first_of(list(map(emphasis, self.groups)), NAMED_MAX)
        groups = f", and {noun} {names}" if self.groups else ""
        return f"holds back {records} on {where} of {topics}{groups}"

    @property
    def sentence(self) -> str:
        return f"{self.holder} {self.effect}. It {self.status}."

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`, with its sentence."""
        partitions = [
            {"topic": topic, "partitions": [partition for _topic, partition in group]}
            for topic, group in groupby(self.places, key=lambda place: place[0])
        ]
        since = None if self.since is None else self.since.isoformat()
        fields = asdict(self) | {"since": since, "partitions": partitions}
        del fields["places"]
        return fields | {"sentence": self.sentence}


def causes(cluster: Overview, at: str = "") -> tuple[Cause, ...]:
    """Return what is wrong, worst first. `at`: the options that name the cluster in a command."""
    opened = cluster.opened
    holders = _holders(opened)
    uncounted = {
        (topic.topic, p.partition): p.hw
        for topic in cluster.topics
        if not topic.is_counted
        for p in topic.bounds.partitions
    }
    waiting: dict[int, list[str]] = {}
    alone: list[StuckGroup] = []
    for group in cluster.stuck:
        places = ((group.topic, partition) for partition in group.partitions)
        numbers = {holders[place] for place in places if place in holders}
        for number in numbers:
            waiting.setdefault(number, []).append(group.group)
        if not numbers:
            alone.append(group)
    unsorted = [
        *(
            _of_transaction(
                transaction,
                cluster.taken_at,
                withheld=_withheld(transaction, uncounted),
                groups=tuple(dict.fromkeys(waiting.get(number, ()))),
                at=at,
            )
            for number, transaction in enumerate(opened)
        ),
        *_of_stuck_groups(cluster, alone, at),
        *_of_lags(cluster, at),
    ]
    return tuple(sorted(unsorted, key=_rank))


def status_json(cluster: Overview, listed: Sequence[Cause]) -> dict[str, Any]:
    """Return a dict for `json.dumps`: the list, and what was asked."""
    return {
        "cluster": cluster.cluster,
        "taken_at": cluster.taken_at.isoformat(),
        "exit_code": exit_code(listed, cluster.not_heard),
        "causes": [cause.to_json() for cause in listed],
        "not_heard": list(cluster.not_heard),
    }


def exit_code(listed: Iterable[Cause], not_heard: Sequence[str]) -> int:
    """Return the exit code of `topicproof status`: that something is wrong comes before what could
    not be asked, and both before what may end by itself."""
    severities = {cause.severity for cause in listed}
    return worst(
        [
            1 if Severity.ERROR in severities else 0,
            UNJUDGED if not_heard else 0,
            WARNED if Severity.WARNING in severities else 0,
        ]
    )


def advice(transaction: OpenTransaction) -> str:
    """Return what to do about an open transaction."""
    if transaction.hanging:
        return (
            "No client and no coordinator will end it; an operator can. The command shows what"
            f" would be lost, and with --yes aborts it.{transaction.marker_lost}"
        )
    if transaction.unseen:
        return (
            "To find out whether it hangs, this client needs Describe on all transactional ids;"
            " `topicproof rights --for inspect` prints the commands that grant it."
        )
    if transaction.stuck:
        return (
            "A broker that leads one of its partitions, or its coordinator, does not answer: look"
            " at the brokers' logs."
        )
    if transaction.state in PREPARED:
        return (
            "Its outcome is decided and the markers are being written, which takes milliseconds."
            " Refresh."
        )
    if transaction.two_phase:
        return (
            "It takes part in a two-phase commit: the system that coordinates it ends it. Kafka"
            " never does, and an abort by hand can lose what that system counts as committed."
        )
    left_ms = (transaction.timeout_ms or 0) - transaction.age_ms
    if left_ms < 0:
        return (
            "It has timed out: its coordinator aborts it at its next check, every 10 s unless"
            " configured otherwise."
        )
    return (
        "Its producer may still end it. If the producer is dead, the coordinator aborts it in"
        f" {in_words(left_ms)}, and a new producer with the same transactional id aborts it at"
        " once."
    )


def abort_command(transaction: OpenTransaction, topic: str, at: str) -> str:
    """Return the command that shows what aborting a hanging transaction would lose. `at`: the
    options that name the cluster."""
    place = (str(transaction.partition), str(transaction.start_offset))
    return command_line("topicproof abort", topic, *place, options=at)


def _rank(cause: Cause) -> tuple[int, int, int, int, int]:
    """Key for sorting, worst first."""
    return (
        list(Severity).index(cause.severity),
        list(CauseKind).index(cause.kind),
        -len(cause.groups),
        -cause.records,
        -(cause.age_ms or 0),
    )


def _holders(opened: Sequence[WholeTransaction]) -> Mapping[Place, int]:
    """Return the number of the transaction that holds the LSO of a partition: the one that began
    first there."""
    first: dict[Place, tuple[int, int]] = {}
    for number, transaction in enumerate(opened):
        for topic, part in transaction.parts:
            place = topic, part.partition
            begin = part.start_offset, number
            first[place] = min(first.get(place, begin), begin)
    return {place: number for place, (_offset, number) in first.items()}


def _of_transaction(
    transaction: WholeTransaction,
    taken_at: datetime,
    *,
    withheld: tuple[int, bool],
    groups: tuple[str, ...],
    at: str,
) -> Cause:
    """Describe a transaction by its worst part; the counts are over all parts. `withheld`: as
    `_withheld` returns it."""
    _topic, part = max(
        transaction.parts, key=lambda part: (not part[1].ends_by_itself, part[1].withheld)
    )
    if transaction.hanging:
        commands = [
            abort_command(each, topic, at) for topic, each in transaction.parts[:COMMANDS_MAX]
        ]
    else:
        commands = [
            command_line("topicproof inspect", topic, options=at)
            for topic in transaction.topics[:COMMANDS_MAX]
        ]
    records, exact = withheld
    return Cause(
        kind=CauseKind.HANGING_TRANSACTION if part.hanging else CauseKind.OPEN_TRANSACTION,
        severity=_severity(part, transaction.age_ms),
        condition=part.condition,
        holder=part.name,
        producer_id=part.producer_id,
        status=_status(part, transaction.age_ms),
        age_ms=transaction.age_ms,
        timeout_ms=None if part.two_phase else part.timeout_ms,
        since=_since(taken_at, transaction.age_ms),
        places=tuple((topic, each.partition) for topic, each in transaction.parts),
        topics=transaction.topics,
        records=records,
        exact=exact,
        groups=groups,
        advice=advice(part),
        commands=tuple(commands),
    )


def _severity(part: OpenTransaction, age_ms: int) -> Severity:
    if not part.ends_by_itself or part.stuck:
        return Severity.ERROR
    return Severity.WARNING if age_ms >= LONG_OPEN_MS else Severity.NOTE


def _since(taken_at: datetime, age_ms: int) -> datetime | None:
    """Return when a transaction began. A producer may give its last write any time."""
    try:
        return taken_at - timedelta(milliseconds=age_ms)
    except OverflowError:
        return None


def _status(part: OpenTransaction, age_ms: int) -> str:
    """Say how long a transaction has been open, and how it ends: follows `it`."""
    age, limit = in_words(age_ms), in_words(part.timeout_ms or 0)
    if part.hanging:
        return f"last wrote {age} ago, and no coordinator knows of it"
    if part.unseen:
        return f"last wrote {age} ago; coordinators hide from this client whether it hangs"
    if part.stuck:
        end = "commit" if part.state == PREPARED[0] else "abort"
        return f"began {age} ago; its coordinator decided to {end} it, but a marker is missing"
    if part.two_phase:
        return f"has been open for {age}, in a two-phase commit that only its owner ends"
    if part.overdue:
        return f"has been open for {age}, and its timeout of {limit} is over"
    return f"has been open for {age}, and is aborted after {limit}"


def _withheld(transaction: WholeTransaction, uncounted: Mapping[Place, int]) -> tuple[int, bool]:
    """Return how many records a transaction withholds, and whether they were counted. `uncounted`:
    the log ends where so much is withheld that they were not; the number of offsets is the most
    there can be."""
    records, exact = 0, True
    for topic, part in transaction.parts:
        end = uncounted.get((topic, part.partition))
        if end is None:
            records += part.withheld
        else:
            exact = False
            records += end - part.start_offset
    return records, exact


def _of_stuck_groups(cluster: Overview, stuck: Iterable[StuckGroup], at: str) -> Iterator[Cause]:
    """Describe groups whose transaction is not known."""
    withheld = {
        (topic.topic, p.partition): p.hw - p.lso
        for topic in cluster.topics
        for p in topic.bounds.partitions
    }
    by_group: dict[str, list[Place]] = {}
    for each in stuck:
        by_group.setdefault(each.group, []).extend((each.topic, p) for p in each.partitions)
    for group, places in by_group.items():
        topics = tuple(dict.fromkeys(topic for topic, _partition in places))
        yield _of_group(
            CauseKind.STUCK_GROUP,
            # A transaction that ended during the look leaves such a group behind.
            Severity.WARNING if cluster.not_heard else Severity.NOTE,
            Lag(group, topics[0], sum(withheld[place] for place in places), False),
            topics,
            status="has read all it can; an open transaction withholds the rest",
            advice="Look at the topic's open transactions.",
            at=at,
            places=tuple(sorted(places)),
        )


def _of_lags(cluster: Overview, at: str) -> Iterator[Cause]:
    """Describe groups that are far behind, each over all its topics."""
    by_group: dict[str, list[Lag]] = {}
    for topic in cluster.topics:
        for lag in topic.lags:
            by_group.setdefault(lag.group, []).append(_counted(lag, cluster.worst))
    for group, lags in by_group.items():
        lags.sort(key=lambda lag: (-lag.records, lag.topic))
        records = sum(lag.records for lag in lags)
        if records <= READ_OFFSETS_MAX:
            continue  # The other offsets were markers and aborted records.
        has_members = lags[0].has_members
        yield _of_group(
            CauseKind.GROUP_LAG,
            Severity.WARNING if has_members else Severity.NOTE,
            Lag(group, lags[0].topic, records, all(lag.exact for lag in lags)),
            tuple(lag.topic for lag in lags),
            status="has members" if has_members else "has no member, so nobody reads for it",
            advice=(
                "Look again: if the lag grows, its members are too slow or do not poll."
                if has_members
                else "Start its program, or delete the group if nobody needs it."
            ),
            at=at,
        )


def _counted(lag: Lag, worst_lag: Lag | None) -> Lag:
    """Return the lag as its records were counted, if they were."""
    is_worst = worst_lag is not None and (worst_lag.group, worst_lag.topic) == (
        lag.group,
        lag.topic,
    )
    return worst_lag if worst_lag is not None and is_worst else lag


def _of_group(
    kind: CauseKind,
    severity: Severity,
    lag: Lag,
    topics: tuple[str, ...],
    *,
    status: str,
    advice: str,
    at: str,
    places: tuple[Place, ...] = (),
) -> Cause:
    return Cause(
        kind=kind,
        severity=severity,
        condition="stuck" if kind is CauseKind.STUCK_GROUP else "behind",
        holder=lag.group,
        producer_id=None,
        status=status,
        age_ms=None,
        timeout_ms=None,
        since=None,
        places=places,
        topics=topics,
        records=lag.records,
        exact=lag.exact,
        groups=(lag.group,) if kind is CauseKind.STUCK_GROUP else (),
        advice=advice,
        commands=tuple(
            command_line("topicproof inspect", topic, options=at) for topic in topics[:COMMANDS_MAX]
        ),
    )
