"""URL state: the query parameters of the pages Compare, Transactions and Topics.

People type, share and truncate URLs. Each value is checked against the topic; an invalid value
falls back to a default, and a notice says so. Streamlit's own binding of widgets to query
parameters drops invalid values without a notice, and several of these values have no widget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd

from topicproof.app.topic.field_columns import COLUMNS_MAX, as_path
from topicproof.app.wording import TRANSACTION_WORDS, plain
from topicproof.backend.kafka.browse.field_conditions import FILTER_CHARACTERS, parse_conditions
from topicproof.backend.kafka.browse.search import RecordQuery
from topicproof.backend.kafka.log.fates import DATA_FATES
from topicproof.validators.finding import Bounds, Example, Fate, PartitionBounds
from topicproof.validators.report import LINEAGE_PARTS, Report, place_of

BOTH, COMMITTED, UNCOMMITTED = "both", "committed", "uncommitted"
LEVELS = (BOTH, UNCOMMITTED, COMMITTED)
RECORDS, TAIL, PARTITIONS, GROUPS, SETTINGS = (
    "records",
    "tail",
    "partitions",
    "groups",
    "settings",
)
VIEWS = (RECORDS, TAIL, PARTITIONS, GROUPS, SETTINGS)
"""The views of a topic on the Topics page."""
CLUSTER, ALL_GROUPS, ALL_TRANSACTIONS = "cluster", "all-groups", "all-transactions"
"""Its views of a whole cluster."""
OLDEST, NEWEST = "oldest", "newest"
"""The two directions of a search."""
VALUES_MAX = 20
"""Each value that nobody knows is a notice, and a link may hold thousands."""
NEEDLE_CHARACTERS = 200
FURTHER_MAX = 9
"""Times that a search may go on from where it stopped, in one list."""
WINDOW = 200
"""Number of offsets in the tables."""
LEAD = 5
"""Number of them before the requested offset."""


@dataclass(frozen=True)
class CompareState:
    """A place in a topic, and what is shown of it."""

    topic: str
    partition: int
    offset: int
    """The offset where the tables begin, except for a short lead."""
    record: int
    """The offset shown in detail."""
    level: str
    fates: tuple[Fate, ...]
    """The fates shown; empty: all."""
    run: str = ""
    """The run or check whose verdict is marked; empty: the newest one on the topic."""
    stage: str = ""
    """The stage of the run whose verdict is meant; empty: end to end."""

    @property
    def first(self) -> int:
        return max(0, self.offset - LEAD)


def read_compare(
    params: Mapping[str, str], bounds: Bounds, worth: tuple[int, int] | None
) -> tuple[CompareState, list[str]]:
    """Reads the place in the URL within these bounds; also returns a notice for every invalid
    value.

    `worth` is a partition and offset worth showing, for a URL that names none.
    """
    notices: list[str] = []
    fallback = worth[0] if worth is not None else bounds.partitions[0].partition
    p = _partition(params, bounds, fallback, notices)
    default = (
        worth[1]
        if worth is not None and worth[0] == p.partition and "offset" not in params
        else p.start
    )
    offset = _within(_number(params, "offset", default, notices), p, "Offset", notices)
    record = _within(_number(params, "record", offset, notices), p, "Record", notices)
    level = params.get("level", BOTH)
    if level not in LEVELS:
        notices.append(f"There is no level {plain(level)}. Showing both.")
        level = BOTH
    return CompareState(
        bounds.topic,
        p.partition,
        offset,
        record,
        level,
        _fates(params, notices),
        run=params.get("run", "")[:NEEDLE_CHARACTERS],
        stage=params.get("stage", "")[:NEEDLE_CHARACTERS] if params.get("run") else "",
    ), notices


def write_compare(selection: CompareState) -> dict[str, str]:
    """Writes the URL parameters that read back as this selection."""
    params = {
        "topic": selection.topic,
        "partition": str(selection.partition),
        "offset": str(selection.offset),
    }
    if selection.record != selection.offset:
        params["record"] = str(selection.record)
    if selection.level != BOTH:
        params["level"] = selection.level
    if selection.fates:
        params["fate"] = ",".join(fate.lower() for fate in selection.fates)
    return params | verdict_params(selection.run, selection.stage)


def verdict_params(run: str, stage: str | None = None) -> dict[str, str]:
    """Writes the URL parameters that name a verdict, on Verdict and on Compare alike."""
    return ({"run": run} if run else {}) | ({"stage": stage} if run and stage else {})


@dataclass(frozen=True)
class TransactionsState:
    """The transactions of one topic that are shown, and the one shown in detail."""

    topic: str
    partition: int | None = None
    """None: every partition."""
    producer: int | None = None
    """None: every producer id."""
    outcomes: tuple[str, ...] = ()
    """The outcomes shown; empty: all."""
    skip: int = 0
    """Number of newest transactions to skip."""
    chosen: tuple[int, int] | None = None
    """Partition and first offset of the transaction shown in detail."""


def read_transactions(
    params: Mapping[str, str], bounds: Bounds, transactions: pd.DataFrame
) -> tuple[TransactionsState, list[str]]:
    """Reads the URL's selection among the transactions (`fates.transactions`); also returns a
    notice for every invalid value."""
    notices: list[str] = []
    partition = _number_or_none(params, "partition", notices)
    if partition is not None and partition not in {p.partition for p in bounds.partitions}:
        notices.append(
            f"Topic {plain(bounds.topic)} has no partition {partition:,}. Showing every partition."
        )
        partition = None
    producer = _number_or_none(params, "producer", notices)
    if producer is not None and not (transactions["producer_id"] == producer).any():
        notices.append(f"Producer {producer} has no transaction here. Showing every producer.")
        producer = None
    outcomes = []
    for text in _values(params, "outcome", notices):
        if text.upper() in TRANSACTION_WORDS:
            outcomes.append(text.upper())
        else:
            notices.append(f"There is no outcome {plain(text)}; it is ignored.")
    skip = _number(params, "skip", 0, notices)
    if skip and skip >= len(transactions):
        notices.append(
            f"There are only {len(transactions):,} transactions, so {skip:,} cannot be skipped."
        )
        skip = 0
    chosen = _chosen(params, transactions, notices)
    return (
        TransactionsState(
            bounds.topic, partition, producer, tuple(dict.fromkeys(outcomes)), skip, chosen
        ),
        notices,
    )


def write_transactions(selection: TransactionsState) -> dict[str, str]:
    """Writes the URL parameters that read back as this selection."""
    params = {"topic": selection.topic}
    if selection.partition is not None:
        params["partition"] = str(selection.partition)
    if selection.producer is not None:
        params["producer"] = str(selection.producer)
    if selection.outcomes:
        params["outcome"] = ",".join(outcome.lower() for outcome in selection.outcomes)
    if selection.skip:
        params["skip"] = str(selection.skip)
    if selection.chosen is not None:
        params["transaction"] = f"{selection.chosen[0]}/{selection.chosen[1]}"
    return params


@dataclass(frozen=True)
class TopicsState:
    """The view of a topic on the Topics page, and the search of its record browser."""

    topic: str
    view: str = RECORDS
    partition: int | None = None
    """None: every partition."""
    offset: int | None = None
    """The offset where a search of one partition begins; None: at `time`, or at the log start."""
    time: str | None = None
    """Where the search of every partition begins. ISO 8601; UTC unless it has a zone."""
    key: str = ""
    value: str = ""
    header: str = ""
    """Required text, or hexadecimal after `0x`."""
    fates: tuple[Fate, ...] = ()
    newest: bool = True
    """Whether a search goes from the newest records to the oldest."""
    record: tuple[int, int] | None = None
    """Partition and offset of the record shown in detail."""
    level: str = COMMITTED
    """Isolation level of the live tail."""
    fields: tuple[str, ...] = ()
    """Paths of the value's fields that are columns."""
    until: str | None = None
    """The time where the search of every partition ends, like `time`; None: the end of the log."""
    where: str = ""
    """Conditions on fields (`field_conditions.parse_conditions`), which can be parsed."""
    further: int = 0
    """How many times the search goes on from where it stopped."""

    @property
    def wanted(self) -> RecordQuery:
        return RecordQuery(
            needle_bytes(self.key),
            needle_bytes(self.value),
            needle_bytes(self.header),
            self.fates,
            parse_conditions(self.where),
        )

    @property
    def time_ms(self) -> int | None:
        return None if self.time is None else _time_ms(self.time)

    @property
    def until_ms(self) -> int | None:
        return None if self.until is None else _time_ms(self.until)


def read_topics(params: Mapping[str, str], bounds: Bounds) -> tuple[TopicsState, list[str]]:
    """Reads the URL's search within these bounds; also returns a notice for every invalid value."""
    notices: list[str] = []
    offset = _number_or_none(params, "offset", notices)
    every = "partition" not in params and offset is None
    partition = None
    if not every or len(bounds.partitions) == 1:
        p = _partition(params, bounds, bounds.partitions[0].partition, notices)
        partition = p.partition
        if offset is not None and not p.start <= offset <= p.hw:
            offset = _within(offset, p, "Offset", notices)
    time, until = _time(params, "time", notices), _time(params, "until", notices)
    fates = _fates(params, notices)
    for fate in set(fates) - set(DATA_FATES):
        notices.append(
            f"No record is {plain(str(fate).lower())}; Compare shows such offsets. The filter is"
            " ignored."
        )
    # An address that names where to begin, and no order, means from there on.
    order = OLDEST if offset is not None or time is not None else NEWEST
    state = TopicsState(
        bounds.topic,
        _one_of(params, "view", VIEWS, RECORDS, notices),
        partition,
        offset,
        time if offset is None else None,
        key=params.get("key", "")[:NEEDLE_CHARACTERS],
        value=params.get("value", "")[:NEEDLE_CHARACTERS],
        header=params.get("header", "")[:NEEDLE_CHARACTERS],
        fates=tuple(fate for fate in fates if fate in DATA_FATES),
        newest=_one_of(params, "order", (OLDEST, NEWEST), order, notices) == NEWEST,
        record=_record(params, partition, notices),
        level=_one_of(params, "level", (COMMITTED, UNCOMMITTED), COMMITTED, notices),
        fields=_paths(params, notices),
        until=until,
        where=_where(params, notices),
        further=min(FURTHER_MAX, _number(params, "further", 0, notices)),
    )
    return state, notices


def write_topics(selection: TopicsState) -> dict[str, str]:
    """Writes the URL parameters that read back as this view."""
    params = {"topic": selection.topic, "view": selection.view}
    if selection.partition is not None:
        params["partition"] = str(selection.partition)
    if selection.offset is not None:
        params["offset"] = str(selection.offset)
    elif selection.time is not None:
        params["time"] = selection.time
    if selection.until is not None:
        params["until"] = selection.until
    params |= {
        name: getattr(selection, name)
        for name in ("key", "value", "header", "where")
        if getattr(selection, name)
    }
    if selection.fates:
        params["fate"] = ",".join(fate.lower() for fate in selection.fates)
    if selection.newest != (selection.offset is None and selection.time is None):
        params["order"] = NEWEST if selection.newest else OLDEST
    if selection.further:
        params["further"] = str(selection.further)
    if selection.record is not None:
        params["record"] = f"{selection.record[0]}/{selection.record[1]}"
    if selection.level != COMMITTED:
        params["level"] = selection.level
    if selection.fields:
        params["fields"] = ",".join(selection.fields)
    return params


def example_position(report: Report, example: Example) -> tuple[str, int, int, str] | None:
    """Locates an example: in the sink or, for what the sink lacks, in the source. Returns topic,
    partition, offset and their label. None for a row of a table: Kafka does not have it."""
    if example.offset is not None and not report.of_topic:
        return None
    label = place_of(report, example)
    if example.partition is not None and example.offset is not None:
        return *report.sink.place(example.partition), example.offset, label
    parts = (example.lineage or "").split("/")
    if len(parts) >= LINEAGE_PARTS and parts[1].isdecimal() and parts[2].isdecimal():
        return parts[0], int(parts[1]), int(parts[2]), label
    return None


def needle_bytes(text: str) -> bytes:
    """Returns the bytes that a person means: hexadecimal after `0x`, otherwise the text itself."""
    if text[:2].lower() == "0x":
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            pass  # A record may hold such a text.
    return text.encode(errors="replace")


def _partition(
    params: Mapping[str, str], bounds: Bounds, fallback: int, notices: list[str]
) -> PartitionBounds:
    by_number = {p.partition: p for p in bounds.partitions}
    number = _number(params, "partition", fallback, notices)
    if number not in by_number:
        notices.append(
            f"Topic {plain(bounds.topic)} has no partition {number:,}. Showing partition"
            f" {fallback}."
        )
    return by_number.get(number, by_number[fallback])


def _time(params: Mapping[str, str], name: str, notices: list[str]) -> str | None:
    text = params.get(name)
    if text is not None and _time_ms(text) is None:
        notices.append(f"{plain(text)} is not a time such as 2026-01-31 12:00:00. It is ignored.")
        return None
    return text


def _time_ms(text: str) -> int | None:
    """Parses a time into milliseconds since 1970; None if it is not a time."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return int(
            (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000
        )
    except (ValueError, OverflowError):
        return None


def _one_of(
    params: Mapping[str, str], name: str, options: Sequence[str], default: str, notices: list[str]
) -> str:
    value = params.get(name, default)
    if value in options:
        return value
    notices.append(f"There is no {name} {plain(value)}. Showing {default}.")
    return default


def _chosen(
    params: Mapping[str, str], transactions: pd.DataFrame, notices: list[str]
) -> tuple[int, int] | None:
    """Finds the transaction that holds the offset in the URL, given as `partition/offset`."""
    text = params.get("transaction")
    if text is None:
        return None
    place = _place(text)
    if place is not None:
        partition, offset = place
        matches = transactions[
            (transactions["partition"] == partition) & (transactions["first_offset"] == offset)
        ]
        if not matches.empty:
            return partition, offset
    notices.append(
        f"No transaction begins at {plain(text)} (partition/offset). None is shown in detail."
    )
    return None


def _record(
    params: Mapping[str, str], partition: int | None, notices: list[str]
) -> tuple[int, int] | None:
    """Finds the record in the URL, given as `partition/offset`, or as an offset of the URL's
    partition."""
    text = params.get("record")
    if text is None:
        return None
    place = _place(f"{partition}/{text}" if partition is not None and "/" not in text else text)
    if place is None:
        notices.append(f"{plain(text)} is not a record (partition/offset). It is ignored.")
    return place


def _place(text: str) -> tuple[int, int] | None:
    """Parses `partition/offset`."""
    parts = text.split("/")
    if len(parts) != 2 or not all(_is_number(part) for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def _number_or_none(params: Mapping[str, str], name: str, notices: list[str]) -> int | None:
    text = params.get(name)
    if text is None or _is_number(text):
        return None if text is None else int(text)
    notices.append(f"{name} {plain(text)} is not a number from 0 up. It is ignored.")
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _number(params: Mapping[str, str], name: str, default: int, notices: list[str]) -> int:
    text = params.get(name)
    if text is None:
        return default
    if not _is_number(text):
        notices.append(
            f"{name} {plain(text)} is not a number from 0 up. {default:,} is used instead."
        )
        return default
    return int(text)


def _within(offset: int, p: PartitionBounds, what: str, notices: list[str]) -> int:
    if p.start <= offset < max(p.hw, p.start + 1):
        return offset
    nearest = p.start if offset < p.start else max(p.start, p.hw - 1)
    if p.hw > p.start:
        notices.append(
            f"{what} {offset:,} is not in partition {p.partition}, which holds {p.start:,} to"
            f" {p.hw - 1:,}. {nearest:,} is the nearest."
        )
    return nearest


def _values(
    params: Mapping[str, str], name: str, notices: list[str], separator: str = ","
) -> list[str]:
    """Reads the different values of a parameter that has several. `separator`: a pattern."""
    values = list(dict.fromkeys(filter(None, re.split(separator, params.get(name, "")))))
    if len(values) > VALUES_MAX:
        notices.append(f"Of {name}, only the first {VALUES_MAX} values are looked at.")
    return values[:VALUES_MAX]


def _paths(params: Mapping[str, str], notices: list[str]) -> tuple[str, ...]:
    """Reads the paths of columns. A comma inside of a quoted name separates nothing."""
    paths = []
    for text in _values(params, "fields", notices, r",(?=\s*\$)"):
        try:
            paths.append(as_path(text))
        except ValueError as error:
            notices.append(f"A column is left out: {plain(str(error))}.")
    distinct = list(dict.fromkeys(paths))
    if len(distinct) > COLUMNS_MAX:
        notices.append(f"At most {COLUMNS_MAX} fields are columns. The first ones are shown.")
    return tuple(distinct[:COLUMNS_MAX])


def _where(params: Mapping[str, str], notices: list[str]) -> str:
    """Reads the conditions on fields, if they can be parsed."""
    text = params.get("where", "")[: FILTER_CHARACTERS + 1].strip()
    try:
        parse_conditions(text)
    except ValueError as error:
        notices.append(f"The filter is left out: {plain(str(error))}.")
        return ""
    return text


def _fates(params: Mapping[str, str], notices: list[str]) -> tuple[Fate, ...]:
    fates = []
    for text in _values(params, "fate", notices):
        try:
            fates.append(Fate(text.upper()))
        except ValueError:
            notices.append(f"There is no fate {plain(text)}; it is ignored.")
    return tuple(dict.fromkeys(fates))
