"""A topic at a glance, for `topicproof inspect`. One round of requests, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
from kafka.errors import KafkaError

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.coordination.attribution import states_of, without_unknown
from topicproof.backend.kafka.coordination.coordinator import (
    PRODUCER_COLUMNS,
    open_json,
    open_transactions,
    topic_producers,
)
from topicproof.backend.kafka.coordination.groups import Member
from topicproof.backend.kafka.coordination.lag import GroupLag, group_lags
from topicproof.backend.kafka.coordination.reasons import abort_reasons, transactional_ids
from topicproof.backend.kafka.coordination.share import ShareGroup, share_groups, share_json
from topicproof.backend.kafka.coordination.transaction_state import StateEntry
from topicproof.backend.kafka.coordination.unstable import unstable_offsets
from topicproof.backend.kafka.log.client import cluster_error
from topicproof.backend.kafka.log.fates import balance, fate_ranges, total, transactions
from topicproof.backend.kafka.log.over_partitions import SPLIT, over_partitions
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.mirror_offsets import Checkpoint, checkpoints
from topicproof.validators.coordinator import OpenTransaction, UnstableOffset, short_name
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, OPEN, UNEXPLAINED
from topicproof.validators.finding import Bounds, Fate

LAST_TRANSACTIONS = 10

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class PartitionView:
    """One partition's bounds and balance."""

    partition: int
    start: int
    lso: int
    hw: int
    fates: Mapping[Fate, int]
    """Offsets by fate; sums to hw - start."""


@dataclass(frozen=True)
class TransactionView:
    """One transaction on one partition, from the raw log. Times are in ms since 1970."""

    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    records: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
    outcome: str
    """COMMITTED, ABORTED, OPEN, or UNEXPLAINED: no marker, but below the last stable offset."""
    marker_offset: int | None
    marker_timestamp: int | None
    marker_epoch: int | None
    """The data's epoch + 1 for Java clients, fences and timeouts (KIP-890)."""
    transactional_id: str | None
    """From a coordinator that still knows the producer, or from the coordinators' log."""
    reason: str | None
    """Why it was aborted (`reasons`): declared, timeout, fenced, operator. None if it was not
    aborted, or the reason is not proven."""


@dataclass(frozen=True)
class TransactionsView:
    """The transactions with data in the bounds. One on several partitions counts once."""

    partitions: int
    """On how many partitions there are any."""
    committed: int
    aborted: int
    open: int
    unexplained: int
    split: int
    """Committed on one partition and aborted on another."""
    records_committed: int
    """Records in committed transactions, without records outside transactions."""
    records_aborted: int
    aborted_by: Mapping[str, int]
    """Aborted transactions by known reason."""
    last: tuple[TransactionView, ...]
    """The last few that began, latest first, with an entry for each of their partitions."""

    @property
    def total(self) -> int:
        return self.committed + self.aborted + self.open + self.unexplained + self.split


@dataclass(frozen=True)
class ProducerView:
    """A producer known to a partition's leader. `open_from` is the start of its open
    transaction."""

    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_from: int | None
    transactional_id: str | None
    state: str | None


@dataclass(frozen=True)
class TopicView:
    """What a topic holds, and what blocks its consumers."""

    topic: str
    taken_at: datetime
    """UTC, right after the bounds were read."""
    bounds: Bounds
    fates: Mapping[Fate, int]
    """Offsets by fate over all partitions; sums to `bounds.offsets`."""
    outside: int
    """Records outside transactions."""
    partitions: tuple[PartitionView, ...]
    transactions: TransactionsView
    open: tuple[OpenTransaction, ...]
    producers: tuple[ProducerView, ...]
    lags: tuple[GroupLag, ...]
    shares: tuple[ShareGroup, ...]
    unstable: tuple[UnstableOffset, ...]
    """Group offsets held up by an open transaction."""
    mirrored: tuple[Checkpoint, ...]
    """Where groups of another cluster would continue here, as MirrorMaker translates."""
    not_heard: tuple[str, ...]
    """Unanswered questions to the cluster, with the reasons. Their part of the view is empty, not
    0."""

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`: fates in lower case, times in ISO 8601, every sentence
        included."""
        fields = asdict(replace(self, lags=()))
        fields["taken_at"] = self.taken_at.isoformat()
        fields["offsets"] = self.bounds.offsets
        fields["bounds"] = [asdict(p) for p in self.bounds.partitions]
        fields["fates"] = _lower(self.fates)
        fields["partitions"] = [asdict(p) | {"fates": _lower(p.fates)} for p in self.partitions]
        fields["open"] = [open_json(each) for each in self.open]
        fields["unstable"] = [
            asdict(each) | {"stuck": each.stuck, "why": each.why} for each in self.unstable
        ]
        fields["lags"] = [_lag_json(lag) for lag in self.lags]
        fields["mirrored"] = [each._asdict() for each in self.mirrored]
        fields["shares"] = [share_json(each) for each in self.shares]
        return fields


def _lag_json(lag: GroupLag) -> dict[str, Any]:
    """Return a group's lag. The owner of a partition is named without its partitions: a group with
    one member would repeat all of them for each."""
    partitions = [
        asdict(replace(partition, owner=None))
        | {"owner": partition.owner and _name_json(partition.owner)}
        for partition in lag.partitions
    ]
    sums = ("visible", "uncommitted", "withheld", "subtraction", "stuck")
    fields = asdict(replace(lag, partitions=())) | {name: getattr(lag, name) for name in sums}
    return fields | {"partitions": partitions}


def _name_json(member: Member) -> dict[str, str]:
    return {"member": member.member, "client": member.client, "host": member.host}


def inspect_topic(
    address: Address, topic: str, check_crc: bool = False, batches_max: int | None = None
) -> TopicView:
    """Inspect a topic once. The log must be readable; `not_heard` lists questions that coordinators
    did not answer.

    `check_crc` verifies every batch's checksum. `batches_max`: see `rawlog.Connection.scan`. Raises
    TopicError for a missing topic, LogTooLong, ClusterError when no broker answers or a batch is
    corrupt.
    """
    with connect(address) as kafka:
        bounds = kafka.bounds(topic)
        taken_at = datetime.now(UTC)
        batches = kafka.scan(topic, bounds, check_crc=check_crc, batches_max=batches_max)
        ranges = fate_ranges(batches, bounds)
        not_heard: list[str] = []

        def hear(subject: str, ask: Callable[[LookBudget], Answer]) -> Answer | None:
            return ask_or_note(address, not_heard, subject, ask)

        opened = hear(
            "open transactions",
            lambda budget: open_transactions(kafka, topic, bounds, ranges, budget=budget),
        )
        writers = hear(
            "transactional ids", lambda budget: topic_producers(kafka, topic, budget=budget)
        )
        if writers is None:
            writers = hear(
                "producers",
                lambda budget: topic_producers(kafka, topic, named=False, budget=budget),
            )
        if writers is None:
            writers = pd.DataFrame(columns=list(PRODUCER_COLUMNS))
        lags = hear(
            "consumer groups",
            lambda budget: group_lags(kafka, topic, bounds, ranges, opened or (), budget=budget),
        )
        shares = hear(
            "share groups",
            lambda budget: share_groups(kafka, topic, bounds, ranges, opened or (), budget=budget),
        )
        mirrored = hear(
            "MirrorMaker's checkpoints",
            lambda budget: [
                checkpoint
                for each in checkpoints(address, [topic], budget=budget)
                for checkpoint in each.found
            ],
        )
        unstable = hear(
            "unstable offsets", lambda budget: unstable_offsets(kafka, topic, budget=budget)
        )
        ended = transactions(batches, bounds)
        names = dict(zip(writers["producer_id"], writers["transactional_id"], strict=True))
        states = (
            hear(
                "the coordinators' log",
                lambda budget: states_of(kafka, ended, names, [topic], budget),
            )
            or ()
        )
    counts = balance(ranges, bounds)
    plain = ranges[~ranges["transactional"] & ranges["control"].isna()]
    return TopicView(
        topic=topic,
        taken_at=taken_at,
        bounds=bounds,
        fates=total(counts),
        outside=int(plain["records"].sum()),
        partitions=tuple(
            PartitionView(p.partition, p.start, p.lso, p.hw, total(counts.loc[[p.partition]]))
            for p in bounds.partitions
        ),
        transactions=summary(named_transactions(topic, ended, names, states)),
        open=opened or (),
        producers=tuple(
            ProducerView(**row)
            for row in _rows(
                writers.assign(
                    transactional_id=writers["transactional_id"].map(short_name, na_action="ignore")
                )
            )
        ),
        lags=lags or (),
        shares=shares or (),
        unstable=unstable[1] if unstable else (),
        mirrored=tuple(mirrored or ()),
        not_heard=tuple(not_heard),
    )


def ask_or_note(
    address: Address, not_heard: list[str], subject: str, ask: Callable[[LookBudget], Answer]
) -> Answer | None:
    """Ask a question with a budget of its own. If it is refused or cut short, a sentence in
    `not_heard` says so; None: it was refused."""
    budget = LookBudget()
    try:
        answer = ask(budget)
    except KafkaError as error:
        not_heard.append(f"{subject}: {cluster_error(address, error)}")
    except ClusterError as error:
        not_heard.append(f"{subject}: {error}")
    else:
        if budget.note:
            not_heard.append(f"{subject}: {budget.note}")
        return answer
    return None


def named_transactions(
    topic: str,
    ended: pd.DataFrame,
    names: Mapping[int, str | None],
    states: Sequence[StateEntry],
) -> pd.DataFrame:
    """Return rows of `fates.transactions` with `transactional_id` and `reason` (of an abort), null
    where they are not known. `names`: those that coordinators know, by producer id; `states`: the
    entries of their log."""
    ids = transactional_ids(states) | without_unknown(names)
    return ended.assign(
        transactional_id=ended["producer_id"]
        .map(ids)
        .map(short_name, na_action="ignore")
        .astype(object),
        reason=pd.Series(abort_reasons(topic, ended, states), ended.index, dtype=object),
    )


def transaction_views(rows: pd.DataFrame) -> tuple[TransactionView, ...]:
    """Return rows of `named_transactions` as values."""
    return tuple(TransactionView(**row) for row in _rows(rows))


def summary(rows: pd.DataFrame, last: int = LAST_TRANSACTIONS) -> TransactionsView:
    """Count the transactions of `fates.transactions`, whose rows have `transactional_id` and
    `reason` as well, and keep the last few parts that began."""
    whole = over_partitions(rows)
    number = whole["outcome"].value_counts()
    records = rows.groupby("outcome")["records"].sum()
    latest = rows.sort_values(
        ["first_timestamp", "first_offset"], ascending=False, kind="stable"
    ).head(last)
    return TransactionsView(
        partitions=int(rows["partition"].nunique()),
        committed=int(number.get(COMMITTED, 0)),
        aborted=int(number.get(ABORTED, 0)),
        open=int(number.get(OPEN, 0)),
        unexplained=int(number.get(UNEXPLAINED, 0)),
        split=int(number.get(SPLIT, 0)),
        records_committed=int(records.get(COMMITTED, 0)),
        records_aborted=int(records.get(ABORTED, 0)),
        aborted_by=_reasons(rows, whole[whole["outcome"] == ABORTED]),
        last=transaction_views(latest),
    )


def _reasons(rows: pd.DataFrame, aborted: pd.DataFrame) -> dict[str, int]:
    """Count the whole transactions of each reason, which each of their parts has."""
    explained = rows[rows["reason"].notna()]
    reasons = dict(
        zip(
            zip(explained["partition"], explained["first_offset"], strict=True),
            explained["reason"],
            strict=True,
        )
    )
    parts = zip(aborted["partitions"], aborted["first_offset_by_partition"], strict=True)
    counts = Counter(
        next((reasons[place] for place in zip(*part, strict=True) if place in reasons), None)
        for part in parts
    )
    return {str(reason): count for reason, count in counts.most_common() if reason is not None}


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table, with null as None."""
    rows: list[dict[str, Any]] = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    return rows


def _lower(fates: Mapping[Fate, int]) -> dict[str, int]:
    return {fate.value.lower(): count for fate, count in fates.items()}
