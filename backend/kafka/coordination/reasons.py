"""Why transactions were aborted, and their transactional ids: the raw log's transactions joined
with the coordinators' log.

`declared`: its producer aborted it. `timeout`: the coordinator aborted it after its timeout.
`fenced`: another producer took over the transactional id. `operator`: no coordinator decided it.
Without proof, the reason is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from topicproof.backend.kafka.coordination.transaction_state import EPOCH_BUMPS, StateEntry
from topicproof.validators.facts.log_facts import ABORTED

DECLARED, TIMEOUT, FENCED, OPERATOR = "declared", "timeout", "fenced", "operator"
CLOCKS_MS = 1_000
"""How far a partition leader's clock may lag behind the coordinator's."""


DECISIONS_MAX = 100
"""The newest decisions before a marker that are looked at. An earlier one was complete long before
it: a transactional id has one transaction at a time."""


class _Abort(NamedTuple):
    """A decision to abort, with the entries of its transactional id before it and after its
    completion."""

    before: StateEntry | None
    decided: StateEntry
    complete_ms: int | None
    after: StateEntry | None


def transactional_ids(states: Iterable[StateEntry]) -> dict[int, str]:
    """Map producer ids to transactional ids, replaced producer ids included."""
    ids: dict[int, str] = {}
    for entry in states:
        ids[entry.producer_id] = entry.transactional_id
        if entry.previous_producer_id >= 0:
            ids.setdefault(entry.previous_producer_id, entry.transactional_id)
    return ids


def abort_reasons(
    topic: str, transactions: pd.DataFrame, states: Sequence[StateEntry]
) -> list[str | None]:
    """Return the reason for every row of `fates.transactions`. None: it was not aborted, or nothing
    proves a reason.

    `states` are the coordinators' entries, in order for each transactional id. A marker with the
    data's own epoch was requested by the producer (transaction version 1): fences and timeouts
    always bump the epoch. An operator's marker has the same epoch, but no decision behind it.
    Compaction keeps the later entries of an id. So if the log knows the producer from before the
    marker, a missing decision was never made.
    """
    decided: dict[tuple[int, int], list[_Abort]] = {}
    for each in sorted(_aborts(states), key=_decided_ms):
        for name, partition in each.decided.partitions:
            if name == topic:
                decided.setdefault((each.decided.producer_id, partition), []).append(each)
    known_since: dict[int, int] = {}
    for entry in states:
        known_since.setdefault(entry.producer_id, entry.updated_ms)
    rows: list[dict[str, Any]] = pa.Table.from_pandas(
        transactions, preserve_index=False
    ).to_pylist()
    return [
        _reason(row, decided, known_since) if row["outcome"] == ABORTED else None for row in rows
    ]


def _aborts(states: Sequence[StateEntry]) -> list[_Abort]:
    before: dict[str, StateEntry] = {}
    open_ends: dict[str, int] = {}
    aborts: list[_Abort] = []
    for entry in states:
        name = entry.transactional_id
        if entry.state == "PrepareAbort":
            open_ends[name] = len(aborts)
            aborts.append(_Abort(before.get(name), entry, None, None))
        elif entry.state == "CompleteAbort" and name in open_ends:
            aborts[open_ends[name]] = aborts[open_ends[name]]._replace(complete_ms=entry.updated_ms)
        elif name in open_ends:
            number = open_ends.pop(name)
            aborts[number] = aborts[number]._replace(after=entry)
        before[name] = entry
    return aborts


def _decided_ms(abort: _Abort) -> int:
    return abort.decided.updated_ms


def _behind(aborts: Sequence[_Abort], marker_ms: int) -> _Abort | None:
    """Return the newest of these decisions, sorted by time, that may be behind a marker: it was
    made before the marker, and was not complete by then."""
    end = bisect_right(aborts, marker_ms + CLOCKS_MS, key=_decided_ms)
    for each in reversed(aborts[max(0, end - DECISIONS_MAX) : end]):
        if each.complete_ms is None or marker_ms <= each.complete_ms + CLOCKS_MS:
            return each
    return None


def _reason(
    row: Mapping[str, Any],
    decided: Mapping[tuple[int, int], list[_Abort]],
    known_since: Mapping[int, int],
) -> str | None:
    """`decided`: the decisions about each producer id and partition, sorted by time."""
    marker_ms = row["marker_timestamp"]
    behind = _behind(decided.get((row["producer_id"], row["partition"]), ()), marker_ms)
    same_epoch = row["marker_epoch"] == row["producer_epoch"]
    if behind is None and known_since.get(row["producer_id"], marker_ms + 1) <= marker_ms:
        return OPERATOR
    if same_epoch or behind is None:
        return DECLARED if same_epoch else None
    before, entry, _, after = behind
    return _of_bumped(before, entry, after)


def decided_reason(
    before: StateEntry | None, decided: StateEntry, after: StateEntry | None
) -> str | None:
    """Return the reason of a decision to abort by the log alone; None if nothing proves one.
    `before` and `after`: the entries of its transactional id around the decision and its
    completion."""
    if before is None or before.state != "Ongoing":
        return None
    if before.producer_epoch == decided.producer_epoch:
        return DECLARED
    return _of_bumped(before, decided, after)


def _of_bumped(
    before: StateEntry | None, entry: StateEntry, after: StateEntry | None
) -> str | None:
    """Return the reason of an abort with another epoch than that of the data."""
    if entry.updated_ms - entry.began_ms >= entry.timeout_ms:
        return TIMEOUT
    # A fence writes its own version into the decision. The client's version is in the entries of
    # the ongoing transaction.
    if (
        before is not None
        and before.state == "Ongoing"
        and (before.client_version or 0) < EPOCH_BUMPS
    ):
        return FENCED
    # Here every end bumps the epoch. The successor's Empty follows a fence, but also an abort
    # before a restart.
    return DECLARED if after is None or after.state == "Ongoing" else None
