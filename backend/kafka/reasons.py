"""Why a transaction was aborted, and under which name it ran: the raw log's transactions beside the coordinators' log.

`declared`: its producer said so. `timeout`: its coordinator ended it because nobody did in time. `fenced`: another
producer took its transactional id over. Where nothing proves one of them, the reason is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from backend.kafka.fates import ABORTED
from backend.kafka.transaction_state import StateEntry

DECLARED, TIMEOUT, FENCED = "declared", "timeout", "fenced"
CLOCKS_MS = 1_000
"""By how much the clock of a partition's leader may be behind the coordinator's."""
EPOCH_BUMPS = 2
"""The transaction version whose clients get a new epoch with every end (KIP-890)."""


class _Abort(NamedTuple):
    """A decision to abort, and what its transactional id did right before and once the abort was complete."""

    before: StateEntry | None
    decided: StateEntry
    after: StateEntry | None


def transactional_ids(states: Iterable[StateEntry]) -> dict[int, str]:
    """Transactional id by producer id, replaced producer ids included."""
    found: dict[int, str] = {}
    for each in states:
        found[each.producer_id] = each.transactional_id
        if each.previous_producer_id >= 0:
            found.setdefault(each.previous_producer_id, each.transactional_id)
    return found


def abort_reasons(topic: str, transactions: pd.DataFrame, states: Sequence[StateEntry]) -> list[str | None]:
    """The reason of every row of `fates.transactions`; None where it was not aborted, or nothing proves a reason.

    `states` are the coordinators' entries, in order for each transactional id. A marker of the data's own epoch was
    asked for by the producer (transaction version 1): fences and timeouts always raise it.
    """
    decided: dict[int, list[_Abort]] = {}
    for each in _aborts(states):
        decided.setdefault(each.decided.producer_id, []).append(each)
    rows: list[dict[str, Any]] = pa.Table.from_pandas(transactions, preserve_index=False).to_pylist()
    return [_reason(topic, row, decided) if row["outcome"] == ABORTED else None for row in rows]


def _aborts(states: Sequence[StateEntry]) -> list[_Abort]:
    before: dict[str, StateEntry] = {}
    open_ends: dict[str, int] = {}
    found: list[_Abort] = []
    for entry in states:
        name = entry.transactional_id
        if entry.state == "PrepareAbort":
            open_ends[name] = len(found)
            found.append(_Abort(before.get(name), entry, None))
        elif entry.state != "CompleteAbort" and name in open_ends:
            number = open_ends.pop(name)
            found[number] = found[number]._replace(after=entry)
        before[name] = entry
    return found


def _reason(topic: str, row: Mapping[str, Any], decided: Mapping[int, list[_Abort]]) -> str | None:
    if row["marker_epoch"] == row["producer_epoch"]:
        return DECLARED
    earlier = [
        each
        for each in decided.get(row["producer_id"], ())
        if (topic, row["partition"]) in each.decided.partitions
        and each.decided.updated_ms <= row["marker_timestamp"] + CLOCKS_MS
    ]
    if not earlier:
        return None
    before, entry, after = max(earlier, key=lambda each: each.decided.updated_ms)
    if entry.updated_ms - entry.began_ms >= entry.timeout_ms:
        return TIMEOUT
    # A fence writes its own version into the decision; the client's is in what was written while it went on.
    if before is not None and before.state == "Ongoing" and (before.client_version or 0) < EPOCH_BUMPS:
        return FENCED
    # Here every end raises the epoch. A fence is followed by its successor's Empty; so is an abort before a restart.
    return DECLARED if after is None or after.state == "Ongoing" else None
