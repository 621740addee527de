"""Tables: records in, frame out. Both levels are columns of one table, so each row is one offset at
both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler

from topicproof.app.shell.url_state import BOTH, COMMITTED, UNCOMMITTED
from topicproof.app.topic.payload import RowDecoder, cell_text
from topicproof.app.wording import (
    FATE_WORDS,
    OUTCOME_SYMBOLS,
    WITNESS_BRIEFS,
    data_size,
    fate_label,
    kind_title,
    moment_of_ms,
    not_here,
    short_transaction,
)
from topicproof.backend.kafka.browse.all_groups import ClusterGroup
from topicproof.backend.kafka.browse.overview import NewestRecords, TopicOverview
from topicproof.backend.kafka.browse.records import Headers, Record, as_text
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.kafka.coordination.lag import GroupLag
from topicproof.backend.kafka.coordination.share import ShareGroup
from topicproof.backend.kafka.log.fates import FATES
from topicproof.backend.kafka.mirror_offsets import Checkpoint
from topicproof.validators.finding import Bounds, Check, Fate, Finding
from topicproof.validators.lineage.compact import COMPACT_HEADER, describe_compact
from topicproof.validators.report import Report
from topicproof.validators.sentences import first_of

CELL_CHARACTERS = 80
VALUE_CHARACTERS = 300
"""Of a value that has the room of a wide column."""
CELLS_FORMATTED_MAX = 20_000
"""Streamlit refuses a formatted table of more than 262,144 cells, and each cell takes up to a
millisecond at every drawing. A larger table has its numbers without separators."""
TEXT_MAX = 300
"""Characters of a text in a table that brokers answer: Kafka lets a group, a client or a
transactional id have 32 kB, and it stands in each row of each partition."""
OFFSET, FATE, TRANSACTION = ("", "offset"), ("", "fate"), ("", "transaction")
READ_UNCOMMITTED_GETS, READ_COMMITTED_GETS = "read_uncommitted gets", "read_committed gets"
LAG_COLUMNS = ("read_committed lag", "read_uncommitted lag", "withheld", "HW − committed")
MIRRORED_COLUMNS = ("committed there", "continues here at")
SHARE_COLUMNS = ("start offset", "left at most", "withheld", "lag in offsets")
TINTS: dict[Fate, str] = {
    Fate.ABORTED: "213, 94, 0",
    Fate.PENDING: "230, 159, 0",
    Fate.MARKER: "128, 128, 128",
    Fate.GONE: "128, 128, 128",
    Fate.UNEXPLAINED: "204, 121, 167",
    Fate.COMMITTED: "0, 114, 178",
}


def record_table(records: Sequence[Record], level: str, decoder: RowDecoder) -> pd.DataFrame:
    """Builds one row per offset. A cell that a level does not receive shows the reason instead."""
    keys = [_key(record, decoder) for record in records]
    values = [_value(record, decoder) for record in records]
    columns: dict[tuple[str, str], list[Any]] = {
        OFFSET: [record.offset for record in records],
        FATE: [fate_label(record.fate) for record in records],
    }
    if level in (BOTH, UNCOMMITTED):
        columns |= {
            (READ_UNCOMMITTED_GETS, "key"): keys,
            (READ_UNCOMMITTED_GETS, "value"): values,
        }
    if level in (BOTH, COMMITTED):
        columns |= {
            (READ_COMMITTED_GETS, "key"): [
                key if record.delivered else "" for record, key in zip(records, keys, strict=True)
            ],
            (READ_COMMITTED_GETS, "value"): [
                value if record.delivered else not_here(record)
                for record, value in zip(records, values, strict=True)
            ],
        }
    if level in (BOTH, UNCOMMITTED):
        # Last: in a narrow window both levels matter more.
        columns[TRANSACTION] = [short_transaction(record.transaction) for record in records]
    return pd.DataFrame(columns, columns=pd.MultiIndex.from_tuples(columns))


def tinted(table: pd.DataFrame, records: Sequence[Record], chosen: int) -> Styler:
    """Tints each row by its fate; the chosen offset stands out."""
    fates = {record.offset: record.fate for record in records}

    def tint(row: pd.Series[Any]) -> list[str]:
        offset = int(row[OFFSET])
        fate = fates[offset]
        strength = 0.45 if offset == chosen else 0.0 if fate is Fate.COMMITTED else 0.16
        return [f"background-color: rgba({TINTS[fate]}, {strength})" if strength else ""] * len(row)

    return table.style.apply(tint, axis=1).format({OFFSET: "{:,}"})


def widths(table: pd.DataFrame) -> dict[str, Any]:
    """Returns each column's width by position: names are not unique below two header levels."""
    columns = cast(list[tuple[str, str]], table.columns.to_list())
    alone = {group for group, _name in columns} == {"", READ_COMMITTED_GETS}
    pixels = {
        OFFSET: 72,
        FATE: 102,
        (READ_UNCOMMITTED_GETS, "key"): 64,
        (READ_UNCOMMITTED_GETS, "value"): 104,
        TRANSACTION: 124,
        (READ_COMMITTED_GETS, "key"): 64,
        (READ_COMMITTED_GETS, "value"): 420 if alone else 204,
    }
    # Streamlit accepts positions, although its type does not show it. The hidden index is the
    # first.
    by_position: dict[Any, Any] = {
        at: {"width": pixels[column]} for at, column in enumerate(columns, start=1)
    }
    return by_position


def cut(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the table with its texts cut."""
    texts = table.select_dtypes("object")
    return table.assign(
        **{
            str(name): [
                f"{value[:TEXT_MAX]}…"
                if isinstance(value, str) and len(value) > TEXT_MAX
                else value
                for value in texts[name]
            ]
            for name in texts
        }
    )


def formatted(
    table: pd.DataFrame, formats: str | dict[Any, Any], na_rep: str | None = None
) -> pd.DataFrame | Styler:
    """Returns the table with formats of its columns, or of all its cells, as long as it is small:
    how many rows it has, anybody may decide who commits offsets or makes partitions."""
    if table.size > CELLS_FORMATTED_MAX:
        return table
    return table.style.format(formats, na_rep=na_rep)


def balance_table(bounds: Bounds, counts: pd.DataFrame) -> pd.DataFrame:
    """Shows the strip in numbers: bounds and fates of every partition."""
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
                **{
                    f"{FATE_WORDS[fate].symbol} {FATE_WORDS[fate].plural}": int(of[fate])
                    for fate in FATES
                },
            }
        )
    return pd.DataFrame(rows)


HEADER_WIDTHS: dict[str, Any] = {"header": {"width": 150}}
"""A long name leaves room for its value."""


def header_table(headers: Headers) -> pd.DataFrame:
    """Builds one row per header. The binary header of our sink has one row for each thing that it
    names."""
    rows: list[tuple[str, str | None]] = []
    for name, value in headers:
        texts = describe_compact(value) if name == COMPACT_HEADER else None
        if texts is None:
            rows.append((name, None if value is None else as_text(value, CELL_CHARACTERS)))
        else:
            rows += [
                (f"{name}: {part}", as_text(text.encode(), CELL_CHARACTERS))
                for part, text in texts.items()
            ]
    return pd.DataFrame(rows, columns=["header", "value"])


def row_table(rows: Sequence[Row], partitions: bool, decoder: RowDecoder) -> pd.DataFrame:
    """Builds one row per record, with a link to Compare, and its partition if there are several.
    Values are decoded if that is known."""
    columns: dict[str, list[Any]] = (
        {"partition": [row.partition for row in rows]} if partitions else {}
    )
    # A link opens a new tab, which knows no earlier choice.
    cluster = st.query_params.get("cluster")
    where = f"&cluster={quote(cluster)}" if cluster else ""
    columns |= {
        "offset": [row.offset for row in rows],
        "fate": [fate_label(row.fate) for row in rows],
        "timestamp (UTC)": [moment_of_ms(row.timestamp_ms).removesuffix(" UTC") for row in rows],
        "key": [cell_text(row, decoder, CELL_CHARACTERS, "key") for row in rows],
        "value": [cell_text(row, decoder, VALUE_CHARACTERS) for row in rows],
        "size": [data_size(row.size) for row in rows],
        "open": [
            f"./compare?topic={quote(decoder.topic)}&partition={row.partition}&offset={row.offset}{where}"
            for row in rows
        ],
        "headers": [
            ", ".join(name for name, _value in row.headers)[:CELL_CHARACTERS] for row in rows
        ],
        "producer": [row.producer_id for row in rows],
    }
    return pd.DataFrame(columns).astype({"producer": "Int64"})


def row_tints(table: pd.DataFrame, rows: Sequence[Row], chosen: Row | None) -> Styler:
    """Tints each row by its fate; the chosen one stands out."""
    styles = []
    for row in rows:
        strength = 0.45 if row is chosen else 0.0 if row.fate is Fate.COMMITTED else 0.16
        styles.append(f"background-color: rgba({TINTS[row.fate]}, {strength})" if strength else "")

    def tint(all_rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(dict.fromkeys(all_rows.columns, styles), all_rows.index)

    return table.style.apply(tint, axis=None).format({"offset": "{:,}"})


def group_table(lags: Sequence[GroupLag]) -> pd.DataFrame:
    """Shows what each group still has to read, beside the figures of other tools."""
    table = pd.DataFrame(
        {
            "group": [lag.group for lag in lags],
            "kind": [lag.kind for lag in lags],
            "state": [lag.state for lag in lags],
            "members": pd.array(
                [None if lag.members is None else len(lag.members) for lag in lags], dtype="Int64"
            ),
            "read_committed lag": [lag.visible for lag in lags],
            "read_uncommitted lag": [lag.uncommitted for lag in lags],
            "withheld": [lag.withheld for lag in lags],
            "HW − committed": [lag.subtraction for lag in lags],
            "stuck": ["stuck behind an open transaction" if lag.stuck else "" for lag in lags],
        }
    )
    return cut(table)


def all_groups_table(groups: Sequence[ClusterGroup]) -> pd.DataFrame:
    """Shows the groups of a cluster, each over all its topics; a share group has no lag."""
    counted = [bool(group.lags) for group in groups]
    table = pd.DataFrame(
        {
            "group": [group.group for group in groups],
            "state": [group.state for group in groups],
            "kind": [group.kind for group in groups],
            "topics": [first_of(list(group.lags), 2) for group in groups],
            **{
                name: pd.array(
                    [
                        getattr(group, field) if has_lag else None
                        for group, has_lag in zip(groups, counted, strict=True)
                    ],
                    dtype="Int64",
                )
                for name, field in zip(
                    LAG_COLUMNS, ("visible", "uncommitted", "withheld", "subtraction"), strict=True
                )
            },
            "stuck behind": [
                (first_of(list(group.stuck_behind), 2) or "an open transaction")
                if group.stuck
                else ""
                for group in groups
            ],
        }
    )
    return cut(table)


def group_partition_table(lags: Sequence[GroupLag]) -> pd.DataFrame:
    """Shows the same partition by partition, with a sentence each."""
    both = [(lag, p) for lag in lags for p in lag.partitions]
    table = pd.DataFrame(
        {
            "group": [lag.group for lag, _p in both],
            "partition": [p.partition for _lag, p in both],
            "owner": ["" if p.owner is None else p.owner.client for _lag, p in both],
            "committed": pd.array([p.committed for _lag, p in both], dtype="Int64"),
            "read_committed lag": [p.visible for _lag, p in both],
            "read_uncommitted lag": [p.uncommitted for _lag, p in both],
            "HW − committed": [p.subtraction for _lag, p in both],
            "why": [p.why if p.exact else f"{p.why} One batch is estimated." for _lag, p in both],
        }
    )
    return cut(table)


def share_table(groups: Sequence[ShareGroup]) -> pd.DataFrame:
    """Builds one row per share group and partition, with a sentence each."""
    both = [(group, p) for group in groups for p in group.partitions]
    counts = [(p.start_offset, p.left, p.withheld, p.reported) for _group, p in both]
    table = pd.DataFrame(
        {
            "share group": [group.group for group, _p in both],
            "state": [group.state for group, _p in both],
            "isolation": [group.isolation or "unknown" for group, _p in both],
            "partition": [p.partition for _group, p in both],
            **{
                name: pd.array([row[at] for row in counts], dtype="Int64")
                for at, name in enumerate(SHARE_COLUMNS)
            },
            "why": [p.why for _group, p in both],
        }
    )
    return cut(table)


def mirrored_table(checkpoints: Sequence[Checkpoint]) -> pd.DataFrame:
    """Builds one row per group of another cluster and partition."""
    table = pd.DataFrame(
        {
            "group": [checkpoint.group for checkpoint in checkpoints],
            "partition": [checkpoint.partition for checkpoint in checkpoints],
            MIRRORED_COLUMNS[0]: [checkpoint.source_offset for checkpoint in checkpoints],
            MIRRORED_COLUMNS[1]: [checkpoint.sink_offset for checkpoint in checkpoints],
        }
    )
    return cut(table)


def member_table(lags: Sequence[GroupLag | ShareGroup], topic: str) -> pd.DataFrame:
    """Builds one row per member of the groups, with its partitions of the topic."""
    both = [(lag.group, member) for lag in lags for member in lag.members or ()]
    table = pd.DataFrame(
        {
            "group": [group for group, _member in both],
            "client id": [member.client for _group, member in both],
            "host": [member.host for _group, member in both],
            "partitions here": [member.places(topic) or "none" for _group, member in both],
            "member id": [member.member for _group, member in both],
        }
    )
    return cut(table)


def _key(record: Record, decoder: RowDecoder) -> str | None:
    return cell_text(record, decoder, CELL_CHARACTERS, "key") if _came(record) else ""


def _value(record: Record, decoder: RowDecoder) -> str | None:
    if not _came(record):
        return "— a marker" if record.marker else "— no record"
    return cell_text(record, decoder, CELL_CHARACTERS)


def _came(record: Record) -> bool:
    return record.timestamp_ms is not None


def topic_table(
    topics: Sequence[TopicOverview], newest: Mapping[str, NewestRecords]
) -> pd.DataFrame:
    """Shows one row for each topic. `newest` has the newest records of those that were read."""
    shares: list[float | None] = []
    written: list[str | None] = []
    for overview in topics:
        latest = newest.get(overview.topic)
        records = 0 if latest is None else sum(latest.fates.values())
        shares.append(latest.fates[Fate.ABORTED] / records if latest and records else None)
        at = None if latest is None else latest.written_ms
        written.append(None if at is None else moment_of_ms(at).removesuffix(" UTC"))
    lags = [overview.behind for overview in topics]
    return pd.DataFrame(
        {
            "topic": [overview.topic for overview in topics],
            "partitions": [len(overview.bounds.partitions) for overview in topics],
            "offsets": [overview.bounds.offsets for overview in topics],
            "size, MB": [
                None if overview.size is None else overview.size / 1e6 for overview in topics
            ],
            "aborted": pd.array(shares, dtype="Float64"),
            "withheld": [overview.withheld for overview in topics],
            "open": [overview.transactions for overview in topics],
            "lag, at most": pd.array(
                [None if lag is None else lag.records for lag in lags], dtype="Int64"
            ),
            "slowest group": [_slowest_group(overview) for overview in topics],
            "newest record (UTC)": written,
        }
    )


def _slowest_group(overview: TopicOverview) -> str | None:
    """Names a group that is stuck behind an open transaction, or else the one most behind."""
    if overview.stuck:
        further = len(overview.stuck) - 1
        return f"{overview.stuck[0].group}, stuck" + (f", and {further:,} more" if further else "")
    lag = overview.behind
    return None if lag is None or not lag.records else lag.group


def holding_table(findings: Sequence[Finding], checked: Sequence[Check]) -> pd.DataFrame:
    """Shows what holds: how many were found, out of how many, by which witnesses."""
    by_kind = {check.kind: check for check in checked}
    checks = [by_kind.get(finding.kind) for finding in findings]
    return pd.DataFrame(
        {
            "": [OUTCOME_SYMBOLS[finding.outcome] for finding in findings],
            "finding": [kind_title(finding.kind) for finding in findings],
            "found": [
                f"{finding.count:,}"
                if check is None
                else f"{finding.count:,} of {check.records:,} {check.unit}"
                for finding, check in zip(findings, checks, strict=True)
            ],
            "witnesses": [
                ""
                if check is None
                else ", ".join(WITNESS_BRIEFS[witness] for witness in check.witnesses)
                for check in checks
            ],
        }
    )


def uncounted_table(report: Report) -> pd.DataFrame:
    """Shows what does not count for the verdict, what was found of it, and why it does not
    count."""
    by_kind = {finding.kind: finding for finding in report.findings}
    reasons = {skipped.kind: skipped.why for skipped in report.not_checked}
    kinds = list(dict.fromkeys([*(finding.kind for finding in report.aside), *reasons]))
    findings = [by_kind.get(kind) for kind in kinds]
    return pd.DataFrame(
        {
            "finding": [kind_title(kind) for kind in kinds],
            "result": ["not judged" if finding is None else finding.why for finding in findings],
            "why it does not count": [reasons.get(kind, "") for kind in kinds],
        }
    )
