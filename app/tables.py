"""Tables: records in, frame out. Both levels are columns of one table, so that a row is one offset at either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pandas as pd
from pandas.io.formats.style import Styler

from app.place import BOTH, COMMITTED, UNCOMMITTED
from app.wording import FATE_WORDS, fate_label, not_here, short_transaction
from backend.kafka.fates import FATES
from backend.kafka.records import Record, as_text
from validators.finding import Bounds, Fate

CELL_CHARACTERS = 80
OFFSET, FATE = ("", "offset"), ("", "fate")
READ_UNCOMMITTED_GETS, READ_COMMITTED_GETS = "read_uncommitted gets", "read_committed gets"
TINTS: dict[Fate, str] = {
    Fate.ABORTED: "213, 94, 0",
    Fate.PENDING: "230, 159, 0",
    Fate.MARKER: "128, 128, 128",
    Fate.GONE: "128, 128, 128",
    Fate.UNEXPLAINED: "204, 121, 167",
    Fate.COMMITTED: "0, 114, 178",
}


def record_table(records: Sequence[Record], level: str) -> pd.DataFrame:
    """One row an offset; what a level does not get says why instead."""
    columns: dict[tuple[str, str], list[Any]] = {
        OFFSET: [record.offset for record in records],
        FATE: [fate_label(record.fate) for record in records],
    }
    if level in (BOTH, UNCOMMITTED):
        columns |= {
            (READ_UNCOMMITTED_GETS, "key"): [_key(record) for record in records],
            (READ_UNCOMMITTED_GETS, "value"): [_value(record) for record in records],
            (READ_UNCOMMITTED_GETS, "transaction"): [short_transaction(record.transaction) for record in records],
        }
    if level in (BOTH, COMMITTED):
        columns |= {
            (READ_COMMITTED_GETS, "key"): [_key(record) if record.delivered else "" for record in records],
            (READ_COMMITTED_GETS, "value"): [
                _value(record) if record.delivered else not_here(record) for record in records
            ],
        }
    return pd.DataFrame(columns, columns=pd.MultiIndex.from_tuples(columns))


def tinted(table: pd.DataFrame, records: Sequence[Record], chosen: int) -> Styler:
    """The table with each row in the tint of its fate; the chosen offset stands out."""
    fates = {record.offset: record.fate for record in records}

    def tint(row: pd.Series[Any]) -> list[str]:
        offset = int(row[OFFSET])
        fate = fates[offset]
        strength = 0.45 if offset == chosen else 0.0 if fate is Fate.COMMITTED else 0.16
        return [f"background-color: rgba({TINTS[fate]}, {strength})" if strength else ""] * len(row)

    return table.style.apply(tint, axis=1).format({OFFSET: "{:,}"})


def widths(table: pd.DataFrame) -> dict[str, Any]:
    """How wide each column is, by its position: names are not unique below two levels."""
    columns = cast(list[tuple[str, str]], table.columns.to_list())
    alone = {group for group, _name in columns} == {"", READ_COMMITTED_GETS}
    pixels = {
        OFFSET: 72,
        FATE: 102,
        (READ_UNCOMMITTED_GETS, "key"): 64,
        (READ_UNCOMMITTED_GETS, "value"): 104,
        (READ_UNCOMMITTED_GETS, "transaction"): 124,
        (READ_COMMITTED_GETS, "key"): 64,
        (READ_COMMITTED_GETS, "value"): 420 if alone else 204,
    }
    # Streamlit takes positions, although its type does not say so; the hidden index is the first of them.
    found: dict[Any, Any] = {at: {"width": pixels[column]} for at, column in enumerate(columns, start=1)}
    return found


def balance_table(bounds: Bounds, counts: pd.DataFrame) -> pd.DataFrame:
    """The strip in numbers: bounds and fates of every partition."""
    rows = []
    for p in bounds.partitions:
        of = counts.loc[p.partition]
        rows.append(
            {
                "partition": p.partition,
                "start": p.start,
                "LSO": p.lso,
                "HW": p.hw,
                "offsets": p.hw - p.start,
                **{f"{FATE_WORDS[fate].symbol} {FATE_WORDS[fate].plural}": int(of[fate]) for fate in FATES},
            }
        )
    return pd.DataFrame(rows)


def header_table(record: Record) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "header": [name for name, _value in record.headers],
            "value": [None if value is None else as_text(value, CELL_CHARACTERS) for _name, value in record.headers],
        }
    )


def _key(record: Record) -> str | None:
    return None if record.key is None and _came(record) else as_text(record.key, CELL_CHARACTERS)


def _value(record: Record) -> str | None:
    if not _came(record):
        return "— a marker" if record.fate is Fate.MARKER else "— no record"
    return None if record.value is None else as_text(record.value, CELL_CHARACTERS)


def _came(record: Record) -> bool:
    return record.timestamp_ms is not None
