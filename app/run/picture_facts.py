"""What the picture of a run is made of, read from Kafka: the journal, the raw log of the sink, and
the headers that name each producer's source partition."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import streamlit as st

from topicproof.app.charts.picture import RunFacts, picture
from topicproof.app.charts.picture_words import Place
from topicproof.app.session.connection import running_kafka
from topicproof.app.session.coordination import topic_coordination
from topicproof.app.session.reports import kept_report
from topicproof.app.topic.snapshot import Snapshot, fresh_snapshot
from topicproof.backend.address import Address
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.findings import PARQUET
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import require_unchanged_file
from topicproof.backend.history.run_state import Names
from topicproof.backend.history.store import Run
from topicproof.backend.kafka.browse.writers import Writer, writers_at
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import StampedEntry, TaskStarted
from topicproof.backend.sink.journal import JournalReader
from topicproof.validators.kinds import duplicate

LOG = logging.getLogger("topicproof.picture")
OFFSETS_MAX = 1_000_000
"""A sink with more offsets is not drawn: reading its log again and again takes time from the
run."""
PRODUCERS_READ_MAX = 12
"""Producers whose headers are read in one look; the next look reads further ones."""
ENTRIES_MAX = 20_000
"""Newest entries of the journal that are kept: each look goes over all of them, once a second."""
AGE_MAX_S = 0.5
REPEATED_MAX = 1_000_000
"""Repeated records that are marked."""


@dataclass
class RunFollower:
    """The journal and the producers of one run, kept from look to look."""

    reader: JournalReader
    entries: deque[StampedEntry] = field(default_factory=lambda: deque(maxlen=ENTRIES_MAX))
    writers: dict[int, Writer] = field(default_factory=dict)
    """What the records of each producer id say."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        self.reader.close()


@st.cache_resource(
    max_entries=4, ttl="10m", show_spinner=False, on_release=lambda follower: follower.close()
)
def _follower(run_id: str, bootstrap: str, journal: str, _client: Mapping[str, str]) -> RunFollower:  # noqa: ARG001 - the run is part of the key
    return RunFollower(JournalReader(Address(bootstrap, _client), journal, newest=ENTRIES_MAX))


def drawable(run: Run) -> Names | None:
    """Returns the stage of the run that is drawn, its last one; None if there is nothing to draw: a
    check, a table as sink, a run without topics yet, or a sink that is too large."""
    if run.kind != "run" or run.facts.initial_offsets is None or not run.facts.stages:
        return None
    names = run.facts.stages[-1]
    offsets = sum(p.hw - p.start for p in run.progress.sink)
    return None if names.database or offsets > OFFSETS_MAX else names


def picture_of(settings: Settings, run: Run, names: Names) -> dict[str, Any]:
    """Returns the run's picture for the browser: a current one of a live run, the kept one of a run
    that has ended. Raises ClusterError; TopicError, if its topics were deleted."""
    kafka = running_kafka(settings)
    if run.alive:
        return picture(look(settings, kafka, run, names)).as_json()
    moment = run.ended_at or run.renewed_at
    return _ended(run.id, str(run.state), moment, kafka.bootstrap, settings, kafka, run, names)


@st.cache_data(ttl="1h", max_entries=16, show_spinner="Reading the log of the run…")
def _ended(
    run_id: str,  # noqa: ARG001 - part of the key, as are the next two
    state: str,  # noqa: ARG001
    ended_at: datetime | None,  # noqa: ARG001
    bootstrap: str,  # noqa: ARG001
    _found: Settings,
    _kafka: Services,
    _run: Run,
    _names: Names,
) -> dict[str, Any]:
    return picture(look(_found, _kafka, _run, _names)).as_json()


def look(settings: Settings, kafka: Services, run: Run, names: Names) -> RunFacts:
    """Returns what is known of the run now. Raises ClusterError, TopicError."""
    address = Address(kafka.bootstrap, settings.client)
    sources = _sources(address, run, names)
    snapshot = fresh_snapshot(settings, kafka, names.sink, AGE_MAX_S)
    follower = _follower(run.id, kafka.bootstrap, names.journal, settings.client)
    plain = _plain(snapshot)
    with follower.lock:
        follower.entries.extend(follower.reader.stamped_news())
        entries = tuple(follower.entries)
        _learn(address, names.sink, snapshot, plain, follower)
        by_producer = dict(follower.writers)
    places = {
        stamped.entry.transactional_id: (stamped.entry.source_topic, stamped.entry.source_partition)
        for stamped in entries
        if isinstance(stamped.entry, TaskStarted)
    }
    writers: dict[int, Place | None] = {
        producer: writer.source or places.get(writer.transactional_id or "")
        for producer, writer in by_producer.items()
    }
    before = {int(p): end for p, end in run.facts.sink_from.get(names.sink, {}).items()}
    copies = _copies(settings, run, names.sink)
    repeated: dict[int, list[int]] = {}
    for partition, offset in sorted(copies):
        repeated.setdefault(partition, []).append(offset)
    # The coordinators' log is read once, when it no longer grows.
    reasons = {} if run.alive else topic_coordination(settings, kafka, snapshot).reasons
    return RunFacts(
        sources=sources,
        journal=entries,
        bounds=snapshot.bounds,
        transactions=snapshot.transactions,
        plain=plain,
        writers=writers,
        period=_period(run, snapshot),
        before=before,
        repeated=repeated,
        first_copies={copy: first for copy, first in copies.items() if first is not None},
        reasons=reasons,
        has_ended=not run.alive,
    )


def _copies(
    settings: Settings, run: Run, sink: str
) -> dict[tuple[int, int], tuple[int, int] | None]:
    """Returns the records that repeat an earlier one, each with its first copy (None: it is not in
    this sink), as partition and offset. They are as the verdict of a run that has ended found them;
    without its evidence there are none."""
    path = run.folder(settings) / EVIDENCE / PARQUET
    if run.alive or not path.is_file():
        return {}
    # Of several stages the last one is drawn, and the verdict end to end is on the same sink.
    report = kept_report(settings, run)
    if report is None or sink not in report.sink.topics:
        return {}
    try:
        require_unchanged_file(path.parent, PARQUET)
        table = pq.read_table(
            path,
            columns=["partition", "offset", "why"],
            filters=pc.field("kind") == duplicate.NAME,
        )
    except (EvidenceError, OSError, pa.ArrowInvalid) as error:
        # The Verdict page says what is wrong with the evidence; the picture lacks its marks.
        LOG.warning("The findings of %s cannot be read (%s).", run.id, type(error).__name__)
        return {}
    copies: dict[tuple[int, int], tuple[int, int] | None] = {}
    for row in table.slice(0, REPEATED_MAX).to_pylist():
        topic, partition = report.sink.place(row["partition"])
        if topic != sink:
            continue
        first = re.search(duplicate.FIRST_COPY, row["why"] or "")
        copies[partition, row["offset"]] = (
            None if first is None or first[1] != sink else (int(first[2]), int(first[3]))
        )
    return copies


def _sources(address: Address, run: Run, names: Names) -> dict[Place, tuple[int, int]]:
    sources = {}
    for topic, began in run.facts.of_stage(names.stage).items():
        for p in fetch_bounds(address, topic).partitions:
            first = began.get(str(p.partition), 0)
            sources[topic, p.partition] = (first, max(first, p.hw))
    return sources


def _plain(snapshot: Snapshot) -> pd.DataFrame:
    """Returns the batches outside of transactions."""
    batches = snapshot.batches
    is_plain = pc.and_(pc.invert(batches["transactional"]), pc.is_null(batches["control"]))
    rows: pd.DataFrame = batches.filter(is_plain).to_pandas()
    return rows


def _learn(
    address: Address, topic: str, snapshot: Snapshot, plain: pd.DataFrame, follower: RunFollower
) -> None:
    """Reads the headers of producers that are new."""
    transactions = snapshot.transactions[["producer_id", "partition", "first_offset"]]
    batches = plain[["producer_id", "partition", "base_offset"]].rename(
        columns={"base_offset": "first_offset"}
    )
    # One of its last records: the first ones are deleted first.
    newest = pd.concat([transactions, batches]).drop_duplicates("producer_id", keep="last")
    unknown = newest[~newest["producer_id"].isin(list(follower.writers))].tail(PRODUCERS_READ_MAX)
    if unknown.empty:
        return
    places = list(zip(unknown["partition"], unknown["first_offset"], strict=True))
    named = writers_at(address, topic, snapshot.ranges, places)
    for producer, place in zip(unknown["producer_id"], places, strict=True):
        follower.writers[int(producer)] = named[place]


def _period(run: Run, snapshot: Snapshot) -> tuple[int, int]:
    """Returns when the run began, and when it ended or the snapshot was taken."""
    end = snapshot.taken_at
    if not run.alive and run.ended_at is not None:
        end = min(end, run.ended_at.replace(tzinfo=UTC))
    return _ms(run.created_at.replace(tzinfo=UTC)), _ms(end)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
