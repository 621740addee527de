"""How each watched contract stands, and how it stood in the last day: what the watch writes beside
its state, and the dashboard reads."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter

SCHEMA = """
create table if not exists standing (name text primary key, at_s integer, body text);
create table if not exists slot (
    name text, slot integer, state text, primary key (name, slot)) without rowid;
"""
SLOT_S = 300
SLOTS = 24 * 3_600 // SLOT_S
"""Of a day."""
STALE_LOOKS, STALE_S = 3, 60.0
"""A watch that has not written for so many looks, and so many seconds, is not running or stuck."""
BODY_MAX = 20_000
"""Characters of a standing that are read."""
TEXT_MAX = 2_000
CONTRACTS_MAX = 1_000
FILES_MAX = 100
"""Clusters whose watches are read."""
READ_TIMEOUT_S = 2.0


class State(StrEnum):
    """How a contract stands at one moment."""

    HOLDS = "holds"
    BEHIND = "behind"
    """Not all that was committed is judged."""
    UNKNOWN = "unknown"
    REFUSED = "refused"
    """No watch judges it. It has no slots."""
    VIOLATED = "violated"


SEVERITY = {state: rank for rank, state in enumerate(State)}
"""A slot has the worst state of its time."""


@dataclass(frozen=True)
class Standing:
    """A contract after one look."""

    name: str
    source: str
    """Both topics are empty for a contract that cannot be read."""
    sink: str
    bootstrap: str
    """The address of its cluster; empty for the embedded Kafka."""
    cluster: str
    """The name of its cluster in the settings; empty without one."""
    state: State
    why: str
    next_step: str
    due: int
    """Inputs whose time for an output is over, in total."""
    late: int
    """Those of them that had no output then."""
    withheld: int
    """Offsets of the sink at and above its last stable one."""
    behind: int
    """Offsets that are not judged yet."""
    delay_s: float
    every_s: float
    waived: tuple[str, ...] = ()
    """Kinds of finding whose alarm a waiver silences."""
    place: tuple[str, int, int] | None = None
    """Topic, partition and offset of the first example of what is wrong."""
    listed: str = ""
    """What the list of the home calls it (`WatchedContract.listed`)."""
    at_s: int = 0
    """When it was written, in seconds since 1970."""

    def is_stale(self, now_s: int) -> bool:
        """Whether the watch has stopped to write."""
        return now_s - self.at_s > max(STALE_S, STALE_LOOKS * self.every_s)


_STANDING = TypeAdapter(Standing)


@dataclass(frozen=True)
class WatchedStanding:
    """A contract and its last day."""

    standing: Standing
    slots: tuple[State | None, ...]
    """The oldest first, the last one goes on; None: nobody watched."""
    state_name: str
    """Of the files of its cluster (`state_file.state_name`)."""


def note_standings(db: sqlite3.Connection, standings: Iterable[Standing], now_s: int) -> None:
    """Write how contracts stand now, within the caller's transaction, and forget what is older than
    a day."""
    slot = now_s // SLOT_S
    db.execute("delete from slot where slot <= ?", (slot - SLOTS,))
    db.execute("delete from standing where at_s < ?", (now_s - SLOTS * SLOT_S,))
    for standing in standings:
        body = asdict(standing)
        body["why"], body["next_step"] = standing.why[:TEXT_MAX], standing.next_step[:TEXT_MAX]
        db.execute(
            "insert or replace into standing values (?, ?, ?)",
            (standing.name, now_s, json.dumps(body)),
        )
        if standing.state is State.REFUSED:
            continue
        row = db.execute(
            "select state from slot where name = ? and slot = ?", (standing.name, slot)
        ).fetchone()
        if row is None or SEVERITY[State(row[0])] < SEVERITY[standing.state]:
            db.execute(
                "insert or replace into slot values (?, ?, ?)",
                (standing.name, slot, standing.state.value),
            )


def forget_standings(db: sqlite3.Connection, names: Iterable[str]) -> None:
    """Forget contracts that are no longer watched, within the caller's transaction."""
    for name in names:
        db.execute("delete from standing where name = ?", (name,))
        db.execute("delete from slot where name = ?", (name,))


def read_standings(folder: Path, now_s: int) -> tuple[list[WatchedStanding], list[str]]:
    """Return what the watches of all clusters have written into a folder, and the names of the
    files that cannot be read. Changes nothing."""
    watched: list[WatchedStanding] = []
    unreadable: list[str] = []
    for path in sorted(folder.glob("*.pairs"))[:FILES_MAX]:
        try:
            watched += _of_file(path, now_s)
        except (sqlite3.Error, ValueError, TypeError):
            unreadable.append(path.name)
    return watched, unreadable


def _of_file(path: Path, now_s: int) -> Iterator[WatchedStanding]:
    """Yield the contracts of one cluster. Raises sqlite3.Error, ValueError, TypeError."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=READ_TIMEOUT_S)) as db:
        has_table = "select 1 from sqlite_master where name = 'standing'"
        if db.execute(has_table).fetchone() is None:
            return
        rows = db.execute(
            "select at_s, substr(body, 1, ?) from standing order by name limit ?",
            (BODY_MAX, CONTRACTS_MAX),
        ).fetchall()
        for at_s, body in rows:
            standing = replace(_STANDING.validate_json(body), at_s=int(at_s))
            newest = now_s // SLOT_S
            states = dict(
                db.execute(
                    "select slot, state from slot where name = ? and slot > ? and slot <= ?",
                    (standing.name, newest - SLOTS, newest),
                )
            )
            yield WatchedStanding(standing, _slots(states, newest), path.stem)


def _slots(states: Mapping[int, str], newest: int) -> tuple[State | None, ...]:
    return tuple(
        State(states[slot]) if slot in states else None
        for slot in range(newest - SLOTS + 1, newest + 1)
    )
