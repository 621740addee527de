"""Why transactions were aborted, and their transactional ids: the raw log's transactions joined
with the coordinators' log.

`declared`: its producer aborted it. `timeout`: the coordinator aborted it after its timeout.
`fenced`: another producer took over the transactional id. `operator`: no coordinator decided it.
Without proof, the reason is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from topicproof.backend.kafka.coordination.transaction_state import EPOCH_BUMPS, StateEntry
from topicproof.validators.facts.log_facts import ABORTED

DECLARED, TIMEOUT, FENCED, OPERATOR = "declared", "timeout", "fenced", "operator"
CLOCKS_MS = 1_000
"""How far a partition leader's clock may lag behind the coordinator's."""


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
    decided: dict[int, list[_Abort]] = {}
    for each in _aborts(states):
        decided.setdefault(each.decided.producer_id, []).append(each)
    known_since: dict[int, int] = {}
    for entry in states:
        known_since.setdefault(entry.producer_id, entry.updated_ms)
    rows: list[dict[str, Any]] = pa.Table.from_pandas(
        transactions, preserve_index=False
    ).to_pylist()
    return [
        _reason(topic, row, decided, known_since) if row["outcome"] == ABORTED else None
        for row in rows
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


def _reason(
    topic: str,
    row: Mapping[str, Any],
    decided: Mapping[int, list[_Abort]],
    known_since: Mapping[int, int],
) -> str | None:
    marker_ms = row["marker_timestamp"]
    behind = [
        each
        for each in decided.get(row["producer_id"], ())
        if (topic, row["partition"]) in each.decided.partitions
        and each.decided.updated_ms <= marker_ms + CLOCKS_MS
        and (each.complete_ms is None or marker_ms <= each.complete_ms + CLOCKS_MS)
    ]
    same_epoch = row["marker_epoch"] == row["producer_epoch"]
    if not behind and known_since.get(row["producer_id"], marker_ms + 1) <= marker_ms:
        return OPERATOR
    if same_epoch or not behind:
        return DECLARED if same_epoch else None
    before, entry, _, after = max(behind, key=lambda each: each.decided.updated_ms)
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
