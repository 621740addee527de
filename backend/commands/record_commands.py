"""Show records of a topic with their fates, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topicproof.backend.address import Address
from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    Brokers,
    Json,
    Target,
    kafka_settings,
)
from topicproof.backend.commands.terminal import Styled, Table, emit, out, say
from topicproof.backend.errors import NotPermitted, UsageError
from topicproof.backend.formats.formats import Formats
from topicproof.backend.kafka.browse.field_conditions import parse_conditions
from topicproof.backend.kafka.browse.record_json import decode_of, record_json
from topicproof.backend.kafka.browse.records import as_text
from topicproof.backend.kafka.browse.search import RecordQuery, Row, Search, Stop, search_all
from topicproof.backend.kafka.log.fates import DATA_FATES, fate_ranges
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.services.keeper import require_topics, services
from topicproof.backend.settings import Settings
from topicproof.backend.trust.masking import Field, masked_headers, masked_part
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.sentences import counted

if TYPE_CHECKING:
    from topicproof.backend.history.store import History

LIMIT, LIMIT_MAX = 20, 200
TEXT_CHARACTERS = 100_000
"""Of a key, a value or a header in JSON."""
CELL_CHARACTERS = 100


@dataclass(frozen=True)
class Listing:
    """The records that a search found, the newest or the oldest first."""

    topic: str
    rows: tuple[Row, ...]
    documents: tuple[dict[str, Any], ...]
    """The rows as JSON."""
    offsets: int
    """Offsets that were searched."""
    whole: bool
    """Whether every partition was searched to its end."""
    unread: int
    """Records in which a condition could not look for its field."""

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "records": list(self.documents),
            "offsets": self.offsets,
            "whole": self.whole,
            "unread": self.unread,
        }


def records(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    where: Annotated[
        str,
        typer.Option(
            help="Conditions on fields, joined by and: $.PATH of the value, key.PATH, headers.NAME;"
            " =, !=, <, <=, >, >=, contains.",
            metavar="CONDITIONS",
        ),
    ] = "",
    key: Annotated[str, typer.Option(help="A text in the key.", metavar="TEXT")] = "",
    fate: Annotated[
        list[str] | None,
        typer.Option(help="Only this fate: committed, aborted or pending.", metavar="FATE"),
    ] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition.", metavar="P")] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            help="Begin at this offset of the partition; the newest first: below it.", metavar="O"
        ),
    ] = None,
    oldest: Annotated[
        bool, typer.Option("--oldest", help="The oldest records first, in place of the newest.")
    ] = False,
    limit: Annotated[
        int, typer.Option(help="At most so many records.", min=1, max=LIMIT_MAX, metavar="N")
    ] = LIMIT,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Show records of a topic with their fates, the newest first, aborted ones included.

    Example: `topicproof records orders --where '$.customer.id = 4242' --bootstrap broker:9092`
    """
    settings = kafka_settings(target, brokers)
    query = _query(where, key, fate or ())
    if offset is not None and partition is None:
        raise UsageError("Name the partition of the offset, too: --partition P.")
    require_topics(settings)
    with services(settings, spark=False, say=say) as running:
        listing = listed(
            settings,
            running.address,
            _history(settings),
            topic,
            query,
            begin=None if partition is None else {partition: offset},
            newest=not oldest,
            limit=limit,
        )
    emit(json_, listing.to_json())
    if json_ is None:
        _print(listing)


def listed(
    settings: Settings,
    address: Address,
    history: History | None,
    topic: str,
    query: RecordQuery,
    *,
    begin: Mapping[int, int | None] | None = None,
    newest: bool = True,
    limit: int = LIMIT,
) -> Listing:
    """Search a topic, for the person who acts on the history; None without a login. `begin`: the
    partitions to search, and where; None: all of them.

    Raises NotPermitted for who may not look at payloads, and for a search by content where any of
    it is masked for them; TopicError, ClusterError.
    """
    hidden = _hidden(settings, history, topic, query)
    with connect(address) as kafka:
        bounds = kafka.bounds(topic)
        ranges = fate_ranges(kafka.scan(topic, bounds), bounds)
    with closing(Formats(settings.registry, settings.avro_files)) as formats:
        decode = decode_of(formats, topic)
        results = search_all(
            address,
            bounds,
            ranges,
            query,
            newest=newest,
            first=None if begin is None else _first(bounds, begin, newest),
            decode=decode,
        )
        rows = sorted(
            (_masked(row, hidden) for result in results.values() for row in result.rows),
            key=lambda row: row.timestamp_ms,
            reverse=newest,
        )[:limit]
        documents = tuple(record_json(topic, row, decode, TEXT_CHARACTERS) for row in rows)
    partitions = len(bounds.partitions) if begin is None else len(begin)
    return Listing(
        topic,
        tuple(rows),
        documents,
        sum(result.searched for result in results.values()),
        len(results) == partitions and all(_is_whole(result) for result in results.values()),
        sum(result.unread for result in results.values()),
    )


def _query(where: str, key: str, fates: Sequence[str]) -> RecordQuery:
    names = {fate.value.lower(): fate for fate in DATA_FATES}
    for name in fates:
        if name not in names:
            raise UsageError(f"--fate {name} is none of {', '.join(names)}.")
    try:
        conditions = parse_conditions(where)
    except ValueError as error:
        raise UsageError(f"--where: {error}.") from error
    return RecordQuery(
        key=key.encode(errors="replace"),
        fates=tuple(names[name] for name in fates),
        where=conditions,
    )


def _history(settings: Settings) -> History | None:
    """Return the history, which has the audit log; None without a login. It takes longer to load
    than Kafka takes to answer."""
    if settings.login is None:
        return None
    from topicproof.backend.history.store import History

    return History(settings)


def _hidden(
    settings: Settings, history: History | None, topic: str, query: RecordQuery
) -> tuple[Field, ...]:
    """Note that somebody looks, and return what they do not see of the topic."""
    if history is None:
        return ()
    from topicproof.backend.history.audit import allow
    from topicproof.backend.trust.identity import Action
    from topicproof.backend.trust.login import configured_login

    allow(history, Action.LOOK, f"{topic}, a search by the command line")
    login = configured_login(settings)
    hidden = () if login is None else login.hidden(history.by, topic)
    if hidden and query.is_of_content:
        # Whether a record is found would tell what is masked in it.
        raise NotPermitted(
            f"Parts of the payloads of {topic} are masked for your role. A search by content is not"
            " for you."
        )
    return hidden


def _first(bounds: Bounds, begin: Mapping[int, int | None], newest: bool) -> dict[int, int]:
    """Return where the search of each partition begins. The search itself refuses a partition that
    is missing."""
    edges = {p.partition: p.hw if newest else p.start for p in bounds.partitions}
    return {
        partition: edges.get(partition, 0) if offset is None else offset
        for partition, offset in begin.items()
    }


def _masked(row: Row, hidden: Sequence[Field]) -> Row:
    return replace(
        row,
        key=masked_part("key", row.key, hidden),
        value=masked_part("value", row.value, hidden),
        headers=masked_headers(row.headers, hidden),
    )


def _is_whole(result: Search) -> bool:
    return result.stop is Stop.END


def _print(listing: Listing) -> None:
    table = Table(("p", "offset", "fate", "timestamp", "key", "value"))
    for row, document in zip(listing.rows, listing.documents, strict=True):
        fate = document["fate"]
        table.add(
            str(row.partition),
            f"{row.offset:,}",
            Styled(fate, "red") if row.fate is Fate.ABORTED else fate,
            document["timestamp"] or "",
            as_text(row.key, CELL_CHARACTERS),
            as_text(row.value, CELL_CHARACTERS),
        )
    if table.rows:
        out.table(table)
    end = "" if listing.whole else "; not all of the topic was searched"
    out.line(f"{counted(len(listing.rows), 'record')} in {listing.offsets:,} offsets{end}.")
    if listing.unread:
        out.line(
            f"{counted(listing.unread, 'record')} may match too: a key or value in which --where"
            " looks for a field is not decoded."
        )
