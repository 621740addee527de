"""Who wrote a topic's transactions, and why some were aborted: the raw log joined with what the
coordinators and their log know."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from kafka.errors import KafkaError

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.coordination.coordinator import topic_producers
from topicproof.backend.kafka.coordination.reasons import abort_reasons, transactional_ids
from topicproof.backend.kafka.coordination.transaction_state import (
    TOPIC as STATE_TOPIC,
    StateEntry,
    read_states,
)
from topicproof.backend.kafka.log import fates
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.kafka.look import LookBudget, LookLimits
from topicproof.validators.coordinator import NO_ATTRIBUTION, AbortReason, Attribution, short_name
from topicproof.validators.facts.log_facts import ABORTED
from topicproof.validators.finding import Bounds
from topicproof.validators.merged_topics import split

KEPT_MAX, KEPT_BYTES_MAX = 100_000, 20_000_000
"""At most this many transactional ids and reasons are kept, those of the newest transactions; of
ids, as many as fit into the text of evidence with all else (`read_limits.TEXT_BYTES_MAX`)."""


def fetch_attribution(address: Address, sink: Bounds, batches: pa.Table) -> Attribution:
    """Return what the coordinators know of the transactions in `batches`, which were read within
    the bounds of `sink`. What no coordinator answers is left out: a client may read topics without
    the right to list transactions, or to read the coordinators' log."""
    if not pc.any(batches["transactional"]).as_py():
        return NO_ATTRIBUTION
    every = fates.transactions(batches, sink)
    names: dict[int, str | None] = {}
    states: tuple[StateEntry, ...] = ()
    topics = [part.topic for part, _ in split(sink)]
    # Each of the two needs a right of its own.
    with suppress(KafkaError, ClusterError), connect(address) as kafka:
        with suppress(KafkaError, ClusterError):
            names = _names(kafka, sink)
        states = states_of(kafka, every, names, topics, LookBudget())
    ids = transactional_ids(states) | without_unknown(names)
    producers = every["producer_id"].iloc[::-1].unique().tolist()
    reasons: list[AbortReason] = []
    for part, first in split(sink):
        partitions = [first + p.partition for p in part.partitions]
        aborted = every[every["partition"].isin(partitions) & (every["outcome"] == ABORTED)]
        aborted = aborted.assign(partition=aborted["partition"] - first)
        reasons += (
            AbortReason(first + partition, offset, reason)
            for partition, offset, reason in zip(
                aborted["partition"].tolist(),
                aborted["first_offset"].tolist(),
                abort_reasons(part.topic, aborted, states),
                strict=True,
            )
            if reason is not None
        )
    return Attribution(kept_ids(ids, producers), tuple(reasons[-KEPT_MAX:]))


def kept_ids(ids: Mapping[int, str], producers: Iterable[int]) -> dict[int, str]:
    """Return the transactional ids of these producers as evidence keeps them, the first ones if
    there are too many."""
    names: dict[int, str] = {}
    size = 0
    for producer in producers:
        if producer in ids:
            name = short_name(ids[producer])
            size += len(json.dumps(name, ensure_ascii=False).encode(errors="surrogatepass"))
            if size > KEPT_BYTES_MAX or len(names) == KEPT_MAX:
                break
            names[producer] = name
    return names


def _names(kafka: Connection, sink: Bounds) -> dict[int, str | None]:
    """Return the transactional ids of the producers that the partitions' leaders remember."""
    names: dict[int, str | None] = {}
    budget = LookBudget(LookLimits(producers=KEPT_MAX))
    for part, _ in split(sink):
        writers = topic_producers(kafka, part.topic, budget=budget)
        names |= zip(writers["producer_id"], writers["transactional_id"], strict=True)
    return names


def states_of(
    kafka: Connection,
    ended: pd.DataFrame,
    names: Mapping[int, str | None],
    topics: Collection[str],
    budget: LookBudget,
) -> tuple[StateEntry, ...]:
    """Return the entries of the coordinators' log for the producers of these transactions
    (`fates.transactions`), with the partitions of these topics. If a name is unknown, the entries
    of all producers. Raises KafkaError, ClusterError."""
    writers = {names.get(producer_id) for producer_id in ended["producer_id"].unique()}
    if not writers:
        return ()
    ids = {name for name in writers if name is not None}
    return read_states(
        kafka.address,
        kafka.bounds(STATE_TOPIC),
        ids if len(ids) == len(writers) else None,
        topics,
        budget=budget,
    )


def without_unknown(names: Mapping[int, str | None]) -> dict[int, str]:
    """Return the names that are known."""
    return {producer_id: name for producer_id, name in names.items() if name is not None}
