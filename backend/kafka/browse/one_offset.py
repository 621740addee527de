"""What became of one offset: its fate with both readers as witnesses, its transaction, and who
holds it back. Nothing of the record's content is in the answer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.browse.inspect import (
    TransactionView,
    ask_or_note,
    named_transactions,
    transaction_views,
)
from topicproof.backend.kafka.browse.records import read_window
from topicproof.backend.kafka.coordination.attribution import states_of
from topicproof.backend.kafka.coordination.coordinator import (
    open_json,
    open_transactions,
    topic_producers,
)
from topicproof.backend.kafka.coordination.lag import holder_of_lso
from topicproof.backend.kafka.log.fates import fate_ranges, transactions
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import Bounds, Fate, PartitionBounds


@dataclass(frozen=True)
class OffsetStory:
    """One offset, explained."""

    topic: str
    offset: int
    bounds: PartitionBounds
    fate: Fate
    is_delivered: bool
    """Whether a read_committed consumer received it."""
    is_marker: bool
    timestamp_ms: int | None
    """Of the record, in ms since 1970; None without one."""
    why: str
    """Why a read_committed consumer does or does not receive it."""
    transaction: TransactionView | None
    """Its transaction on this partition; None outside of transactions."""
    holder: OpenTransaction | None
    """The transaction that holds it back, if it is pending and the holder is known."""
    not_heard: tuple[str, ...]
    """Unanswered questions to the cluster, with the reasons."""

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`: the fate in lower case, every sentence included."""
        fields = asdict(self) | {"fate": self.fate.value.lower()}
        return fields | {"holder": None if self.holder is None else open_json(self.holder)}


def explain_offset(
    address: Address, topic: str, partition: int, offset: int, batches_max: int | None = None
) -> OffsetStory:
    """Explain one offset. Reads the batch headers of its partition, and the one record at both
    isolation levels.

    `batches_max`: see `rawlog.Connection.scan`. Raises TopicError for a missing topic or partition
    and for an offset outside of its bounds, LogTooLong, RecordTooLarge, ClusterError.
    """
    not_heard: list[str] = []
    with connect(address) as kafka:
        bounds = _of_partition(kafka.bounds(topic), partition, offset)
        batches = kafka.scan(topic, bounds, batches_max=batches_max)
        ranges, ended = fate_ranges(batches, bounds), transactions(batches, bounds)
        at = ranges[(ranges["first_offset"] <= offset) & (offset <= ranges["last_offset"])]
        number = at["transaction"].iloc[0]
        transaction = None
        if pd.notna(number):
            transaction = _named(kafka, topic, ended.loc[[int(number)]], not_heard)
        opened: Collection[OpenTransaction] = ()
        if at["fate"].iloc[0] == Fate.PENDING:
            opened = (
                ask_or_note(
                    address,
                    not_heard,
                    "open transactions",
                    lambda budget: open_transactions(kafka, topic, bounds, ranges, budget=budget),
                )
                or ()
            )
    (record,) = read_window(address, topic, partition, offset, 1, bounds, ranges)
    (place,) = bounds.partitions
    return OffsetStory(
        topic,
        offset,
        place,
        record.fate,
        record.delivered,
        record.marker,
        record.timestamp_ms,
        record.why,
        transaction,
        holder_of_lso(place, opened),
        tuple(not_heard),
    )


def _of_partition(bounds: Bounds, partition: int, offset: int) -> Bounds:
    """Return the bounds of one partition. Raises TopicError for one without this offset."""
    place = next((p for p in bounds.partitions if p.partition == partition), None)
    if place is None:
        raise TopicError(
            f"Topic {bounds.topic} has no partition {partition}; it has {len(bounds.partitions)}."
        )
    if offset < place.start:
        raise TopicError(
            f"Offset {offset:,} of {bounds.topic}-{partition} is gone: retention or DeleteRecords"
            f" removed it, and the log starts at {place.start:,}."
        )
    if offset >= place.hw:
        raise TopicError(
            f"Nothing is at offset {offset:,} of {bounds.topic}-{partition} yet: its high watermark"
            f" is {place.hw:,}."
        )
    return Bounds(bounds.topic, (place,))


def _named(
    kafka: Connection, topic: str, ended: pd.DataFrame, not_heard: list[str]
) -> TransactionView:
    """Return the transaction of one row of `fates.transactions`, with its transactional id and the
    reason of its abort as far as coordinators and their log tell them."""
    producers = ask_or_note(
        kafka.address,
        not_heard,
        "transactional ids",
        lambda budget: topic_producers(kafka, topic, budget=budget),
    )
    names: dict[int, str | None] = {}
    if producers is not None:
        names = dict(zip(producers["producer_id"], producers["transactional_id"], strict=True))
    states = (
        ask_or_note(
            kafka.address,
            not_heard,
            "the coordinators' log",
            lambda budget: states_of(kafka, ended, names, [topic], budget),
        )
        or ()
    )
    (view,) = transaction_views(named_transactions(topic, ended, names, states))
    return view
