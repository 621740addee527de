"""A writer's position, according to the group's committed offset and to the journal.

The two are written independently. If they differ, the group's offset was moved: by hand, or by
restoring an old copy of the brokers' data. Continuing from there would repeat or skip inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import TopicPartition

from topicproof.backend.errors import OffsetsMoved
from topicproof.backend.kafka.cluster import COUNTER, Cluster
from topicproof.backend.sink.entries import Declared, Entry, TaskStarted, TransactionEnded


@dataclass(frozen=True, order=True)
class Position:
    sequence: int
    """Sequence of the last committed transaction; 0 before the first, or if the offset was set by
    other means."""
    offset: int
    """Offset of the next input."""


def journalled(entries: Iterable[Entry], name: str) -> Position | None:
    """Return the furthest position of a transactional id in the journal; None if it has no
    entry."""
    furthest: Position | None = None
    for entry in entries:
        if isinstance(entry, TaskStarted) and entry.transactional_id == name:
            position = Position(entry.sequence - 1, entry.next_offset)
        elif isinstance(entry, TransactionEnded) and (entry.transactional_id, entry.outcome) == (
            name,
            Declared.COMMITTED,
        ):
            position = Position(entry.sequence, entry.next_offset)
        else:
            continue
        # The later entry of a sequence wins: a writer with offsetsForced began there.
        if furthest is None or position.sequence >= furthest.sequence:
            furthest = position
    return furthest


def agree(group_position: Position, recorded: Position | None) -> bool:
    """Return whether the group's offset matches the journal, or is ahead by undeclared transactions
    (their worker was killed before its last entries were sent)."""
    if recorded is None or group_position.offset == recorded.offset:
        return True
    return group_position.sequence > recorded.sequence and group_position.offset > recorded.offset


def moved(group: str, where: str, offset: int, recorded: Position) -> OffsetsMoved:
    """Return the error for a group's offset that disagrees with the journal."""
    how = "back" if offset < recorded.offset else "forward"
    then = "repeat" if offset < recorded.offset else "leave out"
    first, last = sorted((offset, recorded.offset))
    return OffsetsMoved(
        f"Group {group} is at offset {offset} of {where}, but the journal says that transaction"
        f" {recorded.sequence} left it at {recorded.offset}: somebody moved it {how}, and"
        f" continuing would {then} offsets {first} to {last - 1}. Set it to {recorded.offset} and"
        " resume, or continue from where it is with offsetsForced (--offsets-forced)."
    )


def generation_partition(journal: str) -> TopicPartition:
    """Return the partition whose committed offset is the group's generation. No group processes its
    records."""
    return TopicPartition(journal, 0)


def next_generation(cluster: Cluster, group: str, journal: str) -> int:
    """Begin a new generation of a group, so that workers of earlier ones end before they write.

    Returns its number, from 1. Raises ClusterError.
    """
    partition = generation_partition(journal).partition
    generation = cluster.committed(group, journal).get(partition, 0) + 1
    cluster.commit_offsets(group, journal, {partition: generation}, COUNTER)
    return generation
